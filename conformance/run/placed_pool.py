"""Workers at a place that have loaded one target: a crash, a hang or running out of memory affects one task only.

Defines `PlacedPool`, the pool of every command. It gives one answer to each end of a worker: if no worker can be
started, the target is unusable; after a death during a task, the caller decides about the task.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from conformance.record.result import Outcome
from conformance.run.execution_place import ExecutionPlace
from conformance.run.messages import Death, Done, ExitReason, Limits, Pool, Task, WorkerDied, unusable
from conformance.run.pool import PRELOAD

OUTCOMES = {
    ExitReason.CRASH: (Outcome.CRASH, "crash"),
    ExitReason.MEMORY: (Outcome.CRASH, "memory"),
    ExitReason.TIMEOUT: (Outcome.TIMEOUT, "timeout"),
}
"""Outcome and oracle of a subject, by the exit reason of its worker."""


class PlacedPool(Pool):
    """A pool of a place. If no worker can be started, `ended` and `ask` raise TargetError."""

    preload: Sequence[str] = PRELOAD
    """Modules that a fork server imports once for all workers, before any of them loads the target."""

    def __init__(
        self, place: ExecutionPlace, target: str, limits: Limits, jobs: int = 1, modules: Sequence[str] = ()
    ) -> None:
        self.place, self.target, self.limits, self.jobs = place, target, limits, jobs
        self.pool = place.pool(target, limits, jobs, modules, self.preload)

    def submit(self, task: Task) -> None:
        """See `Pool.submit`."""
        self.pool.submit(task)

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """See `Pool.ended`."""
        for task, answer in self.pool.ended(seconds):
            if isinstance(answer, Death) and answer.reason is ExitReason.NEVER_STARTED:
                raise unusable(self.target, answer)
            yield task, answer

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float = math.inf
    ) -> Any:
        """See `Pool.ask`."""
        try:
            return self.pool.ask(function, *args, seconds=seconds, until=until)
        except WorkerDied as died:
            if died.death.reason is ExitReason.NEVER_STARTED:
                raise unusable(self.target, died.death) from None
            raise

    def ask_first(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return a function's value from the first worker. `Place.tell` receives a line if loading the target takes
        long. Raises TargetError if the target cannot be loaded, or if the function ends the worker."""
        try:
            with self.place.loading(self.target, self.limits):
                self.ask(os.getpid)
            return self.ask(function, *args)
        except WorkerDied as died:
            raise unusable(self.target, died.death) from None

    def results(
        self, tasks: Iterable[Task], after_death: Callable[[Task, Death], Any], seconds: float | None = None
    ) -> Iterator[tuple[Task, Any]]:
        """Run tasks, and yield each as it ends with its value or its exception, for at most `seconds`.

        If the worker of a task dies, `after_death` returns a value for the task, or a task to run in its place. Raises
        TargetError and Stopped, as `ended` does."""
        for task in tasks:
            self.submit(task)
        for task, answer in self.ended(seconds):
            result = after_death(task, answer) if isinstance(answer, Death) else answer.error or answer.value
            if isinstance(result, Task):
                self.submit(result)
            else:
                yield task, result

    def busy(self) -> list[tuple[Task, float]]:
        """See `Pool.busy`."""
        return self.pool.busy()

    def alive(self) -> int:
        """See `Pool.alive`."""
        return self.pool.alive()

    def close(self) -> None:
        """See `Pool.close`."""
        self.pool.close()
