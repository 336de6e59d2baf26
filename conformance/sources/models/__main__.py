"""The command `conformance models`: the recorded operator calls of published models on a target and on torch CPU.

Defines `Models`, the source of recorded calls. Each call is a program of one step on random data, and the campaign of
drawn programs judges, shrinks and reports it. The table names the models that run on the target, and the operators that
stop or falsify the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.engine.loading import describe_target
from conformance.program.recorded import RECORDED, chosen
from conformance.program.unsupported import check_declarations
from conformance.record.models import MODELS, sentence
from conformance.record.result import Result, Run
from conformance.report.escape import escape_control_characters
from conformance.run import options
from conformance.run.campaign.listed import number_of
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.source import LIMITS, CampaignSource
from conformance.run.messages import Limits
from conformance.run.session import Session, usual
from conformance.run.session import main as run_command
from conformance.sources.fuzzing import command as fuzzing
from conformance.sources.models.calls import listed_calls, outcomes_of

FLAGS = ("target", "seed", "programs", "model", "calls", "shard", "resume", "stop-at-first-failure", "minutes",
         *options.LIMITS, "strict", "check-scripts", "also-on", "reports", *options.DECLARED, "fail-on-torch-bugs",
         *options.PLACE)  # fmt: skip
USUAL = usual(LIMITS, MODELS, programs="all", model="all", calls="those of the package")


class Models(CampaignSource):
    """The source of recorded calls."""

    title = "recorded models"
    stem = MODELS

    def files(self, args: argparse.Namespace) -> list[Path | None]:
        """Return the file of the calls."""
        return [args.calls or RECORDED]

    def declarations(self, args: argparse.Namespace) -> Path:
        """Return the file of declared findings, which is not that of drawn programs. Raises ReportError."""
        return expectations.file_of(args, expectations.FOLDER / MODELS / f"{profiles.file_name(args.target)}.toml")

    def plan(self, args: argparse.Namespace, limits: Limits, spec: str, minutes: float | None = None) -> Plan:
        """Return the plan of the recorded calls. Raises UserError."""
        check_declarations(describe_target(spec))
        listed = listed_calls(str(args.calls or RECORDED), tuple(args.model), args.seed)
        return Plan(
            listed,
            spec,
            args.seed,
            number_of(listed, args.programs),
            minutes,
            args.jobs,
            Path(args.reports),
            limits,
            args.stop_at_first_failure,
            resume=args.resume,
            part=args.shard,
            fail_on_torch_bugs=args.fail_on_torch_bugs,
        )

    def stale(self, session: Session, run: Run, seconds: float) -> tuple[list[Result], list[str]]:
        """See `Source.stale`."""
        return fuzzing.contradicted_steps(session, seconds)

    def execute(self, session: Session, seconds: float) -> Run:
        """Run the calls, and derive the outcome of each model."""
        run = super().execute(session, seconds)
        args, running = session.args, self.running
        calls = chosen(str(args.calls or RECORDED), tuple(args.model))
        return replace(run, models=outcomes_of(*calls, running.findings.distinct(), running.result.listed))

    def summarize(self, session: Session, run: Run) -> None:
        """Print the table of models behind the findings."""
        super().summarize(session, run)
        table = Table(title=sentence(run.models), title_justify="left", box=box.SIMPLE)
        for head in ("model", "calls", "outcome"):
            table.add_column(head, overflow="fold")
        for row in run.models:
            cells = row.name, f"{row.compared} of {row.calls}", row.outcome
            table.add_row(*(Text(escape_control_characters(cell)) for cell in cells))
        session.console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = (
        "Run the recorded operator calls of published models on a target and on torch CPU, and tell which models run "
        "there, and which operator stops or falsifies each of the others."
    )
    parser = options.parser(f"conformance {MODELS}", about, FLAGS, USUAL)
    return run_command(parser, arguments, lambda args: [Models()])


if __name__ == "__main__":
    sys.exit(main())
