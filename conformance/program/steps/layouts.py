"""The catalogue of layout classes: rules that draw layouts of inputs, and the classification of a tensor's layout.

Bugs of a backend depend on the *class* of a layout: a dropped offset, gaps, zero strides, overlapping windows, strides
that do not divide each other. So inputs are drawn by class, and coverage is counted by class, not by exact numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.program.steps.draw import Draw
from conformance.standalone.moving import storage_key

THRESHOLDS = (15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257)
"""Lengths around vector widths and block sizes, where code generators change their strategy."""


@dataclass(frozen=True)
class Layout:
    """A geometry in units of elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def cells(self) -> int:
        """Smallest number of cells of a storage with this layout; 0 if the layout has no elements."""
        return 0 if 0 in self.size else self.offset + 1 + sum((n - 1) * st for n, st in zip(self.size, self.stride))


def dense(size: Sequence[int]) -> tuple[int, ...]:
    """Return torch's contiguous strides of a size. A dimension of length 0 counts as 1."""
    return tuple(math.prod(max(n, 1) for n in size[k + 1 :]) for k in range(len(size)))


def cells_of(tensor: torch.Tensor) -> list[int]:
    """Return the storage cell of each element, in the order of the elements and in units of the tensor's dtype."""
    grid = torch.tensor([int(tensor.storage_offset())])
    for n, st in zip(tensor.size(), tensor.stride()):
        grid = grid.unsqueeze(-1) + torch.arange(n) * st
    return [int(cell) for cell in grid.reshape(-1).tolist()]


def end(tensor: torch.Tensor) -> int:
    """Return the byte offset in the storage behind the tensor's last cell; 0 if the tensor is empty."""
    layout = Layout(tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))
    return layout.cells * tensor.element_size()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether two elements of the tensor share a cell."""
    if tensor.is_contiguous() or tensor.numel() < 2:
        return False
    cells = cells_of(tensor)
    return len(set(cells)) < len(cells)


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors share a byte."""
    if storage_key(first) != storage_key(second) or not first.numel() or not second.numel():
        return False
    return bool(_bytes(first) & _bytes(second))


def _bytes(tensor: torch.Tensor) -> set[int]:
    width = tensor.element_size()
    return {cell * width + byte for cell in cells_of(tensor) for byte in range(width)}


def geometry(t: torch.Tensor) -> tuple[Any, ...]:
    """Return the identity of a view. If it is equal for two tensors, element k of one is element k of the other."""
    return storage_key(t), t.dtype, t.size(), t.stride(), t.storage_offset()


def layout_class(tensor: torch.Tensor) -> str:
    """Return the name of the tensor's layout class."""
    if not tensor.numel():
        return "empty"
    if not tensor.dim():
        return "0-d"
    pairs = sorted(((st, n) for n, st in zip(tensor.size(), tensor.stride()) if n > 1), reverse=True)
    if any(st == 0 for st, _ in pairs):
        return "expanded"
    if tensor.is_contiguous():
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        return "contiguous" if whole else "window"
    if overlaps_itself(tensor):
        return "overlapping"
    if math.prod(n for _, n in pairs) == 1 + sum((n - 1) * st for st, n in pairs):
        return "permuted"
    order = [st for n, st in zip(tensor.size(), tensor.stride()) if n > 1]
    divides = all(big % small == 0 for (big, _), (small, _) in zip(pairs, pairs[1:]))
    kind = "gaps" if order == sorted(order, reverse=True) else "permuted gaps"
    return kind if divides else "non-divisible"


def draw_size(d: Draw, dims: int, most: int = 4) -> tuple[int, ...]:
    """Draw a size of `dims` dimensions: mostly lengths 2 and 3, sometimes 1 and `most`. The last of at most two
    dimensions is sometimes a threshold."""
    size = tuple(d.choice((2, 3, 2, 3, 1, most)) for _ in range(dims))
    return (*size[:-1], d.choice(THRESHOLDS[:9])) if dims <= 2 and d.chance(1, 16) else size


def _permuted(d: Draw, size: Sequence[int], strides: Sequence[int], offset: int = 0) -> Layout:
    order = d.permutation(len(size))
    return Layout(tuple(size[k] for k in order), tuple(strides[k] for k in order), offset)


def _contiguous(d: Draw) -> Layout:
    size = draw_size(d, d.choice((1, 2, 2, 3, 4)))
    return Layout(size, dense(size))


def _window(d: Draw) -> Layout:
    size = draw_size(d, d.choice((1, 2, 2, 3)))
    return Layout(size, dense(size), d.integer(1, 4))


def _transposed(d: Draw) -> Layout:
    size = draw_size(d, d.choice((2, 2, 3)))
    return _permuted(d, size, dense(size))


def _gaps(d: Draw) -> Layout:
    size = draw_size(d, d.choice((1, 2, 2, 3)))
    outer = [n + d.integer(0, 2) for n in size]
    step = d.choice((1, 1, 2, 3) if len(size) > 1 else (2, 3, 2, 4))  # a row of step 1 has no gaps
    return Layout(size, tuple(st * step for st in dense(outer)), d.integer(0, 3))


def _permuted_gaps(d: Draw) -> Layout:
    layout = _gaps(d)
    return _permuted(d, layout.size, layout.stride, layout.offset)


