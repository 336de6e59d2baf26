"""Pool of worker processes on this machine. Each task ends with a value or with the death of its worker.

Defines `LocalPool`, a `Pool`. A crash has to be cheap, so workers are forks of a server that has imported torch and no
target. One worker more than there are jobs stands ready with the target loaded. After a crash, the next task runs on it
without delay. pebble manages the processes and detects exits; the note of a task says which step it was in.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, InvalidStateError, TimeoutError, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pebble

from conformance.run import processes, signals, worker
from conformance.run.messages import (
    KILLED,
    LOST,
    Death,
    Done,
    ExitReason,
    Limits,
    OutOfTime,
    Pool,
    Task,
    TaskProgress,
    exit_in_words,
    value_of,
)
from conformance.run.temporary import OwnedFolder

LOOK = 0.5
"""Interval in seconds between reads of the workers' notes."""

SPARE_AFTER = 5.0
"""Seconds that a worker must be ready before a spare worker starts. A death, or a task that waits for a worker, starts
it earlier. A short run without a crash therefore loads the target only once.
"""

ATTEMPTS = 3
"""Limit on deaths of workers in a row before they take a task; the pool then reports NEVER_STARTED."""

PRELOAD = (
    "torch", "torch._dynamo", "conformance.run.shrink_program",
    "torch.testing._internal.common_methods_invocations",
)  # fmt: skip
"""Modules that the fork server imports for all workers. Many torch functions import torch._dynamo on their first call.
op_db comes last: every worker samples it, and importing it dominates worker start-up. Pools share a server only if
their lists are equal, so the module that runs programs is in the list of nearly every pool.
"""

TOGETHER = 0.2
"""Seconds to wait for a SIGTERM of this process after one ended a worker, in case it was sent to the process group."""


@dataclass
class PoolCosts:
    """Costs of a pool: workers started, tasks that waited for a worker to start, and restarts of the whole pool. `lost`
    is the reason, if the fork server was lost.
    """

    started: int = 0
    waited: int = 0
    restarted: int = 0
    lost: str = ""


@dataclass
class _Running:
    """A task that was handed to a worker, and its last observed progress."""

    task: Task
    context: processes.Forking | processes.Spawning
    path: Path
    submitted: float = field(default_factory=time.monotonic)
    seen: tuple[int, str] = (0, "")
    since: float = 0.0
    death: Death | None = None
    """The reason, if the pool cancelled the task."""

    def overdue(self, limits: Limits, note: TaskProgress | None) -> Death | None:
        """Return a TIMEOUT death if the note shows one unit and phase for longer than the limit plus `grace`."""
        now = time.monotonic()
        if note is None:
            return None
        if (note.number, note.phase) != self.seen:
            self.seen, self.since = (note.number, note.phase), now
        limit = limits.of(note.phase)
        late = note.unit and now - self.since > limit + note.waited + limits.grace
        return Death(ExitReason.TIMEOUT, f"gave no answer in {limit:g} s", note) if late else None


