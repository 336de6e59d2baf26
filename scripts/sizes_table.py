"""Generate the table of docs/device.md: memory and time of large calls on the tiny device compared with torch CPU.

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
from conformance.record.result import Run
from scripts.pages import Part

PART = Part("docs/device.md", "sizes_table")


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


def main(arguments: Sequence[str]) -> int:
    """Write the table of the given run files to the page. Returns the exit code."""
    if not arguments:
        print("usage: sizes_table.py RUN/sizes.json [...]", file=sys.stderr)
        return 2
    return PART.renew("\n".join(lines(merge(map(model.load, arguments)))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
