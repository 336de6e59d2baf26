"""Cases in worker processes: a crash, a hang or running out of memory affects only one case.

Defines `Cases`. A worker notes each sample and phase before it runs it, so the result of a case whose worker died names
the place. This process imports neither torch nor the target, and makes no decision about passes.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from conformance.record.finding import ON_CPU, ON_TARGET, TOGETHER
from conformance.record.measurements import Measure
from conformance.record.names import CHANGED
from conformance.record.result import Failure, Outcome, Result
from conformance.run.cases import CasePool
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.messages import Death, Limits, Task
from conformance.run.placed_pool import OUTCOMES
from conformance.sources.opinfo import tasks
from conformance.sources.opinfo.arguments import Origin
from conformance.sources.opinfo.plan import Case, Entry, is_beside
from conformance.sources.opinfo.sample_script import from_op_db

MOST_DEATHS, MOST_TIMEOUTS = 12, 3
"""Number of deaths of workers, and of time-outs among them, after which a case is not run again without the samples
that ended them. Only a case that changes arguments is run again, since its samples do not resemble each other.
"""


def _joined(result: Result, deaths: Sequence[Result]) -> Result:
    """Return a case's result with the failures of the samples that ended a worker."""
    if not deaths:
        return result
    failures = (*(failure for death in deaths for failure in death.failures), *result.failures)
    outcome = result.outcome if result.outcome is Outcome.TIMEOUT else deaths[0].outcome
    samples, failed = result.samples + len(deaths), result.failed + len(deaths)
    return replace(result, outcome=outcome, failures=failures, reason="", samples=samples, failed=failed)


def _noted(death: Death) -> tuple[int, str, str]:
    """Return the sample, the phase and the changed argument of a worker's last note."""
    last = death.note.steps[-1] if death.note is not None and death.note.steps else "0\t"
    number, phase, changed = (*last.split("\t", 2), "", "")[:3]
    return int(number), phase, changed


class Cases(CasePool):
    """Workers that run up to `jobs` cases of op_db at a time on one target. Use as a context manager."""

    def __init__(self, target: str, limits: Limits, jobs: int = 1, place: ExecutionPlace = LOCAL) -> None:
        super().__init__(place, target, limits, jobs, [tasks.__name__, "conformance.sources.opinfo.case"])
        self.setup = "DEVICE = 'cpu'"
        self.lacks = frozenset[str]()
        self.without_backend: tuple[str, ...] = ()
        self.measures: tuple[Measure, ...] = ()
        self.loops: list[float] = []
        self.deaths: dict[str, list[Result]] = {}
        """Results of the samples that ended workers, of the cases that run again without them, by id."""

    def catalog(self, variants: Collection[str] = (), beside: bool = False) -> tuple[list[Entry], dict[str, str]]:
        """Return all of op_db as the workers load it, and the target's environment; with `beside`, also the entries
        outside op_db. Raises TargetError, also if the target cannot show one of the `variants`.
        """
        entries, environment, self.setup, self.lacks, self.without_backend, self.measures = self.ask_first(
            tasks.catalog, self.target, frozenset(variants), beside
        )
        return entries, environment

    @property
    def calibration(self) -> float:  # type: ignore[override]
        """Median of the calibration loops so far, in seconds; 0 without any."""
        return statistics.median(self.loops) if self.loops else 0.0

    def task_of(self, case: Case) -> Task:
        """See `CasePool.task_of`."""
        return Task(case.id, tasks.run, (self.target, case, (), True))

    def after_death(self, task: Task, case: Case, death: Death) -> Task | Result:
        """Return the case's result, or the case as a task without the samples that ended workers."""
        _, _, skipped, together = task.args
        if together and _noted(death)[1] == TOGETHER:
            return replace(task, args=(self.target, case, skipped, False))  # each call alone
        before = self.deaths.setdefault(case.id, [])
        before.append(self._lost(case, death))
        late = sum(result.outcome is Outcome.TIMEOUT for result in before) == MOST_TIMEOUTS
        if case.variant not in CHANGED or late or len(before) == MOST_DEATHS or death.note is None:
            return before.pop()
        skipped = tuple(failure.sample for result in before for failure in result.failures)
        return replace(task, args=(self.target, case, skipped, together))

    def completed(self, task: Task, value: Result | tuple[Result, float]) -> Result:
        """See `CasePool.completed`. A worker's value has the seconds of its calibration loop, 0 without one."""
        result, loop = value if isinstance(value, tuple) else (value, 0.0)
        self.loops += [loop] if loop else []
        return _joined(result, self.deaths.pop(task.name, []))

    def unfinished(self) -> Iterator[Result]:
        """Yield the results of the cases that wait to run again without the samples that ended workers."""
        for *before, lost in self.deaths.values():
            yield _joined(lost, before)
        self.deaths.clear()

    def _lost(self, case: Case, death: Death) -> Result:
        """Return the result of a case whose worker is gone, from the worker's last note."""
        outcome, oracle = OUTCOMES[death.reason]
        sample, phase, changed = _noted(death)
        origin = Origin.from_json(changed) if changed else None
        finding = f"{outcome}: {death.said}"
        script = (
            ""
            if is_beside(case.op)  # op_db does not have its samples
            else from_op_db(case, self.setup, sample, finding, lacks=self.lacks, origin=origin)
        )
        where = {"CPU": ON_CPU, "target": ON_TARGET}.get(phase, phase or "the worker")
        detail = f"while running sample {sample}{f': {origin}' * (origin is not None)}"
        failure = Failure(oracle, where, "an answer", death.said, detail, sample=sample, script=script)
        seconds = self.limits.unit if outcome is Outcome.TIMEOUT else 0.0
        return case.result(outcome, samples=max(sample, 1), failed=1, failures=(failure,), seconds=seconds)