class LocalPool(Pool):
    """Worker processes on this machine: at most `jobs` busy ones, and one spare.

    Each worker imports `modules`, which hold the functions of the tasks, after the target. `preload` lists modules that
    may be imported before the target, as torch is; where workers are forks, the server imports them once. Files of
    `worker.keep` are written to their own path, or into the folder `spool` if the owner is on another machine. Output
    of workers is appended to the file `worker_log`, or goes to stderr without one.
    """

    def __init__(
        self,
        target: str,
        limits: Limits,
        jobs: int = 1,
        modules: Sequence[str] = (),
        *,
        preload: Sequence[str] = PRELOAD,
        spool: Path | None = None,
        worker_log: Path | None = None,
    ) -> None:
        self.target, self.limits, self.jobs = target, limits, jobs
        self.counters = PoolCosts()
        self._folder = OwnedFolder()
        self._path = Path(self._folder.name)
        self._modules, self._preload = tuple(modules), tuple(preload)
        self._spool, self._worker_log = (str(path) if path is not None else "" for path in (spool, worker_log))
        self._waiting: deque[Task] = deque()
        self._running: dict[Future[Any], _Running] = {}
        self._handed_out = self._fruitless = 0
        self._ever_ready, self._ready_since = False, 0.0
        self._pids: set[str] = set()
        self._looked = time.monotonic()
        self._start_pool()

    def _start_pool(self) -> None:
        """Create the pebble pool. pebble starts no process before the first task."""
        fork = processes.can_fork() and not self.counters.lost
        self._context = processes.Forking(self._preload) if fork else processes.Spawning()
        self._pool = pebble.ProcessPool(
            max_workers=self.jobs + 1,
            max_tasks=self.limits.recycle,
            initializer=worker.start,
            initargs=(
                str(self._path),
                self.jobs,
                self.limits,
                self.target,
                self._modules,
                self._spool,
                self._worker_log,
            ),
            context=self._context,
        )

    def close(self) -> None:
        """End all workers, busy ones included."""
        self._end_pool()
        self._census()
        self._folder.cleanup()

    def busy(self) -> list[tuple[Task, float]]:
        """See `Pool.busy`."""
        return [(running.task, time.monotonic() - running.submitted) for running in self._running.values()]

    def alive(self) -> int:
        """See `Pool.alive`."""
        return self._census()

    def submit(self, task: Task) -> None:
        """Run a task as soon as fewer than `jobs` are running."""
        self._waiting.append(task)
        self._hand_out()

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """Yield each task with its answer as it ends; see `Pool.ended`."""
        until = math.inf if seconds is None else time.time() + seconds
        while self._waiting or self._running:
            signals.check()
            if time.time() >= until:
                return
            self._hand_out()
            for future in self._wait(self._running, until):
                if future not in self._running:  # of a pool that was restarted meanwhile
                    continue
                running = self._running.pop(future)
                answer = self._answer(future, running)
                if answer is None:
                    self._waiting.appendleft(running.task)
                    continue
                self._hand_out()
                yield running.task, answer

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float = math.inf
    ) -> Any:
        """Return a function's value from a worker; see `Pool.ask`. The limit `seconds` counts from when a worker takes
        it.
        """
        task = Task(getattr(function, "__name__", "a question"), function, args, seconds)
        answer: Done | Death | None = None
        while answer is None:
            future, running = self._schedule(task)
            while not self._wait({future: running}, until):
                signals.check()
                if time.time() >= until:
                    future.cancel()  # pebble ends its worker
                    raise OutOfTime
            answer = self._answer(future, running)
        return value_of(answer)

    def _hand_out(self) -> None:
        while self._waiting and len(self._running) < self.jobs:
            future, running = self._schedule(self._waiting.popleft())
            self._running[future] = running

    def _schedule(self, task: Task) -> tuple[Future[Any], _Running]:
        if self._census() <= len(self._running):
            self.counters.waited += 1
            self._want_spare(self._ever_ready)
        self._handed_out += 1
        path = self._path / f"{self._handed_out}.note"
        try:
            message = pickle.dumps((str(path), task.function, task.args))
        except Exception as error:  # the task cannot be pickled
            future: Future[Any] = Future()
            future.set_exception(error)
            return future, _Running(task, self._context, path)
        while True:
            signals.check()
            try:
                future = self._pool.schedule(worker.perform, args=(message,), timeout=task.seconds)
                return future, _Running(task, self._context, path)
            except RuntimeError:  # the pool broke before it took the task
                self._restart()

    def _wait(self, futures: dict[Future[Any], _Running], until: float) -> Collection[Future[Any]]:
        """Return the futures that ended within at most `LOOK` seconds; read the workers' notes once every `LOOK`
        seconds.
        """
        seconds = max(min(LOOK, until - time.time()), 0.0)
        done = wait(futures, seconds, FIRST_COMPLETED).done
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            self._look({**self._running, **futures})
        return done

    def _look(self, futures: dict[Future[Any], _Running]) -> None:
        if self._census():
            self._ready_since = self._ready_since or time.monotonic()
            self._want_spare(time.monotonic() - self._ready_since > SPARE_AFTER)
        for future, running in futures.items():
            if future.done() or running.death is not None:
                continue
            death = running.overdue(self.limits, TaskProgress.read(running.path))
            if death is None and not (future.running() or self._pool.active) and running.context is self._context:
                # A worker may die before pebble knows of the task, which pebble then forgets.
                with contextlib.suppress(InvalidStateError):  # pebble answered it meanwhile
                    future.set_exception(BrokenProcessPool())
            elif death is None and not future.running():
                waited = time.monotonic() - running.submitted
                dead = sum(not _alive(pid) for pid in self._loading())
                self._want_spare(dead > 0 or self._ever_ready)
                if dead >= ATTEMPTS:
                    death = self._never_started(dead)
                elif waited > self.limits.starting:
                    death = Death(ExitReason.NEVER_STARTED, f"did not load in {waited:.0f} s")
            if death is not None and future.cancel():
                running.death = death
                if death.reason is ExitReason.NEVER_STARTED:  # otherwise pebble does this after it has ended the worker
                    future.set_running_or_notify_cancel()
                    self._forget_starting()

    def _answer(self, future: Future[Any], running: _Running) -> Done | Death | None:
        """Return the end of a task, or None if the pool broke before the task began; the caller then
        submits it again.
        """
        note = TaskProgress.read(running.path)
        answer: Done | Death | None
        try:
            answer = pickle.loads(future.result(timeout=0))
        except CancelledError:
            answer = running.death or Death(ExitReason.CRASH, "was ended", note)
        except pebble.ProcessExpired as died:
            answer = self._broken(running) if running.context.lost else self._died(died.exitcode, note)
        except BrokenProcessPool:
            answer = running.death or self._broken(running)
        except TimeoutError:
            answer = Death(ExitReason.TIMEOUT, f"gave no answer in {running.task.seconds:g} s", note)
        except Exception as error:  # the task cannot be pickled, or its value cannot be unpickled
            answer = Done(error=error)
        self._want_spare(isinstance(answer, Death))
        self._fruitless = 0 if answer is not None else self._fruitless
        running.path.unlink(missing_ok=True)
        return answer

    def _died(self, code: int, note: TaskProgress | None) -> Death:
        if code == -signal.SIGTERM:  # the sender may mean the whole process group; then the task is not at fault
            time.sleep(TOGETHER)
            signals.check()
        if note is not None and note.reason is ExitReason.TIMEOUT:
            return Death(note.reason, f"gave no answer in {self.limits.of(note.phase):g} s", note)
        if note is not None and note.reason is ExitReason.MEMORY:
            return Death(note.reason, "ran out of memory", note)
        if note is not None and note.lost:
            return Death(ExitReason.CRASH, f"{LOST} ({note.lost})", note)
        return Death(ExitReason.CRASH, exit_in_words(0 if code == processes.EXIT_0 else code), note)

    def _broken(self, running: _Running) -> Death | None:
        """Restart the pool after a worker died before or between tasks, or after the fork server ended. Return None to
        try the task again, or NEVER_STARTED if workers keep dying.
        """
        # Before the restart, which kills the workers that still load.
        death, killed = self._never_started(self._fruitless + 1), bool(self._killed_loading())
        if running.context is self._context:
            self._restart()
        if running.context.lost:
            return None
        self._fruitless += 1
        # A target that ended the process once will end it again. What killed it from outside may be over.
        attempts = ATTEMPTS if self._ever_ready else 2 if killed else 1
        return None if self._fruitless < attempts else death

    def _never_started(self, attempts: int) -> Death:
        """Return the death of a task for which no worker starts, after this number of attempts."""
        names = self._killed_loading()
        if not names:
            return Death(ExitReason.NEVER_STARTED, "ends the process that loads it")
        again = "" if attempts == 1 else ", and again" if attempts == 2 else f", {attempts} times"
        return Death(ExitReason.NEVER_STARTED, f"{KILLED} ({names[-1]}){again}")

    def _killed_loading(self) -> list[str]:
        """Return the signals that killed workers which were loading the target. The target sends itself none of them,
        unlike SIGSEGV or SIGABRT."""
        codes = map(self._context.exit_code_of, self._loading())
        return [signal.Signals(-code).name for code in codes if code in (-signal.SIGKILL, -signal.SIGTERM)]

    def _loading(self) -> list[int]:
        """Return the process ids of the workers that load the target, dead ones included."""
        return [int(mark.stem) for mark in self._path.glob(f"*.{worker.STARTING}")]

    def _restart(self) -> None:
        self.counters.restarted += 1
        self.counters.lost = self.counters.lost or self._context.lost
        self._end_pool()
        self._census()
        self._forget_starting()
        for mark in self._path.glob(f"*.{worker.TAKEN}"):  # else the new workers would all wait as spares
            mark.unlink(missing_ok=True)
        self._start_pool()

    def _forget_starting(self) -> None:
        for mark in self._path.glob(f"*.{worker.STARTING}"):
            mark.unlink(missing_ok=True)

    def _end_pool(self) -> None:
        self._pool.stop()
        self._pool.join()
        self._context.close()

    def _want_spare(self, wanted: bool) -> None:
        if wanted:
            (self._path / worker.SPARE).touch()

    def _census(self) -> int:
        """Count the workers that are ready and alive, and delete the marks of dead ones."""
        ready = 0
        marks = [path for path in self._path.iterdir() if path.suffix in (f".{worker.STARTING}", f".{worker.READY}")]
        self._pids.update(mark.stem for mark in marks)
        self.counters.started = len(self._pids)
        for mark in self._path.glob(f"*.{worker.READY}"):
            self._ever_ready = True
            if _alive(int(mark.stem)):
                ready += 1
            else:
                mark.unlink(missing_ok=True)
        return ready


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
