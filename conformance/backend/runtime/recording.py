"""Recording: a block in which nothing may be computed, so that what it builds can run again over other buffers.

Defines `recording`, `is_open`, `require`, `check_closed`, and `NeedsValue`, which ends a recording that needs a value.

The key insight: a check of elements (an index in range) is a question for the host in an eager call, and one more lazy
value in a recorded graph.
Must not know `torch.compile`, its one caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tinygrad.uop.ops import UOp


class NeedsValue(RuntimeError):
    """Something needed a value inside `recording`."""


_conditions: list[UOp] | None = None


@contextlib.contextmanager
def recording() -> Iterator[list[UOp]]:
    """Within the block nothing is computed: what would be raises NeedsValue.

    Yields the conditions (0-d values) that each run of what is recorded must find true: its checks of elements.
    """
    global _conditions
    outer, _conditions = _conditions, []
    try:
        yield _conditions
    finally:
        _conditions = outer


def is_open() -> bool:
    """Whether a block of `recording` is open."""
    return _conditions is not None


def require(condition: UOp) -> None:
    """Inside `recording`: a condition on elements which each run has to find true."""
    assert _conditions is not None
    _conditions.append(condition)


def check_closed(reason: str) -> None:
    """Raise NeedsValue inside `recording`, naming what needs a value."""
    if _conditions is not None:
        raise NeedsValue(reason)
