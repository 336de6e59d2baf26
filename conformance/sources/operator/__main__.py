"""The command `conformance operator`: an operator of the user, judged check by check, on one page.

Defines `Operators`, the source of its cases. A case is one check. The command and `conformance.check` share the checks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.record.causes import causes_of
from conformance.record.errors import UsageError
from conformance.record.names import DTYPES, OPERATOR, TORCH_CPU
from conformance.record.result import Outcome, Result, Run
from conformance.record.sentences import headline
from conformance.record.shortfall import Shortfall
from conformance.run import options, scripts
from conformance.run.case_source import AGAIN, Job, JobSource
from conformance.run.messages import Limits
from conformance.run.session import Session
from conformance.run.session import main as run_command
from conformance.sources.operator import tasks
from conformance.sources.operator.table import CHECKS, EXPLAIN, NOT_SHOWN, SLOW_COMPILER, TIERS, usual, with_fatal
from conformance.sources.operator.tasks import CheckTask, OperatorCase

FLAGS = (
    "like", "reference", "inputs", "checks", "exclude", "batch", "device", "reference-on-device", "seed", "forbid",
    "ties", "random", "dtype", "limit", "memory", "strict", "check-scripts", "reports", *options.PLACE,
)  # fmt: skip
WITHOUT = ("minutes", "compile-limit", "update-expectations", "expectations", *AGAIN)
"""Flags of a session that the command does not offer: the harness itself runs on torch CPU."""


class Operators(JobSource):
    """The source of the checks of one operator."""

    title = "operator"
    stem, usual = OPERATOR, Limits(unit=300.0, memory=10.0)
    job = Job(tasks.describe_environment, tasks.run, tasks.MODULES)
    listed = 0

    def cases(self, args: argparse.Namespace) -> tuple[list[OperatorCase], list[str]]:
        """See `JobSource.cases`."""
        exclude, batch = dict(map(_pair, args.exclude)), dict(map(_dimension, args.batch))
        asked = options.chosen(args.checks or usual(batch, args.forbid), CHECKS, "check")
        names = with_fatal(asked)
        options.chosen(exclude or ["all"], (*CHECKS, *TIERS), "check")
        if bool(args.like) == bool(args.reference):
            raise UsageError("give either --like NAME, or --reference MODULE:NAME with --inputs FILE.toml")
        if bool(args.reference) != bool(args.inputs):
            raise UsageError("--reference and --inputs belong together: give both")
        if args.dtype and args.reference:
            raise UsageError(
                "--dtype chooses samples of op_db: give it with --like, and the dtypes of inputs in --inputs"
            )
        options.chosen(args.dtype or ["all"], DTYPES, "dtype")
        if args.device is not None:
            from conformance.sources.operator.devices import spec_of  # needs torch, as the help does not

            spec_of(args.device)  # an unknown device is told before the run begins
        subject = CheckTask(
            args.operator,
            args.like or "",
            args.reference or "",
            _description(args.inputs) if args.inputs else "",
            tuple(args.dtype) if args.dtype else None,
            tuple(asked),
            tuple(exclude.items()),
            tuple(batch.items()),
            args.limit or CheckTask.seconds,
            args.device or "",
            args.seed,
            tuple(args.forbid),
            args.reference_on_device,
            args.ties,
            args.random,
        )
        self.remarks = [f"the operator runs on {args.device}"] if args.device else []
        self.remarks += [f"not judged: {name}: {reason}" for name, reason in exclude.items()]
        return [OperatorCase(subject, name) for name in names if name not in exclude], [args.operator, *names]

    def prepare(self, session: Session) -> None:
        """Select the checks."""
        chosen, self.selection = self.cases(session.args)
        self.chosen = [*chosen]
        self.lacking, self.file, self.expected = 0, Path(), []
        session.args.limit = None  # a call's limit, and not a worker's

    def worst(self, run: Run) -> Sequence[Result]:
        """See `JobSource.worst`."""
        return run.unexpected

    def summarize(self, session: Session, run: Run) -> None:
        """See `JobSource.summarize`. Print one line for each cause, with the checks that show it."""
        super().summarize(session, run)
        for cause in causes_of(run.unexpected):
            session.print(f"cause: {cause.pattern}: {headline(cause.results[0])} ({cause.seen})")

    def rows(self) -> Iterable[str]:
        """See `JobSource.rows`."""
        return CHECKS

    def execute(self, session: Session, seconds: float) -> Run:
        """See `JobSource.execute`."""
        result = super().execute(session, seconds)
        result.notes += self.remarks
        result.reference = "the reference" if session.args.reference else TORCH_CPU
        for one in result.results:
            if session.args.strict and one.outcome is Outcome.SKIP and one.reason == NOT_SHOWN:
                result.not_judged.append(Shortfall(f"calls of {one.variant}", limit=EXPLAIN))
            if one.late:
                limit = "--limit" if SLOW_COMPILER in one.reason else "time of all checks"
                planned = one.samples + one.late
                result.not_judged.append(Shortfall(f"inputs of {one.variant}", one.late, planned, limit))
        result.expectations = ""
        return result


def _pair(text: str) -> tuple[str, str]:
    name, equals, reason = text.partition("=")
    if not equals or not reason.strip():
        raise UsageError(f"--exclude {text} has no reason: write CHECK=REASON")
    return name.strip(), reason.strip()


def _dimension(text: str) -> tuple[str, int]:
    name, _, dim = text.partition("=")
    if not dim.isdecimal():
        raise UsageError(f"--batch {text} names no dimension: write ARGUMENT=DIMENSION, for example x=0")
    return name.strip(), int(dim)


def _description(file: Path) -> str:
    try:
        described = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read as a description of inputs: {error}") from None
    try:
        return json.dumps(described)
    except TypeError:  # TOML also has dates
        raise UsageError(f'{file} describes an input by a date or a time: write text such as "float32[n, m]"') from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = "Judge an operator of your own, on torch CPU or on a device, against a reference on torch CPU."
    others = ", ".join(name for name, check in CHECKS.items() if not check.usual)
    values = {
        "dtype": "float32, a half dtype, int64, bool",
        "limit": f"{CheckTask.seconds:g}",
        "memory": f"{Operators.usual.memory:g}",
        "check-scripts": f"{scripts.BUDGET:g}",
        "checks": f"all but {others}",
    }
    parser = options.parser(f"conformance {OPERATOR}", about, FLAGS, values)
    parser.add_argument("operator", metavar="OPERATOR", help="MODULE:NAME, or torch.ops.LIBRARY.NAME")
    parser.set_defaults(**options.defaults(WITHOUT), target="cpu")
    return run_command(parser, arguments, lambda args: [Operators()])


if __name__ == "__main__":
    sys.exit(main())
