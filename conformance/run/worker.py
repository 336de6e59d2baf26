"""The worker's side of the pool: its limits, its note, its alarm, and its end when the pool's owner is gone.

Defines `start`, `perform` and `relay` for the pools, and for the functions that run in a worker `unit`, `step`, `keep`,
`at_most` and `loaded`. The key insight: a step is written down *before* it is taken and an alarm rings inside the
worker, so a pool learns where a program died or hung without the program's help. This module imports torch only in a
worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import json
import multiprocessing
import os
import pickle
import resource
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.core.errors import TargetError
from conformance.core.files import write_atomic
from conformance.run.messages import COMPILING, Done, Fate, Limits
from conformance.run.words import limited, redirected

if TYPE_CHECKING:
    from conformance.core.target import Target

STARTING, READY, TAKEN = "starting", "ready", "taken"
"""The suffix of the file that says of a worker, by its process id, how far it is; and of a job that has a worker."""

KEPT = "kept"
"""The suffix of a file for the owner's disk, where that is on another machine."""

SPARE = "spare"
"""The file that is there when the pool wants a worker more than it has jobs."""

WATCHDOG = 120.0
"""Seconds after a pool should have ended a worker that hangs outside Python, when the worker ends by itself."""

MEMORY_LOOK = 0.25
"""Seconds between two looks at the memory of this process."""


class UnitTimeout(BaseException):
    """A unit ran longer than it may. Not an Exception, so that no step of a program can answer it."""


class _State:
    """What this process knows as a worker; in any other process, nothing."""

    limits: Limits | None = None
    note: int | None = None
    """The descriptor of the file that the task's progress is written to."""
    units: int = 0
    phase: str = ""
    remaining: float = 0.0
    """Seconds that are left, in this unit, of the limit that does not count now."""
    spool: str = ""
    """The folder of what is kept for an owner on another machine."""
    kept: int = 0


def start(
    folder: str, jobs: int, limits: Limits, target: str, modules: Sequence[str], spool: str = "", words: str = ""
) -> None:
    """Prepare this process: set its limits, and load the target and what the tasks import, so that no unit's time is
    spent on it; what it prints goes to the file `words`. A target that cannot be loaded is reported by the first task
    that asks for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool's owner alone answers it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # what a device starts is not to inherit that
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    _wait_as_spare(folder, jobs)
    mark = os.path.join(folder, f"{os.getpid()}.{STARTING}")
    os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
    redirected(words)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if limits.memory is not None:
        # RLIMIT_DATA counts private writable memory only: reserved addresses, which a device may hand out as pointers,
        # and mapped libraries are free, so the limit means the same on every target. Shared mappings are free, too,
        # although a device may keep its tensors there; these are looked at while they grow.
        most = int(limits.memory * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        threading.Thread(target=_end_at_memory, args=(most,), daemon=True).start()
    _State.limits, _State.spool = limits, spool
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(TargetError):
        loaded(target)
        for name in modules:  # after the target, which must register its device first
            importlib.import_module(name)
    os.rename(mark, os.path.join(folder, f"{os.getpid()}.{READY}"))


def _wait_as_spare(folder: str, jobs: int) -> None:
    """Wait, where there is a worker for each job already, until the pool wants one more: a short run without a crash
    needs none."""
    for job in range(jobs):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(os.path.join(folder, f"{job}.{TAKEN}"), os.O_CREAT | os.O_EXCL, 0o600))
            return
    while not os.path.exists(os.path.join(folder, SPARE)):
        time.sleep(0.05)


@functools.cache
def loaded(target: str) -> Target:
    """The target of this spec, loaded once a process. Raises TargetError."""
    from conformance.core.loading import load_target

    return load_target(target)


def perform(asked: bytes) -> bytes:
    """Run a pickled task (the file of its note, its function, the arguments): its value, or what it raised, pickled. A
    task that runs too long or out of memory, or that ends the interpreter, ends the process: what it interrupted, an
    import perhaps, is half done."""
    try:
        path, function, args = pickle.loads(asked)
        _State.note = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        _begin("")
        return _answered(function, args)
    except (UnitTimeout, MemoryError) as error:
        _write({"fate": Fate.TIMEOUT if isinstance(error, UnitTimeout) else Fate.MEMORY})
        os._exit(1)
    except (SystemExit, KeyboardInterrupt):
        os._exit(1)
    except Exception as error:  # the note's
        return pickle.dumps(Done(error=_portable(error)))
    finally:
        if _State.note is not None:
            os.close(_State.note)
        _State.note = None


def _answered(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    try:
        return pickle.dumps(Done(function(*args)))
    except MemoryError:
        raise
    except Exception as error:  # the task's, or one of its pickling
        return pickle.dumps(Done(error=_portable(error)))


def relay(asked: bytes) -> bytes:
    """Call a pickled function on its pickled arguments: a pickled `Done`. A task that passes through a process that
    knows neither."""
    function, args = pickle.loads(asked)
    return _answered(function, args)


def keep(path: Path, text: str) -> None:
    """Have a file on the disk of the pool's owner, whatever becomes of this process: at once where it is this machine,
    soon where it is another. Raises ReportError, as `write_atomic` does."""
    if not _State.spool:
        write_atomic(path, text)
        return
    _State.kept += 1
    name = f"{os.getpid()}-{_State.kept:06}.{KEPT}"
    write_atomic(Path(_State.spool) / name, pickle.dumps((str(path), text)))


def _portable(error: Exception) -> Exception:
    """The exception, or one with its words where it cannot be made anew in another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextlib.contextmanager
