"""Ctrl-C and SIGTERM as one clean stop: asked for at any time, answered where a pool waits.

Defines `ends_imports` for a command's first line, `deferred` and `check` for the rest of it, and `sigint_blocked` for
the processes that it starts. The key insight: a KeyboardInterrupt between two lines of bookkeeping leaves a result
counted once or twice, so the signal only sets a flag, and `check` raises where nothing is half done. Later signals
are ignored, so that the report which the first one asked for is written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_asked: list[int] = []


class Stopped(KeyboardInterrupt):
    """The user, or the machine, asked the command to end."""


def ends_imports(command: str) -> None:
    """From now on SIGINT and SIGTERM end this process with one sentence, until `deferred`: a command that imports torch
    has nothing to lose yet, and a KeyboardInterrupt in the middle of somebody's import is a traceback."""

    def leave(number: int, _: object) -> None:
        os.write(2, f"{command}: interrupted\n".encode())
        os._exit(128 + (_asked[0] if _asked else number))

    for each in SIGNALS:
        signal.signal(each, leave)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """SIGINT and SIGTERM wait, in the block, for `check`; outside of the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _: object) -> None:
        _asked.append(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)

    _asked.clear()
    before = {each: signal.signal(each, ask) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def check() -> None:
    """Raise Stopped when a stop was asked for."""
    if _asked:
        raise Stopped


def signal_number() -> int:
    """The signal that asked first; SIGINT where none did."""
    return _asked[0] if _asked else signal.SIGINT


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """The processes that are started in the block inherit that SIGINT is blocked, so that Ctrl-C tears none from its
    imports."""
    from multiprocessing import resource_tracker  # not before `ends_imports`, since it takes long

    resource_tracker.ensure_running()  # which unblocks it again where it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
