"""Reading by index: index, gather, index_select, take, and the rows of an embedding.

`flat[index]` with one index tensor folds to one gather kernel in tinygrad, so every kind of indexing is an integer
expression over a flattened operand. `bounds` checks the indices.
Masks do not arrive here: `dynamic` turns them into integer indices on the host, because their count is the result size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, value
from ..lazy.layout import elements
from .bounds import Size, checked, is_checked


def wrapped(index: UOp, size: Size) -> UOp:
    """Replace negative indices by their distance from the end."""
    return index if index.vmin >= 0 else (index < 0).where(index + size, index)


def coordinates(shape: Sequence[Size], dim: int) -> UOp:
    """0, 1, ... along one dimension of `shape`, with size 1 in the others."""
    return UOp.arange(shape[dim]).reshape(tuple(s if d == dim else 1 for d, s in enumerate(shape)))


def lines(x: UOp, dim: int) -> UOp:
    """`x` with dimension `dim` moved to the front."""
    return x.permute((dim, *(d for d in range(x.ndim) if d != dim)))


def along(x: UOp, dim: int, index: UOp) -> UOp:
    """`torch.gather` for indices in range: dimensions other than `dim` may be smaller in `index` than in `x`."""
    x = x.shrink(tuple(None if d == dim else (0, s) for d, s in enumerate(index.shape)))
    flat = x.reshape((math.prod(x.shape),))
    place = UOp.const(0, dtypes.int64)
    for d, size in enumerate(x.shape):
        place = place * size + (index if d == dim else coordinates(index.shape, d)).cast(dtypes.int64)
    return elements(flat, place.expand(index.shape))


def _lines_chosen(ctx: Context) -> bool:
    self, dim, index = ctx.args
    return is_checked(ctx, index, 0, self.shape[dim] if self.dim() else 1)


@value("gather", deferrable=True, index=_lines_chosen)
def gather(ctx: Context, self: UOp, dim: int, index: UOp, *, sparse_grad: bool = False) -> UOp:
    """self[..., index[...], ...] along one dimension."""
    if not self.ndim:
        checked(ctx, ctx.args[2], 0, 1)
        return self.expand(ctx.out.size)
    dim %= self.ndim
    index = checked(ctx, ctx.args[2], 0, self.shape[dim]).reshape(index.shape or (1,))
    return along(self, dim, index).reshape(ctx.out.size)


@value("index_select", deferrable=True, index=_lines_chosen)
def index_select(ctx: Context, self: UOp, dim: int, index: UOp) -> UOp:
    """Slices of `self` along one dimension, chosen by a 1-d index."""
    if not self.ndim:
        checked(ctx, ctx.args[2], 0, 1)
        return self
    dim %= self.ndim
    index = checked(ctx, ctx.args[2], 0, self.shape[dim]).reshape((ctx.out.size[dim],))
    chosen = elements(lines(self, dim), index)
    return chosen.permute((*range(1, dim + 1), 0, *range(dim + 1, self.ndim)))


def _elements_chosen(ctx: Context) -> bool:
    self, index = ctx.args
    return is_checked(ctx, index, -self.numel(), self.numel())


@value("take", deferrable=True, index=_elements_chosen)
def take(ctx: Context, self: UOp, index: UOp) -> UOp:
    """Elements of the flattened tensor; negative indices count from the end."""
    count = math.prod(self.shape)
    index = checked(ctx, ctx.args[1], -count, count)
    return elements(self.reshape((count,)), wrapped(index, count))


def indexed_dims(indices: Sequence[object]) -> list[int]:
    """Dimensions that have an index."""
    return [d for d, i in enumerate(indices) if i is not None]


def adjacent(dims: Sequence[int]) -> bool:
    """Whether the indexed dimensions are adjacent; only then the result's index dimensions stay in their position."""
    return list(dims) == list(range(dims[0], dims[0] + len(dims)))


def _places_chosen(ctx: Context) -> bool:
    self, indices = ctx.args
    return all(i is None or is_checked(ctx, i, -n, n) for i, n in zip(indices, self.shape, strict=False))


@value("index.Tensor", "_unsafe_index.Tensor", deferrable=True, index=_places_chosen)
def index(ctx: Context, self: UOp, indices: Sequence[UOp | None]) -> UOp:
    """Advanced indexing with integer tensors, None for a dimension without an index (NumPy's rules)."""
    dims = indexed_dims(indices)
    if not dims:
        return self
    rest = [d for d in range(self.ndim) if d not in dims]
    shape = torch.broadcast_shapes(*(ctx.args[1][d].shape for d in dims))
    place = UOp.const(0, dtypes.int64)
    for d in dims:
        size = self.shape[d]
        place = place * size + wrapped(checked(ctx, ctx.args[1][d], -size, size).cast(dtypes.int64), size)
    count = math.prod(self.shape[d] for d in dims)
    flat = self.permute((*dims, *rest)).reshape((count, *(self.shape[d] for d in rest)))
    chosen = elements(flat, place.expand(tuple(shape)))
    if not adjacent(dims):
        return chosen
    first, many = dims[0], len(shape)
    return chosen.permute((*range(many, many + first), *range(many), *range(many + first, chosen.ndim)))
