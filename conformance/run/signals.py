"""Ctrl-C and SIGTERM as one clean stop, requested at any time and raised where a pool waits.

Defines `ends_imports` for the first line of a command, `deferred` and `check` for the remaining code, and
`sigint_blocked` for the processes that the command starts. A KeyboardInterrupt in the middle of bookkeeping could lose
a result or count it twice. The signal therefore only sets a flag, and `check` raises where the state is consistent.
Later signals are ignored until the report is written.

A signal that this process was started to ignore stays ignored, as in Python itself: `nohup` and the background of a
script ignore SIGINT, so that Ctrl-C for another job in the same terminal does not end them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_received: list[int] = []
_thread = threading.local()


class Stopped(KeyboardInterrupt):
    """The user or the machine asked the command to end."""


def ends_imports(command: str) -> None:
    """From now on, SIGINT and SIGTERM end this process with one sentence, until `deferred`. During the imports, a
    command has no results to lose, and a KeyboardInterrupt inside an import would print a traceback. While the
    interpreter ends, both are ignored: it restores their default, which would replace the exit code.
    """

    def leave(number: int, _: object) -> None:
        os.write(2, f"{command}: interrupted\n".encode())
        os._exit(128 + (_received[0] if _received else number))

    for number in heeded_signals():
        signal.signal(number, leave)
    atexit.register(_ignore)


def heeded_signals() -> list[signal.Signals]:
    """Return those of SIGNALS that this process neither ignores nor handles outside of Python, as a program may that
    embeds Python."""
    return [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM in the block until `check`. Does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _: object) -> None:
        _received.append(number)
        _ignore()

    _received.clear()
    before = {signum: signal.signal(signum, ask) for signum in heeded_signals()}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def check() -> None:
    """Raise Stopped if a stop was requested of the command or of this thread."""
    event: threading.Event | None = getattr(_thread, "stop", None)
    if _received or (event is not None and event.is_set()):
        raise Stopped


@contextlib.contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """In this thread, `check` raises Stopped in the block as soon as the event is set."""
    _thread.stop = event
    try:
        yield
    finally:
        del _thread.stop


def signal_number() -> int:
    """Return the number of the first signal, or SIGINT if there was none."""
    return _received[0] if _received else signal.SIGINT


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Start processes in the block with SIGINT blocked, so that Ctrl-C does not interrupt their imports."""
    from multiprocessing import resource_tracker  # not before `ends_imports`, since it takes long

    resource_tracker.ensure_running()  # starting the tracker unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
