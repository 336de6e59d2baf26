"""The command `conformance modules`: PyTorch's modules and optimizers on a target and on torch CPU.

Defines `Modules`, the source of its cases.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from conformance.record.names import MODULES
from conformance.record.result import UNEXPECTED, Result, Run
from conformance.record.sentences import sentence
from conformance.run import options
from conformance.run.case_source import FLAGS, Job, JobSource
from conformance.run.messages import Limits
from conformance.run.session import Session, usual
from conformance.run.session import main as run_command
from conformance.sources.modules import tasks
from conformance.sources.modules.table import DTYPES, VARIANTS, StatefulCase, names, select


class Modules(JobSource):
    """The source of modules and optimizers."""

    title = "modules and optimizers"
    stem, usual = MODULES, Limits(unit=120.0, memory=8.0)
    job = Job(tasks.describe_environment, tasks.run, tasks.MODULES)
    listed, variants = 20, VARIANTS

    def cases(self, args: argparse.Namespace) -> tuple[list[StatefulCase], list[str]]:
        """See `JobSource.cases`."""
        dtypes = args.dtype or [*DTYPES]
        known = sorted({dtype for case in select([], ALL, VARIANTS) for dtype in [case.dtype]})
        dtypes = options.chosen(dtypes, known, "dtype")
        variants = options.chosen(args.variant or ["all"], VARIANTS, "variant")
        return select(args.op, dtypes, variants), [",".join(args.op or ["all"]), *dtypes, *variants]

    def rows(self) -> Iterable[str]:
        """See `JobSource.rows`."""
        return names()

    def worst(self, run: Run) -> Sequence[Result]:
        """See `JobSource.worst`."""
        return [result for result in run.results if result.outcome in UNEXPECTED]

    def line(self, result: Result) -> str:
        """See `JobSource.line`."""
        return f"{result.id}: {sentence(result.failures[0]) if result.failures else result.reason}"

    def summarize(self, session: Session, run: Run) -> None:
        """See `JobSource.summarize`."""
        super().summarize(session, run)
        if missing := run.environment.get("modules without a row"):
            session.print(f"not tried, since this version of conformance does not know them: {missing}")


ALL = ("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = (
        "Run PyTorch's modules and optimizers (module_db, optim_db) on a target and on torch CPU from the same state: "
        "forward and backward in both modes, buffers, steps in each form, and states that are saved and loaded."
    )
    defaults = usual(Modules.usual, MODULES, variant="all", dtype=", ".join(DTYPES))
    parser = options.parser(f"conformance {MODULES}", about, FLAGS, defaults, {"variant": ", ".join(VARIANTS)})
    return run_command(parser, arguments, lambda args: [Modules()])


if __name__ == "__main__":
    sys.exit(main())
