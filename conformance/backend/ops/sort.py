"""Sorting and searching by counting: sort, topk, median, searchsorted, histc.

The position of an element in a stable sort is the number of elements that come before it. That is one reduction over
all pairs. It needs no sorting network, whose compile time grows too fast. It is quadratic, so long dimensions are
declined and sorted by the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import Context, Declined, value
from ..dispatch.tensors import cast
from . import order
from .arithmetic import INF, absolute, divide, subtract
from .bounds import require
from .indexing import along
from .reduction import total

# Largest number of pairs that one counting reduction compares: about a tenth of a second.
MOST_PAIRS = 1 << 26
# Up to this length the CPU's sort is an insertion sort, which is stable even if stability is not requested.
SHORT = 16


def _affordable(x: UOp, others: int) -> None:
    if math.prod(int(n) for n in x.shape) * others > MOST_PAIRS:
        raise Declined


def _decline_ties(x: UOp) -> None:
    """Decline dtypes in which equal elements are common: their order depends on the CPU's algorithm."""
    if not dtypes.is_float(x.dtype) or x.dtype.itemsize == 2:
        raise Declined


def _flat(x: UOp) -> UOp:
    return x.reshape((1,)) if x.ndim == 0 else x


def _ranks(x: UOp, dim: int, descending: bool = False) -> tuple[UOp, UOp]:
    """(int32 position of each element in a stable sort, its current int64 position), `dim` last; nan is largest."""
    size = int(x.shape[dim])
    _affordable(x, size)
    keys = order.key(x)
    keys = ~keys if descending else keys
    place = order.positions(x.shape, dim)
    keys, place = keys.transpose(dim, -1), place.transpose(dim, -1)
    if keys.dtype.itemsize <= 4:
        packed = order.packed(keys, place)
        packed = packed if size <= SHORT else packed.contiguous()  # short ones are recomputed, which saves a kernel
        before = packed.unsqueeze(-2) < packed.unsqueeze(-1)
    else:
        keys = keys if size <= SHORT else keys.contiguous()
        mine, other = keys.unsqueeze(-1), keys.unsqueeze(-2)
        before = (other < mine) | (other.eq(mine) & (place.unsqueeze(-2) < place.unsqueeze(-1)))
    return before.cast(dtypes.int32).sum(-1, dtype=dtypes.int32).contiguous(), place


def permutation(x: UOp, dim: int, descending: bool = False) -> UOp:
    """int64 indices that sort `x` stably along `dim`; nan counts as the largest element."""
    size = int(x.shape[dim])
    rank, place = _ranks(x, dim, descending)
    # The inverse of a permutation: for each position, find the element with that rank.
    chosen = rank.unsqueeze(-2).eq(UOp.arange(size).cast(dtypes.int32).reshape((size, 1)))
    indices = chosen.where(place.unsqueeze(-2), 0).sum(-1, dtype=dtypes.int64)
    return indices.transpose(dim, -1)


@value("sort", "sort.stable", first_is_out=True)
def sort(ctx: Context, x: UOp, dim: int = -1, descending: bool = False, *, stable: bool | None = None
         ) -> tuple[UOp, UOp]:  # fmt: skip
    """Elements in order along a dimension, and their original positions; always stable."""
    size, x = ctx.out.size, _flat(x)
    dim %= x.ndim
    if not stable and int(x.shape[dim]) > SHORT:
        _decline_ties(x)
    indices = permutation(x, dim, descending)
    return along(x, dim, indices).reshape(size), indices.reshape(size)


