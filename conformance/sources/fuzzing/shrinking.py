"""Shrinking of findings: one after the other, in threads of this process, or as tasks of a pool on other machines.

Defines `Shrinker`, and its forms `LocalShrinker`, `ThreadShrinker` and `RemoteShrinker`. The key insight: the small
form of a finding is a function of the finding alone. Any worker can compute it ahead of its turn and in any order, and
the campaign reports the same.
"""

from __future__ import annotations

import functools
import math
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol, Self

from conformance.run import signals
from conformance.run.messages import Death, Done, Limits, Task
from conformance.sources.fuzzing.isolation import FreshWorkers, Workers
from conformance.sources.fuzzing.worker import FailingProgram


class Shrinker(Protocol):
    """Shrinks findings. `until` is in seconds since the epoch."""

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        """The finding on a smaller program; see `Workers.shrink`."""

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        """The smaller finding, after it failed in a fresh worker too; see `Workers.confirm`."""


class Ahead(Shrinker, Protocol):
    """Shrinks several findings at a time, also ahead of their turn."""

    @property
    def running(self) -> int:
        """Number of findings that were begun and are not shrunk yet."""

    def begin(self, finding: FailingProgram, until: float = math.inf) -> object:
        """Shrink this finding as soon as a worker is free, unless it was begun before."""


@dataclass(frozen=True)
class LocalShrinker:
    """Shrinks in the workers of a campaign and in fresh workers, one finding after the other."""

    workers: Workers
    fresh: FreshWorkers
    trials: int

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.shrink`."""
        self.fresh.start()
        return self.workers.shrink(finding, self.trials, until, self.fresh)

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.confirm`."""
        return self.workers.confirm(finding, small, self.fresh, self.trials, until)


LOOK = 0.2
"""Interval in seconds between checks for a stop while a thread shrinks."""


class ThreadShrinker:
    """Shrinks `jobs` findings at a time, each in a thread with its own worker processes. Use as a context manager."""

    def __init__(self, workers: Workers, jobs: int, trials: int) -> None:
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(jobs)
        self._futures: dict[tuple[int, int, str], Future[FailingProgram]] = {}
        self._free: queue.SimpleQueue[LocalShrinker] = queue.SimpleQueue()
        self._all = [LocalShrinker(*workers.others(), trials) for _ in range(jobs + 1)]
        *for_threads, self._confirming = self._all
        for shrinker in for_threads:
            self._free.put(shrinker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._threads.shutdown(cancel_futures=True)
        for shrinker in self._all:
            shrinker.fresh.close()
            shrinker.workers.close()

    @property
    def running(self) -> int:
        """See `Ahead.running`."""
        return sum(not future.done() for future in self._futures.values())

    def begin(self, finding: FailingProgram, until: float = math.inf) -> Future[FailingProgram]:
        """See `Ahead.begin`."""
        key = (finding.number, finding.part, finding.group)
        if key not in self._futures:
            self._futures[key] = self._threads.submit(self._in_thread, finding, until)
        return self._futures[key]

    def _in_thread(self, finding: FailingProgram, until: float) -> FailingProgram:
        shrinker = self._free.get()
        try:
            with signals.stopped_by(self._stop):
                return shrinker.shrink(finding, until)
        finally:
            self._free.put(shrinker)

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.shrink`."""
        self._confirming.fresh.start()
        future = self.begin(finding, until)
        while not wait([future], LOOK).done:
            signals.check()
        return future.result()

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.confirm`. The calling thread waits for it, since its answer decides about the next finding."""
        return self._confirming.confirm(finding, small, until)


Key = tuple[int, int, str, str]
"""A finding's program, its part and group, and the group of the smaller finding to confirm; the last is empty if there
is none."""


@dataclass
class RemoteShrinker:
    """Shrinks in tasks of a pool. Each task starts worker processes below its worker."""

    workers: Workers
    trials: int
    answers: dict[Key, FailingProgram | Exception] = field(default_factory=dict)
    """Answers of tasks."""
    requested: set[Key] = field(default_factory=set)

    @property
    def running(self) -> int:
        """Number of tasks that have not ended."""
        return len(self.requested) - len(self.answers)

    def begin(self, finding: FailingProgram, until: float = math.inf, small: FailingProgram | None = None) -> Key:
        """See `Ahead.begin`; with `small`, confirm that form of the finding."""
        key = (finding.number, finding.part, finding.group, small.group if small is not None else "")
        if key not in self.requested:
            self.requested.add(key)
            workers = self.workers
            args = (workers.target, workers.limits, self.trials, workers.hang, finding, small, until)
            workers.submit(Task(f"shrinking program {finding.number}", shrunk, args))
        return key

    def take(self, task: Task, answer: Done | Death) -> None:
        """Store the answer of a task. After a death its finding stays as it is."""
        *_, finding, small, _ = task.args
        key = self.begin(finding, small=small)
        if isinstance(answer, Death):
            self.answers[key] = finding
        else:
            self.answers[key] = answer.error or answer.value

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.shrink`."""
        return self._wanted(self.begin(finding, until))

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.confirm`."""
        return self._wanted(self.begin(finding, until, small))

    def _wanted(self, key: Key) -> FailingProgram:
        if key not in self.answers:
            for task, answer in self.workers.ended():
                self.take(task, answer)
                if key in self.answers:
                    break
        result = self.answers[key]
        if isinstance(result, Exception):
            raise result
        return result


def shrunk(
    target: str,
    limits: Limits,
    trials: int,
    hang: frozenset[str],
    one: FailingProgram,
    small: FailingProgram | None,
    until: float,
) -> FailingProgram:
    """Return, in a worker, the small form of a finding; with `small`, the result of confirming it."""
    workers, fresh = _own(target, limits)
    workers.hang = hang
    local = LocalShrinker(workers, fresh, trials)
    return local.shrink(one, until) if small is None else local.confirm(one, small, until)


@functools.lru_cache(maxsize=1)
def _own(target: str, limits: Limits) -> tuple[Workers, FreshWorkers]:
    """The worker processes below this worker. They end with it."""
    return Workers(target, limits), FreshWorkers(target, limits)
