"""The command `conformance repros`: which known bugs of PyTorch a device or a compiler shows.

Defines `Repros`, the source of its cases. Each case gets a new worker, since a repro may end its process, and since it
may change the state of torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from conformance.record.names import REPROS
from conformance.record.repro import KINDS, SHOWN, VERDICTS
from conformance.record.result import UNEXPECTED, Named, Outcome, Result, Run
from conformance.run import options
from conformance.run.case_source import AGAIN, Job, JobPool, JobSource
from conformance.run.messages import Death, ExitReason, Limits, Task
from conformance.run.session import Session, usual
from conformance.run.session import main as run_command
from conformance.sources.repros import tasks
from conformance.sources.repros.table import ReproCase, load, select

FLAGS = ("target", "op", "variant", *AGAIN, "minutes", *options.LIMITS, "strict", "check-scripts", "reports",
         *options.DECLARED, *options.PLACE)  # fmt: skip


class ReproPool(JobPool):
    """Workers that try repros."""

    def after_death(self, task: Task, case: Named, death: Death) -> Result:
        """Return the result of a case whose worker died: only a bug that hangs shows by giving no answer."""
        assert isinstance(case, ReproCase)
        if death.reason is ExitReason.TIMEOUT and case.repro.kind != "hang":
            return case.result(Outcome.SKIP, skipped=1, reason=f"no answer: {death.said}")
        return super().after_death(task, case, death)


class Repros(JobSource):
    """The source of known bugs."""

    title = "known bugs"
    stem, usual = REPROS, Limits(unit=120.0, memory=8.0, recycle=1)
    job, pool = Job(tasks.describe_environment, tasks.run, tasks.MODULES), ReproPool
    listed, variants = 20, KINDS

    def cases(self, args: argparse.Namespace) -> tuple[list[ReproCase], list[str]]:
        """See `JobSource.cases`."""
        kinds = options.chosen(args.variant or ["all"], KINDS, "variant")
        return select(args.op, kinds), [",".join(args.op or ["all bugs"]), *kinds]

    def rows(self) -> Iterable[str]:
        """See `JobSource.rows`."""
        return [case.op for case in load()]

    def worst(self, run: Run) -> Sequence[Result]:
        """See `JobSource.worst`."""
        return [result for result in run.repros if result.outcome in UNEXPECTED]

    def line(self, result: Result) -> str:
        """See `JobSource.line`."""
        assert result.repro is not None  # as for each case of this source
        return f"{result.repro.kind}: {result.op}: {result.repro.title} ({result.repro.known})"

    def summarize(self, session: Session, run: Run) -> None:
        """Print the bugs that the target shows, and how many of each verdict there are."""
        for result in self.worst(run)[: self.listed]:
            session.print(self.line(result))
        words = [VERDICTS.get(str(result.outcome), SHOWN) for result in run.repros]
        counts = ", ".join(f"{words.count(word)} {word}" for word in (SHOWN, *VERDICTS.values()))
        session.print(f"{len(words)} repros of known bugs: {counts}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = (
        "Try every known bug of PyTorch on a target: the reported ones that have a repro, and the findings of this "
        "project. A bug that the target shows is a finding, unless it is declared."
    )
    defaults = usual(Repros.usual, REPROS, variant="all")
    parser = options.parser(f"conformance {REPROS}", about, FLAGS, defaults, {"variant": ", ".join(KINDS)})
    return run_command(parser, arguments, lambda args: [Repros()])


if __name__ == "__main__":
    sys.exit(main())
