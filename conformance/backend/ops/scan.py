"""Scans along a dimension: running sums, products, extremes and log-sum-exps.

A running extreme is one running maximum of order keys with the position packed below. Sums and products of long lines
run as a loop: tinygrad's scan in two stages takes a number of steps that grows with the square of the length, and holds
all partial results.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..dispatch import fallback
from ..dispatch.registry import Context, decomposition, value
from ..dispatch.tensors import cast
from ..lazy.dtypes import opmath
from ..runtime import memory
from ..runtime.loop_kernels import Array, LoopProgram, kernel
from . import order
from .reduction import from_zero


def _running(x: UOp, dim: int, op: Ops) -> UOp:
    return x.contiguous()._split_cumalu(dim, op)


LONG = 1 << 20  # least length of a line that runs as a loop


def _accumulated(ctx: Context, x: UOp, dim: int, op: Ops) -> UOp:
    """The running sum or product, in the dtype that the CPU accumulates in; integers use int64 and wrap.

    The CPU accumulates float32 in float64, and 16-bit floats in float32 (ATen's AccumulateType.h).
    """
    dtype = ctx.out.computed
    wide = dtypes.float64 if dtype is dtypes.float32 else opmath(dtype) if dtypes.is_float(dtype) else dtypes.int64
    if x.ndim == 0:
        return cast(x, dtype)  # the CPU copies it, also a -0
    dim %= x.ndim
    if x.shape[dim] == 1 and op is Ops.ADD:
        return from_zero(cast(x, dtype)).reshape(ctx.out.size)
    if x.shape[dim] < LONG or not memory.host_addressable(ctx.device):
        x = cast(x, dtype).contiguous()  # before widening, because a buffer is contiguous already
        return cast(x, wide)._split_cumalu(dim, op).reshape(ctx.out.size)
    lines = tuple(int(n) for n in (math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])))
    return kernel(_scan, [(lines, dtype)], [x.reshape(lines)], ctx.device, op, dtype, wide)[0].reshape(ctx.out.size)


def _scan(p: LoopProgram, result: Array, x: Array, op: Ops, dtype: DType, wide: DType) -> None:
    for outer in p.loop(x.shape[0]):
        for inner in p.loop(x.shape[2]):
            total = p.local(wide, 0 if op is Ops.ADD else 1)
            for place in p.loop(x.shape[1]):
                total[0] = total[0].alu(op, cast(cast(x[outer, place, inner], dtype), wide))
                result[outer, place, inner] = cast(total[0], result.dtype)


@value("cumsum", deferrable=True)
def cumsum(ctx: Context, x: UOp, dim: int, **_: Any) -> UOp:
    """The running sum."""
    return _accumulated(ctx, x, dim, Ops.ADD)


@value("cumprod", deferrable=True)
def cumprod(ctx: Context, x: UOp, dim: int, **_: Any) -> UOp:
    """The running product."""
    return _accumulated(ctx, x, dim, Ops.MUL)


def _running_extreme(ctx: Context, x: UOp, dim: int, largest: bool) -> tuple[UOp, UOp]:
    """(values, indices): the last of equal elements, the last nan once there is one (cummax_cummin_helper)."""
    x = x.reshape((1,)) if x.ndim == 0 else x
    dim %= x.ndim
    signed, keys = (order.key(x, nan_last=largest, zeros_equal=equal) for equal in (False, True))
    place = order.positions(x.shape, dim)
    if keys.dtype.itemsize <= 4:
        late = 2 * place + signed.ne(keys).cast(dtypes.int64)  # with a bit for the sign of a zero
        pairs = _running(order.packed(keys if largest else ~keys, late), dim, Ops.MAX)
        extreme, late = order.unpacked(pairs, keys.dtype)
        extreme, indices = (extreme if largest else ~extreme) - (late & 1).cast(keys.dtype), late >> 1
    else:
        extreme = _running(signed if largest else ~signed, dim, Ops.MAX)
        extreme = extreme if largest else ~extreme
        same = keys.eq(order.unsigned_zeros(extreme, x.dtype))
        indices = _running(same.where(place, 0).cast(dtypes.uint32), dim, Ops.MAX)
    values = order.unkey(extreme, x.dtype)
    return values.reshape(ctx.out.size), indices.reshape(ctx.out.size)


@value("cummax", deferrable=True)
def cummax(ctx: Context, x: UOp, dim: int) -> tuple[UOp, UOp]:
    """Running maximum and its last position."""
    return _running_extreme(ctx, x, dim, largest=True)


@value("cummin", deferrable=True)
def cummin(ctx: Context, x: UOp, dim: int) -> tuple[UOp, UOp]:
    """Running minimum and its last position."""
    return _running_extreme(ctx, x, dim, largest=False)


LONGEST = 1024  # logcumsumexp is quadratic: each result sums its own exponentials


@decomposition("_logcumsumexp")
def logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Running log sum e**x, each shifted by its own maximum; a decomposition, as torch has no meta kernel for it."""
    size = (x if x.dim() else x.unsqueeze(0)).size(dim)  # which refuses a dimension out of range
    if not x.dim() or not x.numel():
        return x.clone(memory_format=torch.contiguous_format)
    if size > LONGEST or not x.dtype.is_floating_point:
        return fallback.on_cpu(torch.ops.aten._logcumsumexp.default, (x, dim), {})
    lines = x.to(torch.float32 if x.dtype.itemsize == 2 else x.dtype).transpose(dim, -1)
    largest = lines.cummax(-1).values
    shift = torch.where(largest.isinf(), torch.zeros_like(largest), largest)
    place = torch.arange(size, device=x.device)
    terms = (lines.unsqueeze(-2) - shift.unsqueeze(-1)).exp()
    summed = torch.where(place <= place.unsqueeze(-1), terms, torch.zeros_like(terms)).sum(-1)
    # A column is contiguous as the transpose of a row, with other strides: (1, 2) where torch CPU has (1, 1).
    return (summed.log() + shift).transpose(dim, -1).reshape(-1).view(x.size()).to(x.dtype)
