"""A run of cases: one task each in workers, with a journal, a time, reruns, and a comparison without the backend.

Defines `CasePool`, the workers of a source of cases, and `CaseRun`, which runs the cases in them. The cases of op_db,
of `conformance accuracy` and of `conformance sizes` run here; drawn programs, whose number is open, run in a campaign
of shards. A crash, a hang or running out of memory affects only one case.
"""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.declare.declaration import Declaration
from conformance.record import shortfall
from conformance.record.errors import TargetError, UserError
from conformance.record.result import RERUN, UNEXPECTED, Failure, Named, Outcome, Result, Run
from conformance.record.shortfall import Shortfall
from conformance.run import signals
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.messages import Death, Limits, Task
from conformance.run.placed_pool import PlacedPool

if TYPE_CHECKING:
    from conformance.run.session import Session

STUCK = 0.15
"""Share of a run's time limit after which a case without an answer is named, when the time is over."""


@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """The options of a run, and the facts about earlier runs."""

    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    place: ExecutionPlace = LOCAL
    seconds: float = math.inf
    """Time after which no result is awaited. The run counts the cases that did not run as a shortfall."""
    reruns: int = 0
    stop_at_first: bool = False
    fail_on_torch_bugs: bool = False
    """Whether a bug of PyTorch, a case that fails in the same way on a target of `without_backend`, fails the run."""
    expected: Sequence[Declaration] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    """Seconds of cases in an earlier run, by id. Without a time limit the longest begin first."""
    finished: Sequence[Result] = ()
    """Results of an interrupted run, whose cases do not run again."""

    @classmethod
    def of_session(cls, session: Session, seconds: float, **more: Any) -> Self:
        """Return the options of a command, for a run of at most `seconds`. `more` are fields of the source's own."""
        args = session.args
        return cls(
            jobs=args.jobs,
            limits=session.limits,
            place=session.place,
            seconds=seconds,
            reruns=args.rerun_failures,
            stop_at_first=args.stop_at_first_failure,
            **more,
        )


@dataclass(frozen=True)
class Listener:
    """Callbacks of a run."""

    listed: Callable[[Sequence[Any]], None] = lambda catalog: None
    """Receives the entries of op_db."""
    started: Callable[[Run, int], None] = lambda run, planned: None
    """Receives the run and the number of its cases."""
    ended: Callable[[Result], None] = lambda result: None
    """Receives each new result."""
    judged: Callable[[Result], None] = lambda result: None
    """Receives each result after the expectations are applied."""


SILENT = Listener()


class CasePool(PlacedPool):
    """Workers that run up to `jobs` cases of a source at a time. Use as a context manager. A source defines `task_of`
    and `after_death`."""

    calibration = 0.0
    """Seconds of a fixed workload on this machine; 0 if the source does not measure it."""

    def task_of(self, case: Any) -> Task:
        """Return the task of a case. Its value is the case's result."""
        raise NotImplementedError

    def after_death(self, task: Task, case: Any, death: Death) -> Any:
        """Return the result of a case whose worker died, or a task to run in its place."""
        raise NotImplementedError

    def completed(self, task: Task, value: Any) -> Result:
        """Return the result of a case from the value of its task."""
        result: Result = value
        return result

    def unfinished(self) -> Iterator[Result]:
        """Yield the results of cases that wait to run again when the time is over."""
        return iter(())

    def run(self, cases: Iterable[Any], seconds: float | None = None) -> Iterator[Result]:
        """Yield the results of the cases as they finish, for at most `seconds`; cases begin in the given order. Raises
        TargetError if no worker can be started, UserError of a task, and Stopped."""
        by_name: dict[str, Any] = {}

        def tasks() -> Iterator[Task]:
            for case in cases:
                task = self.task_of(case)
                by_name[task.name] = case
                yield task

        def after_death(task: Task, death: Death) -> Any:
            return self.after_death(task, by_name[task.name], death)

        for task, answer in self.results(tasks(), after_death, seconds):
            if isinstance(answer, UserError):
                raise answer
            if isinstance(answer, Exception):
                case, failure = by_name[task.name], Failure.of_harness(answer)
                yield self.completed(task, case.result(Outcome.CRASH, samples=1, failed=1, failures=(failure,)))
            else:
                yield self.completed(task, answer)
        yield from self.unfinished()


