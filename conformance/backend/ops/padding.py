"""Reflection and replication padding, and the gradients of reflection padding.

A padded element is one element of the input, whose position is a formula of its own position in each padded dimension.
In the backward pass the padded gradient is three pieces along each dimension, two of them mirrored, and moving pieces
costs nothing. So each pass is one kernel for any number of padded dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import Context, value
from .complex import linear
from .indexing import coordinates, elements
from .matmul import stored


def _reflected(place: UOp, size: int) -> UOp:
    beyond = place.maximum(-place) - (size - 1)
    return size - 1 - beyond.maximum(-beyond)


def _replicated(place: UOp, size: int) -> UOp:
    return place.maximum(0).minimum(size - 1)


def _padded(x: UOp, padding: Sequence[int], within: Callable[[UOp, int], UOp]) -> UOp:
    """`x` with its last dimensions padded; `within` maps a position beyond the ends to a position in the dimension."""
    dims = len(padding) // 2
    lead, sizes = x.shape[:-dims], [int(size) for size in x.shape[-dims:]]
    counts = [size + padding[2 * i] + padding[2 * i + 1] for size, i in zip(sizes, reversed(range(dims)), strict=True)]
    place: Any = 0
    for d, size in enumerate(sizes):
        place = place * size + within(coordinates(counts, d) - padding[2 * (dims - 1 - d)], size)
    inner = x.permute((*range(len(lead), x.ndim), *range(len(lead)))).reshape((math.prod(sizes), *lead))
    chosen = elements(inner, place.expand(tuple(counts)))
    return chosen.permute((*range(dims, x.ndim), *range(dims)))


@value("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", deferrable=True)
def reflection_pad(ctx: Context, self: UOp, padding: Sequence[int]) -> UOp:
    """Pad the last dimensions by reflection; `padding` begins with the two ends of the last one."""
    if self.dtype == dtypes.bool:
        raise MetaRejected("the CPU mirrors no bools")
    return _padded(self, padding, _reflected)


@value("replication_pad1d", "replication_pad2d", "replication_pad3d", deferrable=True)
def replication_pad(ctx: Context, self: UOp, padding: Sequence[int]) -> UOp:
    """Pad the last dimensions by their first and last elements."""
    return _padded(self, padding, _replicated)


linear(*(f"{how}_pad{dims}d" for how in ("reflection", "replication") for dims in (1, 2, 3)))


def _piece(x: UOp, dim: int, start: int, stop: int, mirrored: bool, at: int, size: int) -> list[UOp]:
    """x[start:stop] along a dimension, optionally mirrored, placed at `at` in `size` zeros; [] if it is empty."""
    if stop <= start:
        return []
    x = x.shrink(tuple((start, stop) if d == dim else None for d in range(x.ndim)))
    x = x.flip(dim) if mirrored else x
    around = (at, size - at - (stop - start))
    return [x.pad(tuple(around if d == dim else (0, 0) for d in range(x.ndim)))]


def _folded(x: UOp, dim: int, size: int, left: int, right: int) -> UOp:
    """Gradient of `size` elements from that of `left + size + right` elements; a negative pad cuts elements off."""
    whole = size + left + right
    begin, end = max(left, 0), min(left + size, whole)
    pieces = _piece(x, dim, begin, end, False, begin - left, size)
    stop = min(left, whole)
    pieces += _piece(x, dim, 0, stop, True, left - stop + 1, size)
    pieces += _piece(x, dim, max(left + size, 0), whole, True, 2 * (size - 1) - (whole - 1 - left), size)
    return sum(pieces[1:], start=pieces[0])


@value("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward", deferrable=True)
def reflection_pad_backward(ctx: Context, gradient: UOp, self: UOp, padding: Sequence[int]) -> UOp:
    """Gradient of the input of a reflection pad; `padding` begins with the two ends of the last dimension."""
    gradient = stored(gradient)
    for i in range(len(padding) // 2):
        dim = self.ndim - 1 - i
        gradient = _folded(gradient, dim, int(self.shape[dim]), padding[2 * i], padding[2 * i + 1])
    return gradient
