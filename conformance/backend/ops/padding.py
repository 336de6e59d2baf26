"""Gradients of reflecting pads: what was laid beyond an end is folded back.

The key insight: along each dimension the padded gradient is three pieces, two of them mirrored, and moving pieces costs
nothing, so the fold is one kernel however many dimensions are padded.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.uop.ops import UOp

from ..rows import Context, value
from .matmul import stored


def _piece(x: UOp, dim: int, start: int, stop: int, mirrored: bool, at: int, size: int) -> list[UOp]:
    """x[start:stop] along a dimension, perhaps mirrored, from `at` on in a dimension of `size` zeros; [] of nothing."""
    if stop <= start:
        return []
    x = x.shrink(tuple((start, stop) if d == dim else None for d in range(x.ndim)))
    x = x.flip(dim) if mirrored else x
    around = (at, size - at - (stop - start))
    return [x.pad(tuple(around if d == dim else (0, 0) for d in range(x.ndim)))]


def _folded(x: UOp, dim: int, size: int, left: int, right: int) -> UOp:
    """The gradient of `size` elements from that of all `left + size + right`; a negative pad had cut elements off."""
    whole = size + left + right
    begin, end = max(left, 0), min(left + size, whole)
    pieces = _piece(x, dim, begin, end, False, begin - left, size)
    stop = min(left, whole)
    pieces += _piece(x, dim, 0, stop, True, left - stop + 1, size)
    pieces += _piece(x, dim, max(left + size, 0), whole, True, 2 * (size - 1) - (whole - 1 - left), size)
    return sum(pieces[1:], start=pieces[0])


@value("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def reflection_pad_backward(ctx: Context, gradient: UOp, self: UOp, padding: Sequence[int]) -> UOp:
    """The gradient by what was padded; `padding` begins with the two ends of the last dimension."""
    gradient = stored(gradient)
    for i in range(len(padding) // 2):
        dim = self.ndim - 1 - i
        gradient = _folded(gradient, dim, int(self.shape[dim]), padding[2 * i], padding[2 * i + 1])
    return gradient
