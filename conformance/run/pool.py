"""The pool: tasks in worker processes, each of which ends with a value or with a death that is told.

Defines `Pool`, the protocol that both halves of the harness work with, and `LocalPool`, which runs it on this machine.
The key insight: starting a worker costs seconds, since it imports torch and the target, so one worker more than can be
busy stands ready: after a crash the next task runs at once, while the dead worker is replaced.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, TimeoutError, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pebble

from conformance.run import stop, worker
from conformance.run.messages import COMPILING, Death, Done, Fate, Limits, Note, Task, WorkerDied, exit_in_words

LOOK = 0.5
"""Seconds between two looks at the notes of the workers."""

SPARE_AFTER = 5.0
"""Seconds that a worker is ready before a spare one starts, unless a death asks for it earlier: a short run that no
program crashes is not slowed down by a second import of torch."""

ATTEMPTS = 3
"""Workers in a row that may die before they take a task."""


class Pool(Protocol):
    """Runs tasks in workers that have loaded one target. `with` ends the workers."""

    def submit(self, task: Task) -> None:
        """Run a task as soon as there is room."""

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """Each submitted task as it ends, until none is left or so many seconds have passed; tasks may be submitted
        meanwhile. Raises Stopped when a stop was asked for."""

    def ask(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
        """A function's value in a worker, at once. Raises what it raises, WorkerDied, and Stopped."""

    def close(self) -> None:
        """End all workers."""


@dataclass
class Counters:
    """What a pool has cost: workers started, tasks that had to wait for a worker to start, whole restarts."""

    started: int = 0
    waited: int = 0
    restarted: int = 0


@dataclass
class _Running:
    """A task that was handed out, and what was last seen of it."""

    task: Task
    pool: pebble.ProcessPool
    path: Path
    given: float = field(default_factory=time.monotonic)
    seen: tuple[int, str] = (0, "")
    since: float = 0.0
    death: Death | None = None
    """Why it was ended from outside."""
    vanished: bool = False

    def note(self) -> Note | None:
        """Its last note."""
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            return Note.parse(self.path.read_text(encoding="utf-8"))
        return None

    def overdue(self, limits: Limits, note: Note | None) -> Death | None:
        """The death of a worker that cannot be waited for any longer, judged by two looks at its note."""
        now = time.monotonic()
        if note is None:
            return None
        if (note.number, note.phase) != self.seen:
            self.seen, self.since = (note.number, note.phase), now
        limit = limits.compiling if note.phase == COMPILING else limits.unit
        if note.unit and now - self.since > limit + limits.grace:
            return Death(Fate.TIMEOUT, f"gave no answer in {limit:g} s", note)
        # Pebble takes exit code 0 for a worker that was replaced, and waits for ever. One look may come between a
        # result and its arrival.
        gone, self.vanished = self.vanished, not _alive(note.pid)
        return Death(Fate.CRASH, exit_in_words(0), note) if gone and self.vanished else None


