"""Caches of what earlier calls taught the device, which can all be emptied at once.

Defines `remember` (add an entry to such a cache) and `forget_calls` (empty all of them).

The same program may take other kernels when its calls are known. `torch.nanquantile` over op_db's samples takes 139
kernels in a new process, and 153 or 154 after other operators have described some of its calls, which then wait in the
queue. So whoever counts kernels forgets the calls first: then a count depends on the program alone.

This module must not depend on operators or tensors.
"""

from __future__ import annotations

from typing import Any

from ..lazy import calls, steps

_filled: list[dict[Any, Any]] = []  # the caches with entries


def remember(cache: dict[Any, Any], key: Any, entry: Any, most: int) -> None:
    """Add an entry to a cache of at most `most` entries; a full cache is emptied first."""
    if not cache:
        _filled.append(cache)
    elif len(cache) >= most:
        cache.clear()
    cache[key] = entry


def forget_calls() -> None:
    """Forget all described calls, moved views and recorded steps: the next call of each operator runs as the first one
    in a process.

    Computes the calls that wait in the queue, since they refer to descriptions.
    """
    calls.settle()
    for cache in _filled:
        cache.clear()
    _filled.clear()
    steps.reset_state()


__all__ = ["forget_calls", "remember"]
