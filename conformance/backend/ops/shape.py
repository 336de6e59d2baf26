"""Copies that only move elements: cat, flip, roll, triangles, padding.

Each is a movement of lazy values, so none needs a separate kernel. `where` chooses elements and never adds zeros to
them: -0.0 and every nan keep their bits.
The module does not depend on strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, decomposition, value
from ..dispatch.tensors import cast, constant
from ..lazy.dtypes import element, opmath
from .arithmetic import INF

SINGLE_PARTS = 8  # of one element, above which they are joined without padding


def joined(parts: Sequence[UOp], dim: int) -> UOp:
    """Values joined along one dimension, as a balanced tree of choices, so that many parts do not make a deep graph.

    tinygrad's own node for equal parts is not used: a reduction over a stack of one value with itself counts elements
    several times in tinygrad 0.14 (`x.cat(x).sum()` of 1 to 6 in two rows is 126, not 42).
    """
    if len(parts) == 1:
        return parts[0]
    if len(parts) > SINGLE_PARTS and all(math.prod(part.shape) == 1 for part in parts):
        return _joined_elements(parts, dim)
    middle = len(parts) // 2
    low, high = joined(parts[:middle], dim), joined(parts[middle:], dim)
    before, after = low.shape[dim], high.shape[dim]
    around: list[tuple[Any, Any]] = [(0, 0)] * low.ndim
    around[dim] = (0, after)
    inside = UOp.const(True, dtypes.bool).expand(low.shape).pad(tuple(around))
    left = low.pad(tuple(around))
    around[dim] = (before, 0)
    return inside.where(left, high.pad(tuple(around)))


def _joined_elements(parts: Sequence[UOp], dim: int) -> UOp:
    """`joined` for many values of one element: a list of losses.

    Each element is chosen by comparisons of its place. tinygrad's scheduler simplifies the conditions of all choices
    above each padded part: 10 s for 200 losses.
    """
    shape = [1] * parts[0].ndim
    shape[dim] = len(parts)
    places = UOp.arange(len(parts)).reshape(tuple(shape))

    def choose_part(low: int, high: int) -> UOp:
        middle = (low + high) // 2
        if middle == low:
            return parts[low].expand(tuple(shape))
        return (places < middle).where(choose_part(low, middle), choose_part(middle, high))

    return choose_part(0, len(parts))


@value("cat", takes_complex=True, deferrable=True)
def cat(ctx: Context, tensors: Sequence[UOp], dim: int = 0) -> UOp:
    """Tensors one after the other; empty 1-d ones are skipped for any shape of the others (a legacy rule of torch)."""
    real, parts = element(ctx.out.dtype)
    rank = len(ctx.out.size)
    kept = []
    for t, tensor in zip(tensors, ctx.args[0], strict=True):
        if not tensor.numel():
            continue
        x = t.cast(real) if tensor.dtype.is_complex else cast(t, real)
        if parts == 2 and not tensor.dtype.is_complex:
            x = x.unsqueeze(-1).pad(((0, 0),) * x.ndim + ((0, 1),))
        kept.append(x)
    return joined(kept, dim % rank)


@value("flip", takes_complex=True, deferrable=True)
def flip(ctx: Context, self: UOp, dims: Sequence[int]) -> UOp:
    """Elements in reverse order along some dimensions."""
    rank = len(ctx.out.size)
    return self.flip(tuple(d % rank for d in dims)) if rank and dims else self


@value("roll", takes_complex=True, deferrable=True)
def roll(ctx: Context, self: UOp, shifts: Sequence[int], dims: Sequence[int] = ()) -> UOp:
    """Elements shifted along dimensions; elements that leave at one end enter at the other."""
    rank = len(ctx.out.size)
    if dims:
        for shift, dim in zip(shifts, dims, strict=True):
            self = _rolled(self, shift, dim % rank)
        return self
    count = math.prod(ctx.out.size)
    return _rolled(self.reshape((count, *self.shape[rank:])), shifts[0], 0).reshape(self.shape)


def _rolled(x: UOp, shift: int, dim: int) -> UOp:
    size = x.shape[dim]
    start = -shift % size
    if not start:
        return x
    twice = x.repeat(tuple(2 if d == dim else 1 for d in range(x.ndim)))
    return twice.shrink(tuple((start, start + size) if d == dim else None for d in range(x.ndim)))


def upper(rows: int, columns: int, diagonal: int) -> UOp:
    """True on and above a diagonal of a matrix."""
    row, column = UOp.arange(rows).reshape((rows, 1)), UOp.arange(columns).reshape((1, columns))
    return row + diagonal <= column


def _diagonal(diagonal: int, rows: int, columns: int) -> int:
    """The diagonal, clamped to the matrix so that 32-bit arithmetic is enough."""
    return max(-rows - 1, min(diagonal, columns + 1))


def _triangle(ctx: Context, self: UOp, mask: UOp) -> UOp:
    rank = len(ctx.out.size)
    mask = mask.reshape((1,) * (rank - 2) + mask.shape + (1,) * (self.ndim - rank))
    return mask.expand(self.shape).where(self, self.const_like(0))


@value("triu", takes_complex=True, deferrable=True)
def triu(ctx: Context, self: UOp, diagonal: int = 0) -> UOp:
    """Zeros below a diagonal of each matrix."""
    rows, columns = ctx.out.size[-2:]
    return _triangle(ctx, self, upper(rows, columns, _diagonal(diagonal, rows, columns)))


@value("tril", takes_complex=True, deferrable=True)
def tril(ctx: Context, self: UOp, diagonal: int = 0) -> UOp:
    """Zeros above a diagonal of each matrix."""
    rows, columns = ctx.out.size[-2:]
    return _triangle(ctx, self, upper(rows, columns, _diagonal(diagonal, rows, columns) + 1).logical_not())


@value("constant_pad_nd", keep_floats=False, deferrable=True)
def constant_pad_nd(ctx: Context, self: UOp, pad: Sequence[int], number: float = 0) -> UOp:
    """The last dimensions with a margin of one number, last dimension first; negative widths cut elements off."""
    pairs = [(0, 0)] * (self.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    x = self.shrink(tuple((max(-a, 0), s - max(-b, 0)) for (a, b), s in zip(pairs, self.shape, strict=True)))
    if 0 in x.shape:
        return constant(number, ctx.out.computed)
    around = tuple((max(a, 0), max(b, 0)) for a, b in pairs)
    fill = constant(number, ctx.out.computed)
    inside = UOp.const(True, dtypes.bool).expand(x.shape).pad(around)
    return inside.where(x.pad(around), fill)


@value("narrow_copy", takes_complex=True, deferrable=True)
def narrow_copy(ctx: Context, self: UOp, dim: int, start: int, length: int) -> UOp:
    """Copy of a part of one dimension."""
    dim %= len(ctx.out.size)
    start = start + ctx.args[0].shape[dim] if start < 0 else start
    return self.shrink(tuple((start, start + length) if d == dim else None for d in range(self.ndim)))


@value("zero", takes_complex=True, deferrable=True)
def zero(ctx: Context, self: UOp) -> UOp:
    """Zeros."""
    return UOp.const(0, element(ctx.out.dtype)[0]).expand(self.shape)


@value("channel_shuffle", "native_channel_shuffle", deferrable=True)
def channel_shuffle(ctx: Context, self: UOp, groups: int) -> UOp:
    """Channels distributed over the groups: (groups, channels / groups) transposed."""
    n, channels, *space = self.shape
    return self.reshape((n, groups, channels // groups, *space)).transpose(1, 2).reshape(self.shape)


@value("pixel_shuffle", deferrable=True)
def pixel_shuffle(ctx: Context, self: UOp, upscale_factor: int) -> UOp:
    """Channels (c, r, r) distributed over the pixels: (..., c r^2, h, w) becomes (..., c, h r, w r)."""
    *batch, channels, h, w = self.shape
    r, n = upscale_factor, len(batch)
    squares = self.reshape((*batch, channels // r**2, r, r, h, w))
    return squares.permute((*range(n), n, n + 3, n + 1, n + 4, n + 2)).reshape(ctx.out.size)


@value("pixel_unshuffle", deferrable=True)
def pixel_unshuffle(ctx: Context, self: UOp, downscale_factor: int) -> UOp:
    """Squares of r x r pixels as channels, the inverse of pixel_shuffle."""
    *batch, channels, h, w = self.shape
    r, n = downscale_factor, len(batch)
    squares = self.reshape((*batch, channels, h // r, r, w // r, r))
    return squares.permute((*range(n), n, n + 2, n + 4, n + 1, n + 3)).reshape(ctx.out.size)


@value("masked_fill.Scalar", "masked_fill.Tensor", keep_floats=False, elementwise=True, deferrable=True)
def masked_fill(ctx: Context, self: UOp, mask: UOp, number: UOp | float) -> UOp:
    """One number where the mask is true, otherwise `self`."""
    dtype = ctx.out.computed
    fill = cast(number, dtype) if isinstance(number, UOp) else constant(number, dtype)
    return cast(mask, dtypes.bool).expand(ctx.out.size).where(fill, self.expand(ctx.out.size))


@value("trace", deferrable=True)
def trace(ctx: Context, self: UOp) -> UOp:
    """Sum of a matrix's diagonal, integers in int64, floats in float64, as on the CPU."""
    size = min(ctx.args[0].shape)
    self = self.shrink(((0, size), (0, size))).diagonal()
    dtype = opmath(ctx.out.computed)
    return self.cast(dtypes.float64 if dtypes.is_float(dtype) else dtype).sum()


