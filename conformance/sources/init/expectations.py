"""The command `conformance expectations update|check|explain`: the declared failures of a target.

Op cases and findings of programs share one file, so a command that writes one kind must preserve the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.declare import expectations, profile
from conformance.declare.declaration import CASES, FINDINGS, Declaration, check, read
from conformance.declare.expectations import OP_DB, WORDS
from conformance.record import result as model
from conformance.record.command_line import Parser
from conformance.record.errors import ReportError
from conformance.record.finding import from_title
from conformance.record.names import nearest
from conformance.report.escape import exit_code_of


def main(arguments: Sequence[str] | None = None) -> int:
    """`update` from a run, `check` the names, or `explain` one case. Returns 1 if `check` finds a problem, 2 on bad
    usage.
    """
    parser = Parser("conformance expectations", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--target", help=f"whose expectations (default: {profile.NAME} in the current folder, else "
                        f"{profile.TINY})")  # fmt: skip
    parser.add_argument("--file", type=Path, help="the file (default: reports/expectations/<target>.toml)")
    behind = Parser(add_help=False)  # the same flags, behind the subcommand
    for flag, kind in (("--target", str), ("--file", Path)):
        behind.add_argument(flag, type=kind, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    adder = commands.add_parser("update", parents=[behind], help="add what fails in a run, remove what passes")
    adder.add_argument(
        "results", nargs="?", type=Path, default=Path("reports/opinfo.json"), help="an opinfo.json or fuzz.json"
    )
    adder.add_argument("--reason", default="", help="the reason of what is added")
    commands.add_parser("check", parents=[behind], help="see whether every name in the file exists")
    explainer = commands.add_parser("explain", parents=[behind], help="say what is declared for an op or a case id")
    explainer.add_argument("case", help="an op's full name, an id such as add::float32::forward::as_sampled, "
                           "a cause such as 'value / copy_', or a signature, 'value / copy_ / gaps'")  # fmt: skip
    options = parser.parse_args(arguments)
    return exit_code_of(parser.prog, lambda: _answered(options))


def _answered(options: argparse.Namespace) -> int:
    if options.file and not options.file.exists() and options.command != "update":
        raise ReportError(f"{options.file} does not exist; give the path of a file of declarations.")
    if options.file is None or options.command == "update":
        options.target = profile.identity(profile.usual(options.target))
    return _COMMANDS[options.command](options, options.file or expectations.path_for(options.target))


def _update(options: argparse.Namespace, path: Path) -> int:
    run = model.load(options.results)
    if run.target != options.target:
        raise ReportError(f"{options.results} is a run of target {run.target!r}; add --target {run.target}.")
    print("\n".join(expectations.declare(run, path, options.reason)))
    return 0


def _catalog() -> Sequence[Any]:
    """Return op_db's entries, from a worker process that imports torch. Raises TargetError."""
    from conformance.run.messages import Limits
    from conformance.sources.opinfo.pool import Cases

    with Cases("cpu", Limits()) as cases:
        return cases.catalog()[0]


def _check(options: argparse.Namespace, path: Path) -> int:
    catalog = _catalog()
    names = [entry.name for entry in catalog]
    problems, skipped = [], []
    for declarations in (read(path), read(OP_DB)):
        problems += check(declarations, CASES, WORDS | {"op": expectations.known_ops(names)})
        skipped += expectations.absent(declarations, names)
        problems += expectations.without_cases(declarations, catalog)
    if any(declaration.subject is FINDINGS for declaration in read(path)):
        from conformance.run.campaign.results import parts

        problems += check(read(path), FINDINGS, parts())
    entries = f"{model.counted(len(read(path)), 'entry')}, every name exists"
    entries = entries if path.exists() else "no such file, so no entries"
    print("\n".join(problems) or "\n".join([f"{path}: {entries}", *skipped]))
    return model.exit_code(len(problems), compared=1)


def _explain(options: argparse.Namespace, path: Path) -> int:
    name, *rest = options.case.split("::")
    if " / " in name or name == "program":
        return _explain_finding(name if " / " in name else "::".join(rest), path)
    wanted = dict(zip(("dtype", "variant", "layout"), rest, strict=False))
    cases = [expectation for expectation in expectations.expected(path) if expectation.subject is CASES]
    matching = [case for case in cases if case.scope.selects({"op": name, **wanted})]
    _print(matching, options.case)
    names = [] if matching else [entry.name for entry in _catalog()]
    if names and name not in names:
        raise ReportError(f"no op in PyTorch's op_db is named {name!r}{nearest(name, names) or '.'}")
    return 0


def _explain_finding(signature: str, path: Path) -> int:
    programs = [declaration for declaration in read(path) if declaration.subject is FINDINGS]
    _print([program for program in programs if program.describes(from_title(signature))], signature)
    return 0


def _print(declarations: Sequence[Declaration], subject: str) -> None:
    """Print declarations as they are in their files, with their places, and their number."""
    for declaration in declarations:
        print(f"# {declaration.where}\n{declaration.toml()}")
    print(f"{model.counted(len(declarations), 'entry')} for {subject}")


_COMMANDS = {"update": _update, "check": _check, "explain": _explain}

if __name__ == "__main__":
    sys.exit(main())