def unit(text: str) -> Iterator[None]:
    """A part of the task with a time limit of its own, `Limits.unit`; `text` says in the note which it is. Raises
    UnitTimeout in the block."""
    _begin(text)
    with at_most(_State.limits.unit if _State.limits else 0.0):
        yield


def memory_limit() -> float | None:
    """The memory in GiB that this worker may take; None without a limit, or outside of a worker."""
    return _State.limits.memory if _State.limits is not None else None


def step(text: str, phase: str = "") -> None:
    """Write down what is done next. In the phase `compiling`, until a step in another, the limit of compiling counts
    and the unit's own time stands still, and the other way round: a unit has so much time of either in all."""
    if _State.limits is not None and (phase == COMPILING) != (_State.phase == COMPILING):
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        if left:  # otherwise this is no unit, and nothing limits it
            _arm(max(_State.remaining, 0.001))
            _State.remaining = left
    _State.phase = phase
    _write({"step": text, "phase": phase})


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise UnitTimeout in the block after so many seconds (0: never). In a worker, what hangs outside Python is ended
    from outside, by the pool, or by a watchdog when that is gone too; and one whose pool is gone begins no block."""
    owner = multiprocessing.parent_process()
    if _State.limits is not None and owner is not None and not owner.is_alive():
        os._exit(1)

    def ring(*_: Any) -> None:
        raise UnitTimeout(f"ran longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    _State.phase, _State.remaining = "", _State.limits.compiling if _State.limits is not None else 0.0
    _arm(seconds)
    try:
        yield
    finally:
        _arm(0.0)
        _State.phase = ""
        signal.signal(signal.SIGALRM, before)


def _arm(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if _State.limits is None:
        return
    if seconds:
        # A thread of C alone, which needs no interpreter: it ends also a process that holds the interpreter's lock, but
        # long after the pool should have, so that a pool that is late on a busy machine still says it was a timeout.
        late = seconds + _State.limits.grace + WATCHDOG
        faulthandler.dump_traceback_later(late, exit=True, file=_nowhere())
    else:
        faulthandler.cancel_dump_traceback_later()


@functools.cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)


def _begin(text: str) -> None:
    limited()
    _State.units, _State.phase = _State.units + 1, ""
    if _State.note is not None:
        os.ftruncate(_State.note, 0)
        _write([os.getpid(), _State.units, text])


def _write(line: Any) -> None:
    if _State.note is not None:
        os.write(_State.note, f"{json.dumps(line)}\n".encode())


def _end_at_memory(most: int) -> None:
    """End this process, as out of memory, when more bytes than these are resident that come from no file."""
    if not os.path.exists("/proc/self/status"):
        return
    with open("/proc/self/status", "rb", buffering=0) as status:
        while True:
            status.seek(0)
            lines = [line.split() for line in status.read().splitlines()]
            if sum(int(line[1]) << 10 for line in lines if line[0] in (b"RssAnon:", b"RssShmem:")) > most:
                _write({"fate": Fate.MEMORY})
                os._exit(1)
            time.sleep(MEMORY_LOOK)


def _end_with_owner() -> None:
    owner = multiprocessing.parent_process()
    if owner is not None:
        connection.wait([owner.sentinel])
        os._exit(1)
