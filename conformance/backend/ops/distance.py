"""Distances between rows, and the most frequent element: operators that compare all pairs.

The module does not depend on strides: the caller handles them.
"""

from __future__ import annotations

import math

import numpy as np
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, Declined, value
from ..dispatch.tensors import cast
from ..lazy.dtypes import opmath
from . import order
from .arithmetic import subtract
from .reduction import materialize_if_costly, norm, total

LONGEST_STABLE = 16  # up to this length the CPU's sort keeps the order of equal elements, so the index is determined


FLOAT32_MAX = float(np.finfo(np.float32).max)


def _exponent(dtype: DType, p: float) -> float:
    """The exponent as the CPU's kernel holds it: too large for the dtype, it is infinite."""
    return math.inf if dtype is not dtypes.float64 and p > FLOAT32_MAX else p


@value("_cdist_forward")
def cdist(ctx: Context, a: UOp, b: UOp, p: float, compute_mode: int | None) -> UOp:
    """p-norms of the differences between all rows of two matrices."""
    if a.shape[-1] == 0:
        return UOp.const(0.0, ctx.out.computed)
    dtype = opmath(ctx.out.computed)
    difference = subtract(cast(a, dtype).unsqueeze(-2), cast(b, dtype).unsqueeze(-3))
    if _exponent(dtype, p) == math.inf:  # here the CPU's maximum ignores nan; in _pdist_forward it does not
        difference = difference.ne(difference).where(difference.const_like(0), difference)
    return _length(difference, p).reshape(ctx.out.size)


def _length(difference: UOp, p: float) -> UOp:
    """p-norm along the last dimension; for p = 0 the count of nonzero differences, or nan if a difference is nan."""
    p = _exponent(difference.dtype, p)
    last = (difference.ndim - 1,)
    if p == 0:  # one reduction
        different = difference.ne(0).cast(difference.dtype)
        return total(difference.ne(difference).where(different.const_like(math.nan), different), last)
    return norm(difference, p, last)


@value("_pdist_forward")
def pdist(ctx: Context, x: UOp, p: float = 2) -> UOp:
    """p-norms of the differences between rows of a matrix, each pair of rows once."""
    if x.shape[-1] == 0:
        return UOp.const(0.0, ctx.out.computed)
    x = cast(x, opmath(ctx.out.computed))
    first, second = (ctx.data(places) for places in np.triu_indices(int(x.shape[0]), 1))
    difference = subtract(x[first], x[second])  # type: ignore[index]
    return _length(difference, p).reshape(ctx.out.size)


@value("mode")
def mode(ctx: Context, x: UOp, dim: int = -1, keepdim: bool = False) -> tuple[UOp, UOp]:
    """Most frequent element along a dimension, and its last position; the smallest one among equally frequent elements.

    A nan equals no other element and counts as the largest. The CPU's sort treats nan as equal to every element, so
    with a nan it may return another element than the most frequent one.
    """
    if x.ndim == 0:
        return x, UOp.const(0, dtypes.int64)
    n = int(x.shape[dim])
    if n > LONGEST_STABLE:
        raise Declined
    x = materialize_if_costly(x.transpose(dim, -1))
    same = x.unsqueeze(-1).eq(x.unsqueeze(-2)) | (UOp.arange(n).reshape((n, 1)).eq(UOp.arange(n)))
    count = same.cast(dtypes.int32).sum(-1).contiguous()
    frequent = count.eq(count.max(-1, keepdim=True))
    rank = order.key(x, nan_last=True)
    least = frequent.where(rank, rank.dtype.max).min(-1, keepdim=True)
    place = (frequent & rank.eq(least)).where(UOp.arange(n).cast(dtypes.int32), -1).max(-1, keepdim=True)
    value = order.unkey(least, x.dtype)
    if dtypes.is_float(x.dtype):
        place = value.ne(value).where(0, place)  # a nan result means that all elements are nan
    results = (value, place.cast(dtypes.int64))
    return tuple(r.transpose(dim, -1).reshape(ctx.out.size) for r in results)  # type: ignore[return-value]
