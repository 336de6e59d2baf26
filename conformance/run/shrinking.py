"""Shrinking of findings: one after the other, in threads of this process, or as tasks of a pool on other machines.

Defines `Shrinker`, and its forms `LocalShrinker`, `ThreadShrinker` and `RemoteShrinker`. The key insight: the small
form of a finding is a function of the finding alone. Any worker can compute it ahead of its turn and in any order, and
the campaign reports the same. A failure can corrupt its process for all later programs. So a failure counts only if it
repeats in a fresh process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

from conformance.program.model import Program
from conformance.record.errors import TargetError
from conformance.run import shrink_program, signals
from conformance.run.failing_program import DEATHS, FailingProgram
from conformance.run.messages import Death, Done, Limits, OutOfTime, Task, WorkerDied
from conformance.run.program_workers import ProgramWorkers
from conformance.run.shrink_progress import ShrinkProgress
from conformance.run.worker import environment


class Shrinker(Protocol):
    """Shrinks findings. `until` is in seconds since the epoch."""

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        """The finding on a smaller program; see `LocalShrinker.smaller`."""

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        """The smaller finding, after it failed in a fresh worker too; see `LocalShrinker.confirm`."""


class Ahead(Shrinker, Protocol):
    """Shrinks several findings at a time, also ahead of their turn."""

    @property
    def running(self) -> int:
        """Number of findings that were begun and are not shrunk yet."""

    def begin(self, finding: FailingProgram, until: float = math.inf) -> object:
        """Shrink this finding as soon as a worker is free, unless it was begun before."""


TO_ANSWER = 1.0
"""Seconds before its deadline at which a worker stops trying smaller programs, judges the smallest one and returns."""


class LocalShrinker:
    """Shrinks findings one after the other, in `workers` and in fresh workers of the same target on this machine. A
    fresh worker has run no program. Use as a context manager, which ends the fresh worker that stands ready."""

    def __init__(self, workers: ProgramWorkers, trials: int) -> None:
        self.workers, self.trials = workers, trials
        self._next: ProgramWorkers | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._next is not None:
            self._next.close()

    def start(self) -> ProgramWorkers:
        """Start a fresh worker, unless a started one is still unused: starting ahead of its use saves time."""
        if self._next is None:
            self._next = self.workers.alike()
            self._next.submit(Task("loading the target", environment, (self.workers.target,)))
        return self._next

    @contextlib.contextmanager
    def _fresh(self, until: float) -> Iterator[ProgramWorkers]:
        """A fresh worker for the block. Waits until it has loaded the target, but not beyond `until`."""
        fresh, self._next = self.start(), None
        with fresh:
            for _ in fresh.ended(None if until == math.inf else until - time.time()):
                pass
            yield fresh

    def _repeats(self, finding: FailingProgram, until: float) -> bool:
        """Whether a fresh worker fails on a finding's program as before."""
        with self._fresh(until) as fresh:
            return fresh.shows(finding, until)

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.shrink`. Meanwhile a fresh worker starts, which `confirm` may need."""
        self.start()
        return self.smaller(finding, until)

    def smaller(self, finding: FailingProgram, until: float = math.inf) -> FailingProgram:
        """Return the finding on the smallest program found by `until`. A death that does not repeat in a fresh worker
        is FLAKY. If a smaller program ends the worker, another one goes on. A finding that is not `shrinkable` stays as
        it is. Raises errors of the harness itself."""
        if not finding.shrinkable:
            return finding
        small = self._smaller(finding, until)
        return replace(small, cut=time.time() >= until - TO_ANSWER)

    def _smaller(self, finding: FailingProgram, until: float) -> FailingProgram:
        if finding.kind in DEATHS:
            try:
                repeats = self._repeats(finding, until)
            except OutOfTime:
                return finding
            return self._smallest(finding, until) if repeats else finding.flaky()
        small = self._smallest(finding, until)
        with contextlib.suppress(WorkerDied, OutOfTime):  # a replaced operator may end the process
            ask, target, seconds = self.workers.ask, self.workers.target, 2 * shrink_program.LONGEST_TRIAL
            small = ask(shrink_program.attributed, target, small, until - TO_ANSWER, seconds=seconds, until=until)
        return small

    def _smallest(self, finding: FailingProgram, until: float) -> FailingProgram:
        """Return the finding on the smallest program that workers find, one after the other. After too many deaths, the
        last worker tries no further program, and judges the smallest one so far."""
        workers, same, progress, last_worker = self.workers, finding.exit_reasons, ShrinkProgress(), False
        last = time.time() + 60 + self.trials * 10.0
        while not last_worker and time.time() < last:
            last_worker, trials = progress.over, 0 if progress.over else self.trials
            arguments = (workers.target, finding, trials, until - TO_ANSWER, progress, workers.hang)
            try:
                small: FailingProgram = workers.ask(
                    shrink_program.shrink, *arguments, seconds=last - time.time(), until=until
                )
                return small
            except (OutOfTime, TargetError):
                break
            except WorkerDied as died:
                progress = progress.after(died.death, same)
        if not (same and progress.best):
            return finding
        return finding.died_on(Program.from_json(json.loads(progress.best)))

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        """Return the smaller finding if it fails in a fresh worker too.

        Otherwise run the original program in a fresh worker. If it passes there, return it as FLAKY. If it fails,
        shrink it in that worker, and return the result if it fails in another fresh worker, else the original. At
        `until` the original is returned."""
        shrunk = small.program != finding.program
        with contextlib.suppress(OutOfTime):
            if shrunk and self._repeats(small, until):
                return small
            with self._fresh(until) as fresh:
                if not fresh.shows(finding, until):
                    return finding.flaky()
                if not shrunk:
                    return small
                smaller = LocalShrinker(fresh, self.trials).smaller(finding, until)
            return smaller if self._repeats(smaller, until) else finding
        return replace(finding, cut=True)


LOOK = 0.2
"""Interval in seconds between checks for a stop while a thread shrinks."""


T = TypeVar("T")


def result_of(future: Future[T]) -> T:
    """Wait for a thread's result, and return it. Raises Stopped, and what the thread raises."""
    while not wait([future], LOOK).done:
        signals.check()
    return future.result()


class ThreadShrinker:
    """Shrinks `jobs` findings at a time, each in a thread with its own worker processes. Use as a context manager."""

    on_free: Callable[[], None]
    """Called when another finding is shrunk while `shrink` waits for one. It may begin more, so that no thread is idle
    while one finding takes long."""

    def __init__(self, workers: ProgramWorkers, jobs: int, trials: int) -> None:
        self.on_free = lambda: None
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(jobs)
        self._futures: dict[tuple[int, int, str], Future[FailingProgram]] = {}
        self._free: queue.SimpleQueue[LocalShrinker] = queue.SimpleQueue()
        self._all = [LocalShrinker(workers.alike(), trials) for _ in range(jobs + 1)]
        *for_threads, self._confirming = self._all
        for shrinker in for_threads:
            self._free.put(shrinker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._threads.shutdown(cancel_futures=True)
        for shrinker in self._all:
            with shrinker:
                shrinker.workers.close()

    @property
    def running(self) -> int:
        """See `Ahead.running`."""
        return sum(not future.done() for future in self._futures.values())

    def begin(self, finding: FailingProgram, until: float = math.inf) -> Future[FailingProgram]:
        """See `Ahead.begin`."""
        key = (finding.number, finding.part, finding.signature)
        if key not in self._futures:
            self._futures[key] = self.submit(LocalShrinker.smaller, finding, until)
        return self._futures[key]

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Call `work` with a shrinker of its own, in a thread, as soon as one is free."""

        def in_thread() -> T:
            shrinker = self._free.get()
            try:
                with signals.stopped_by(self._stop):
                    return work(shrinker, *args)
            finally:
                self._free.put(shrinker)

        return self._threads.submit(in_thread)

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.shrink`. Raises Stopped, and what the thread raises."""
        self._confirming.start()
        wanted, seen = self.begin(finding, until), -1
        while not wanted.done():
            ended = len(self._futures) - self.running
            if ended != seen:
                seen = ended
                self.on_free()
            wait([future for future in self._futures.values() if not future.done()], LOOK, FIRST_COMPLETED)
            signals.check()
        return wanted.result()

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        """See `Shrinker.confirm`. The calling thread waits for it, since its answer decides about the next finding."""
        return self._confirming.confirm(finding, small, until)


Key = tuple[int, int, str, str]
"""A finding's program, its part and signature, and the signature of the smaller finding to confirm; the last is empty
if there is none."""


@dataclass
class RemoteShrinker:
    """Shrinks in tasks of a pool. Each task starts worker processes below its worker."""

    workers: ProgramWorkers
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
        key = (finding.number, finding.part, finding.signature, small.signature if small is not None else "")
        if key not in self.requested:
            self.requested.add(key)
            workers = self.workers
            args = (workers.target, workers.limits, self.trials, shrunk, workers.hang, finding, small, until)
            workers.submit(Task(f"shrinking program {finding.number}", with_shrinker, args))
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
    shrinker: LocalShrinker, hang: frozenset[str], finding: FailingProgram, small: FailingProgram | None, until: float
) -> FailingProgram:
    """Return the small form of a finding; with `small`, the result of confirming it."""
    shrinker.workers.hang = hang
    return shrinker.smaller(finding, until) if small is None else shrinker.confirm(finding, small, until)


def with_shrinker(target: str, limits: Limits, trials: int, work: Callable[..., T], *args: Any) -> T:
    """Call `work`, in a worker, with a shrinker whose worker processes run below this worker. They end with it."""
    return work(_own(target, limits, trials), *args)


@functools.lru_cache(maxsize=1)
def _own(target: str, limits: Limits, trials: int) -> LocalShrinker:
    return LocalShrinker(ProgramWorkers(target, limits), trials)
