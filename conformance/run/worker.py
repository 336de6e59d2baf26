"""Worker side of the pool: limits, progress note, alarm, and exit when the pool's owner is gone.

Defines `start`, `perform` and `relay` for the pools, and `unit`, `step`, `keep`, `at_most` and `loaded` for the
functions that run in a worker. The worker writes each step to its note *before* it takes the step, and an alarm rings
inside the worker. The pool therefore learns where a program died or hung without help from that program. Torch is
imported only inside a worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import json
import math
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from conformance.record.errors import DeviceLost, TargetError
from conformance.record.files import write_atomic
from conformance.run.messages import COMPILING, Done, ExitReason, Limits
from conformance.run.processes import RETIRED
from conformance.run.starvation import waiting_time_of
from conformance.run.worker_log import limited, redirected

if TYPE_CHECKING:
    from conformance.engine.target import Target

STARTING, READY, TAKEN = "starting", "ready", "taken"
"""Suffixes of the files that show a worker's state, named by its process id; `taken` marks a job that has a worker."""

KEPT = "kept"
"""Suffix of a spooled file that the owner, on another machine, writes to its disk."""

SPARE = "spare"
"""File that exists when the pool needs one worker more than it has jobs."""

WATCHDOG = 120.0
"""Seconds after the pool's own deadline at which a worker that hangs outside Python ends itself."""

AGAIN = 0.01
"""Seconds after which an alarm rings again that rang in a destructor."""

STARVED, LEAST_WAIT = 3.0, 0.05
"""A limit grows by the time in which the process waited for a processor, to at most 1 + the first times itself. When it
is over again, and the process has waited for less than the second times the limit meanwhile, the unit ends."""

MEMORY_LOOK = 0.25
"""Interval in seconds between memory checks of this process."""


class UnitTimeout(BaseException):
    """A unit exceeded its time limit. Not an Exception, so that no step of a program can catch it."""


class _State:
    """State of this process as a worker; the defaults hold in any other process."""

    limits: Limits | None = None
    note: int | None = None
    """File descriptor of the task's note."""
    units: int = 0
    phase: str = ""
    remaining: float = 0.0
    """Seconds left, in this unit, of the limit that is paused now."""
    spool: str = ""
    """Folder of kept files, if the pool's owner is on another machine."""
    kept: int = 0


def start(
    folder: str, jobs: int, limits: Limits, target: str, modules: Sequence[str], spool: str = "", worker_log: str = ""
) -> None:
    """Prepare this process: set its limits, and load the target and the modules of the tasks, outside of any unit's
    time. Output of the process goes to the file `worker_log`. If the target cannot be loaded, the first task that calls
    `loaded` reports the error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the pool's owner handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a device's processes must not inherit it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _track_own_resources()
    threading.Thread(target=_end_with_owner, daemon=True).start()
    _wait_as_spare(folder, jobs)
    mark = os.path.join(folder, f"{os.getpid()}.{STARTING}")
    os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
    redirected(worker_log)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if limits.memory is not None:
        _limit_memory(int(limits.memory * 2**30))
    _State.limits, _State.spool = limits, spool
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(TargetError):
        loaded(target)
        for name in modules:  # after the target, which must register its device first
            importlib.import_module(name)
    os.rename(mark, os.path.join(folder, f"{os.getpid()}.{READY}"))


def _track_own_resources() -> None:
    """Give this process a resource tracker of its own, which starts with the first semaphore or shared memory.

    A target, or a package that it imports, may create semaphores. A worker ends without finalizers, so the command's
    tracker, which workers inherit, would keep them until the command ends, and then warn of each. An own tracker
    removes them when this process ends, and says nothing.
    """
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")  # the tracker's process gets the options of this one
    tracker = resource_tracker.ResourceTracker()
    resource_tracker._resource_tracker = tracker
    for name in ("ensure_running", "register", "unregister", "getfd"):
        setattr(resource_tracker, name, getattr(tracker, name))


def _wait_as_spare(folder: str, jobs: int) -> None:
    """If every job already has a worker, wait until the pool needs a spare. A short run without a crash needs none."""
    for job in range(jobs):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(os.path.join(folder, f"{job}.{TAKEN}"), os.O_CREAT | os.O_EXCL, 0o600))
            return
    while not os.path.exists(os.path.join(folder, SPARE)):
        time.sleep(0.05)


@functools.cache
def loaded(target: str) -> Target:
    """Return the target of this spec, loaded once per process. Raises TargetError."""
    from conformance.engine.loading import load_target

    return load_target(target)


def environment(target: str) -> dict[str, str]:
    """Return the target's environment as plain text. Torch's version is an object: reading it would import torch in the
    pool's owner. Raises TargetError."""
    return {name: str.__str__(text) for name, text in loaded(target).environment().items()}


