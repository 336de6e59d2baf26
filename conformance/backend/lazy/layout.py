"""(size, stride, offset) as tinygrad movement ops: reads of a strided view from a flat value, and writes into one.

Defines `read`, `write` and the predicates about geometry that storages and copies need.

Dimensions are sorted by stride. A layout is *nested* if every dimension's extent fits inside the next larger stride. A
nested read is shrink, pad, reshape and taking column 0, level by level. A nested write is the inverse with a mask. Both
fuse into the following operators and need no gather. A layout that is nested except for one short dimension becomes
several nested ones. All other layouts need an index computation.

This module must not depend on torch, storages or devices: a flat value is any object with tinygrad's movement methods.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

Ints = tuple[int, ...]


@dataclass(frozen=True)
class MemoryLayout:
    """The layout of a (size, stride) in memory, without the offset. Dimensions are numbered as in `size`."""

    size: Ints
    stride: Ints
    order: Ints  # dimensions with size > 1 and stride > 0, largest stride first
    extent: int  # elements from the first to one past the last that the view reaches
    nested: bool  # each dimension's extent fits inside the next larger stride
    dense: bool  # nested without gaps: the view reaches every element from first to last, once
    expanded: bool  # some dimension of size > 1 has stride 0
    numel: int

    @property
    def core(self) -> Ints:
        """Sizes of the dimensions in `order`."""
        return tuple(self.size[d] for d in self.order)

    def to_logical(self, value: UOp) -> UOp:
        """From shape `core` to shape `size`: dimensions back in their places, ones inserted, stride 0 expanded."""
        if len(self.order) > 1:
            value = value.permute(tuple(sorted(range(len(self.order)), key=lambda i: self.order[i])))
        kept = set(self.order)
        value = _reshaped(value, tuple(s if d in kept else 1 for d, s in enumerate(self.size)))
        return value.expand(self.size) if self.expanded else value

    def to_core(self, value: UOp) -> UOp:
        """From shape `size` to shape `core`: the first element of each expanded dimension, largest stride first."""
        if self.expanded:
            kept = zip(self.size, self.stride, strict=True)
            value = value.shrink(tuple(None if st or s <= 1 else (0, 1) for s, st in kept))
        ascending = sorted(self.order)
        value = _reshaped(value, tuple(self.size[d] for d in ascending))
        place = {d: i for i, d in enumerate(ascending)}
        return value.permute(tuple(place[d] for d in self.order)) if len(place) > 1 else value


def elements(flat: UOp, index: UOp) -> UOp:
    """`flat[index]` along the first dimension, indices in range, none negative; shape `index.shape + flat.shape[1:]`.

    Booleans are gathered as bytes: tinygrad folds a gather into a load only for sums, and a sum of booleans is not an
    integer sum.
    """
    if flat.dtype is dtypes.bool:
        return elements(flat.cast(dtypes.uint8), index).ne(0)
    if flat.shape[0] == 1:
        return flat.reshape((1,) * index.ndim + flat.shape[1:]).expand(index.shape + flat.shape[1:])
    count = dtypes.int32 if flat.shape[0] < 1 << 31 else dtypes.int64
    index = index.cast(count)
    position = UOp.arange(flat.shape[0], dtype=count).reshape((flat.shape[0],) + (1,) * (flat.ndim - 1))
    spread = index.reshape(index.shape + (1,) * flat.ndim)
    return position.eq(spread).where(flat, flat.const_like(0)).sum(index.ndim, dtype=flat.dtype)


def _reshaped(value: UOp, shape: Ints) -> UOp:
    return value if value.shape == shape else value.reshape(shape)


@functools.lru_cache(maxsize=65536)
def plan(size: Ints, stride: Ints) -> MemoryLayout:
    """The Plan of a geometry. Sizes and strides are in elements, strides not negative (torch has no others)."""
    order = tuple(sorted((d for d, s in enumerate(size) if s > 1 and stride[d] > 0), key=lambda d: (-stride[d], d)))
    extent, nested, dense = 1, True, True
    for d in reversed(order):
        nested &= stride[d] >= extent
        dense &= stride[d] == extent
        extent += (size[d] - 1) * stride[d]
    numel = math.prod(size)
    return MemoryLayout(
        size, stride, order, extent if numel else 0, nested, dense and nested,
        any(s > 1 and st == 0 for s, st in zip(size, stride, strict=True)), numel,
    )  # fmt: skip


def contiguous_strides(size: Sequence[int]) -> Ints:
    """Row-major strides; a dimension of size 0 counts as 1, as in torch."""
    strides: list[int] = []
    step = 1
    for s in reversed(size):
        strides.append(step)
        step *= max(s, 1)
    return tuple(reversed(strides))


def covers(size: Ints, stride: Ints, offset: int, length: int) -> bool:
    """Whether the view reaches every element of a flat value of `length` elements exactly once."""
    p = plan(size, stride)
    return offset == 0 and p.dense and not p.expanded and p.numel == length


def check_inside(size: Ints, stride: Ints, offset: int, itemsize: int, nbytes: int) -> None:
    """Raise torch's RuntimeError for a view that exceeds its storage after the storage was made smaller."""
    extent = plan(size, stride).extent
    need = (offset + extent) * itemsize
    if need > nbytes and extent:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize {itemsize} "
            f"requiring a storage size of {need} are out of bounds for storage of size {nbytes}"
        )


