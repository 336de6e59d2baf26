"""Ctrl-C deferred while contents are stored in place.

Defines `DeferSigint`.

A schedule that computes into new buffers can be aborted at any time and repeated. One that stores in place cannot: an
abort would leave contents that are neither old nor new. Compilation happens earlier and may take minutes, so only the
run itself is protected.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class DeferSigint:
    """A block that, if `needed`, raises an interrupt which arrives after `begin` only at the end of the block."""

    def __init__(self, needed: bool) -> None:
        self.begun, self._needed = False, needed
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._arrived: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> DeferSigint:
        return self

    def begin(self) -> None:
        """Defer interrupts from now on; they reach only the main thread."""
        self.begun = True
        if not self._needed or threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if self._handler is None and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, lambda number, frame: self._arrived.append((number, frame)))

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._arrived:
                self._handler(*self._arrived[0])


__all__ = ["DeferSigint"]
