"""The command `conformance accuracy`: the errors of a target and of torch CPU, side by side.

Defines `AccuracyCases`, the source of its cases. A worker with limits measures each case, so a crash of the device is
one finding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from conformance.declare.tolerances import DeclaredTolerance, proposed
from conformance.record.accuracy import ACCURACY, shown
from conformance.record.result import UNEXPLAINED, Result, Run, counted, write_atomic
from conformance.run import options
from conformance.run.case_source import FLAGS, Job, JobSource
from conformance.run.messages import Limits
from conformance.run.session import Session, usual
from conformance.run.session import main as run_command
from conformance.sources.accuracy import table, tasks
from conformance.sources.accuracy.table import DIRECTIONS, DTYPES, AccuracyCase

TOLERANCES = "accuracy-tolerances.toml"
"""The file of proposed tolerances, below --reports."""


class AccuracyCases(JobSource):
    """The source of the table's operators, in dtypes and directions."""

    title = "accuracy"
    stem, usual, variants = ACCURACY, Limits(unit=120.0, memory=8.0), DIRECTIONS
    proposed: Sequence[DeclaredTolerance] = ()
    job = Job(tasks.describe_environment, tasks.run, tasks.MODULES)

    def cases(self, args: argparse.Namespace) -> tuple[list[AccuracyCase], list[str]]:
        """See `JobSource.cases`."""
        dtypes = options.chosen(args.dtype or ["float32"], DTYPES, "dtype")
        variants = options.chosen(args.variant or ["all"], DIRECTIONS, "variant")
        return table.select(args.op, dtypes, variants), [",".join(args.op or ["all ops"]), *dtypes, *variants]

    def rows(self) -> Iterable[str]:
        """See `JobSource.rows`."""
        return [row.name for row in table.load()[0]]

    def worst(self, run: Run) -> Sequence[Result]:
        """See `JobSource.worst`."""
        return run.errors

    def keep(self, session: Session, run: Run) -> None:
        """Write tolerances for the profile of a device that computes with less precision, for the user to review."""
        super().keep(session, run)
        errors = [
            (result.name.partition(" ")[0], result.dtype, result.accuracy.target)  # without the row's own words
            for result in run.errors
            if result.accuracy
        ]
        self.proposed = proposed(errors, f"{UNEXPLAINED}measured by conformance {ACCURACY}")
        if self.proposed:
            text = "\n".join(entry.toml() for entry in self.proposed)
            write_atomic(session.reports / TOLERANCES, text)

    def summarize(self, session: Session, run: Run) -> None:
        """Print the worst cases, and where the proposed tolerances are."""
        super().summarize(session, run)
        if self.proposed:
            count = len({op for entry in self.proposed for op in entry.op})
            session.print(
                f"{counted(count, 'operator')} beyond torch.testing's tolerances: {session.reports / TOLERANCES} has "
                "[[tolerance]] entries for the profile. Copy those that have a reason, and state it."
            )

    def line(self, result: Result) -> str:
        """See `JobSource.line`."""
        of = result.accuracy
        assert of is not None
        return (
            f"{shown(of.times):>8} x torch CPU: {result.name} {result.dtype} {result.variant}, {of.of}: "
            f"{shown(of.target)} ulp (mean {shown(of.target_rms)}), torch CPU {shown(of.cpu)} ({shown(of.cpu_rms)})"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = (
        "Measure the errors of a target and of torch CPU against float64 or mpmath, in ulp. An error of more than 4 "
        "times torch CPU's is a finding."
    )
    values = {"variant": ", ".join(DIRECTIONS)}
    defaults = usual(AccuracyCases.usual, ACCURACY, variant="all", dtype=f"float32; of {', '.join(DTYPES)}")
    parser = options.parser(f"conformance {ACCURACY}", about, FLAGS, defaults, values)
    return run_command(parser, arguments, lambda args: [AccuracyCases()])


if __name__ == "__main__":
    sys.exit(main())
