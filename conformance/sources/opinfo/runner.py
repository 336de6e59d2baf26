"""The command `conformance opinfo`: PyTorch's op_db on a target and on torch CPU; `run` is the same as a library call.

Defines `OpDb`, the source of op_db's cases, and `run`, which takes a `Request` and a `Listener`. This process only
plans, collects and writes. It imports neither torch nor the target, so a crash of an op cannot lose results. Each
result is on disk as soon as it is available, and the report is written from the results so far, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.declare.declaration import CASES, PARTS_OF_TARGET, Declaration, check, read, refuse
from conformance.declare.profile import Profile
from conformance.record import result as model
from conformance.record import shortfall
from conformance.record.command_line import Parser
from conformance.record.errors import ReportError
from conformance.record.missing_ops import DECLARED
from conformance.record.result import Result, Run
from conformance.report import __main__ as report
from conformance.report import budgets, terminal
from conformance.run import options
from conformance.run.case_source import CaseSource
from conformance.run.cases import SILENT, CaseOptions, CaseRun, Listener
from conformance.run.execution_place import place_of
from conformance.run.messages import Limits
from conformance.run.profile_trials import contradictions
from conformance.run.session import Session, limits_of, usual
from conformance.run.session import main as run_command
from conformance.sources.opinfo import first_sample, plan
from conformance.sources.opinfo.minimize import BUDGET, SHARE, minimize
from conformance.sources.opinfo.plan import Case, Selection
from conformance.sources.opinfo.pool import Cases
from conformance.sources.opinfo.replay import replay

LIMITS = Limits(unit=120.0, memory=8.0)
"""Default limits of a case."""

OP_DB = shortfall.CASES.format("op_db")


@dataclass(frozen=True)
class Request(CaseOptions):
    """The cases of a run, its limits, and the facts about earlier runs."""

    selections: Sequence[Selection] = (Selection(),)
    shard: tuple[int, int] = (1, 1)
    variants: Collection[str] = ()
    """Variants that the user named, which the target must be able to show. Others that it cannot show are excluded."""
    lacking: bool = False
    """Whether cases run that the target's profile declares lacking."""
    limits: Limits = field(default=LIMITS, kw_only=True)


def run(target: str, request: Request = Request(), listener: Listener = SILENT) -> Run:
    """Run the chosen cases on `target` and return their results; on KeyboardInterrupt, the results so far. Raises
    UsageError for unknown names, and TargetError for a target that cannot be loaded."""
    return CaseRun(target, OP_DB, request, listener, SHARE).perform(partial(_run, request=request))


def _run(running: CaseRun, request: Request) -> None:
    """Run the cases, rerun failures, mark the bugs of PyTorch, and minimize a failure of each cause."""
    result, limits, place = running.result, request.limits, request.place
    with Cases(running.target, limits, request.jobs, place) as cases:
        running.begin(_chosen(running, cases, request))
        running.run(cases)
    for layer in cases.without_backend:
        running.mark_torch_bugs(layer, lambda layer, jobs: Cases(layer, limits, jobs, place))
    left = min(BUDGET, running.until - time.monotonic())
    minimize(result, running.chosen, limits, request.jobs, place, left)


def _chosen(running: CaseRun, cases: Cases, request: Request) -> list[Case]:
    """Return the cases of the request, from the catalog of op_db."""
    result = running.result
    catalog, result.environment = cases.catalog(request.variants, plan.asks_beside(request.selections))
    result.measures = cases.measures
    running.listener.listed(catalog)
    profile = profiles.of(running.target) or Profile()
    known = expectations.known_ops([entry.name for entry in catalog])
    refuse(check(profile.declarations, PARTS_OF_TARGET, {"op": known}))
    unsupported = () if request.lacking else profile.unsupported("op")
    wanted, left_out = plan.without(plan.select(catalog, request.selections, request.shard), unsupported)
    result.lacking = profile.table(left_out)
    return wanted


# The command

FLAGS = ("target", "oracle", *plan.CASES, "resume", "stop-at-first-failure", "replay", "minutes", *options.LIMITS,
         "strict", "check-scripts", "also-on", "reports", *options.DECLARED, "baseline", "update-baseline", "workloads",
         "fail-on-torch-bugs", *options.PLACE)  # fmt: skip
USUAL = {
    **usual(LIMITS),
    **plan.USUAL,
    "replay": "a case, or CASE#N for its sample N: an id such as add::float32::forward::as_sampled, or a result file, "
    "for its target, and an id in it",
    "baseline": "reports/baseline/torch-<minor>/<target>.json.gz",
}