@value("linalg_cross", deferrable=True)
def cross(ctx: Context, self: UOp, other: UOp, *, dim: int = -1) -> UOp:
    """Cross product of 3-vectors along one dimension; 16-bit floats round each product, as on the CPU.

    torch CPU fuses the first product with the subtraction, so that it neither rounds nor overflows. In float64, which
    has no wider dtype, this only matters where the product overflows.
    """
    size, dtype = ctx.out.size, ctx.out.computed
    dim %= len(size)
    work = dtypes.float64 if dtype is dtypes.float32 else opmath(dtype)
    a, b = cast(self, work).expand(size), cast(other, work).expand(size)
    factors = _rolled(a, -1, dim), _rolled(b, 1, dim)
    first, second = factors[0] * factors[1], _rolled(a, 1, dim) * _rolled(b, -1, dim)
    if dtype is dtypes.float64:
        quarter = (factors[0] * 0.25) * factors[1] - second * 0.25
        fused = second.abs().eq(INF).where(-second, quarter * 4)
        finite = (factors[0].abs() < INF) & (factors[1].abs() < INF)
        return (finite & first.abs().eq(INF)).where(fused, first - second)
    if work is dtypes.float32:
        first, second = (cast(cast(product, dtype), work) for product in (first, second))
    return first - second


