"""Cases in processes of their own: a crash, a hang or a memory explosion is the outcome of one case and of no other.

Defines `Cases`. The key insight: a worker notes each sample and phase before it runs it, so the result of a case whose
worker died says where. This process imports neither torch nor the target, and decides nothing about what passes; the
processes are a pool's.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Collection, Iterable, Iterator

from conformance.core.errors import UserError
from conformance.core.result import Failure, Outcome, Result
from conformance.opinfo import worker
from conformance.opinfo.plan import Case, Entry
from conformance.opinfo.sample_script import from_op_db
from conformance.run.messages import Death, Fate, Limits, Task, WorkerDied, unusable
from conformance.run.place import LOCAL, Place, PlacedPool

FATES = {
    Fate.CRASH: (Outcome.CRASH, "crash"),
    Fate.MEMORY: (Outcome.CRASH, "memory"),
    Fate.TIMEOUT: (Outcome.TIMEOUT, "timeout"),
}
"""The outcome and the oracle of a case whose worker died."""


class Cases(PlacedPool):
    """Workers that run cases on one target, as many at a time as `jobs`. Use as a context manager."""

    def __init__(self, target: str, limits: Limits, jobs: int = 1, place: Place = LOCAL) -> None:
        super().__init__(place, target, limits, jobs, [worker.__name__, "conformance.opinfo.case"])
        self.setup = "DEVICE = 'cpu'"
        self.lacks = frozenset[str]()
        self.without_backend: tuple[str, ...] = ()
        self.loops: list[float] = []

    def catalog(self, variants: Collection[str] = (), beside: bool = False) -> tuple[list[Entry], dict[str, str]]:
        """All of op_db as the workers see it, with `beside` the entries beside it as well, and the target's
        environment. Raises TargetError, also where the target cannot show one of the `variants`."""
        try:
            with self.place.loading(self.target, self.limits):
                self.ask(os.getpid)
            entries, environment, self.setup, self.lacks, self.without_backend = self.ask(
                worker.catalog, self.target, frozenset(variants), beside
            )
        except WorkerDied as died:
            raise unusable(self.target, died.death) from None
        return entries, environment

    @property
    def calibration(self) -> float:
        """The median of the calibration loops that ran so far, in seconds; 0 when none did."""
        return statistics.median(self.loops) if self.loops else 0.0

    def run(self, cases: Iterable[Case]) -> Iterator[Result]:
        """The results of the cases, in the order in which they finish; they begin in the order given. Raises
        TargetError where no worker can be started, and Stopped."""
        for case in cases:
            self.submit(Task(case.id, worker.run, (self.target, case)))
        for task, answer in self.ended():
            case = task.args[1]
            if isinstance(answer, Death):
                if answer.fate is Fate.NEVER_STARTED:
                    raise unusable(self.target, answer)
                yield self._lost(case, *FATES[answer.fate], answer)
            elif isinstance(answer.error, UserError):
                raise answer.error
            elif answer.error is not None:
                said = f"{type(answer.error).__name__}: {answer.error}"
                yield self._lost(case, Outcome.CRASH, "harness", Death(Fate.CRASH, said))
            else:
                result, loop = answer.value
                self.loops += [loop] if loop else []
                yield result

    def _lost(self, case: Case, outcome: Outcome, oracle: str, death: Death) -> Result:
        """The result of a case whose worker is gone, from what the worker noted last."""
        last = death.note.steps[-1] if death.note is not None and death.note.steps else "0\t"
        number, _, phase = last.partition("\t")
        sample = int(number)
        finding = f"{outcome}: {death.said}"
        script = "" if oracle == "harness" else from_op_db(case, self.setup, sample, finding, lacks=self.lacks)
        where = {"CPU": "torch CPU, not the target", "target": "the target"}.get(phase, phase or "the worker")
        failure = Failure(
            oracle, where, "an answer", death.said, f"while running sample {sample}", sample=sample, script=script
        )
        seconds = self.limits.unit if outcome is Outcome.TIMEOUT else 0.0
        return case.result(outcome, samples=max(sample, 1), failed=1, failures=(failure,), seconds=seconds)