def positions(size: Ints, stride: Ints, offset: int = 0) -> np.ndarray:
    """Flat positions of the view's elements as an int64 array of shape `size`."""
    out = np.full((), offset, dtype=np.int64)
    for d, (s, st) in enumerate(zip(size, stride, strict=True)):
        out = out + (np.arange(s, dtype=np.int64) * st).reshape((s,) + (1,) * (len(size) - d - 1))
    return np.broadcast_to(out, size)


# The largest number of nested layouts into which another layout is split.
FEW_PARTS = 8


@functools.lru_cache(maxsize=4096)
def _in_parts(size: Ints, stride: Ints) -> int | None:
    """The shortest dimension without which the layout is nested. None if no such dimension has few steps, or if
    elements share memory, since the order of the writes would then differ from row-major.
    """
    for d in sorted(plan(size, stride).order, key=lambda d: size[d]):
        nested = plan((*size[:d], *size[d + 1 :]), (*stride[:d], *stride[d + 1 :])).nested
        if nested and size[d] <= FEW_PARTS:
            places = positions(size, stride).reshape(-1)
            return d if len(np.unique(places)) == len(places) else None
    return None


def _part(size: Ints, stride: Ints, offset: int, d: int, i: int) -> tuple[Ints, Ints, int]:
    """The geometry of step `i` of dimension `d`, which is removed."""
    return (*size[:d], *size[d + 1 :]), (*stride[:d], *stride[d + 1 :]), offset + i * stride[d]


def read(flat: UOp, size: Ints, stride: Ints, offset: int) -> UOp:
    """The elements that a view of this geometry reaches in `flat` (shape (n,)), as a lazy value of shape `size`."""
    p = plan(size, stride)
    if p.numel == 0:
        return UOp.const(0, flat.dtype).expand(size)
    if p.dense:
        whole = flat if flat.shape[0] == p.extent else flat.shrink(((offset, offset + p.extent),))
        return p.to_logical(_reshaped(whole, p.core))
    if p.nested:
        return p.to_logical(_take(flat, p, offset))
    d = _in_parts(size, stride)
    if d is not None:
        steps = [read(flat, *_part(size, stride, offset, d, i)).unsqueeze(d) for i in range(size[d])]
        result = steps[0].expand(size)
        for i in range(1, size[d]):
            here = UOp.const(True, dtypes.bool).expand((1,)).pad(((i, size[d] - i - 1),))
            here = here.reshape((size[d],) + (1,) * (len(size) - d - 1)).expand(size)
            result = here.where(steps[i].expand(size), result)
        return result
    index = UOp.const(offset, dtypes.int64)
    for i, d in enumerate(p.order):
        step = UOp.arange(p.size[d]).cast(dtypes.int64) * p.stride[d]
        index = index + step.reshape((p.size[d],) + (1,) * (len(p.order) - i - 1))
    return p.to_logical(elements(flat, index.expand(p.core)))


