"""Planted cheats and wrong operators that `conformance.check` accepts, and right ones that it calls wrong.

The operators are those of tests/planted: `cheats`, `wrong` with the lies of `kernels`, and `honest` with the right ones
of `kernels`. Each wrong one is judged by the check that must find it, and each right one by all usual checks.

Usage: ``python benchmarks/operator_power.py [SET ...]``; see --help
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # for use as a script
from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from tests.planted import cheats, honest, kernels, wrong


class Row(NamedTuple):
    """A set of operators: what a verdict against the expectation is called, and the requests by name, each with the
    check that must find a difference, "" for all usual ones, and None where none may find one."""

    failure: str
    requests: Mapping[str, tuple[dict[str, Any], str | None]]


SETS: Mapping[str, Row] = {
    "cheats": Row("accepted", cheats.CHEATS),
    "cheats that ask only whether they are watched": Row(
        "accepted", {name: (described, "") for name, described in cheats.WATCHED.items()}
    ),
    "wrong operators": Row(
        "missed", {**wrong.WRONG, **{f"lie: {name}": (lie, name) for name, lie in kernels.LIES.items()}}
    ),
    "right operators": Row(
        "false alarms", {name: (described, None) for name, described in {**honest.HONEST, **kernels.CORRECT}.items()}
    ),
}


def judge(described: dict[str, Any], check: str | None) -> set[str]:
    """Return the checks that find a difference."""
    chosen = {"checks": [check]} if check else {}
    request = CheckRequest(**{**described, **chosen}, near=described["operator"].__module__)
    return {verdict.check for verdict in verdicts(examination(request), request) if verdict.finding}


def failures(row: Row) -> Iterator[tuple[str, set[str]]]:
    """Yield the operators with another verdict than the right one, and the checks that found a difference."""
    for name, (described, check) in row.requests.items():
        found = judge(described, check)
        if bool(found) if check is None else not found or (check and check not in found):
            yield name, found


def main() -> None:
    """Print a line for each set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", nargs="*", default=[*SETS], help=", ".join(SETS))
    warnings.simplefilter("ignore")
    print("| operators | number | accepted, missed or called wrong | which |\n|---|---|---|---|")
    for name in parser.parse_args().set:
        row = SETS[name]
        bad = dict(failures(row))
        shown = ", ".join(f"`{each}`" + f" ({', '.join(sorted(found))})" * bool(found) for each, found in bad.items())
        print(f"| {name} | {len(row.requests)} | {len(bad)} {row.failure} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
