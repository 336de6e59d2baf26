"""What passes between a pool and its workers: a task, the note of its progress, and how it ended.

Defines `Limits`, `Task`, `Note`, `Done`, `Death`, `WorkerDied`, `OutOfTime`, and `Pool`, the protocol that both halves
of the harness work with. The key insight: a task ends in one of two ways, with an answer or with the death of its
worker, and a death is told by the last note that the worker wrote *before* the step that killed it. All of these are
plain picklable data, so that a pool may be on another machine.
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

from conformance.core.errors import TargetError, UserError

COMPILING = "compiling"
"""The phase of a unit in which `Limits.compiling` counts, and not `Limits.unit`."""

COMPILE_LIMIT = 300.0
"""Seconds that building kernels may take within a unit; some devices need 40 for a single one on a quiet machine."""


class Fate(StrEnum):
    """How a worker dies: by itself, at a limit of time or memory, or before it could take a task."""

    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    MEMORY = "MEMORY"
    NEVER_STARTED = "NEVER_STARTED"


@dataclass(frozen=True)
class Limits:
    """What a worker may take: seconds for one unit (a program, a case), for compiling inside a unit, which are not the
    unit's, and for starting; GiB of private memory (None: no limit; Linux only); tasks until it is replaced, so that
    leaks do not add up."""

    unit: float = 60.0
    compiling: float = COMPILE_LIMIT
    starting: float = 180.0
    memory: float | None = None
    recycle: int = 500
    grace: float = 10.0
    """Seconds beyond `unit` after which a worker is ended from outside, since it hears no alarm."""

    def of(self, phase: str) -> float:
        """Seconds that this phase of a unit may take."""
        return self.compiling if phase == COMPILING else self.unit


@dataclass(frozen=True)
class Task:
    """A call of a function that the worker can import, under a name that is told in errors; it may take `seconds` as a
    whole (None: only its units are limited)."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True)
class Note:
    """The last progress of a task: its worker, the number and the text of the unit that it began, the steps since, the
    phase, and how the worker ended itself, if it did."""

    pid: int
    number: int = 0
    unit: str = ""
    steps: tuple[str, ...] = ()
    phase: str = ""
    fate: Fate | None = None

    @classmethod
    def parse(cls, text: str) -> Note | None:
        """The note in a file that a worker may be writing: whole lines count. None when there is not one."""
        lines = [json.loads(line) for line in text.split("\n")[:-1]]
        if not lines:
            return None
        pid, number, unit = lines[0]
        steps = tuple(line["step"] for line in lines[1:] if "step" in line)
        phase = next((str(line["phase"]) for line in reversed(lines[1:]) if "phase" in line), "")
        fate = next((Fate(line["fate"]) for line in lines[1:] if "fate" in line), None)
        return cls(pid, number, unit, steps, phase, fate)

    @classmethod
    def read(cls, path: Path) -> Note | None:
        """The note in this file; None when there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            return cls.parse(path.read_text(encoding="utf-8"))
        return None


@dataclass(frozen=True)
class Done:
    """A task's value; or the exception that its function raised, which its worker survived."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Death:
    """The end of a task whose worker died: in words, with the exit signal, and the last note, if there is one."""

    fate: Fate
    said: str
    note: Note | None = None


class OutOfTime(Exception):
    """What was asked had no answer by its deadline."""


class WorkerDied(UserError):
    """The worker that was asked died of it."""

    def __init__(self, death: Death) -> None:
        super().__init__(f"the worker {death.said}")
        self.death = death


class PoolLost(UserError):
    """The pool is out of reach, with all of its workers."""


class Pool(Protocol):
    """Runs tasks in workers that have loaded one target; `with` ends the workers. A task is a pure function of its
    arguments, so a pool may run it again where its worker was lost by no fault of its own. What a task keeps
    (`worker.keep`) is on this machine's disk before its end is told, and soon after it was kept."""

    def submit(self, task: Task) -> None:
        """Run a task as soon as there is room. The first may raise Stopped, while torch is imported."""

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """Each submitted task as it ends, until none is left or so many seconds have passed; tasks may be submitted
        meanwhile. Raises Stopped when a stop was asked for."""

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float = math.inf
    ) -> Any:
        """A function's value in a worker, at once. Raises what it raises, WorkerDied, Stopped, and OutOfTime when it is
        `until`, in seconds since the epoch."""

    def alive(self) -> int:
        """How many workers stand ready, or are busy."""

    def close(self) -> None:
        """End all workers, whatever they are doing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:  # fmt: skip
        self.close()


def unusable(target: str, death: Death) -> TargetError:
    """The error of a target whose workers die of loading it."""
    said = death.said if death.fate is Fate.NEVER_STARTED else f"cannot be used: its process {death.said}"
    return TargetError(f"target {target!r} {said}; load it by hand, with python -X faulthandler, to see why")


def exit_in_words(code: int) -> str:
    """`killed its process with SIGSEGV`, or `ended its process with exit code 3`."""
    if code >= 0:
        return f"ended its process with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    name = names.get(-code, f"signal {-code}")
    return f"killed its process with {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
