"""Actions that wait for the first storage on the device in this process.

Defines `on_first_use`, `begin` and `happened`. Code that never uses the device must not observe that the package is
imported. So whatever only tensors on the device need is installed when the first of them gets its storage.
"""

from __future__ import annotations

from collections.abc import Callable

from .lock import LOCK

_waiting: list[Callable[[], None]] = []
_begun = False


def happened() -> bool:
    """Whether the device has been used in this process."""
    return _begun


def on_first_use(action: Callable[[], None]) -> None:
    """Run the action at the first use of the device; at once if that is over."""
    if _begun:
        action()
    else:
        _waiting.append(action)


def begin() -> None:
    """Run the waiting actions. Each call after the first has no effect."""
    global _begun
    with LOCK:
        _begun = True
        while _waiting:
            _waiting.pop(0)()
