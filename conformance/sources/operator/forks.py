"""Calls of the operator in a fork of this process, so that a crash, a hang or a leak ends the fork only.

Defines `Fork`, `forked` and `processor_time`. The operator may be a closure, which no other process can import; a fork
has it. A fork drops the operator's output.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import resource
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Self

import torch

from conformance.record.error_text import text_of
from conformance.run.messages import Death, ExitReason, exit_in_words
from conformance.run.starvation import waiting_time_of

MEMORY = 4 * 2**30
"""Limit on the memory that a fork may allocate, in bytes. Inputs have at most 400 kB."""

IDLE, NEARLY = 0.05, 0.9
"""Shares of a processor: a fork with less than the first waits for something, and one with more than the second has it
for itself. A fork that works on a busy machine lies between them."""

STARVED = 8
"""Limit on the times in which a fork waits for a processor and hardly has one."""

PR_SET_PDEATHSIG = 1
"""The request of prctl(2) for a signal at the parent's death, from linux/prctl.h."""

Send = Callable[[Any], None]


def processor_time() -> float:
    """Return the processor time of this process and of its ended child processes, in seconds. In a fork it begins at
    0. The time of `os.times` has steps of 10 ms, in which a second call may begin though the budget is over."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Fork:
    """A fork of this process, with a connection in both directions. `work` gets the fork's end of it. The end of the
    `with` block kills the fork."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        self.connection, remote = multiprocessing.Pipe()
        self.status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks of a process with threads
            parent, self.process = os.getpid(), os.fork()
        if self.process == 0:
            self.connection.close()
            _work(work, remote, parent)
        remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Wait for the end of the fork, and return its exit code."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        return self.status

    def receive(self, seconds: float, read: Callable[[Connection], Any] = Connection.recv) -> Any:
        """Return the next message, read by `read`. Raises ForkDied if the fork has ended, or sends nothing for
        `seconds` (see `_answers`)."""
        if not _answers(self.connection, self.process, seconds):
            raise ForkDied(Death(ExitReason.TIMEOUT, f"gave no answer in {seconds:g} s"))
        try:
            return read(self.connection)
        except (EOFError, ConnectionResetError):
            raise self.died() from None

    def send(self, message: Any) -> None:
        """Send a message. Raises ForkDied."""
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self.died() from None

    def died(self) -> ForkDied:
        """Return the error that says how the fork ended."""
        return ForkDied(Death(ExitReason.CRASH, exit_in_words(self.wait())))


class ForkDied(Exception):
    """A fork ended, or was too late. `death` says how."""

    def __init__(self, death: Death) -> None:
        super().__init__(death.said)
        self.death = death


END = "the end of the work"
"""Last message of a fork that has done its work. One that ends without it has crashed, whatever its exit code: the
operator may call `os._exit(0)`."""


def forked(work: Callable[[Send], None], seconds: float) -> Iterator[Any]:
    """Run `work` in a fork, and yield its messages. The last item is a `Death` if the fork did not end normally, or the
    exception that `work` raised. A fork that sends nothing for `seconds` is killed (see `_answers`)."""

    def run(pipe: Connection) -> None:
        work(pipe.send)
        pipe.send(END)

    with Fork(run) as fork:
        try:
            while (item := fork.receive(seconds)) != END:
                yield item
        except ForkDied as error:
            yield error.death


def _answers(receiving: Connection, process: int, seconds: float) -> bool:
    """Whether a fork sends something in time. One that works may take `seconds` of processor time: other processes
    must not make a slow call a hang. One that waits, for example for a lock, may take `seconds` of a clock. One that
    waits for a processor may take them `STARVED` times: so does a loop that looks for a lock and sleeps."""
    begin = now = processor_time_of(process)
    waited, starved = waiting_time_of(process), 0
    while not receiving.poll(seconds):
        before, now = now, processor_time_of(process)
        waited_before, waited = waited, waiting_time_of(process)
        if now - begin >= NEARLY * seconds:
            return False
        if now - before < IDLE * seconds:
            starved += 1
            if starved > STARVED or waited - waited_before < IDLE * seconds:
                return False
    return True


def processor_time_of(process: int) -> float:
    """Return the processor time of another process in seconds; 0 where the system does not tell, so that the clock
    decides."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()  # the name before it may hold any character
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _work(work: Callable[[Connection], None], pipe: Connection, parent: int) -> None:
    """Do the work and end this process, a fork of `parent`."""
    status = 1
    try:
        gc.freeze()
        faulthandler.disable()  # its report goes to a stream of the parent
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a worker ignores it: Ctrl-C is no crash of the call
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        _end_with(parent)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        _limit_memory()
        torch.set_num_threads(1)  # the threads of a pool do not exist in a fork
        warnings.simplefilter("ignore")
        try:
            work(pipe)
        except SystemExit as end:
            status = 0 if end.code is None else end.code & 0xFF if isinstance(end.code, int) else 1
            return
        except Exception as error:
            pipe.send(RuntimeError(f"{type(error).__name__}: {text_of(error)}"))
            pipe.send(END)
        pipe.close()
        status = 0
    finally:
        os._exit(status)


def silence_channels(kept: int) -> None:
    """Let all pipes and sockets of this process but one lead nowhere. A fork has those of its parent, through which the
    operator could send verdicts of its own."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # the number of the listing itself
            mode = os.fstat(number).st_mode
            if number != kept and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
                os.dup2(nowhere, number)


def _end_with(parent: int) -> None:
    """On Linux, let the system kill this fork when its parent is killed, which cannot do it then. Otherwise a call that
    hangs would go on forever."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before
            os._exit(1)


def _limit_memory() -> None:
    """Limit the memory that this process may write. A limit on addresses would keep devices from working, as CUDA
    reserves more of them than there is memory."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (now + MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
