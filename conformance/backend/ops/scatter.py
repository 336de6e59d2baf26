"""Writing by index: scatter, index_put, index_add, embedding's gradient and their relatives, as gathers.

Defines `placed` (the last write wins) and `combined` (sum, product, mean, largest, smallest).

A scatter is a gather through the inverse of its index, and the index is already on the host, where `bounds` checked it.
The host inverts it in time O(n + k) for k writes to n positions, and the device only reads. There is no comparison of
all positions with all writes, there are no atomics, and the result is the same every time. Repeated positions become
rows of a table of writes, at most WIDTH wide; longer rows are combined in several rounds. Many writes run as a loop
(`in_order`). While a graph is recorded, a position is a lazy value, and `compared` finds the writes to each position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import Context, value
from ..dispatch.tensors import cast, constant
from ..lazy.dtypes import opmath
from ..lazy.layout import elements
from ..runtime import recording
from . import in_order
from .arithmetic import divide
from .bounds import Size, check, checked, known_on_host, read_on_host
from .compared import Members
from .division import divide_integers
from .indexing import adjacent, along, indexed_dims, lines, wrapped
from .order import extreme
from .pages import by_pages
from .pointwise import greater, smaller

Place = np.ndarray | UOp  # position of each write: on the host, or lazy in a recorded graph

WIDTH = 32  # writes to one position that are combined in one round
# Largest table, in elements, of an index that changes from call to call: it has WIDTH columns for any index, since each
# width is another graph, and a step with several such calls would be another step each time.
REPEATED = 1 << 16
SMALL = 4096  # largest table of all positions, in elements, that the result kernel reads; larger ones take two kernels


def _read_or(flat: UOp, table: UOp, otherwise: UOp) -> UOp:
    """Rows `flat[table]`, and `otherwise` where the table is -1."""
    none = (table < 0).reshape(table.shape + (1,) * (flat.ndim - 1))
    picked = elements(flat, (table < 0).where(0, table))
    return none.expand(picked.shape).where(otherwise, picked)


def placed(ctx: Context, base: UOp, place: Place, source: UOp) -> UOp:
    """`base` (n, ...) after base[place[i]] = source[i] for each i in order: the last write to a position wins."""
    if isinstance(place, UOp):
        last = Members(place, base.shape[0], base.shape[1:] if place.ndim > 1 else ()).last()
        if place.ndim == 1:
            return _read_or(source, last - 1, base)
        return (last > 0).where(along(source, 0, (last - 1).maximum(0)), base)
    if in_order.are_many(ctx, place):
        return in_order.written(ctx, base, place, source)
    return by_pages(ctx, base, place, lambda part, inside: _placed(ctx, part, inside, source))


def _placed(ctx: Context, base: UOp, place: np.ndarray, source: UOp) -> UOp:
    table = np.full(base.shape[0], -1, dtype=np.int32)
    table[place] = np.arange(len(place), dtype=np.int32)  # NumPy keeps the last of repeated indices
    return _read_or(source, ctx.data(table), base)


def _sum(x: UOp) -> UOp:
    return x.sum(1, dtype=x.dtype)


def _least(dtype: Any) -> float | int | bool:
    return -math.inf if dtypes.is_float(dtype) else dtype.min


def _most(dtype: Any) -> float | int | bool:
    return math.inf if dtypes.is_float(dtype) else dtype.max


# Combination of the writes to one position: (identity of a dtype, reduction over dimension 1, combination with base).
REDUCTIONS: dict[str, tuple[Any, Any, Any]] = {
    "sum": (lambda dtype: 0, _sum, lambda a, b: a + b),
    "prod": (lambda dtype: 1, lambda x: x.prod(1, dtype=x.dtype), lambda a, b: a * b),
    "amax": (_least, lambda x: extreme(x, (1,), largest=True).squeeze(1), greater),
    "amin": (_most, lambda x: extreme(x, (1,), largest=False).squeeze(1), smaller),
}
REDUCTIONS["mean"] = REDUCTIONS["sum"]
ALIASES = {"add": "sum", "multiply": "prod"}


def _rows(place: np.ndarray, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(table, places): row i lists the writes to places[i] in order, then -1; a position may have several rows.

    The table has at least `least` columns, a power of two. Widths and row counts are rounded up to powers of two, so
    that another index needs the same kernels.
    """
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(ordered)])
    width = max(least, min(WIDTH, 1 << int(counts.max() - 1).bit_length()))
    within = np.arange(len(ordered)) - np.repeat(starts, counts)
    rows_of = -(-counts // width)
    first_row = np.cumsum(rows_of) - rows_of
    row = np.repeat(first_row, counts) + within // width
    total = int(rows_of.sum())
    table = np.full((1 << (total - 1).bit_length(), width), -1, dtype=np.int32)
    table[row, within % width] = order
    return table, np.repeat(ordered[starts], rows_of)


def combined(ctx: Context, base: UOp, place: Place, source: UOp, reduce: str, include_self: bool = True) -> UOp:
    """`base` (n, ...) with all source[i] of a position combined there, including the old value if `include_self`."""
    if isinstance(place, UOp):
        return _combined(ctx, base, place, source, reduce, include_self)
    if not len(place):
        return base
    if in_order.are_many(ctx, place):
        return _combined_in_order(ctx, base, place, source, reduce, include_self)
    return by_pages(ctx, base, place, lambda part, inside: _combined(ctx, part, inside, source, reduce, include_self))


def _combined_in_order(ctx: Context, base: UOp, place: np.ndarray, source: UOp, reduce: str, include_self: bool) -> UOp:
    dtype = base.dtype
    work = dtypes.uint8 if dtype is dtypes.bool else opmath(dtype)
    kind = {"sum": "amax", "mean": "amax", "prod": "amin"}.get(reduce, reduce) if dtype is dtypes.bool else reduce
    identity, _, combine = REDUCTIONS[kind]
    neutral = None if include_self else identity(work)
    result = in_order.written(ctx, cast(base, work), place, cast(source, work), combine, neutral)
    return cast(_mean(result, _counts(ctx, base, place, include_self)) if kind == "mean" else result, dtype)


def _counts(ctx: Context, base: UOp, place: np.ndarray, include_self: bool) -> UOp:
    """Number of addends of each position, at least 1, with the number of dimensions of `base`."""
    counts = np.maximum(np.bincount(place, minlength=base.shape[0]) + include_self, 1)
    return ctx.data(counts).reshape((base.shape[0],) + (1,) * (base.ndim - 1))


def _mean(total: UOp, count: UOp) -> UOp:
    count = count.cast(total.dtype)
    return divide_integers(Ops.FLOORDIV, total, count) if dtypes.is_int(total.dtype) else divide(total, count)


def _combined(ctx: Context, base: UOp, place: Place, source: UOp, reduce: str, include_self: bool) -> UOp:
    dtype = base.dtype
    if dtype is dtypes.bool:  # the CPU adds booleans as "or" and multiplies them as "and"
        if reduce == "mean":
            reduce = "sum"
        wide = _combined(ctx, base.cast(dtypes.int32), place, source.cast(dtypes.int32), reduce, include_self)
        return wide.ne(0)
    identity, reduction, combination = REDUCTIONS[reduce]
    work = opmath(dtype)
    neutral = constant(identity(work), work)
    if isinstance(place, UOp):
        members = Members(place, base.shape[0], base.shape[1:])
        result, written = members.reduced(cast(source, work), neutral, reduction), members.any().expand(base.shape)
    else:
        result, written = _from_tables(ctx, base, place, cast(source, work), neutral, reduction)
    if include_self:
        result = combination(cast(base, work), result)
    if reduce == "mean":
        if isinstance(place, UOp):
            count = (members.count() + int(include_self)).maximum(1).expand(base.shape)
        else:
            count = _counts(ctx, base, place, include_self)
        result = _mean(result, count)
    return written.where(cast(result, dtype), base)


def _from_tables(
    ctx: Context, base: UOp, place: np.ndarray, values: UOp, neutral: UOp, reduction: Callable[[UOp], UOp]
) -> tuple[UOp, UOp]:
    """(reduced writes to each position of `base`, mask of the written positions)."""
    places = place
    least, largest = 1, SMALL
    if ctx.repeated:
        fixed = min(WIDTH, 1 << (len(place) - 1).bit_length())
        if fixed * base.numel() <= REPEATED:
            least, largest = fixed, REPEATED
    while True:
        table, rows = _rows(places, least)
        width = table.shape[1]
        # With one row per position, the result kernel reads the table, unless most positions have no write.
        if width == 1 or (len(np.unique(rows)) == len(rows) and width * base.numel() <= largest):
            break
        least = 1
        values, places = reduction(_read_or(values, ctx.data(table), neutral)), rows
    all_places = np.full((base.shape[0], width), -1, dtype=np.int32)
    all_places[rows] = table[: len(rows)]
    where_from = ctx.data(all_places)
    column = (base.shape[0],) + (1,) * (base.ndim - 1)
    written = (where_from[:, 0] >= 0).reshape(column).expand(base.shape)
    result = _read_or(values, where_from if width > 1 else where_from.reshape((base.shape[0],)), neutral)
    return reduction(result) if width > 1 else result, written


def _integers(ctx: Context, index: torch.Tensor, low: Size, high: Size, **kwargs: Any) -> np.ndarray:
    """Index tensor on the host as int64, checked, with negative elements counted from the end."""
    host = read_on_host(index).to(torch.int64)
    check(ctx, host, low, high, **kwargs)
    array = host.numpy()
    return np.where(array < 0, array + high, array) if low < 0 and array.size and array.min() < 0 else array


def _flat(parts: Sequence[Any], sizes: Sequence[Size]) -> Any:
    """Row-major positions of coordinates that broadcast."""
    place = parts[0]
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        place = place * size + part
    return place


def _places(ctx: Context, index: torch.Tensor, low: Size, high: Size, **kwargs: Any) -> Place:
    """As `_integers`; in a recorded graph a lazy value that each run checks, unless the elements are constants."""
    if recording.is_open() and known_on_host(index) is None:
        dtype = dtypes.int32 if high < 1 << 31 else dtypes.int64
        return wrapped(checked(ctx, index, low, high).cast(dtype), high)
    return _integers(ctx, index, low, high, **kwargs)


def _scatter(
    ctx: Context, self: UOp, dim: int, source: UOp | float, reduce: str | None, include_self: bool = True
) -> UOp:
    index = ctx.args[2]
    size = ctx.out.size
    if not index.numel():
        return self
    shape = size or (1,)
    dim %= len(shape)
    needed = {"reduce": reduce} if reduce in ALIASES else {}  # keyword-only in the overloads with these names
    host = _places(ctx, index, 0, shape[dim], **needed).reshape(tuple(index.shape) or (1,))
    if isinstance(host, UOp):
        return _scatter_lines(ctx, self.reshape(shape), dim, host, source, reduce, include_self).reshape(size)
    coordinates = [
        host if d == dim else np.arange(n).reshape((-1,) + (1,) * (len(shape) - d - 1))
        for d, n in enumerate(host.shape)
    ]
    place = np.broadcast_to(_flat(coordinates, shape), host.shape).reshape(-1)
    if isinstance(source, UOp):
        source = source.reshape(source.shape or (1,)).shrink(tuple((0, n) for n in host.shape))
        source = cast(source, self.dtype).reshape((len(place),))
    else:
        source = constant(source, self.dtype).expand((len(place),))
    flat = self.reshape((math.prod(size),))
    if reduce is None:
        return placed(ctx, flat, place, source).reshape(size)
    return combined(ctx, flat, place, source, ALIASES.get(reduce, reduce), include_self).reshape(size)


def _scatter_lines(
    ctx: Context, self: UOp, dim: int, place: UOp, source: UOp | float, reduce: str | None, include_self: bool
) -> UOp:
    """As `_scatter` for lazy positions: `self` line by line along a dimension."""
    if isinstance(source, UOp):
        source = cast(source, self.dtype).reshape(source.shape or (1,)).shrink(tuple((0, n) for n in place.shape))
    else:
        source = constant(source, self.dtype).expand(place.shape)
    base, place, source = (lines(x, dim) for x in (self, place, source))
    short = ((0, 0), *((0, b - p) for b, p in zip(base.shape[1:], place.shape[1:], strict=True)))
    place, source = (place + 1).pad(short) - 1, source.pad(short)  # positions that the index does not cover get -1
    if reduce is None:
        write = placed(ctx, base, place, source)
    else:
        write = combined(ctx, base, place, source, ALIASES.get(reduce, reduce), include_self)
    return write.permute((*range(1, dim + 1), 0, *range(dim + 1, self.ndim)))


@value("scatter.src", "scatter.value", deferrable=True, reads_index=2)
def scatter(ctx: Context, self: UOp, dim: int, index: UOp, source: UOp | float) -> UOp:
    """self[..., index[...], ...] = source[...] along one dimension."""
    return _scatter(ctx, self, dim, source, None)


@value("scatter.reduce", "scatter.value_reduce", deferrable=True, reads_index=2)
def scatter_with_reduce(ctx: Context, self: UOp, dim: int, index: UOp, source: UOp | float, *, reduce: str) -> UOp:
    """Scatter that adds to the existing elements, or multiplies them."""
    return _scatter(ctx, self, dim, source, reduce)


@value("scatter_add", deferrable=True, reads_index=2)
def scatter_add(ctx: Context, self: UOp, dim: int, index: UOp, source: UOp) -> UOp:
    """self[..., index[...], ...] += source[...] along one dimension."""
    return _scatter(ctx, self, dim, source, "sum")


@value("scatter_reduce.two", deferrable=True, reads_index=2)
def scatter_reduce(
    ctx: Context, self: UOp, dim: int, index: UOp, source: UOp, reduce: str, *, include_self: bool = True
) -> UOp:
    """Scatter that combines by `reduce`."""
    return _scatter(ctx, self, dim, source, reduce, include_self)


def _by_line(ctx: Context, self: UOp, dim: int, source: UOp, reduce: str | None, include_self: bool = True) -> UOp:
    """Whole slices along one dimension, written or combined at the positions of a 1-d index."""
    index = ctx.args[2]
    if not index.numel():
        return self
    base = self.reshape(self.shape or (1,))
    dim %= base.ndim
    place = _places(ctx, index, 0, base.shape[dim]).reshape((index.numel(),))
    shape = tuple(index.numel() if d == dim else s for d, s in enumerate(base.shape))
    source = cast(source, self.dtype)
    source = source if source.ndim or reduce is not None else source.expand(shape)
    if source.shape != shape and (self.ndim and source.shape):
        raise MetaRejected("the source does not fit the index")
    source = source.reshape(shape)
    base, source = lines(base, dim), lines(source, dim)
    if reduce is None:
        result = placed(ctx, base, place, source)
    else:
        result = combined(ctx, base, place, source, reduce, include_self)
    return result.permute((*range(1, dim + 1), 0, *range(dim + 1, base.ndim))).reshape(self.shape)


@value("index_copy", deferrable=True, reads_index=2)
def index_copy(ctx: Context, self: UOp, dim: int, index: UOp, source: UOp) -> UOp:
    """Slices replaced by the source."""
    return _by_line(ctx, self, dim, source, None)


@value("index_add", keep_floats=False, deferrable=True, reads_index=2)
def index_add(ctx: Context, self: UOp, dim: int, index: UOp, source: UOp, *, alpha: float = 1) -> UOp:
    """Slices plus alpha times the source."""
    if alpha != 1:
        work = opmath(self.dtype)
        source = cast(source, work) * constant(alpha, work)
    return _by_line(ctx, self, dim, source, "sum")


INDEX_REDUCTIONS = ("prod", "mean", "amax", "amin")


@value("index_reduce", deferrable=True, reads_index=2)
def index_reduce(
    ctx: Context, self: UOp, dim: int, index: UOp, source: UOp, reduce: str, *, include_self: bool = True
) -> UOp:
    """Slices combined by `reduce`. Raises RuntimeError for a name that is not one of `INDEX_REDUCTIONS`."""
    if reduce not in INDEX_REDUCTIONS:
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    return _by_line(ctx, self, dim, source, reduce, include_self)


@value("index_fill.int_Scalar", "index_fill.int_Tensor", keep_floats=False, deferrable=True, reads_index=2)
def index_fill(ctx: Context, self: UOp, dim: int, index: UOp, number: UOp | float) -> UOp:
    """Slices filled with one number; negative indices count from the end."""
    base = self.reshape(self.shape or (1,))
    dim %= base.ndim
    if not ctx.args[2].numel():
        return self
    place = _places(ctx, ctx.args[2], -base.shape[dim], base.shape[dim]).reshape((ctx.args[2].numel(),))
    fill = cast(number, self.dtype) if isinstance(number, UOp) else constant(number, self.dtype)

    def write(part: UOp, inside: Place) -> UOp:
        if isinstance(inside, UOp):
            mask = Members(inside, part.shape[0], ()).any()
        else:
            chosen = np.zeros(part.shape[0], dtype=np.bool_)
            chosen[inside] = True
            mask = ctx.data(chosen)
        mask = mask.reshape((int(part.shape[0]),) + (1,) * (part.ndim - 1)).expand(part.shape)
        return mask.where(fill.expand(part.shape), part)

    base = lines(base, dim)
    result = write(base, place) if isinstance(place, UOp) else by_pages(ctx, base, place, write)
    return result.permute((*range(1, dim + 1), 0, *range(dim + 1, result.ndim))).reshape(self.shape)


@value("put", deferrable=True, reads_index=1)
def put(ctx: Context, self: UOp, index: UOp, source: UOp, accumulate: bool = False) -> UOp:
    """Elements of the flattened tensor, replaced or added to; negative indices count from the end."""
    count = math.prod(self.shape)
    number = ctx.args[1].numel()
    if not number:
        return self
    place = _places(ctx, ctx.args[1], -count, count).reshape((number,))
    flat, source = self.reshape((count,)), cast(source, self.dtype).reshape((number,))
    write = combined(ctx, flat, place, source, "sum") if accumulate else placed(ctx, flat, place, source)
    return write.reshape(self.shape)


@value("index_put", "_unsafe_index_put", "_index_put_impl", deferrable=True, reads_index=1)
def index_put(
    ctx: Context, self: UOp, indices: Sequence[Any], values: UOp, accumulate: bool = False, unsafe: bool = False
) -> UOp:
    """self[indices] = values, or += with `accumulate`; integer indices, None for a dimension without an index."""
    dims = indexed_dims(indices)
    if ctx.args[0].dtype != ctx.args[2].dtype:
        raise MetaRejected("the CPU converts no values here")
    if not dims:
        values = cast(values, self.dtype).expand(self.shape)
        return self + values if accumulate else values
    rest = [d for d in range(self.ndim) if d not in dims]
    parts = [_places(ctx, ctx.args[1][d], -self.shape[d], self.shape[d]) for d in dims]
    if any(isinstance(part, UOp) for part in parts):
        parts = [part if isinstance(part, UOp) else ctx.data(part) for part in parts]
    shape = tuple(torch.broadcast_shapes(*(ctx.args[1][d].shape for d in dims)))
    place = _flat(parts, [self.shape[d] for d in dims])
    inner = tuple(self.shape[d] for d in rest)
    first = dims[0] if adjacent(dims) else 0
    written = (*inner[:first], *shape, *inner[first:])
    value_shape = (1,) * (len(written) - values.ndim) + tuple(values.shape)
    if len(value_shape) > len(written) or any(g not in (1, w) for g, w in zip(value_shape, written, strict=True)):
        raise MetaRejected("the values do not fit what is written")
    many, number = len(shape), math.prod(shape)
    if not number:
        return self
    values = cast(values, self.dtype).expand(written)
    values = values.permute((*range(first, first + many), *range(first), *range(first + many, values.ndim)))
    order = (*dims, *rest)
    base = self.permute(order).reshape((math.prod(self.shape[d] for d in dims), *inner))
    values, flat = values.reshape((number, *inner)), place.reshape((number,))
    write = combined(ctx, base, flat, values, "sum") if accumulate else placed(ctx, base, flat, values)
    back = tuple(order.index(d) for d in range(self.ndim))
    return write.reshape(tuple(self.shape[d] for d in order)).permute(back)


@value("masked_scatter")
def masked_scatter(ctx: Context, self: UOp, mask: UOp, source: UOp) -> UOp:
    """Elements of the source, in order, at the positions where the mask is true."""
    size = ctx.out.size
    if ctx.args[1].dtype is not torch.bool or ctx.args[0].dtype != ctx.args[2].dtype:
        raise MetaRejected("a mask is boolean, and the source has the dtype of what it is written to")
    chosen = np.broadcast_to(read_on_host(ctx.args[1]).to(torch.bool).numpy(), size).reshape(-1)
    place = np.flatnonzero(chosen)
    supply = math.prod(source.shape)
    if len(place) > supply:
        raise MetaRejected("the source has too few elements")
    flat = self.expand(size).reshape((len(chosen),))
    if not len(place):
        return flat.reshape(size)
    return placed(ctx, flat, place, cast(source, self.dtype).reshape((supply,))).reshape(size)


@value("embedding_dense_backward", deferrable=True, reads_index=1)
def embedding_dense_backward(
    ctx: Context, grad_output: UOp, indices: UOp, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> UOp:
    """Gradient of embedding's weight: rows of the gradient summed by index, without the rows of `padding_idx`."""
    width = ctx.out.size[1]
    rows = cast(grad_output, opmath(grad_output.dtype)).reshape((ctx.args[1].numel(), width))
    if recording.is_open() and not scale_grad_by_freq:  # there is no host to invert the index
        index = checked(ctx, ctx.args[1], 0, num_weights).reshape((rows.shape[0],))
        kept_place = index.ne(padding_idx).where(index, -1)
        return Members(kept_place, num_weights, (width,)).reduced(rows, constant(0, rows.dtype), _sum)
    place = _integers(ctx, ctx.args[1], 0, num_weights).reshape(-1)
    if scale_grad_by_freq:
        rows = rows / ctx.data(np.bincount(place)[place].astype(np.float32)).reshape((len(place), 1))
    kept = place != padding_idx
    if not kept.all():
        rows = elements(rows, ctx.data(np.flatnonzero(kept))) if kept.any() else rows
        place = place[kept]
    return combined(ctx, UOp.const(0, rows.dtype).expand((num_weights, width)), place, rows, "sum")


@value("embedding_renorm")
def embedding_renorm(ctx: Context, self: UOp, indices: UOp, max_norm: float, norm_type: float) -> UOp:
    """Rows in `indices` with a norm above `max_norm`, scaled to it (Embedding.cpp); other rows are unchanged."""
    rows = self.shape[0]
    used = np.zeros(rows, dtype=np.bool_)
    used[_integers(ctx, ctx.args[1], 0, rows).reshape(-1)] = True
    work = opmath(self.dtype)
    x = cast(self, work)
    if norm_type == math.inf:
        norm = x.abs().max(1)
    elif norm_type == -math.inf:
        norm = -(-x.abs()).max(1)
    elif norm_type == 2:
        norm = (x * x).sum(1).sqrt()
    elif math.isnan(norm_type):  # tinygrad raises for a power of nan
        norm = x.sum(1).const_like(math.nan)
    else:
        norm = x.abs().pow(norm_type).sum(1).pow(1 / norm_type) if norm_type else x.ne(0).cast(work).sum(1)
    scaled = x * divide(norm.const_like(max_norm), norm + 1e-7).reshape((rows, 1)).expand(self.shape)
    return (
        (ctx.data(used) & (norm > max_norm)).reshape((rows, 1)).expand(self.shape).where(cast(scaled, self.dtype), self)
    )


@value("max_unpool2d", "max_unpool3d")
def max_unpool(ctx: Context, x: UOp, indices: UOp, output_size: Sequence[Size], *_: object) -> UOp:
    """Each plane's elements at their positions in a plane of zeros; the later of two writes to one position wins."""
    host = read_on_host(ctx.args[1]).to(torch.int64).numpy()
    dims = len(output_size)
    plane = math.prod(ctx.out.size[-dims:])
    if host.size and not 0 <= host.min() <= host.max() < plane:
        raise MetaRejected("an index is outside of its plane")
    planes = math.prod(host.shape[:-dims])
    places = (host.reshape(planes, -1) + plane * np.arange(planes)[:, None]).reshape(-1)
    base = UOp.const(0, x.dtype).expand((math.prod(ctx.out.size),))
    return placed(ctx, base, places, x.reshape((len(places),))).reshape(ctx.out.size)
