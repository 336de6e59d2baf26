"""Writes by index without the host: each position is compared with each write.

Defines `Members`, the assignment of writes to positions, with the reductions that `scatter` needs. In a recorded graph
the index differs at each run, so nothing may be derived from its elements. The comparison is one kernel for any index
and costs positions times writes. Above MOST the graph runs eagerly instead.
The module contains no operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..runtime import recording
from .bounds import Size

MOST = 1 << 28  # comparisons; a kernel computes these in a fraction of a second


class Members:
    """Assignment of k writes to n positions, for each of `inner` lines of a tensor (n, *inner).

    `place` holds a position for each write. Its shape is (k,) if the positions are the same for all lines, otherwise
    (k, *inner). A negative position means no write. Raises recording.NeedsValue for more than MOST comparisons.
    """

    def __init__(self, place: UOp, count: Size, inner: tuple[Size, ...]) -> None:
        self.place, self.shape = place, (count, int(place.shape[0]), *inner)
        if math.prod(self.shape) > MOST:
            recording.check_closed(f"writes {self.shape[1]} times to one of {count} places, {math.prod(inner)} each")
        lines = tuple(place.shape[1:]) or (1,) * len(inner)
        self.here = place.reshape((1, self.shape[1], *lines)).eq(self._numbers(0))

    def _numbers(self, dim: int) -> UOp:
        """0, 1, ... along one dimension."""
        numbers = UOp.arange(self.shape[dim], dtype=self.place.dtype)
        return numbers.reshape(tuple(n if d == dim else 1 for d, n in enumerate(self.shape)))

    def reduced(self, source: UOp, neutral: UOp, reduction: Callable[[UOp], UOp]) -> UOp:
        """`reduction` over dimension 1 of the writes (k, *inner) to each position; `neutral` without a write."""
        spread = source.reshape((1, *source.shape)).expand(self.shape)
        return reduction(self.here.expand(self.shape).where(spread, neutral.cast(source.dtype).expand(self.shape)))

    def last(self) -> UOp:
        """Number of the last write to each position, starting at 1; 0 without a write. Shape (n,) or (n, *inner)."""
        number = self._numbers(1) + 1
        latest = self.here.where(number, number.const_like(0)).max(1)
        return latest if self.place.ndim > 1 else latest.reshape((self.shape[0],))

    def any(self) -> UOp:
        """Whether each position gets a write; shape (n, *inner), or with ones in place of the lines."""
        return self.here.max(1)

    def count(self) -> UOp:
        """Number of writes to each position, an integer of the same shape as `any`."""
        return self.here.cast(dtypes.int32).sum(1)
