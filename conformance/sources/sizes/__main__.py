"""The command `conformance sizes`: values and memory of calls of large sizes, compared with torch CPU.

Defines `SizesCases`, the source of its cases. Each case gets a new worker, since memory left by an earlier case would
hide the allocations of the next one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from conformance.record.errors import UsageError
from conformance.record.footprint import SIZES, mebibytes
from conformance.record.result import Result, Run
from conformance.run import options
from conformance.run.case_source import FLAGS, Job, JobSource
from conformance.run.messages import Limits
from conformance.run.session import main as run_command
from conformance.run.session import usual
from conformance.sources.accuracy.table import DIRECTIONS
from conformance.sources.sizes import table, tasks
from conformance.sources.sizes.table import SCALES, SizesCase


class SizesCases(JobSource):
    """The source of the table's rows, at one scale."""

    title = "sizes"
    stem, usual, variants = SIZES, Limits(unit=300.0, memory=10.0, recycle=1), DIRECTIONS
    job = Job(tasks.describe_environment, tasks.run, tasks.MODULES)

    def cases(self, args: argparse.Namespace) -> tuple[list[SizesCase], list[str]]:
        """See `JobSource.cases`."""
        if args.scale not in SCALES:
            raise UsageError(f"unknown scale {args.scale!r}: choose one of {', '.join(SCALES)}")
        classes, dtypes = args.classes or [], args.dtype or []
        variants = options.chosen(args.variant or ["all"], DIRECTIONS, "variant")
        cases = table.select(args.op, classes, dtypes, variants, args.scale)
        return cases, [",".join(args.op or ["all rows"]), *classes, *dtypes, *variants, args.scale]

    def rows(self) -> Iterable[str]:
        """See `JobSource.rows`."""
        return [row.name for row in table.load()]

    def worst(self, run: Run) -> Sequence[Result]:
        """See `JobSource.worst`: those that use the largest part of the allowed memory."""
        return run.footprints

    def line(self, result: Result) -> str:
        """See `JobSource.line`."""
        of = result.footprint
        assert of is not None
        return (
            f"{of.excess:>5.0%} of what is allowed: {result.name} {result.dtype} {result.variant}: peak "
            f"{mebibytes(of.target)}, torch CPU {mebibytes(of.cpu)}, held {mebibytes(of.held)}; "
            f"{of.target_seconds:.1f} s, torch CPU {of.cpu_seconds:.1f} s"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = (
        "Run calls at the sizes of real work on a target and on torch CPU, and compare values and memory. A peak of "
        "more than 3 times the bytes that are held, and more than torch CPU's, is a finding."
    )
    values = {"variant": ", ".join(DIRECTIONS), "class": ", ".join(table.families()), "scale": ", ".join(SCALES)}
    defaults = usual(SizesCases.usual, SIZES, variant="all", dtype="the rows' own")
    parser = options.parser(f"conformance {SIZES}", about, (*FLAGS, "class", "scale"), defaults, values)
    return run_command(parser, arguments, lambda args: [SizesCases()])


if __name__ == "__main__":
    sys.exit(main())