class OpDb(CaseSource):
    """The source of op_db's cases. `defaults` returns the selections of a run whose options choose none."""

    title = "PyTorch's op_db"
    stem, usual, done = "opinfo", LIMITS, "compared"

    def __init__(self, defaults: Callable[..., tuple[Selection, ...]] = plan.usual) -> None:
        super().__init__()
        self.defaults = defaults

    def prepare(self, session: Session) -> None:
        """Read the baseline, the declarations and the counts of workloads, and check the options."""
        args = session.args
        plan.selections_of(args)
        self.file = expectations.file_of(args, expectations.path_for(session.spec))
        self.expected = self.read_declarations()
        self.baseline_file = args.baseline or report.baseline_for(session.spec)
        wanted = args.baseline and not args.update_baseline  # a first baseline is created by accepting a run
        there = wanted or self.baseline_file.exists()
        self.baseline = report.load_of_kind(self.baseline_file, self.stem) if there else None
        if args.workloads and not args.workloads.exists():
            raise ReportError(f"{args.workloads} does not exist; write it with benchmarks/kernel_counts.py --json.")
        self.counted = budgets.load(args.workloads) if args.workloads else {}
        if self.baseline and self.counted:
            self.baseline.budgets = budgets.load(self.baseline_file.parent / budgets.NAME)

    @property
    def what(self) -> str:
        """See `CaseSource.what`."""
        return OP_DB

    def choose_selections(self, session: Session) -> tuple[Selection, ...]:
        """Return the selections of the options, of the dtypes that the target holds."""
        profile, seen = session.profile, session.seen
        held = profile.dtypes if profile is not None else None
        known = held if held is not None or seen is None else seen.dtypes
        return plan.selections_of(session.args, known, self.defaults)

    def identity(self, session: Session) -> dict[str, Any]:
        """See `CaseSource.identity`."""
        return {"selection": [*map(str, self.choose_selections(session))], "shard": [*session.args.shard]}

    def read_declarations(self) -> Sequence[Declaration]:
        """Return the declarations of the target's file, and those for every target."""
        return expectations.expected(self.file)

    def run_cases(self, session: Session, seconds: float, finished: Sequence[Result], listener: Listener) -> Run:
        """See `CaseSource.run_cases`."""
        args, selections = session.args, self.choose_selections(session)
        request = Request.of_session(
            session,
            seconds,
            selections=selections,
            shard=args.shard,
            # A suite and `all` take every variant that the target supports.
            variants={*(args.variant or ())} - {"all"},
            fail_on_torch_bugs=args.fail_on_torch_bugs,
            expected=self.expected,
            times={result.id: result.seconds for result in self.baseline.results} if self.baseline else {},
            finished=finished,
        )
        absent: list[str] = []
        listed = lambda catalog: absent.extend(check_names(self.file, catalog))  # noqa: E731
        outcome = run(session.target, request, replace(listener, listed=listed))
        outcome.notes += absent
        outcome.environment["selection"] = _selection(args.suite, selections, args.shard)
        outcome.budgets = self.counted
        return outcome

    def stale(self, session: Session, run: Run, seconds: float) -> tuple[list[Result], list[str]]:
        """See `Source.stale`."""
        if not run.complete:
            return [], []
        wanted = {row.operator for row in run.lacking}
        found, notes = contradictions(session, "op", first_sample.call_of, seconds, wanted)
        return [Result(one.part, "", DECLARED, "", one.outcome, reason=one.reason) for one in found], notes

    def keep(self, session: Session, run: Run) -> None:
        """Delete the journal unless `--resume` can use it, and write the baseline if the user accepts the run."""
        super().keep(session, run)
        if session.args.update_baseline and run.complete and run.results:
            report.accept_run(run, self.baseline_file)
            if self.counted:
                model.write_atomic(self.baseline_file.parent / budgets.NAME, budgets.dumps(self.counted))

    def summarize(self, session: Session, run: Run) -> None:
        """See `Source.summarize`."""
        terminal.causes(session.console, run)


def parser() -> Parser:
    """Return the parser of the command's options."""
    about = "Run PyTorch's op_db on a target and on torch CPU, compare all that can be seen, write a report."
    cases = {"replay": {"nargs": "+", "metavar": ("[FILE] CASE", "CASE")}}
    return options.parser("conformance opinfo", about, FLAGS, USUAL, plan.VALUES, cases)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(parser(), arguments, lambda args: [OpDb()], instead)


def instead(args: argparse.Namespace) -> int | None:
    """Answer `--replay`, which runs one case again."""
    if not args.replay:
        return None
    limits, place = limits_of(args, LIMITS), place_of(args)

    def again(target: str, selections: Sequence[Selection]) -> Run:
        return run(target, Request(selections, limits=limits, lacking=True, place=place))

    return replay(args.replay, args.target, again, args.oracle)


def check_names(file: Path, catalog: Sequence[plan.Entry]) -> list[str]:
    """Return a sentence on the entries that name only ops of other versions of torch, if there are any. Raises
    ReportError if the file names an unknown op. Entries outside op_db are checked only in runs that include them.
    """
    names = [entry.name for entry in catalog]
    there = plan.is_beside(*names)
    declarations = [declaration for declaration in read(file) if there or not plan.is_beside(*declaration.scope.op)]
    refuse(check(declarations, CASES, expectations.WORDS | {"op": expectations.known_ops(names)}))
    return expectations.absent(declarations, names)


def _selection(suite: str | None, selections: Sequence[Selection], shard: tuple[int, int]) -> str:
    """Return the user's selection in words; runs with the same words can be compared over time."""
    words = [" + ".join(map(str, selections))]
    if suite:
        narrowed = zip(selections, plan.SUITES[suite], strict=True)
        changes = [_narrowed(mine, usual) for mine, usual in narrowed]
        words = [f"suite {suite}", *changes[0]]  # the same options narrow every part of a suite
    index, count = shard
    return "; ".join([*words, *([f"shard {index}/{count}"] if count > 1 else [])])


def _narrowed(mine: Selection, usual: Selection) -> list[str]:
    """Return the differences of a part of a suite from the suite's own definition."""
    ops = [",".join(mine.ops)] if mine.ops != usual.ops else []
    return ops + ([mine.most] if mine.samples != usual.samples else [])


if __name__ == "__main__":
    sys.exit(main())