def _expanded(d: Draw) -> Layout:
    size = draw_size(d, d.choice((1, 2, 2, 3)))
    kept = [d.chance(1, 2) for _ in size]
    strides = iter(dense([n for n, keep in zip(size, kept) if keep]))
    return Layout(size, tuple(next(strides) if keep else 0 for keep in kept), d.integer(0, 2))


def _overlapping(d: Draw) -> Layout:
    size = draw_size(d, 2)
    return Layout(size, d.choice(((1, 1), (2, 1), (1, 2), (2, 2), (3, 2))), d.integer(0, 3))


def _non_divisible(d: Draw) -> Layout:
    inner, step = d.integer(2, 3), d.choice((1, 2))
    size = (d.integer(2, 3), inner)
    strides = ((inner - 1) * step + 1 + d.choice((0, 2, 4)), step) if step == 2 else (inner + 2, 1)
    outer = (strides[0] * size[0] + 1,)
    if d.chance(1, 3):
        return Layout((2, *size), (outer[0], *strides), d.integer(0, 3))
    return Layout(size, strides, d.integer(0, 3))


def _channels_last(d: Draw) -> Layout:
    n, c, h, w = draw_size(d, 4, 2)
    return Layout((n, c, h, w), (c * h * w, 1, c * w, c))


def _empty(d: Draw) -> Layout:
    size = d.choice(((0,), (2, 0), (0, 3), (2, 0, 3)))
    return Layout(size, dense(size))


def _size_one(d: Draw) -> Layout:
    size = d.choice(((1,), (1, 3), (3, 1), (2, 1, 3), (1, 1)))
    strides = tuple(d.choice((0, 1, 5, 7)) if n == 1 else st for n, st in zip(size, dense(size), strict=True))
    return Layout(size, strides, d.integer(0, 2))


LAYOUTS: dict[str, Callable[[Draw], Layout]] = {
    "contiguous": _contiguous,
    "window": _window,
    "permuted": _transposed,
    "gaps": _gaps,
    "permuted gaps": _permuted_gaps,
    "expanded": _expanded,
    "overlapping": _overlapping,
    "non-divisible": _non_divisible,
    "channels last": _channels_last,
    "0-d": lambda d: Layout((), (), d.integer(0, 3)),
    "empty": _empty,
    "size one": _size_one,
}
"""Drawing rules for the layout of an input, by class."""

CLASSES = tuple(name for name in LAYOUTS if name not in ("channels last", "size one"))
"""The layout classes of `layout_class`. A channels-last input is in "permuted"; an input of size 1 is in several."""

OFTEN = ("contiguous", "contiguous", "contiguous", "window", "permuted", "gaps")
"""Classes with additional weight, since most views and writes use them."""


STRIDED = {"stride 2": 2, "stride 3": 3}
"""Strides of one dimension, by the name of a class of `laid_out`."""


def laid_out(d: Draw, size: Sequence[int], name: str) -> Layout:
    """Draw a layout of this size and of the class `name`; contiguous if the size has no such layout. The classes
    "stride 2" and "stride 3" are of sizes of one dimension."""
    plain = Layout(tuple(size), dense(size))
    if name in STRIDED:
        return Layout(plain.size, (STRIDED[name],), d.integer(0, 2)) if len(size) == 1 else plain
    long = [k for k, n in enumerate(size) if n > 1]
    if name == "window":
        return Layout(plain.size, plain.stride, d.integer(1, 4))
    if name in ("gaps", "permuted gaps") and long:
        strides = [st * 2 for st in dense([n + d.integer(0, 2) for n in size])]
        return _ordered(d, size, strides, name == "permuted gaps", d.integer(0, 3))
    if name == "permuted" and len(long) > 1:
        return _ordered(d, size, plain.stride, True)
    if name == "expanded" and long:
        repeated = [k for k in long if d.chance(1, 2)] or [d.choice(long)]
        strides = list(dense([1 if k in repeated else n for k, n in enumerate(size)]))
        return Layout(plain.size, tuple(0 if k in repeated else st for k, st in enumerate(strides)), d.integer(0, 2))
    if name == "overlapping" and len(long) > 1:
        return Layout(
            plain.size, tuple(d.choice((1, 2)) if k in long else 1 for k in range(len(size))), d.integer(0, 3)
        )
    if name == "non-divisible" and len(long) > 1:
        strides, step = [1] * len(size), 1
        for k in reversed(range(len(size))):
            strides[k], step = step, step * size[k] + (1 if size[k] > 1 else 0)
        return Layout(plain.size, tuple(strides), d.integer(0, 3))
    return plain


def _ordered(d: Draw, size: Sequence[int], strides: Sequence[int], permuted: bool, offset: int = 0) -> Layout:
    """Return a layout with these strides, or with similar strides in another order of the dimensions."""
    if not permuted:
        return Layout(tuple(size), tuple(strides), offset)
    gap = strides[-1]
    order, step, steps = d.permutation(len(size))[::-1], gap, [1] * len(size)
    if order == [*range(len(size))]:
        order.reverse()
    for k in order:
        steps[k], step = step, step * max(size[k], 1) + (d.integer(0, 1) if gap > 1 else 0)
    return Layout(tuple(size), tuple(steps), offset)
