"""Pooling and its gradients: averages and maxima over the windows of an image.

Defines the avg_pool, max_pool and adaptive_max_pool families. The gradient of a pool is again a pool, over the windows
that reach an input element. A maximum passes its gradient to the element at its saved position, so nothing is
scattered. The module does not depend on strides in memory: the caller handles them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, value
from ..dispatch.tensors import cast
from ..lazy.dtypes import opmath
from .arithmetic import divide
from .conv import windows
from .upsample import across, gather, table

Ints = Sequence[Any]  # of int; tinygrad types the sizes of shapes as possibly symbolic


def each(numbers: int | Ints, dims: int, default: Ints = ()) -> list[int]:
    """One number for each pooled dimension; torch accepts a single number for all, or none for the default."""
    numbers = [numbers] if isinstance(numbers, int) else list(numbers)
    return list(default) if not numbers else numbers * dims if len(numbers) == 1 else numbers


def arange(n: int) -> UOp:
    """0 .. n - 1 in int32."""
    return UOp.arange(n).cast(dtypes.int32)


def along(x: UOp, dim: int, dims: int) -> UOp:
    """Value of shape (n,), reshaped to broadcast as dimension `dim` of `dims`."""
    return x.reshape((*[1] * dim, x.shape[0], *[1] * (dims - dim - 1)))


def positions(sizes: Ints) -> UOp:
    """Row-major position of each element of an image of these sizes, in int32."""
    return arange(math.prod(sizes)).reshape(tuple(sizes))


def last(x: UOp, dims: int) -> tuple[int, ...]:
    """Axes of the last `dims` dimensions."""
    return tuple(range(x.ndim - dims, x.ndim))


def reaching(x: UOp, extent: Ints, stride: Ints, padding: Ints, size: Ints) -> UOp:
    """(..., *counts) -> (..., *size, *candidates): for each image element, the elements of `x` of its windows.

    `x` has one element for each window of `extent` elements. The stride's phases share their windows, so an element
    has ceil(extent / stride) candidates in each dimension, the nearest one last; candidates off the edge read as 0. If
    the stride does not divide the extent, some candidates end before they reach the element.
    """
    dims, one = len(size), [1] * len(size)
    taps = [-(-e // s) for e, s in zip(extent, stride, strict=True)]
    groups = [-(-(i + p) // s) for i, p, s in zip(size, padding, stride, strict=True)]
    reach = windows(x, taps, one, [t - 1 for t in taps], one, groups)
    lead = reach.shape[: -2 * dims]
    reach = reach.reshape((*lead, *(n for g in groups for n in (g, 1)), *taps))
    reach = reach.expand((*lead, *(n for g, s in zip(groups, stride, strict=True) for n in (g, s)), *taps))
    reach = reach.reshape((*lead, *(g * s for g, s in zip(groups, stride, strict=True)), *taps))
    inner = tuple((p, p + i) for p, i in zip(padding, size, strict=True))
    return reach.shrink((*[None] * len(lead), *inner, *[None] * dims))


def reached(extent: Ints, stride: Ints, padding: Ints, size: Ints) -> UOp | None:
    """Mask of the candidates of `reaching` that reach their element; None if all do."""
    dims, mask = len(size), None
    for d, (e, s, p, i) in enumerate(zip(extent, stride, padding, size, strict=True)):
        if e % s:
            taps = -(-e // s)
            into = (arange(i) + p) % s
            covered = (into.reshape((i, 1)) + (taps - 1 - arange(taps)).reshape((1, taps)) * s) < e
            shape = [1] * (2 * dims)
            shape[d], shape[dims + d] = i, taps
            covered = covered.reshape(tuple(shape))
            mask = covered if mask is None else mask & covered
    return mask


class _Average:
    """Parameters of one avg_pool call."""

    def __init__(self, size: Ints, counts: Ints, kernel_size: Ints, stride: Ints, padding: Ints,
                 ceil_mode: bool, count_include_pad: bool, divisor_override: int | None) -> None:  # fmt: skip
        dims = len(size)
        self.kernel = each(kernel_size, dims)
        self.stride, self.padding = each(stride, dims, self.kernel), each(padding, dims)
        self.divisor: UOp | int = divisor_override or 1
        if divisor_override is None:
            for d in range(dims):
                self.divisor = self._length(d, size[d], counts[d], dims, count_include_pad) * self.divisor

    def _length(self, d: int, i: int, o: int, dims: int, include_padding: bool) -> UOp | int:
        """Number of elements of each window in one dimension (aten/src/ATen/native/cpu/AvgPoolKernel.cpp)."""
        k, s, p = self.kernel[d], self.stride[d], self.padding[d]
        if (o - 1) * s + k <= i + p + (p if include_padding else -p) and (include_padding or p == 0):
            return k
        start = arange(o) * s - p
        end = (start + k).minimum(i + p)
        if not include_padding:
            start, end = start.maximum(0), end.minimum(i)
        return along((end - start).maximum(1), d, dims)

    def divide(self, x: UOp) -> UOp:
        if dtypes.is_float(x.dtype):
            return divide(x, self.divisor.cast(x.dtype) if isinstance(self.divisor, UOp) else float(self.divisor))
        return x.div(self.divisor, rounding_mode="trunc")


def _avg_pool(dims: int) -> tuple[Callable[..., UOp], Callable[..., UOp]]:
    def forward(ctx: Context, x: UOp, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,),
                ceil_mode: bool = False, count_include_pad: bool = True,
                divisor_override: int | None = None) -> UOp:  # fmt: skip
        """Mean of each window."""
        counts = ctx.out.size[-dims:]
        call = _Average(
            x.shape[-dims:], counts, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )
        x = cast(x, opmath(x.dtype))
        patches = windows(x, call.kernel, call.stride, call.padding, [1] * dims, counts)
        return call.divide(patches.sum(last(patches, dims), dtype=x.dtype))

    def backward(ctx: Context, grad: UOp, x: UOp, *args: Any) -> UOp:
        """Give each input element its share of every window that contains it."""
        size = x.shape[-dims:]
        call = _Average(size, grad.shape[-dims:], *args)
        shares = reaching(call.divide(cast(grad, opmath(grad.dtype))), call.kernel, call.stride, call.padding, size)
        mask = reached(call.kernel, call.stride, call.padding, size)
        if mask is not None:
            shares = mask.where(shares, shares.const_like(0))
        return shares.sum(last(shares, dims), dtype=shares.dtype)

    return forward, backward


def highest(patches: UOp, dims: int) -> tuple[UOp, UOp]:
    """(maxima, row-major positions in the window) over the last `dims` dimensions, chosen as on the CPU.

    A nan is larger than any number, and the last of several nans counts; of equal numbers the first one counts
    (aten/src/ATen/native/cpu/MaxPoolKernel.cpp).
    """
    axes, kernel = last(patches, dims), patches.shape[-dims:]
    taps = math.prod(kernel)
    largest = patches.max(axes)
    floating = dtypes.is_float(patches.dtype)
    if floating:
        largest = (patches != patches).any(axes).where(largest.const_like(math.nan), largest)
    largest = largest.contiguous()  # computed once, not again for each position that is compared with it
    wide = largest.reshape((*largest.shape, *[1] * dims))
    missing = largest != largest
    wide_missing = missing.reshape(wide.shape)
    place = positions(kernel)
    chosen = patches.eq(wide)
    if floating:
        chosen = chosen | (patches != patches)
        place = wide_missing.where(place, taps - 1 - place)
    else:
        place = taps - 1 - place
    position = chosen.where(place, -1).max(axes)
    return largest, missing.where(position, taps - 1 - position) if floating else taps - 1 - position


def _max_pool(dims: int) -> tuple[Callable[..., Any], Callable[..., UOp]]:
    def forward(ctx: Context, x: UOp, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,),
                dilation: Ints = (1,), ceil_mode: bool = False) -> tuple[UOp, UOp]:  # fmt: skip
        """(maxima, their positions in the image) of each window."""
        kernel = each(kernel_size, dims)
        stride, padding, dilation = each(stride, dims, kernel), each(padding, dims), each(dilation, dims)
        size, counts = x.shape[-dims:], ctx.out.size[-dims:]
        least = x.dtype.min
        largest, place = highest(windows(x, kernel, stride, padding, dilation, counts, least), dims)
        lowest = largest.eq(largest.const_like(least))
        at = place.const_like(0)
        step = math.prod(kernel)
        for d, (i, o, k, s, p, w) in enumerate(zip(size, counts, kernel, stride, padding, dilation, strict=True)):
            step //= k
            start = along(arange(o) * s - p, d, dims)
            tap = place // step % k
            if p:  # in a window of lowest numbers only, the padding looks the same: the first element inside counts
                tap = lowest.where((((-start).maximum(0) + w - 1) // w).expand(tap.shape), tap)
            at = at * i + start + tap * w
        return largest, at.cast(dtypes.int64)

    def backward(ctx: Context, grad: UOp, x: UOp, kernel_size: Ints, stride: Ints, padding: Ints, dilation: Ints,
                 ceil_mode: bool, indices: UOp) -> UOp:  # fmt: skip
        """Pass each window's gradient to the element at its saved position."""
        kernel = each(kernel_size, dims)
        stride, padding, dilation = each(stride, dims, kernel), each(padding, dims), each(dilation, dims)
        size = x.shape[-dims:]
        extent = [w * (k - 1) + 1 for w, k in zip(dilation, kernel, strict=True)]
        grads = reaching(cast(grad, opmath(grad.dtype)), extent, stride, padding, size)
        remembered = reaching(indices.cast(dtypes.int32), extent, stride, padding, size)
        mine = remembered.eq(positions(size).reshape((*size, *[1] * dims)))
        return mine.where(grads, grads.const_like(0)).sum(last(grads, dims), dtype=grads.dtype)

    return forward, backward