def _starts(p: MemoryLayout, offset: int) -> Ints | None:
    """The view's start at each level, in that level's strides, and last in single elements.

    A flat value consists of cells of the largest stride, each of them of cells of the next, and so on. None if the view
    crosses a cell boundary at some level; its offset then has to be cut off first.
    """
    starts, rest, extent = [], offset, p.extent
    for d in p.order:
        start, rest = divmod(rest, p.stride[d])
        extent -= (p.size[d] - 1) * p.stride[d]
        if rest + extent > p.stride[d]:
            return None
        starts.append(start)
    return (*starts, rest)


def _fit(x: UOp, begin: int, end: int) -> UOp:
    """Elements begin to end of the last axis, padded with zeros past its end."""
    lead = x.ndim - 1
    have = x.shape[-1]
    if end > have:
        x = x.pad(((0, 0),) * lead + ((0, end - have),))
    return x.shrink((None,) * lead + ((begin, end),))


def _take(flat: UOp, p: MemoryLayout, offset: int) -> UOp:
    """Nested read: at each level keep the view's cells and split the last axis into them; shape `core`."""
    starts = _starts(p, offset)
    if starts is None:
        flat, starts = _fit(flat, offset, int(flat.shape[0])), (0,) * (len(p.order) + 1)
    x = flat
    for d, start in zip(p.order, starts[:-1], strict=True):
        size, stride = p.size[d], p.stride[d]
        x = _fit(x, start * stride, (start + size) * stride)
        x = x.reshape((*x.shape[:-1], size, stride))
    return _fit(x, starts[-1], starts[-1] + 1).reshape(p.core)


def _place(core: UOp, p: MemoryLayout, offset: int, length: int) -> UOp:
    """The inverse of `_take`: shape `core` into shape (length,), zeros everywhere else."""
    starts = _starts(p, offset)
    if starts is None:
        return _place(core, p, 0, length - offset).pad(((offset, 0),))
    x = core.reshape((*p.core, 1))
    before, after = starts[-1], (p.stride[p.order[-1]] if p.order else length) - starts[-1] - 1
    for level in reversed(range(len(p.order))):
        d = p.order[level]
        x = x.pad(((0, 0),) * (x.ndim - 1) + ((before, after),))
        x = x.reshape((*x.shape[:-2], p.size[d] * p.stride[d]))
        outer = p.stride[p.order[level - 1]] if level else length
        before = starts[level] * p.stride[d]
        after = outer - before - int(x.shape[-1])
        if after < 0:  # the last cell's unused end exceeds the enclosing cell
            x, after = _fit(x, 0, outer - before), 0
    return x.pad(((0, 0),) * (x.ndim - 1) + ((before, after),)).reshape((length,))


def write(flat: UOp, size: Ints, stride: Ints, offset: int, value: UOp, table: Callable[[np.ndarray], UOp]) -> UOp:
    """`flat` (shape (n,)) after the assignment of `value` (shape `size`, same dtype) to the view of this geometry.

    A layout that is nested except for one dimension of few steps is written step by step, in the same kernel. `table`
    turns a host array of int64 positions into a value, and is called only for all other layouts. If several elements of
    the view share one element of memory, the last in row-major order is kept.
    """
    p = plan(size, stride)
    length = int(flat.shape[0])
    if p.numel == 0:
        return flat
    if p.nested:
        core = p.to_core(value)
        if p.extent == length and p.dense:
            return core.reshape((length,))
        inside = _place(UOp.const(True, dtypes.bool).expand(p.core), p, offset, length)
        return inside.where(_place(core, p, offset, length), flat)
    d = _in_parts(size, stride)
    if d is not None:
        for i in range(size[d]):
            rest, steps, start = _part(size, stride, offset, d, i)
            part = value.shrink(tuple((i, i + 1) if e == d else None for e in range(len(size))))
            flat = write(flat, rest, steps, start, part.reshape(rest), table)
        return flat
    source = np.full(p.extent, -1, dtype=np.int64)
    source[positions(size, stride).reshape(-1)] = np.arange(p.numel)  # numpy keeps the last of repeated positions
    index = table(source)
    gathered = elements(value.reshape((p.numel,)), (index < 0).where(0, index))
    window = (index < 0).where(flat.shrink(((offset, offset + p.extent),)), gathered)
    around = ((offset, length - offset - p.extent),)
    inside = UOp.const(True, dtypes.bool).expand((p.extent,)).pad(around)
    return inside.where(window.pad(around), flat)
