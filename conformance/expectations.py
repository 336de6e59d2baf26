"""The command `python -m conformance.expectations update|check|explain`: what is known to fail on a target."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.core import names as known_names
from conformance.core import result as model
from conformance.core.errors import ReportError, UserError
from conformance.core.expectations import OP_DB, _within, check, dumps, expected, load, path_for, update, without_cases


def main(arguments: Sequence[str] | None = None) -> int:
    """`update` from a run, `check` the names, `explain` one case. Exit code 1 when `check` finds something, 2 on bad
    usage."""
    parser = argparse.ArgumentParser(prog="python -m conformance.expectations", description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", default="tiny", help="whose expectations (default: tiny)")
    parser.add_argument("--file", type=Path, help="the file (default: reports/expectations/<target>.toml)")
    commands = parser.add_subparsers(dest="command", required=True)
    adder = commands.add_parser("update", help="add what fails in a run, remove what passes")
    adder.add_argument("results", nargs="?", type=Path, default=Path("reports/opinfo.json"), help="a run's JSON")
    adder.add_argument("--reason", default="", help="the reason of what is added")
    commands.add_parser("check", help="see whether every name in the file exists")
    explainer = commands.add_parser("explain", help="say what is declared for an op or a case id")
    explainer.add_argument("case", help="an op's full name, or an id such as add::float32::forward::as_sampled")
    options = parser.parse_args(arguments)
    path = options.file or path_for(options.target)
    try:
        return _COMMANDS[options.command](options, path)
    except UserError as error:
        print(f"expectations: {error}", file=sys.stderr)
        return 2


def _update(options: argparse.Namespace, path: Path) -> int:
    run = model.load(options.results)
    if run.target != options.target:
        raise ReportError(f"{options.results} is a run of target {run.target!r}; add --target {run.target}.")
    entries, done = update(load(path), run, options.reason)
    model.write_atomic(path, dumps(entries, options.target))
    print("\n".join([*done, f"{path}: {len(entries)} entries"]))
    return 0


def _catalog() -> Sequence[Any]:
    """op_db's entries, from a process that imports torch. Raises TargetError."""
    from conformance.opinfo.isolation import Cases
    from conformance.run.messages import Limits

    with Cases("cpu", Limits()) as cases:
        return cases.catalog()[0]


def _check(options: argparse.Namespace, path: Path) -> int:

    catalog = _catalog()
    known: dict[str, Sequence[str]] = {
        "variant": tuple(known_names.VARIANTS),
        "layout": tuple(known_names.LAYOUTS),
        "dtype": known_names.DTYPES,
        "oracle": (*known_names.ORACLES, *known_names.RUN_ORACLES),
    }
    names = [entry.name for entry in catalog]
    problems = []
    for file in (path, OP_DB):
        problems += check(load(file), names, known, file) + without_cases(load(file), catalog, file)
    print("\n".join(problems) or f"{path}: {len(load(path))} entries, every name exists")
    return int(bool(problems))


def _explain(options: argparse.Namespace, path: Path) -> int:
    name, *rest = options.case.split("::")
    found = 0
    for entry in expected(path):
        given = dict(zip(("dtype", "variant", "layout"), rest, strict=False))
        if fnmatch.fnmatchcase(name, entry.op) and all(_within(v, getattr(entry, k)) for k, v in given.items()):
            found += 1
            lists = (f"{k} {', '.join(getattr(entry, k))}" for k in ("variant", "dtype", "layout", "oracle"))
            print(f"{entry.op}: {'; '.join(lists)}\n  {entry.reason} {entry.issue}".rstrip())
    print(f"{found} {'entry' if found == 1 else 'entries'} in {path} for {options.case}")
    names = [] if found else [entry.name for entry in _catalog()]
    if names and name not in names:
        from conformance.core.names import nearest

        raise ReportError(f"no op in PyTorch's op_db is named {name!r}{nearest(name, names)}.")
    return 0


_COMMANDS = {"update": _update, "check": _check, "explain": _explain}
if __name__ == "__main__":
    sys.exit(main())


if __name__ == "__main__":
    sys.exit(main())
