"""Recording: a block in which nothing may be computed, so that what it builds can run again over other buffers.

Defines `recording`, `Recorded`, `is_open`, `require`, `feed`, `check_closed`, and `NeedsValue`, which ends a recording
that needs a value.

The key insight: a check of elements (an index in range) is a question for the host in an eager call, and one more lazy
value in a recorded graph; numbers that the host draws are one more buffer of it, which is filled anew for each run.
Must not know `torch.compile`, its one caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tinygrad.uop.ops import UOp


class NeedsValue(RuntimeError):
    """Something needed a value inside `recording`; its text goes on from the name of an operator."""


@dataclass
class Recorded:
    """What each run of the recorded block has to do beside running kernels."""

    conditions: list[UOp] = field(default_factory=list)  # 0-d values that must be true: its checks of elements
    feeds: list[tuple[UOp, Callable[[], Any]]] = field(default_factory=list)  # a buffer, and what gives its content


_recorded: Recorded | None = None


@contextlib.contextmanager
def recording() -> Iterator[Recorded]:
    """Within the block nothing is computed: what would be raises NeedsValue."""
    global _recorded
    outer, _recorded = _recorded, Recorded()
    try:
        yield _recorded
    finally:
        _recorded = outer


def is_open() -> bool:
    """Whether a block of `recording` is open."""
    return _recorded is not None


def require(condition: UOp) -> None:
    """Inside `recording`: a condition on elements which each run has to find true."""
    assert _recorded is not None
    _recorded.conditions.append(condition)


def feed(buffer: UOp, content: Callable[[], Any]) -> None:
    """Inside `recording`: a buffer in whose place each run takes what `content` gives; called in the order of feeds."""
    assert _recorded is not None
    _recorded.feeds.append((buffer, content))


def check_closed(reason: str) -> None:
    """Raise NeedsValue inside `recording`, naming what needs a value."""
    if _recorded is not None:
        raise NeedsValue(reason)