for _dims in (2, 3):
    _forward, _backward = _avg_pool(_dims)
    value(f"avg_pool{_dims}d", deferrable=True)(_forward)
    value(f"avg_pool{_dims}d_backward", deferrable=True)(_backward)
    _forward, _backward = _max_pool(_dims)
    value(f"max_pool{_dims}d_with_indices", deferrable=True)(_forward)
    value(f"max_pool{_dims}d_with_indices_backward", deferrable=True)(_backward)


def _adaptive_max_pool(dims: int) -> tuple[Callable[..., Any], Callable[..., UOp]]:
    def forward(ctx: Context, x: UOp, output_size: Ints) -> tuple[UOp, UOp]:
        """(maxima, their positions in the image) of each region."""
        sizes, counts = x.shape[-dims:], ctx.out.size[-dims:]
        tables = [
            table("regions", i, o, False, None, False, dtypes.float32, ctx.device)
            for i, o in zip(sizes, counts, strict=True)
        ]
        patches = gather(x, [at for at, _ in tables])
        for d, (_, weight) in enumerate(tables):
            patches = across(weight, d, dims).ne(0).where(patches, patches.const_like(x.dtype.min))
        largest, place = highest(patches, dims)
        taps = patches.shape[-dims:]
        at, step = place.const_like(0), math.prod(taps)
        for d, (i, o, t) in enumerate(zip(sizes, counts, taps, strict=True)):
            step //= t
            at = at * i + along(arange(o) * i // o, d, dims) + place // step % t
        return largest, at.cast(dtypes.int64)

    def backward(ctx: Context, grad: UOp, x: UOp, indices: UOp) -> UOp:
        """Pass each region's gradient to the element at its saved position."""
        sizes, counts = x.shape[-dims:], grad.shape[-dims:]
        tables = [
            table("regions", i, o, False, None, True, dtypes.float32, ctx.device)
            for i, o in zip(sizes, counts, strict=True)
        ]
        grads = gather(cast(grad, opmath(grad.dtype)), [at for at, _ in tables])
        mine = gather(indices.cast(dtypes.int32), [at for at, _ in tables])
        mine = mine.eq(positions(sizes).reshape((*sizes, *[1] * dims)))
        for d, (_, weight) in enumerate(tables):
            mine = mine & across(weight, d, dims).ne(0)
        return mine.where(grads, grads.const_like(0)).sum(last(grads, dims), dtype=grads.dtype)

    return forward, backward


for _dims in (2, 3):
    _forward, _backward = _adaptive_max_pool(_dims)
    value(f"adaptive_max_pool{_dims}d", deferrable=True)(_forward)
    value(f"adaptive_max_pool{_dims}d_backward", deferrable=True)(_backward)
