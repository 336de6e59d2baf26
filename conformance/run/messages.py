"""Messages between a pool and its workers: a task, the note of its progress, and its end.

Defines `Limits`, `Task`, `TaskProgress`, `Done`, `Death`, `WorkerDied`, `PoolLost`, `OutOfTime`, and `Pool`, the
protocol that both halves of the harness use. A task ends in one of two ways: with an answer, or with the death of its
worker. A death carries the last note, which the worker wrote *before* the step that killed it. All messages are plain
picklable data, so that a pool may be on another machine.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from conformance.record.errors import TargetError, UserError

TARGET = "target"
"""Step of a worker that runs the target."""

COMPILING = "compiling"
"""Phase of a unit during which `Limits.compiling` counts instead of `Limits.unit`."""

COMPILE_LIMIT = 300.0
"""Seconds that compiling kernels may take within a unit; some devices need 40 for one kernel on a quiet machine."""


LOST = "was lost"
"""Words of a death by an error that left the device unusable; the error follows in brackets."""


KILLED = "was killed from outside while it loaded"
"""Words of a worker that a signal from outside ended before it was ready. Nobody knows that the target is at fault."""


class ExitReason(StrEnum):
    """Kind of a worker's death: a crash, a limit of time or memory, or a failure to start."""

    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    MEMORY = "MEMORY"
    NEVER_STARTED = "NEVER_STARTED"


@dataclass(frozen=True)
class Limits:
    """Limits of a worker: seconds for one unit (a program or a case), for compiling inside a unit, and for starting.

    Compile time does not count against the unit. `memory` is private and shared memory in GiB,
    without /proc the peak of all resident memory (None: no limit).
    `recycle` is the number of tasks until the worker is replaced, so that leaks do not add up.
    """

    unit: float = 60.0
    compiling: float = COMPILE_LIMIT
    starting: float = 180.0
    memory: float | None = None
    recycle: int = 500
    grace: float = 10.0
    """Seconds beyond the limit until the pool kills a worker that does not handle its alarm."""

    def of(self, phase: str) -> float:
        """Return the limit of this phase of a unit, in seconds."""
        return self.compiling if phase == COMPILING else self.unit


@dataclass(frozen=True)
class Task:
    """A call of a function that the worker can import, with a name for errors. `seconds` limits the whole task (None:
    only its units are limited).
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True)
class TaskProgress:
    """Last progress of a task: the number and text of the current unit, its steps so far, and the phase. `reason` says
    how the worker ended itself, if it did, and `lost` with which error it lost the device. `waited` is the time in
    seconds that the worker has added to the unit's limit, since it waited for a processor.
    """

    number: int = 0
    unit: str = ""
    steps: tuple[str, ...] = ()
    phase: str = ""
    reason: ExitReason | None = None
    lost: str = ""
    waited: float = 0.0

    @classmethod
    def parse(cls, text: str) -> TaskProgress | None:
        """Parse the whole lines of a note file, which a worker may be writing. Return None if there is no
        whole line.
        """
        lines = [json.loads(line) for line in text.split("\n")[:-1]]
        if not lines:
            return None
        number, unit = lines[0]
        steps = tuple(line["step"] for line in lines[1:] if "step" in line)
        phase = next((str(line["phase"]) for line in reversed(lines[1:]) if "phase" in line), "")
        reason = next((ExitReason(line["reason"]) for line in lines[1:] if "reason" in line), None)
        lost = next((line["lost"] for line in lines[1:] if "lost" in line), "")
        waited = next((float(line["waited"]) for line in reversed(lines[1:]) if "waited" in line), 0.0)
        return cls(number, unit, steps, phase, reason, lost, waited)

    @classmethod
    def read(cls, path: Path) -> TaskProgress | None:
        """Return the note in this file, or None if there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            return cls.parse(path.read_text(encoding="utf-8"))
        return None


@dataclass(frozen=True)
class Done:
    """A task's value, or the exception that its function raised without ending the worker."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Death:
    """End of a task whose worker died: a sentence with the exit signal or limit, and the last note, if any."""

    reason: ExitReason
    said: str
    note: TaskProgress | None = None


class OutOfTime(Exception):
    """A call had no answer by its deadline."""


class WorkerDied(UserError):
    """The worker died during a call of `Pool.ask`."""

    def __init__(self, death: Death) -> None:
        super().__init__(f"the worker {death.said}")
        self.death = death


def value_of(answer: Done | Death) -> Any:
    """Return the value of a task. Raises WorkerDied, or the exception that its function raised."""
    if isinstance(answer, Death):
        raise WorkerDied(answer)
    if answer.error is not None:
        raise answer.error
    return answer.value


class PoolLost(UserError):
    """The pool is unreachable, with all of its workers."""


class Pool(Protocol):
    """Runs tasks in workers that have loaded one target; `with` ends the workers.

    A task is a pure function of its arguments, so a pool may run it again if its worker was lost for another reason.
    Files of `worker.keep` reach this machine's disk soon after the call, and before the pool reports the end of the
    task.
    """

    def submit(self, task: Task) -> None:
        """Run a task as soon as a worker is free. The first call may raise Stopped while torch is imported."""

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """Yield each submitted task with its answer as it ends, until none is left or `seconds` have passed. The caller
        may submit more tasks meanwhile. Raises Stopped when a stop was requested.
        """

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float = math.inf
    ) -> Any:
        """Return a function's value from a worker, ahead of waiting tasks. Raises the exception of the function,
        WorkerDied, Stopped, and OutOfTime at the time `until`, in seconds since the epoch.
        """

    def busy(self) -> list[tuple[Task, float]]:
        """Return the tasks that workers have not ended, each with the seconds since a worker took it."""

    def alive(self) -> int:
        """Return how many workers are ready or busy."""

    def close(self) -> None:
        """End all workers, busy ones included."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:  # fmt: skip
        self.close()


def unusable(target: str, death: Death) -> TargetError:
    """Return the error for a target that ends the workers that load it, or that nobody lets load."""
    if death.said.startswith(KILLED):
        return TargetError(
            f"the process of target {target!r} {death.said}; the machine may be out of memory: give it more, or take "
            "fewer --jobs"
        )
    problem = death.said if death.reason is ExitReason.NEVER_STARTED else f"cannot be used: its process {death.said}"
    return TargetError(f"target {target!r} {problem}; load it by hand, with python -X faulthandler, to see why")


def exit_in_words(code: int) -> str:
    """`killed its process with SIGSEGV`, or `ended its process with exit code 3`."""
    if code >= 0:
        return f"ended its process with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-code, f"signal {-code}")
    return f"killed its process with {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
