"""Recording: a block in which nothing is computed, so that its graph can run again over other buffers.

Defines `recording`, `Recorded`, `is_open`, `require`, `feed`, `check_closed`, and `NeedsValue`, which ends a recording
that needs a value.

In an eager call, the host checks elements (an index in range). In a recorded graph, such a check is one more lazy
value. Random numbers from the host are one more buffer, filled again for each run.

This module must not depend on `torch.compile`, its only caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tinygrad.uop.ops import UOp


class NeedsValue(RuntimeError):
    """An operation needed a value inside `recording`; the message follows the name of an operator."""


@dataclass
class Recorded:
    """Work of each run of the recorded block besides kernels."""

    conditions: list[UOp] = field(default_factory=list)  # 0-d values that must be true: checks of elements
    feeds: list[tuple[UOp, Callable[[], Any]]] = field(default_factory=list)  # a buffer, and the source of its content


_recorded: Recorded | None = None


@contextlib.contextmanager
def recording() -> Iterator[Recorded]:
    """Within the block nothing is computed: an operation that needs a value raises NeedsValue."""
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
    """Inside `recording`: a condition on elements which must be true in each run."""
    assert _recorded is not None
    _recorded.conditions.append(condition)


def feed(buffer: UOp, content: Callable[[], Any]) -> None:
    """Inside `recording`: a buffer that each run replaces by the result of `content`; called in the order of feeds."""
    assert _recorded is not None
    _recorded.feeds.append((buffer, content))


def check_closed(reason: str) -> None:
    """Raise NeedsValue with this reason inside `recording`."""
    if _recorded is not None:
        raise NeedsValue(reason)