def environment_and_dtypes(target: str) -> tuple[dict[str, str], tuple[str, ...] | None]:
    """Return the target's environment, and the dtypes that it holds (None: all). Raises TargetError."""
    held = loaded(target).facts.dtypes
    return environment(target), None if held is None else tuple(str(dtype).removeprefix("torch.") for dtype in held)


def perform(message: bytes) -> bytes:
    """Run a pickled task (note file, function, arguments). Return a pickled `Done` with its value or its exception.

    The process ends if the task exceeds its time or memory, loses the device, or ends the interpreter. The interrupted
    work, such as an import, is half done then.
    """
    try:
        path, function, args = pickle.loads(message)
        _State.note = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        _begin("")
        return _answered(function, args)
    except (UnitTimeout, MemoryError) as error:
        _write({"reason": ExitReason.TIMEOUT if isinstance(error, UnitTimeout) else ExitReason.MEMORY})
        os._exit(1)
    except DeviceLost as error:
        _write({"lost": str(error)})
        os._exit(1)
    except (SystemExit, KeyboardInterrupt) as error:
        _end_as_python(error)
    except Exception as error:  # an error of reading the task or opening the note
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
    except Exception as error:  # of the task, or of pickling its value
        return pickle.dumps(Done(error=_portable(error)))


def _end_as_python(error: SystemExit | KeyboardInterrupt) -> NoReturn:
    """End this process as Python ends a script with this exception, because the finding's script will end so."""
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    code = getattr(error, "code", 1)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr, flush=True)
        code = 1
    code = (code or 0) & 0xFF
    os._exit(1 if code == RETIRED else code)  # the pool would take RETIRED for good order, and wait for an answer


def relay(message: bytes) -> bytes:
    """Call a pickled function on its pickled arguments and return a pickled `Done`. The supervisor, which cannot import
    either, forwards a task as this function and its bytes.
    """
    function, args = pickle.loads(message)
    return _answered(function, args)


def keep(path: Path, text: str) -> None:
    """Write a file to the disk of the pool's owner, so that it survives this process.

    On this machine, the file exists when the call returns; on another, soon after. Raises ReportError, as
    `write_atomic` does.
    """
    if not _State.spool:
        write_atomic(path, text)
        return
    _State.kept += 1
    name = f"{os.getpid()}-{_State.kept:06}.{KEPT}"
    write_atomic(Path(_State.spool) / name, pickle.dumps((str(path), text)))


def _portable(error: Exception) -> Exception:
    """Return the exception, or a RuntimeError with its text if it cannot be pickled and unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextlib.contextmanager
def unit(text: str) -> Iterator[None]:
    """Context of one part of a task with its own time limit, `Limits.unit`; the note names it `text`. Raises
    UnitTimeout in the block.
    """
    _begin(text)
    with at_most(_State.limits.unit if _State.limits else 0.0):
        yield


def memory_limit() -> float | None:
    """Return the memory limit of this worker in GiB, or None without a limit or outside of a worker."""
    return _State.limits.memory if _State.limits is not None else None


def peak_memory() -> int:
    """Return the peak of this process's resident memory in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10  # macOS counts bytes, Linux KiB


