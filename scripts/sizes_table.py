"""Write docs/sizes.csv, the table of docs/device.md: memory and time of large calls on tiny compared with torch CPU.

    conformance sizes --target tiny
    python -m scripts.sizes_table reports/sizes.json [MORE/sizes.json ...]

Each case runs in a separate process, so several runs of some rows make the same table as one run of all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from conformance.record import result as model
from conformance.record.footprint import mebibytes
from conformance.record.merge import merge
from conformance.record.result import Result, Run
from scripts.pages import ROOT, csv_text, write

TABLE = ROOT / "docs" / "sizes.csv"
HEAD = (
    "call", "class", "direction", "held", "tiny, peak", "torch CPU, peak", "tiny, s", "torch CPU, s", "times", "outcome"
)  # fmt: skip


def rows(run: Run) -> list[list[str]]:
    """The table of a run: each case, those with the largest share of their memory limit first, then unmeasured
    cases.
    """
    table = [list(HEAD)]
    for result in run.footprints:
        of = result.footprint
        assert of is not None
        peaks = map(mebibytes, (of.held, of.target, of.cpu))
        seconds = of.target_seconds, of.cpu_seconds, of.target_seconds / max(of.cpu_seconds, 0.001)
        table.append([*_case(result), *peaks, *(f"{number:.1f}" for number in seconds), str(result.outcome)])
    for result in run.results:
        if result.footprint is None:
            said = " ".join((result.reason or f"{result.failures[0]}").split())[:150]
            table.append([*_case(result), *[""] * 6, f"{result.outcome}: {said}"])
    return table


def _case(result: Result) -> tuple[str, str, str]:
    return f"{result.name}, {result.dtype}", result.family, result.variant


def main(arguments: Sequence[str]) -> int:
    """Write the table of the given run files. Returns the exit code."""
    if not arguments:
        print("usage: sizes_table.py RUN/sizes.json [...]", file=sys.stderr)
        return 2
    write(TABLE, csv_text(rows(merge(map(model.load, arguments)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
