"""The lock that admits one thread at a time to the device, with deferred releases and fork handling.

Defines `LOCK`, `locked` (a function that takes it) and `clear`, with which a finalizer releases nodes.

tinygrad interns its nodes and removes a dead one from its table with Python code, in the thread that dropped the last
reference. If another thread looks up the same node at that time, the table becomes wrong. So only the thread that holds
the lock builds, computes and drops nodes.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from . import torch_compat

LOCK = threading.RLock()
"""Held during every use of nodes, schedules and buffers, which are process-wide state in tinygrad."""

_dropped: list[Any] = []  # by threads that did not hold the lock


def locked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function: one thread runs it at a time, and without torch.jit.trace, which turns sizes into tensors."""

    @functools.wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with LOCK:
            if _dropped:
                _dropped.clear()
            tracing = torch_compat.tracing_state()
            if tracing is None:
                return function(*args, **kwargs)
            try:
                torch_compat.set_tracing_state(None)
                return function(*args, **kwargs)
            finally:
                torch_compat.set_tracing_state(tracing)

    return alone


def clear(owner: Any, names: tuple[str, ...]) -> None:
    """Set attributes to None. Their values die now, or, if another thread has the lock, when the lock is taken next.

    Called by finalizers, which may run in any thread and therefore must not wait.
    """
    # `alone = LOCK.acquire(...)` could be interrupted between the call and the assignment: then no line releases the
    # lock, and Python ignores a KeyboardInterrupt in a finalizer, so that every other thread waits for ever. Python
    # looks for signals after calls, and unpacking makes none.
    attempt = map(LOCK.acquire, (False,))
    [alone] = attempt
    try:
        if not alone:
            _dropped.append([getattr(owner, name) for name in names])
        for name in names:
            setattr(owner, name, None)
    finally:
        if alone:
            LOCK.release()


if hasattr(os, "register_at_fork"):
    # A child has only the thread that forked. Without the lock, it could inherit another thread's incomplete change and
    # a held lock.
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


__all__ = ["LOCK", "clear", "locked"]
