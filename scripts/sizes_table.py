"""Generate the table of docs/sizes.md: memory and time of large calls on the tiny device compared with torch CPU.

    conformance sizes --target tiny
    python scripts/sizes_table.py reports/sizes.json [MORE/sizes.json ...]

Each case runs in a separate process, so several runs of some rows make the same table as one run of all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.record import result as model
from conformance.record.footprint import mebibytes
from conformance.record.merge import merge
from conformance.record.result import Run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "sizes.md"
BEGIN, END = "<!-- table: python scripts/sizes_table.py -->", "<!-- end of table -->"


def lines(run: Run) -> list[str]:
    """Markdown of a run: each case, those with the largest share of their memory limit first, then unmeasured cases."""
    rows = [
        f"torch {run.environment['torch']}, {len(run.footprints)} cases measured, {len(run.unexpected)} findings.",
        "",
        "| call | class | direction | held | tiny, peak | torch CPU, peak | tiny, s | torch CPU, s | times | outcome |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in run.footprints:
        of = result.footprint
        assert of is not None
        peaks = " | ".join(map(mebibytes, (of.held, of.target, of.cpu)))
        times = of.target_seconds / max(of.cpu_seconds, 0.001)
        rows.append(
            f"| {result.name}, {result.dtype} | {result.family} | {result.variant} | {peaks} | "
            f"{of.target_seconds:.1f} | {of.cpu_seconds:.1f} | {times:.1f} | {result.outcome} |"
        )
    for result in run.results:
        if result.footprint is None:
            said = " ".join((result.reason or f"{result.failures[0]}").split())[:150]
            case = f"| {result.name}, {result.dtype} | {result.family} | {result.variant} |"
            rows.append(f"{case} | | | | | | {result.outcome}: {said} |")
    return rows


def written(page: str, run: Run) -> str:
    """Replace the table of the page by that of this run. Raises ValueError if the page has no markers for it."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no lines {BEGIN} and {END}")
    return "\n".join([head + begin, "", *lines(run), "", end + tail])


def main(arguments: Sequence[str]) -> int:
    """Write the table of the given run files to the page. Returns the exit code."""
    if not arguments:
        print("usage: sizes_table.py RUN/sizes.json [...]", file=sys.stderr)
        return 2
    run = merge(map(model.load, arguments))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), run), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