@value("topk")
def topk(ctx: Context, x: UOp, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[UOp, UOp]:
    """First k elements in order; declined without `sorted`, where the order depends on the CPU's algorithm."""
    _decline_ties(x)
    if not sorted:
        raise Declined
    size, x = ctx.out.size, _flat(x)
    dim %= x.ndim
    indices = permutation(x, dim, largest).shrink(tuple((0, k) if d == dim else None for d in range(x.ndim)))
    return along(x, dim, indices).reshape(size), indices.reshape(size)


def _at_rank(x: UOp, dim: int, rank: UOp, size: Sequence[int]) -> tuple[UOp, UOp]:
    """Element at a position in the order, and its index; `rank` has size 1 along `dim`."""
    ranks, place = _ranks(x, dim)
    here = ranks.eq(rank.transpose(dim, -1).cast(dtypes.int32))
    bits = x.bitcast(order.unsigned(x.dtype)) if dtypes.is_float(x.dtype) else x  # a sum of floats would lose -0
    key, index = (
        here.where(y, 0).sum(-1, keepdim=True, dtype=y.dtype).transpose(dim, -1).reshape(tuple(size))
        for y in (bits.transpose(dim, -1), place)
    )
    return (key.bitcast(x.dtype) if dtypes.is_float(x.dtype) else key), index


def _line_shape(x: UOp, dim: int) -> tuple[int, ...]:
    return tuple(1 if d == dim else int(n) for d, n in enumerate(x.shape))


@value("kthvalue")
def kthvalue(ctx: Context, x: UOp, k: int, dim: int = -1, keepdim: bool = False) -> tuple[UOp, UOp]:
    """k-th smallest element along a dimension, counted from 1."""
    _decline_ties(x)
    x = _flat(x)
    dim %= x.ndim
    return _at_rank(x, dim, UOp.const(k - 1, dtypes.int64).expand(_line_shape(x, dim)), ctx.out.size)


def _median(ctx: Context, x: UOp, dim: int, ignore_nan: bool) -> tuple[UOp, UOp]:
    """Lower middle element; the first nan if there is one, unless `ignore_nan`."""
    x = _flat(x)
    dim %= x.ndim
    size = int(x.shape[dim])
    nans = total(x.ne(x), (dim,), dtypes.int64) if dtypes.is_float(x.dtype) else None
    middle = UOp.const((size - 1) // 2, dtypes.int64).expand(_line_shape(x, dim))
    if nans is not None and ignore_nan:
        counted = size - nans
        middle = (counted > 0).where((counted - 1) >> 1, 0)
    elif nans is not None:
        middle = (nans > 0).where(size - nans, middle)
    return _at_rank(x, dim, middle, ctx.out.size)


@value("median.dim")
def median_dim(ctx: Context, x: UOp, dim: int, keepdim: bool = False) -> tuple[UOp, UOp]:
    """Median along a dimension and its index."""
    _decline_ties(x)
    return _median(ctx, x, dim, ignore_nan=False)


@value("nanmedian.dim")
def nanmedian_dim(ctx: Context, x: UOp, dim: int, keepdim: bool = False) -> tuple[UOp, UOp]:
    """Median of the elements that are not nan along a dimension, and its index."""
    _decline_ties(x)
    return _median(ctx, x, dim, ignore_nan=True)


def _median_of_all(ctx: Context, x: UOp, ignore_nan: bool) -> UOp:
    if 0 in x.shape:
        raise Declined
    return _median(ctx, x.reshape((math.prod(x.shape),)), 0, ignore_nan)[0]


@value("median")
def median(ctx: Context, x: UOp) -> UOp:
    """Median of all elements."""
    return _median_of_all(ctx, x, ignore_nan=False)


@value("nanmedian")
def nanmedian(ctx: Context, x: UOp) -> UOp:
    """Median of all elements that are not nan."""
    return _median_of_all(ctx, x, ignore_nan=True)


def _search(ctx: Context, edges: UOp, x: UOp, right: bool) -> UOp:
    """Number of edges before each element, along the edges' last dimension; nan comes after all edges."""
    if 0 in edges.shape:
        return UOp.const(0, dtypes.int64)
    dtype = ctx.common_dtype()
    edges, x = cast(edges, dtype).contiguous(), cast(x, dtype).contiguous()
    if edges.ndim == 1:
        edges = edges.reshape((1,) * x.ndim + edges.shape)
    else:
        edges = edges.unsqueeze(-2)
    mine = x.unsqueeze(-1)
    _affordable(x, int(edges.shape[-1]))
    after = mine < edges if right else (mine < edges) | mine.eq(edges)
    return after.logical_not().cast(dtypes.int64).sum(-1, dtype=dtypes.int64)


@value("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(ctx: Context, edges: UOp, x: UOp | float, *, out_int32: bool = False, right: bool = False,
                 side: str | None = None, sorter: UOp | None = None) -> UOp:  # fmt: skip
    """Insertion position of each element in a sorted sequence."""
    if sorter is not None:
        edges = along(edges, edges.ndim - 1, sorter)
    x = x if isinstance(x, UOp) else UOp.const(x, ctx.common_dtype())
    return _search(ctx, edges, x, right or side == "right").reshape(ctx.out.size)


@value("bucketize.Tensor", "bucketize.Scalar")
def bucketize(ctx: Context, x: UOp | float, edges: UOp, *, out_int32: bool = False, right: bool = False) -> UOp:
    """Index of the bucket that contains each element; raises MetaRejected if the boundaries are not a vector."""
    if edges.ndim != 1:
        raise MetaRejected("the boundaries of buckets are a vector")
    x = x if isinstance(x, UOp) else UOp.const(x, ctx.common_dtype())
    return _search(ctx, edges, x, right).reshape(ctx.out.size)


@value("histc")
def histc(ctx: Context, x: UOp, bins: int = 100, min: float = 0, max: float = 0) -> UOp:
    """Counts of elements in equal bins over [min, max], or over the data's range if both are equal."""
    _affordable(x, bins)
    if 0 in x.shape or x.dtype is dtypes.bool:
        raise Declined
    flat = x.reshape((math.prod(x.shape),)).contiguous()
    if dtypes.is_int(x.dtype):
        return _integer_histc(flat.cast(dtypes.int64), bins, int(min), int(max))
    low, high = UOp.const(float(min), x.dtype), UOp.const(float(max), x.dtype)
    if min == max:
        low, high = (order.extreme(flat, (0,), largest=which).reshape(()) for which in (False, True))
        require(ctx, (absolute(low) < INF) & (absolute(high) < INF))
        same = low.eq(high)
        low, high = same.where(subtract(low, 1.0), low), same.where(high + 1.0, high)
    place = divide(subtract(flat, low) * float(bins), subtract(high, low)).cast(dtypes.int64)
    return _counted(place, ((flat < low) | (flat > high) | flat.ne(flat)).logical_not(), bins)


def _integer_histc(x: UOp, bins: int, min: int, max: int) -> UOp:
    """Histogram of integers as on CUDA, which divides integers: the CPU has no histc of integers."""
    low, high = UOp.const(min, x.dtype), UOp.const(max, x.dtype)
    if min == max:
        low, high = (order.extreme(x, (0,), largest=which).reshape(()) for which in (False, True))
        same = low.eq(high)
        low, high = same.where(low - 1, low), same.where(high + 1, high)
    inside = ((x < low) | (high < x)).logical_not()
    return _counted(inside.where((x - low) * bins, 0) // (high - low), inside, bins)


def _counted(place: UOp, inside: UOp, bins: int) -> UOp:
    """Number of elements inside the range in each bin; the upper edge belongs to the last bin."""
    place = place.eq(bins).where(bins - 1, place)
    hit = inside.unsqueeze(0) & place.unsqueeze(0).eq(UOp.arange(bins).cast(dtypes.int64).reshape((bins, 1)))
    return hit.cast(dtypes.int64).sum(-1, dtype=dtypes.int64)