def _kept(t: torch.Tensor) -> torch.Tensor:
    """Copy of the whole storage, viewed like `t`: the target of aten's `*_scatter` (`clone_preserve_strides`)."""
    if any(st == 0 and n > 1 for n, st in zip(t.size(), t.stride(), strict=True)):
        return t.clone()
    cells = t.untyped_storage().nbytes() // t.element_size()
    return t.as_strided((cells,), (1,), 0).clone().as_strided(t.size(), t.stride(), t.storage_offset())


def _scattered(t: torch.Tensor, src: torch.Tensor, view: Any, *args: Any) -> torch.Tensor:
    result = _kept(t)
    part = view(result, *args)
    if part.size() != src.size():
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {list(src.size())}, "
            f"slice size = {list(part.size())}"
        )
    part.copy_(src)
    return result


@decomposition("slice_scatter")
def _slice_scatter(
    t: torch.Tensor, src: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    return _scattered(t, src, torch.ops.aten.slice, dim, start, end, step)


@decomposition("select_scatter")
def _select_scatter(t: torch.Tensor, src: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    return _scattered(t, src, torch.select, dim, index)


@decomposition("diagonal_scatter")
def _diagonal_scatter(
    t: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    return _scattered(t, src, torch.diagonal, offset, dim1, dim2)


@decomposition("as_strided_scatter")
def _as_strided_scatter(
    t: torch.Tensor, src: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    return _scattered(t, src, torch.as_strided, size, stride, storage_offset)
