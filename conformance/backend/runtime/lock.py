"""One thread at a time in the device: the lock, what is dropped later, and what a fork does to both.

Defines `LOCK`, `locked` (a function that takes it) and `clear`, by which a finalizer lets go of nodes.

The key insight: tinygrad interns its nodes and takes a dying one out of its table by Python code, in whichever thread
dropped it. A node that dies in one thread while another looks the same node up leaves the table wrong. So nodes are
built, computed and dropped by the thread that has the lock, and by no other.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from . import torch_compat

LOCK = threading.RLock()
"""Held while nodes, schedules and buffers are used, which are state of the process in tinygrad."""

_dropped: list[Any] = []  # by threads that did not have the lock


def locked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run by one thread at a time, and without torch.jit.trace, for which sizes are tensors."""

    @functools.wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with LOCK:
            if _dropped:
                _dropped.clear()
            tracing = torch_compat.tracing_state()
            if tracing is None:
                return function(*args, **kwargs)
            torch_compat.set_tracing_state(None)
            try:
                return function(*args, **kwargs)
            finally:
                torch_compat.set_tracing_state(tracing)

    return alone


def clear(owner: Any, names: tuple[str, ...]) -> None:
    """Set attributes to None; what they held dies here, or where another thread has the lock, when it is taken next.

    Called by finalizers, which may run anywhere and therefore must not wait.
    """
    alone = LOCK.acquire(blocking=False)
    if not alone:
        _dropped.append([getattr(owner, name) for name in names])
    for name in names:
        setattr(owner, name, None)
    if alone:
        LOCK.release()


if hasattr(os, "register_at_fork"):
    # A child has only the thread that forked: another's half of a change would stay one, and its lock taken.
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


__all__ = ["LOCK", "clear", "locked"]