class LocalPool:
    """Spawned workers on this machine, at most `jobs` of them busy and one more that stands ready.

    `modules` are imported by each worker after the target; they hold the functions of the tasks."""

    def __init__(self, target: str, limits: Limits, jobs: int = 1, modules: Sequence[str] = ()) -> None:
        self.target, self.limits, self.jobs = target, limits, jobs
        self.counters = Counters()
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self._path = Path(self._folder.name)
        self._modules = tuple(modules)
        self._waiting: deque[Task] = deque()
        self._running: dict[Future[Any], _Running] = {}
        self._handed_out = self._fruitless = 0
        self._ever_ready, self._ready_since = False, 0.0
        self._pids: set[str] = set()
        self._looked = time.monotonic()
        self._pool = self._started()

    def _started(self) -> pebble.ProcessPool:
        return pebble.ProcessPool(
            max_workers=self.jobs + 1,
            max_tasks=self.limits.recycle,
            initializer=worker.start,
            initargs=(str(self._path), self.jobs, self.limits, self.target, self._modules),
            context=multiprocessing.get_context("spawn"),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        self._end_pool()
        self._census()
        self._folder.cleanup()

    def submit(self, task: Task) -> None:
        """Run a task as soon as fewer than `jobs` are running."""
        self._waiting.append(task)
        self._hand_out()

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """Each task as it ends; see `Pool.ended`."""
        until = None if seconds is None else time.monotonic() + seconds
        while self._waiting or self._running:
            stop.check()
            if until is not None and time.monotonic() >= until:
                return
            self._hand_out()
            for future in self._wait(self._running, until):
                if future not in self._running:  # of a pool that was given up meanwhile
                    continue
                running = self._running.pop(future)
                answer = self._answer(future, running)
                if answer is None:
                    self._waiting.appendleft(running.task)
                    continue
                self._hand_out()
                yield running.task, answer

    def ask(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
        """A function's value in a worker; see `Pool.ask`. It may take `seconds`."""
        task = Task(getattr(function, "__name__", "a question"), function, args, seconds)
        answer: Done | Death | None = None
        while answer is None:
            future, running = self._schedule(task)
            asked = {future: running}
            while not self._wait(asked, None):
                stop.check()
            answer = self._answer(future, running)
        if isinstance(answer, Death):
            raise WorkerDied(answer)
        if answer.error is not None:
            raise answer.error
        return answer.value

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
        while True:
            try:
                with stop.sigint_blocked():
                    args = (str(path), task.function, task.args)
                    future = self._pool.schedule(worker.perform, args=args, timeout=task.seconds)
                return future, _Running(task, self._pool, path)
            except RuntimeError:  # it broke before it was asked
                self._restart()

    def _wait(self, futures: dict[Future[Any], _Running], until: float | None) -> Collection[Future[Any]]:
        """Those that have ended, after at most `LOOK` seconds, in which every note was looked at."""
        now = time.monotonic()
        seconds = LOOK if until is None else max(min(LOOK, until - now), 0.0)
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
            death = running.overdue(self.limits, running.note())
            if death is None and not future.running():
                waited = time.monotonic() - running.given
                dead = sum(not _alive(int(mark.stem)) for mark in self._path.glob(f"*.{worker.STARTING}"))
                self._want_spare(dead > 0 or self._ever_ready)
                if dead >= ATTEMPTS:
                    death = Death(Fate.NEVER_STARTED, "ends the process that loads it")
                elif waited > self.limits.starting:
                    death = Death(Fate.NEVER_STARTED, f"did not load in {waited:.0f} s")
            if death is not None and future.cancel():
                running.death = death
                if death.fate is Fate.NEVER_STARTED:  # otherwise pebble says so, when it has ended the worker
                    future.set_running_or_notify_cancel()
                    self._forget_starting()

    def _answer(self, future: Future[Any], running: _Running) -> Done | Death | None:
        """How a task ended; None when its pool broke before it was begun, which is no task's fault."""
        note = running.note()
        answer: Done | Death | None
        try:
            answer = future.result(timeout=0)
        except CancelledError:
            answer = running.death or Death(Fate.CRASH, "was ended", note)
        except pebble.ProcessExpired as died:
            by_itself = note.fate if note is not None else None
            said = {Fate.TIMEOUT: f"gave no answer in {self._limit(note):g} s", Fate.MEMORY: "ran out of memory"}
            words = said[by_itself] if by_itself is not None else exit_in_words(died.exitcode or 0)
            answer = Death(by_itself or Fate.CRASH, words, note)
        except BrokenProcessPool:
            answer = running.death or self._broken(running)
        except TimeoutError:
            answer = Death(Fate.TIMEOUT, f"gave no answer in {running.task.seconds:g} s", note)
        except Exception as error:  # the value cannot be sent
            answer = Done(error=error)
        self._want_spare(isinstance(answer, Death))
        self._fruitless = 0 if answer is not None else self._fruitless
        running.path.unlink(missing_ok=True)
        return answer

    def _limit(self, note: Note | None) -> float:
        return self.limits.compiling if note is not None and note.phase == COMPILING else self.limits.unit

    def _broken(self, running: _Running) -> Death | None:
        """A worker died before it took a task, or between two: another pool tries, unless that is so every time."""
        if running.pool is self._pool:
            self._restart()
        self._fruitless += 1
        if self._fruitless < (ATTEMPTS if self._ever_ready else 1):
            return None
        return Death(Fate.NEVER_STARTED, "ends the process that loads it")

    def _restart(self) -> None:
        self.counters.restarted += 1
        self._end_pool()
        self._census()
        self._forget_starting()
        self._pool = self._started()

    def _forget_starting(self) -> None:
        for mark in self._path.glob(f"*.{worker.STARTING}"):
            mark.unlink(missing_ok=True)

    def _end_pool(self) -> None:
        self._pool.stop()
        self._pool.join()

    def _want_spare(self, wanted: bool) -> None:
        if wanted:
            (self._path / worker.SPARE).touch()

    def _census(self) -> int:
        """How many workers are ready, and alive; the marks of the dead are counted and taken away."""
        ready = 0
        marks = [each for each in self._path.iterdir() if each.suffix in (f".{worker.STARTING}", f".{worker.READY}")]
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
