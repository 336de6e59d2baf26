"""The command `conformance opinfo`: PyTorch's op_db on a target and on torch CPU; `run` is the same as a library call.

Defines `OpDb`, the source of op_db's cases, and `run`. This process only plans, collects and writes. It imports neither
torch nor the target, so a crash of an op cannot lose results. Each result is on disk as soon as it is available, and
the report is written from the results so far, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.declare.declaration import CASES, PARTS_OF_TARGET, Declaration, check, read, refuse
from conformance.declare.profile import Profile
from conformance.record import result as model
from conformance.record import versions
from conformance.record.command_line import Parser
from conformance.record.errors import ReportError, TargetError
from conformance.record.missing_ops import DECLARED
from conformance.record.result import RERUN, UNEXPECTED, Outcome, Result, Run
from conformance.report import __main__ as report
from conformance.report import budgets, terminal
from conformance.run import options, signals
from conformance.run.execution_place import LOCAL, Place, place_of
from conformance.run.messages import Limits
from conformance.run.profile_trials import contradictions
from conformance.run.session import Session, Source, limits_of, usual
from conformance.run.session import main as run_command
from conformance.run.terminal import shown
from conformance.sources.opinfo import plainest, plan
from conformance.sources.opinfo.journal import Journal
from conformance.sources.opinfo.minimize import BUDGET, SHARE, minimize
from conformance.sources.opinfo.plan import Case, Selection
from conformance.sources.opinfo.pool import Cases
from conformance.sources.opinfo.replay import replay

LIMITS = Limits(unit=120.0, memory=8.0)
"""Default limits of a case."""


def run(
    target: str,
    *,
    selections: Sequence[Selection] = (Selection(),),
    jobs: int = 1,
    limits: Limits = LIMITS,
    shard: tuple[int, int] = (1, 1),
    variants: Collection[str] = (),
    reruns: int = 0,
    stop_at_first: bool = False,
    expected: Sequence[Declaration] = (),
    times: Mapping[str, float] = MappingProxyType({}),
    finished: Sequence[Result] = (),
    lacking: bool = False,
    fail_on_torch_bugs: bool = False,
    place: Place = LOCAL,
    seconds: float = math.inf,
    listed: Callable[[Sequence[plan.Entry]], None] = lambda catalog: None,
    started: Callable[[Run, int], None] = lambda run, planned: None,
    ended: Callable[[Result], None] = lambda result: None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Run:
    """Run the chosen cases on `target` and return their results; on KeyboardInterrupt, the results so far.

    The target must be able to show `variants`, which the user named; other variants that it cannot show are excluded.
    After `seconds` no result is awaited, and a note counts the cases that did not run. `times` are seconds of cases in
    an earlier run, by id; without a time limit the longest begin first. `finished` are results of an interrupted run,
    whose cases do not run again. Cases that the target's profile declares lacking run only with `lacking`.

    A case that fails in the same way on a target of `without_backend` is a bug of PyTorch, and fails the run only with
    `fail_on_torch_bugs`. `listed` receives the entries of op_db, and `started` the run and the number of its cases.
    `ended` receives each new result, and `on_result` each result after the expectations are applied. Raises UsageError
    for unknown names, and TargetError for a target that cannot be loaded.
    """
    begin = time.monotonic()
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    outcome = Run(target, started=at, identity=profiles.identity(target))
    try:
        with Cases(target, limits, jobs, place) as cases:
            catalog, outcome.environment = cases.catalog(variants, plan.asks_beside(selections))
            outcome.measures = cases.measures
            listed(catalog)
            profile = profiles.of(target) or Profile()
            known = expectations.known_ops([entry.name for entry in catalog])
            refuse(check(profile.declarations, PARTS_OF_TARGET, {"op": known}))
            unsupported = () if lacking else profile.unsupported("op")
            wanted, left_out = plan.without(plan.select(catalog, selections, shard), unsupported)
            outcome.lacking = profile.table(left_out)
            chosen = {case.id: case for case in wanted}
            started(outcome, len(chosen))
            earlier = {result.id: result for result in finished if result.id in chosen}
            left = [case for case in chosen.values() if case.id not in earlier]
            again: list[Case] = []

            def take(result: Result) -> bool:
                declared = expectations.judged(result, expected)
                outcome.results.append(declared)
                on_result(declared)
                if reruns and declared.outcome in RERUN:
                    again.append(chosen[result.id])
                return stop_at_first and declared.outcome in UNEXPECTED

            failed = any(list(map(take, earlier.values())))
            limited = seconds < math.inf
            ordered = left if limited else plan.longest_first(left, times)
            until = begin + seconds
            for result in () if failed else cases.run(ordered, until - time.monotonic() if limited else None):
                ended(result)
                failed = take(result)
                outcome.calibration = cases.calibration
                late = time.monotonic() >= until - SHARE * seconds if limited else False
                if failed or (late and any(result.outcome in RERUN for result in outcome.results)):
                    break
            if failed:
                outcome.complete = len(outcome.results) == len(chosen)
                outcome.notes.append("stopped at the first failure")
            elif len(outcome.results) < len(chosen):
                missing = len(chosen) - len(outcome.results)
                outcome.notes.append(f"{missing} of {len(chosen)} cases not run, since the time was over")
                outcome.notes += [
                    f"{task.name} had given no answer after {ran:.0f} s when the time was over"
                    for task, ran in cases.busy()
                    if ran > SHARE * seconds
                ]
            if not failed and time.monotonic() < until:
                _mark_flaky(outcome, cases, again, reruns)
        for layer in cases.without_backend:
            failing = [chosen[result.id] for result in outcome.results if result.outcome in RERUN and not result.layer]
            if failing:
                with Cases(layer, limits, min(jobs, len(failing)), place) as on_layer:
                    _mark_torch_bugs(outcome, on_layer, failing, fail_on_torch_bugs)
        minimize(outcome, chosen, limits, jobs, place, min(BUDGET, until - time.monotonic()))
    except KeyboardInterrupt:
        outcome.complete, outcome.interrupted = False, signals.signal_number()
    except TargetError as error:
        if not outcome.results:
            raise
        outcome.complete = False
        outcome.notes.append(str(error))
    finally:
        outcome.seconds = time.monotonic() - begin
    return outcome


def _mark_flaky(outcome: Run, cases: Cases, failing: Sequence[Case], reruns: int) -> None:
    """Run failing cases again, up to `reruns` times. A case that passes is FLAKY."""
    for _ in range(reruns):
        flaky = {result.id for result in cases.run(failing) if result.outcome is Outcome.PASS}
        outcome.results = [result.flaky() if result.id in flaky else result for result in outcome.results]
        failing = [case for case in failing if case.id not in flaky]


def _mark_torch_bugs(outcome: Run, on_layer: Cases, failing: Sequence[Case], fails_run: bool) -> None:
    """Run failing cases on a target without the backend. A case that fails there in the same way is a bug of PyTorch,
    which fails the run only with `fails_run`."""
    there = {result.id: result for result in on_layer.run(failing)}
    outcome.results = [
        result.without_backend(on_layer.target, fails_run)
        if result.id in there and result.fails_as(there[result.id])
        else result
        for result in outcome.results
    ]


# The command

FLAGS = ("target", "oracle", *plan.CASES, "resume", "stop-at-first-failure", "replay", "minutes", *options.LIMITS,
         "check-scripts", "also-on", "reports", *options.DECLARED, "baseline", "update-baseline", "workloads",
         "fail-on-torch-bugs", *options.PLACE)  # fmt: skip
USUAL = {
    **usual(LIMITS),
    **plan.USUAL,
    "replay": "a case, or CASE#N for its sample N: an id such as add::float32::forward::as_sampled, or a result file, "
    "for its target, and an id in it",
    "baseline": "reports/baseline/torch-<minor>/<target>.json.gz",
}


class OpDb(Source):
    """The source of op_db's cases."""

    title = "PyTorch's op_db"
    stem, usual = "opinfo", LIMITS

    def prepare(self, session: Session) -> None:
        """Read the baseline, the declarations and the counts of workloads, and check the options."""
        args = session.args
        plan.selections_of(args)
        self.expected_file = expectations.file_of(args, expectations.path_for(session.spec))
        self.expected = expectations.expected(self.expected_file)
        self.baseline_file = args.baseline or report.baseline_for(session.spec)
        wanted = args.baseline and not args.update_baseline  # a first baseline is created by accepting a run
        there = wanted or self.baseline_file.exists()
        self.baseline = report.load_of_kind(self.baseline_file, self.stem) if there else None
        if args.workloads and not args.workloads.exists():
            raise ReportError(f"{args.workloads} does not exist; write it with benchmarks/kernel_counts.py --json.")
        self.counted = budgets.load(args.workloads) if args.workloads else {}
        if self.baseline and self.counted:
            self.baseline.budgets = budgets.load(self.baseline_file.parent / budgets.NAME)

    def execute(self, session: Session, seconds: float) -> Run:
        """Run the chosen cases under the progress bar. `--resume` continues an interrupted run from its journal."""
        args, profile, seen = session.args, session.profile, session.seen
        held = profile.dtypes if profile is not None else None
        selections = plan.selections_of(args, held if held is not None or seen is None else seen.dtypes)
        identity = {
            "target": session.spec,
            "selection": list(map(str, selections)),
            "shard": list(args.shard),
            "torch": str(versions.installed()),
        }
        absent: list[str] = []
        with Journal(args.reports, identity, args.resume) as journal, shown(session.console) as view:
            outcome = run(
                session.target,
                selections=selections,
                jobs=args.jobs,
                limits=session.limits,
                shard=args.shard,
                variants={*(args.variant or ())}
                - {"all"},  # a suite and `all` take every variant that the target supports
                reruns=args.rerun_failures,
                stop_at_first=args.stop_at_first_failure,
                expected=self.expected,
                times={result.id: result.seconds for result in self.baseline.results} if self.baseline else {},
                finished=journal.finished,
                fail_on_torch_bugs=args.fail_on_torch_bugs,
                place=session.place,
                seconds=seconds,
                listed=lambda catalog: absent.extend(check_names(self.expected_file, catalog)),
                started=view.start,
                ended=journal.add,
                on_result=view.add,
            )
            self.journal = journal
        outcome.notes += absent
        outcome.seconds = journal.seconds
        outcome.environment["selection"] = _selection(args.suite, selections, args.shard)
        outcome.budgets = self.counted
        outcome.expectations = str(self.expected_file) if self.expected_file.exists() else ""
        return outcome

    def declare(self, session: Session, run: Run) -> list[str]:
        """See `Source.declare`."""
        done = expectations.declare(run, self.expected_file)
        run.results = expectations.accept(run.results, expectations.expected(self.expected_file))
        run.expectations = str(self.expected_file)
        return done

    def stale(self, session: Session, run: Run, seconds: float) -> tuple[list[Result], list[str]]:
        """See `Source.stale`."""
        if not run.complete:
            return [], []
        wanted = {row.operator for row in run.lacking}
        there, notes = contradictions(session, "op", plainest.call_of, seconds, wanted)
        return [Result(name, "", DECLARED, "", Outcome.XPASS, reason=reason) for name, reason in there.items()], notes

    def keep(self, session: Session, run: Run) -> None:
        """Delete the journal unless `--resume` can use it, and write the baseline if the user accepts the run."""
        late = any("not run, since the time" in note for note in run.notes)
        if not session.resumable or (run.complete and not late):
            self.journal.discard()
        if session.args.update_baseline and run.complete and run.results:
            model.save(model.slim(_over(self.baseline, run)), self.baseline_file)
            if self.counted:
                model.write_atomic(self.baseline_file.parent / budgets.NAME, budgets.dumps(self.counted))

    def summarize(self, session: Session, run: Run) -> None:
        """See `Source.summarize`."""
        terminal.causes(session.console, run)

    def nothing(self, session: Session, run: Run) -> str:
        """See `Source.nothing`."""
        if not run.results and session.seconds < math.inf:
            return "the time was over before the first case had ended, so nothing was compared: give --minutes more"
        return f"nothing was compared in {len(run.results)} cases, so nothing passed"


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
    again = lambda target, these: run(target, selections=these, limits=limits, lacking=True, place=place)  # noqa: E731
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


def _over(baseline: Run | None, run: Run) -> Run:
    """Return the new run, completed with the baseline's results for cases that it did not run."""
    new = {result.id for result in run.results}
    rest = [result for result in baseline.results if result.id not in new] if baseline else []
    return replace(run, results=[*run.results, *rest])


if __name__ == "__main__":
    sys.exit(main())
