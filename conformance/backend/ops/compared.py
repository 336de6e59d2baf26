"""Writing by index without a host to invert the index on: all places are compared with all writes.

Defines `Members` (which writes go to which place), with what `scatter` asks of them.
The key insight: in a recorded graph an index is another one at each run, so nothing may be made from its elements. The
comparison is one kernel for any index, at the cost of places times writes; past MOST the graph runs eagerly instead.
Must not know operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..runtime import recording
from .bounds import Size

MOST = 1 << 28  # comparisons: what a kernel does in a fraction of a second


class Members:
    """Which of k writes go to which of n places, for each of `inner` lines of a tensor (n, *inner).

    `place` holds a place for each write, of shape (k,) where it is the same for all lines, else (k, *inner); a negative
    one is none. Raises recording.NeedsValue where too much would be compared.
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
        """`reduction` over dimension 1 of the writes (k, *inner) to each place, `neutral` where there is none."""
        spread = source.reshape((1, *source.shape)).expand(self.shape)
        return reduction(self.here.expand(self.shape).where(spread, neutral.cast(source.dtype).expand(self.shape)))

    def last(self) -> UOp:
        """The number of the last write to each place, from 1 on; 0 without one. Shape (n,) or (n, *inner)."""
        number = self._numbers(1) + 1
        found = self.here.where(number, number.const_like(0)).max(1)
        return found if self.place.ndim > 1 else found.reshape((self.shape[0],))

    def any(self) -> UOp:
        """Whether there is a write to each place, of shape (n, *inner) or with ones for its lines."""
        return self.here.max(1)

    def count(self) -> UOp:
        """How many writes each place gets, an integer of that shape."""
        return self.here.cast(dtypes.int32).sum(1)