class CaseRun:
    """A run of a source's cases on a target: its result so far, its cases by id, and the cases to run again. `what`
    names the cases in a shortfall. If cases fail, the share `spare` of a limited time is left to minimize them."""

    def __init__(self, target: str, what: str, options: CaseOptions, listener: Listener, spare: float = 0.0) -> None:
        self.target, self.what, self.options, self.listener, self.spare = target, what, options, listener, spare
        self.began = time.monotonic()
        self.until = self.began + options.seconds
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.result = Run(target, started=at, identity=profiles.identity(target))
        self.chosen: dict[str, Any] = {}
        self.again: list[Any] = []

    def perform(self, work: Callable[[CaseRun], None]) -> Run:
        """Return the results of `work`, which begins this run and runs its cases; on KeyboardInterrupt, or if no worker
        starts any more, the results so far. Raises UserError, and TargetError for a target that cannot be loaded."""
        result = self.result
        try:
            work(self)
        except KeyboardInterrupt:
            result.complete, result.interrupted = False, signals.signal_number()
        except TargetError as error:
            if not result.results:
                raise
            result.complete = False
            result.notes.append(str(error))
        finally:
            result.seconds = time.monotonic() - self.began
        return result

    def begin(self, cases: Iterable[Named]) -> None:
        """Choose the cases of the run."""
        self.chosen = {case.id: case for case in cases}
        self.listener.started(self.result, len(self.chosen))

    def run(self, pool: CasePool) -> bool:
        """Run the chosen cases, and failures again. Return whether a failure stopped the run. What the time kept from
        being judged is a shortfall."""
        options, result = self.options, self.result
        stopped = self._run_cases(pool)
        if stopped:
            result.complete = len(result.results) == len(self.chosen)
            result.notes.append("stopped at the first failure")
        elif len(result.results) < len(self.chosen):
            missing = len(self.chosen) - len(result.results)
            result.not_judged.append(Shortfall(self.what, missing, len(self.chosen)))
            result.notes += [
                f"{task.name} had given no answer after {seconds:.0f} s when the time was over"
                for task, seconds in pool.busy()
                if seconds > max(STUCK * options.seconds, 1.0)  # a task of no second is not stuck
            ]
        if not stopped:
            self._mark_flaky(pool)
        return stopped

    def _run_cases(self, pool: CasePool) -> bool:
        """Run the cases without a result. Return whether a failure stopped the run."""
        earlier = {result.id: result for result in self.options.finished if result.id in self.chosen}
        left = [case for case in self.chosen.values() if case.id not in earlier]
        if any(list(map(self._take, earlier.values()))):
            return True
        seconds = self.options.seconds
        limited = seconds < math.inf
        ordered = left if limited else longest_first(left, self.options.times)
        for result in pool.run(ordered, self._left):
            self.listener.ended(result)
            failed = self._take(result)
            self.result.calibration = pool.calibration
            late = limited and time.monotonic() >= self.until - self.spare * seconds
            if failed or (late and any(result.outcome in RERUN for result in self.result.results)):
                return failed
        return False

    def _take(self, result: Result) -> bool:
        """Add a result, with the expectations applied. Return whether it stops the run."""
        declared = expectations.judged(result, self.options.expected)
        self.result.results.append(declared)
        self.listener.judged(declared)
        if self.options.reruns and declared.outcome in RERUN:
            self.again.append(self.chosen[result.id])
        return self.options.stop_at_first and declared.outcome in UNEXPECTED

    @property
    def _left(self) -> float | None:
        """The rest of the run's time in seconds; None without a limit."""
        return None if self.until == math.inf else max(self.until - time.monotonic(), 0.0)

    def _mark_flaky(self, pool: CasePool) -> None:
        """Run failing cases again, up to `reruns` times. A case that passes is FLAKY."""
        failing, late = self.again, set[str]()
        for _ in range(self.options.reruns):
            again = {result.id: result.outcome for result in self._run_in_time(pool, failing)}
            flaky = {id for id, outcome in again.items() if outcome is Outcome.PASS}
            late |= {case.id for case in failing if case.id not in again}
            self.result.results = [result.flaky() if result.id in flaky else result for result in self.result.results]
            failing = [case for case in failing if case.id not in flaky]
        if late:
            self.result.not_judged.append(Shortfall(shortfall.RERUNS, len(late), len(self.again)))

    def _run_in_time(self, pool: CasePool, cases: Sequence[Any]) -> Iterator[Result]:
        """Yield the results of the cases that end in the rest of the run's time."""
        return iter(()) if self._left == 0 else pool.run(cases, self._left)

    def mark_torch_bugs(self, layer: str, pool_of: Callable[[str, int], CasePool]) -> None:
        """Run failing cases on `layer`, a target without the backend. A case that fails there in the same way is a bug
        of PyTorch. `pool_of` returns workers for a target, this many at a time. A case without the time for it counts
        as one of the target."""
        failing = [self.chosen[bad.id] for bad in self.result.results if bad.outcome in RERUN and not bad.layer]
        if not failing:
            return
        with pool_of(layer, min(self.options.jobs, len(failing))) as on_layer:
            there = {result.id: result for result in self._run_in_time(on_layer, failing)}
        if missing := len(failing) - len(there):
            what = shortfall.ON_LAYER.format(layer)
            self.result.not_judged.append(Shortfall(what, missing, len(failing)))
        self.result.results = [
            result.without_backend(layer, self.options.fail_on_torch_bugs)
            if result.id in there and result.fails_as(there[result.id])
            else result
            for result in self.result.results
        ]


def longest_first(cases: Sequence[Any], seconds: Mapping[str, float]) -> list[Any]:
    """Return the cases sorted by their earlier time, so that no long case begins last. A case without one counts as
    average."""
    usual = statistics.fmean(seconds.values()) if seconds else 0.0
    return sorted(cases, key=lambda case: -seconds.get(case.id, usual))