def step(text: str, phase: str = "") -> None:
    """Write the next step to the note, and switch to the time limit of its phase.

    During the phase `compiling`, the compile limit counts and the unit's own limit is paused; in any other phase, the
    reverse. Both limits apply to a unit as a whole.
    """
    if _State.limits is not None and (phase == COMPILING) != (_State.phase == COMPILING):
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        if left:  # otherwise no unit is open and no limit applies
            _arm(max(_State.remaining, 0.001))
            _State.remaining = left
    _State.phase = phase
    _write({"step": text, "phase": phase})


@contextlib.contextmanager
def at_most(seconds: float, compiling: float = math.inf) -> Iterator[None]:
    """Raise UnitTimeout in the block after `seconds` (0: never), in which this process did not wait for a processor.
    During the phase `compiling`, the worker's limit on it counts, or `compiling` if that is less.

    Python ignores an exception of a destructor, and the alarm may ring in one, such as that of a tensor's storage. It
    then rings again, outside of the destructor.

    In a worker, the pool kills a process that hangs outside Python, or a watchdog does if the pool is gone too. A
    worker without its pool ends here, before the block.
    """
    owner = multiprocessing.parent_process()
    if _State.limits is not None and owner is not None and not owner.is_alive():
        os._exit(1)

    before_block, added = waiting_time_of(os.getpid()), 0.0

    def ring(*_: Any) -> None:
        nonlocal added
        waited = min(waiting_time_of(os.getpid()) - before_block, STARVED * seconds) - added
        if waited > LEAST_WAIT * seconds:
            added += waited
            _write({"waited": added})
            _arm(waited)
            return
        raise UnitTimeout(f"ran longer than {seconds:g} s")

    def ring_again(ignored: sys.UnraisableHookArgs) -> None:
        if isinstance(ignored.exc_value, UnitTimeout):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            hook(ignored)

    hook, sys.unraisablehook = sys.unraisablehook, ring_again
    handler = signal.signal(signal.SIGALRM, ring)
    _State.phase, _State.remaining = "", min(_State.limits.compiling, compiling) if _State.limits is not None else 0.0
    _arm(seconds)
    try:
        yield
    finally:
        _arm(0.0)
        _State.phase = ""
        signal.signal(signal.SIGALRM, handler)
        sys.unraisablehook = hook


def _arm(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if _State.limits is None:
        return
    if seconds:
        # faulthandler uses a C thread, which also ends a process that holds the interpreter's lock. It fires long after
        # the pool's own deadline, so that a pool that is late on a busy machine still reports a timeout.
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
        _write([_State.units, text])


def _write(line: Any) -> None:
    if _State.note is not None:
        os.write(_State.note, f"{json.dumps(line)}\n".encode())


def _limit_memory(most: int) -> None:
    """Limit the memory of this process to `most` bytes, by the system's limit where it has one and by a thread.

    RLIMIT_DATA counts private writable memory only. Reserved addresses, which a device may hand out as pointers, and
    mapped libraries are free, so the limit means the same on every target. Shared mappings are free, too, although a
    device may store its tensors there; the thread checks resident shared memory instead.
    """
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit, so the thread alone limits memory
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    threading.Thread(target=_end_at_memory, args=(most,), daemon=True).start()


def _end_at_memory(most: int) -> None:
    """End this process as out of memory when it uses more than `most` bytes."""
    memory_in_use = _memory_gauge()
    while memory_in_use() <= most:
        time.sleep(MEMORY_LOOK)
    _write({"reason": ExitReason.MEMORY})
    os._exit(1)


def _memory_gauge() -> Callable[[], int]:
    """Return a function that reads this process's anonymous and shared resident memory in bytes. Without /proc it reads
    the peak of the whole resident memory.
    """
    try:
        status = open("/proc/self/status", "rb", buffering=0)  # noqa: SIM115 - open until the process ends
    except OSError:
        return peak_memory

    def resident() -> int:
        status.seek(0)
        lines = [line.split() for line in status.read().splitlines()]
        return sum(int(line[1]) << 10 for line in lines if line[0] in (b"RssAnon:", b"RssShmem:"))

    return resident


def _end_with_owner() -> None:
    owner = multiprocessing.parent_process()
    if owner is not None:
        connection.wait([owner.sentinel])
        os._exit(1)
