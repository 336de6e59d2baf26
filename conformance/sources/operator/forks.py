"""Calls of the operator in a fork of this process, so that a crash, a hang or a leak ends the fork only.

Defines `forked` and `processor_time`. The operator may be a closure, which no other process can import; a fork has it.
The fork sends its progress before each call, so that the parent knows which call ended it. It drops the operator's
output.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from conformance.run.messages import Death, ExitReason, exit_in_words

MEMORY = 8 * 2**30
"""Limit on the memory that a fork may allocate, in bytes."""

Send = Callable[[Any], None]


def processor_time() -> float:
    """Return the processor time of this process and of its ended child processes, in seconds. In a fork it begins at
    0."""
    return sum(os.times()[:4])


def forked(work: Callable[[Send], None], seconds: float) -> Iterator[Any]:
    """Run `work` in a fork, and yield its messages. A fork that sends nothing for `seconds` is killed. The last item
    is a `Death` if it did not end normally, or the exception that `work` raised."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks of a process with threads
        process = os.fork()
    if process == 0:
        receiving.close()
        _work(work, sending)
    sending.close()
    ended = False
    try:
        while receiving.poll(seconds):
            try:
                item = receiving.recv()
            except EOFError:
                ended = True
                break
            yield item
        if not ended:
            yield Death(ExitReason.TIMEOUT, f"gave no answer in {seconds:g} s")
    finally:
        receiving.close()
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if ended and status:
        yield Death(ExitReason.CRASH, exit_in_words(status))


def _work(work: Callable[[Send], None], sending: Connection) -> None:
    """Do the work and end this process, a fork."""
    status = 1
    try:
        gc.freeze()
        faulthandler.disable()  # its report goes to a stream of the parent
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        _limit_memory()
        torch.set_num_threads(1)  # the threads of a pool do not exist in a fork
        warnings.simplefilter("ignore")
        try:
            work(sending.send)
        except Exception as error:
            sending.send(RuntimeError(f"{type(error).__name__}: {error}"))
        sending.close()
        status = 0
    finally:
        os._exit(status)


def _limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
