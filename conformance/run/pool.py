"""The pool: tasks in worker processes, each of which ends with a value or with a death that is told.

Defines `Pool`, the protocol that both halves of the harness work with, and `LocalPool`, which runs it on this machine.
The key insight: a worker that dies must cost next to nothing. Workers are forks of a server that has imported torch and
no target, and one more than can be busy stands ready with the target loaded: after a crash the next task runs at once.
All bookkeeping is done in the one thread that waits, so a stop finds nothing half done.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from conformance.run import processes, stop, worker
from conformance.run.messages import (
    Death,
    Done,
    Fate,
    Limits,
    Note,
    OutOfTime,
    Ready,
    Started,
    Task,
    WorkerDied,
    exit_in_words,
)

LOOK = 0.5
"""Seconds between two looks at the notes of the workers."""

SPARE_AFTER = 5.0
"""Seconds that a worker is ready before a spare one starts, unless a death asks for it earlier: a short run that no
program crashes is not slowed down by loading the target twice."""

ATTEMPTS = 3
"""Workers in a row that may die before they take a task."""

TOGETHER = 0.2
"""Seconds in which a SIGTERM that ended a worker reaches this process too, if it was sent to all."""


class Pool(Protocol):
    """Runs tasks in workers that have loaded one target. `with` ends the workers."""

    def submit(self, task: Task) -> None:
        """Run a task as soon as there is room."""

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """Each submitted task as it ends, until none is left or so many seconds have passed; tasks may be submitted
        meanwhile. Raises Stopped when a stop was asked for."""

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float | None = None
    ) -> Any:
        """A function's value in a worker, at once. Raises what it raises, WorkerDied, Stopped, and OutOfTime when it is
        `until`, in seconds since the epoch."""

    def close(self) -> None:
        """End all workers."""


@dataclass
class Counters:
    """What a pool has cost: workers started, imports of torch, tasks that had to wait for a worker to start, and tasks
    that a spare worker took at once; and why workers are no forks any longer, if so."""

    started: int = 0
    imports: int = 0
    waited: int = 0
    spares: int = 0
    lost: str = ""


@dataclass(eq=False)
class _Job:
    """A task, and what was last seen of it."""

    task: Task
    path: Path
    asked: bool = False
    """Whether somebody waits for this one."""
    waited: bool = False
    fruitless: int = 0
    """Workers that died before they began it."""
    begun: float = 0.0
    seen: tuple[int, str] = (0, "")
    since: float = 0.0
    answer: Done | Death | None = None

    def note(self) -> Note | None:
        """Its last note."""
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            return Note.parse(self.path.read_text(encoding="utf-8"))
        return None

    def overdue(self, limits: Limits, note: Note | None) -> Death | None:
        """The death of a worker that cannot be waited for any longer, judged by its note."""
        now = time.monotonic()
        if self.task.seconds is not None and now - self.begun > self.task.seconds:
            return Death(Fate.TIMEOUT, f"gave no answer in {self.task.seconds:g} s", note)
        if note is None:
            return None
        if (note.number, note.phase) != self.seen:
            self.seen, self.since = (note.number, note.phase), now
        limit = limits.of(note.phase)
        if note.unit and now - self.since > limit + limits.grace:
            return Death(Fate.TIMEOUT, f"gave no answer in {limit:g} s", note)
        return None


@dataclass(eq=False)
class _Worker:
    """A worker process, and how far it is."""

    number: int
    link: connection.Connection
    born: float = field(default_factory=time.monotonic)
    pid: int = 0
    ready: bool = False
    deaf: bool = False
    """Whether it has closed its link."""
    retired: float | None = None
    """Since when it is needed no longer."""
    tasks: int = 0
    job: _Job | None = None

    @property
    def idle(self) -> bool:
        """Whether it can take a task."""
        return self.ready and not self.deaf and self.retired is None and self.job is None


class LocalPool:
    """Worker processes on this machine, at most `jobs` of them busy and one more that stands ready.

    `modules` are imported by each worker after the target; they hold the functions of the tasks. `preload` are modules
    that may be imported before it, as torch is: once for all workers, where these can be forks."""

    def __init__(
        self,
        target: str,
        limits: Limits,
        jobs: int = 1,
        modules: Sequence[str] = (),
        preload: Sequence[str] = ("torch",),
    ) -> None:
        self.target, self.limits, self.jobs = target, limits, jobs
        self.counters = Counters()
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self._path = Path(self._folder.name)
        self._args = (limits, target, tuple(modules))
        self._preload = tuple(preload)
        self._processes: processes.Processes | None = None
        self._workers: dict[int, _Worker] = {}
        self._waiting: deque[_Job] = deque()
        self._answered: deque[_Job] = deque()
        self._jobs = self._numbers = self._stillborn = 0
        self._spare, self._ready_since = False, 0.0
        self._looked = time.monotonic()

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None
        for each in self._workers.values():
            each.link.close()
        self._workers.clear()
        self._folder.cleanup()

    def submit(self, task: Task) -> None:
        """Run a task as soon as fewer than `jobs` are running."""
        self._waiting.append(self._job(task))
        self._hand_out()

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """Each task as it ends; see `Pool.ended`."""
        until = None if seconds is None else time.monotonic() + seconds
        while self._waiting or self._answered or self._busy():
            stop.check()
            if until is not None and time.monotonic() >= until:
                return
            if self._answered:
                job = self._answered.popleft()
                assert job.answer is not None
                yield job.task, job.answer
            else:
                self._wait(LOOK if until is None else max(min(LOOK, until - time.monotonic()), 0.0))

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float | None = None
    ) -> Any:
        """A function's value in a worker; see `Pool.ask`. It may take `seconds` once it has one."""
        job = self._job(Task(getattr(function, "__name__", "a question"), function, args, seconds))
        job.asked = True
        self._waiting.appendleft(job)
        self._hand_out()
        while job.answer is None:
            stop.check()
            left = LOOK if until is None else until - time.time()
            if left <= 0:
                self._forget(job)
                raise OutOfTime
            self._wait(min(LOOK, left))
        if isinstance(job.answer, Death):
            raise WorkerDied(job.answer)
        if job.answer.error is not None:
            raise job.answer.error
        return job.answer.value

    def keep_spare(self) -> None:
        """Have a worker more than there are jobs, from now on."""
        self._spare = True

    def ready(self) -> int:
        """How many workers have loaded the target, and are alive."""
        self._wait(0.0)
        return sum(each.ready and not each.deaf for each in self._workers.values())

    # What follows is called by the four above alone, and leaves the books complete.

    def _job(self, task: Task) -> _Job:
        self._jobs += 1
        return _Job(task, self._path / f"{self._jobs}.note")

    def _forget(self, job: _Job) -> None:
        """Nobody wants the answer any longer."""
        if job in self._waiting:
            self._waiting.remove(job)
        for each in self._workers.values():
            if each.job is job:
                self._kill(each)

    def _busy(self) -> int:
        return sum(each.job is not None and not each.job.asked for each in self._workers.values())

    def _hand_out(self) -> None:
        """Give the tasks that wait to the workers that are idle, and start the workers that are missing."""
        while self._waiting and (self._waiting[0].asked or self._busy() < self.jobs):
            idle = [each for each in self._workers.values() if each.idle]
            if not idle:
                self.counters.waited += not self._waiting[0].waited
                self._waiting[0].waited = True
                break
            chosen, job = max(idle, key=lambda each: each.tasks), self._waiting.popleft()
            try:
                data = pickle.dumps((str(job.path), job.task.function, job.task.args))
            except Exception as error:  # it cannot be sent
                self._answer(job, Done(error=error))
                continue
            self.counters.spares += chosen.tasks == 0 and not job.waited
            chosen.tasks, chosen.job, job.begun = chosen.tasks + 1, job, time.monotonic()
            with contextlib.suppress(OSError):  # it has died; its death gives the task back
                chosen.link.send_bytes(data)
        self._staff()

    def _staff(self) -> None:
        """Start the workers that are missing."""
        if self._stillborn >= ATTEMPTS and self._waiting:
            said = Death(Fate.NEVER_STARTED, "ends the process that loads it")
            self._stillborn = 0
            self._answer(self._waiting.popleft(), said)
            return
        asked = sum(each.job is not None and each.job.asked for each in self._workers.values())
        wanted = max(self.jobs, asked + self._busy() + any(job.asked for job in self._waiting)) + self._spare
        living = sum(each.retired is None for each in self._workers.values())
        if self._stillborn >= ATTEMPTS or not self._jobs:
            return
        for _ in range(wanted - living):
            self._start()

    def _start(self) -> None:
        if self._processes is None:
            fork = processes.can_fork() and not self.counters.lost
            self._processes = (
                processes.Forked(worker.main, self._args, self._preload)
                if fork
                else processes.Spawned(worker.main, self._args)
            )
            self.counters.imports += fork
        self._numbers += 1
        self._workers[self._numbers] = _Worker(self._numbers, self._processes.start(self._numbers))

    def _wait(self, seconds: float) -> None:
        """Wait for at most so long until something happens, and take note of it; look at the notes when it is time."""
        links = {each.link: each for each in self._workers.values() if not each.deaf}
        others = self._processes.waitable() if self._processes is not None else ()
        for link in connection.wait([*links, *others], seconds):
            if link in links:
                self._hear(links[link])  # type: ignore[index]
        try:
            for number, code in self._processes.ended() if self._processes is not None else ():
                self._bury(self._workers.pop(number), code)
        except processes.ServerLost as lost:
            self._without_server(str(lost))
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            for each in list(self._workers.values()):
                self._look(each)
        self._hand_out()

    def _hear(self, each: _Worker) -> None:
        """Take one message of a worker."""
        try:
            said = each.link.recv()
        except (EOFError, OSError):
            each.deaf = True
            return
        except Exception as error:  # the value cannot be made anew here
            said = Done(error=error)
        if isinstance(said, Started):
            each.pid = said.pid
            self.counters.started += 1
            self.counters.imports += not said.preloaded
        elif isinstance(said, Ready):
            each.ready, self._stillborn = True, 0
            self._ready_since = self._ready_since or time.monotonic()
        elif each.job is not None:
            job, each.job = each.job, None
            self._answer(job, said)
            if each.tasks >= self.limits.recycle:
                self._retire(each)

    def _retire(self, each: _Worker) -> None:
        """Let a worker end by itself."""
        each.retired, each.deaf = time.monotonic(), True
        each.link.close()

    def _kill(self, each: _Worker) -> None:
        """End a worker at once; what it was doing is forgotten."""
        if self._processes is not None:
            self._processes.kill(each.number)
        each.job, each.retired = None, each.retired or time.monotonic()

    def _look(self, each: _Worker) -> None:
        """End a worker that cannot be waited for any longer."""
        now = time.monotonic()
        if each.job is not None:
            death = each.job.overdue(self.limits, each.job.note())
            if death is not None:
                job = each.job
                self._kill(each)
                self._answer(job, death)
        elif each.retired is not None:
            if now - each.retired > self.limits.grace:
                self._kill(each)
        elif not each.ready and now - each.born > self.limits.starting:
            self._kill(each)
            if self._waiting:
                said = f"did not load in {now - each.born:.0f} s"
                self._answer(self._waiting.popleft(), Death(Fate.NEVER_STARTED, said))
        if self._ready_since and now - self._ready_since > SPARE_AFTER:
            self._spare = True

    def _bury(self, each: _Worker, code: int) -> None:
        """Take note of a worker's end."""
        if not each.deaf:  # its last words may be there
            with contextlib.suppress(OSError):
                while not each.deaf and each.link.poll():
                    self._hear(each)
        with contextlib.suppress(OSError):
            each.link.close()
        job, each.job = each.job, None
        if each.retired is not None and job is None:
            return
        self._spare = self._spare or self._ready_since > 0
        self._stillborn += not each.ready
        if job is None:
            return
        if code == -signal.SIGTERM:  # whoever sent it may mean all of us, which is no fault of the task
            time.sleep(TOGETHER)
            stop.check()
        self._died(job, code)

    def _died(self, job: _Job, code: int) -> None:
        """The worker of a task has ended; one that never began it is not that task's fault."""
        note = job.note()
        if note is None:
            job.fruitless += 1
            if job.fruitless < ATTEMPTS:
                self._waiting.appendleft(job)
            else:
                self._answer(job, Death(Fate.NEVER_STARTED, exit_in_words(code)))
            return
        said = {
            Fate.TIMEOUT: f"gave no answer in {self.limits.of(note.phase):g} s",
            Fate.MEMORY: "ran out of memory",
            None: exit_in_words(code),
        }
        self._answer(job, Death(note.fate or Fate.CRASH, said[note.fate], note))

    def _answer(self, job: _Job, answer: Done | Death) -> None:
        job.answer = answer
        job.path.unlink(missing_ok=True)
        if not job.asked:
            self._answered.append(job)

    def _without_server(self, why: str) -> None:
        """The server that forks the workers has gone, or must not fork: from now on each is a process of its own. The
        tasks begin anew."""
        self.counters.lost = why
        for each in self._workers.values():
            if each.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            if each.job is not None:
                each.job.path.unlink(missing_ok=True)
                self._waiting.appendleft(each.job)
            each.link.close()
        self._workers.clear()
        if self._processes is not None:
            self._processes.close()
            self._processes = None
