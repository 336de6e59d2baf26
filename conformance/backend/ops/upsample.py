"""Resampling of images: nearest, linear, cubic and antialiased interpolation, adaptive averages, and their gradients.

Defines `Taps`, the elements that each result of one dimension reads and their weights, and `resample`. All of these are
a weighted sum over a few elements in each dimension. They differ only in a small host table, and the gradient is the
same sum over the transposed table. Tables stay on the device after the first use.
The module does not depend on strides in memory: the caller handles them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, Declined, value
from ..dispatch.tensors import cast
from ..lazy.dtypes import opmath
from ..runtime import memory

Ints = Sequence[Any]


class Taps(NamedTuple):
    """For each of n results in one dimension: t positions to read, int32 (n, t), and their weights, float (n, t)."""

    positions: np.ndarray
    weights: np.ndarray


def transpose(taps: Taps, size: int) -> Taps:
    """For each of the `size` elements: the results that read it, and their weights; missing ones have weight 0."""
    n, t = taps.positions.shape
    element, result, weight = taps.positions.reshape(-1), np.repeat(np.arange(n), t), taps.weights.reshape(-1)
    used = weight != 0
    element, result, weight = element[used], result[used], weight[used]
    pairs, inverse = np.unique(element.astype(np.int64) * n + result, return_inverse=True)
    total = np.zeros(len(pairs), dtype=weight.dtype)
    np.add.at(total, inverse, weight)
    element = pairs // n
    counts = np.bincount(element, minlength=size)
    place = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(int(counts.max(initial=0)), 1)
    positions, weights = np.zeros((size, width), np.int32), np.zeros((size, width), weight.dtype)
    positions[element, place], weights[element, place] = pairs % n, total
    return Taps(positions, weights)


def step(size: int, count: int, align_corners: bool, scale: float | None, real: Any) -> Any:
    """Distance in the input between neighbouring results (area_pixel_compute_scale)."""
    if align_corners:
        return real(size - 1) / real(count - 1) if count > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(size) / real(count)


def nearest(size: int, count: int, align: bool, scale: float | None, real: Any, exact: bool = False) -> Taps:
    """One element for each result; positions are computed in float32 for any dtype."""
    at = np.arange(count)
    if exact:
        at = np.floor((at.astype(np.float32) + np.float32(0.5)) * step(size, count, False, scale, np.float32))
    elif count == 2 * size:
        at = at >> 1
    elif count != size:
        at = np.floor(at.astype(np.float32) * step(size, count, False, scale, np.float32))
    return Taps(np.minimum(at, size - 1).astype(np.int32)[:, None], np.ones((count, 1), real))


def _source(size: int, count: int, align: bool, scale: float | None, real: Any) -> np.ndarray:
    by = step(size, count, align, scale, real)
    at = np.arange(count).astype(real)
    return at * by if align else (at + real(0.5)) * by - real(0.5)


def linear(size: int, count: int, align: bool, scale: float | None, real: Any) -> Taps:
    """Two neighbours, weighted by distance."""
    if size == count:
        return nearest(size, count, align, None, real)
    at = np.maximum(_source(size, count, align, scale, real), real(0))
    low = np.minimum(at.astype(np.int32), size - 1)
    part = np.clip(at - low.astype(real), real(0), real(1))
    return Taps(np.stack([low, np.minimum(low + 1, size - 1)], 1), np.stack([real(1) - part, part], 1))


def _near(x: np.ndarray, a: float) -> np.ndarray:
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _far(x: np.ndarray, a: float) -> np.ndarray:
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def cubic(size: int, count: int, align: bool, scale: float | None, real: Any) -> Taps:
    """Four neighbours by cubic convolution with A = -0.75; neighbours off the edge read the edge."""
    at = _source(size, count, align, scale, real)
    low = np.floor(at)
    t, a = np.clip(at - low, real(0), real(1)), real(-0.75)
    weights = np.stack([_far(t + 1, a), _near(t, a), _near(1 - t, a), _far(2 - t, a)], 1).astype(real)
    positions = low.astype(np.int64)[:, None] + np.arange(-1, 3)
    return Taps(np.clip(positions, 0, size - 1).astype(np.int32), weights)


def _antialiased(width: int, weigh: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Taps]:
    def taps(size: int, count: int, align: bool, scale: float | None, real: Any) -> Taps:
        """All elements under a filter as wide as the step (_compute_indices_min_size_weights_aa)."""
        by = step(size, count, align, scale, real)
        support = real(width / 2) * max(by, real(1))
        center = by * (np.arange(count).astype(real) + real(0.5))
        low = np.maximum((center - support + real(0.5)).astype(np.int64), 0)
        high = np.minimum((center + support + real(0.5)).astype(np.int64), size)
        at = low[:, None] + np.arange(max(int((high - low).max(initial=1)), 1))
        inside = at < high[:, None]
        weights = np.where(inside, weigh(np.abs(at - center[:, None] + real(0.5)) / max(by, real(1))), 0)
        total = weights.sum(1, keepdims=True)
        weights = np.divide(weights, total, out=weights, where=total != 0).astype(real)
        return Taps(np.where(inside, at, 0).astype(np.int32), weights)

    return taps


def _tent(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - x, 0)


def _cubic_filter(x: np.ndarray) -> np.ndarray:
    return np.where(x < 1, _near(x, -0.5), np.where(x < 2, _far(x, -0.5), 0))


def regions(size: int, count: int, align: bool, scale: float | None, real: Any) -> Taps:
    """Regions of adaptive pooling, each averaged (aten/src/ATen/native/AdaptivePooling.h)."""
    index = np.arange(count)
    low, high = index * size // count, -(-(index + 1) * size // count)
    at = low[:, None] + np.arange(max(int((high - low).max(initial=1)), 1))
    inside = at < high[:, None]
    weights = np.where(inside, 1 / np.maximum(high - low, 1)[:, None], 0).astype(real)
    return Taps(np.where(inside, at, 0).astype(np.int32), weights)


MODES: dict[str, Callable[..., Taps]] = {
    "nearest": nearest,
    "nearest_exact": functools.partial(nearest, exact=True),
    "linear": linear,
    "cubic": cubic,
    "linear_aa": _antialiased(2, _tent),
    "cubic_aa": _antialiased(4, _cubic_filter),
    "regions": regions,
}


@functools.lru_cache(maxsize=1024)
def table(
    mode: str, size: int, count: int, align: bool, scale: float | None, back: bool, dtype: DType, device: str
) -> tuple[UOp, UOp]:
    """(positions, weights) on the device, transposed for the gradient if `back`."""
    taps = MODES[mode](size, count, align, scale, np.float64 if dtype is dtypes.float64 else np.float32)
    taps = transpose(taps, size) if back else taps
    positions, weights = (
        memory.from_host(memoryview(np.ascontiguousarray(a).reshape(-1).data), d, device).reshape(a.shape)
        for a, d in ((taps.positions, dtypes.int32), (taps.weights, dtype))
    )
    return positions, weights


def across(x: UOp, d: int, dims: int) -> UOp:
    """Value (n, t) reshaped to dimensions d and dims + d of 2 * dims."""
    shape = [1] * (2 * dims)
    shape[d], shape[dims + d] = x.shape  # type: ignore[assignment]
    return x.reshape(tuple(shape))


def bounded(index: UOp, size: Any) -> UOp:
    """Clamp `index`, which already lies within `size`; without known bounds loads are checked and compile slowly."""
    return index.maximum(0).minimum(size - 1)


def gather(x: UOp, positions: Sequence[UOp]) -> UOp:
    """(..., *sizes) -> (..., *counts, *taps): the elements at positions (n, t) of each of the last dimensions."""
    dims = len(positions)
    lead: Ints = x.shape[:-dims]
    sizes: Ints = x.shape[-dims:]
    flat: Any = 0
    for d, at in enumerate(positions):
        flat = flat * sizes[d] + across(at, d, dims)
    taken = x.reshape((math.prod(lead), math.prod(sizes)))[:, bounded(flat, math.prod(sizes))]
    return taken.reshape((*lead, *flat.shape))


FEW_TAPS = 8  # in one kernel; more taps are summed dimension by dimension, which reads less and compiles faster


def resample(x: UOp, tables: Sequence[tuple[UOp, UOp]], ragged: bool) -> UOp:
    """Weighted sum over the taps of each of the last dimensions; with `ragged`, taps of weight 0 are ignored."""
    dims = len(tables)
    if math.prod(weight.shape[1] for _, weight in tables) > FEW_TAPS:
        for d in reversed(range(dims)):
            x = _resample_one(x, x.ndim - dims + d, *tables[d], ragged)
        return x
    taken = gather(x, [positions for positions, _ in tables])
    weights: Any = 1
    for d, (_, weight) in enumerate(tables):
        weights = across(weight, d, dims) * weights
    return _weighted(taken, weights, ragged).sum(tuple(range(taken.ndim - dims, taken.ndim)), dtype=x.dtype)


def _resample_one(x: UOp, axis: int, positions: UOp, weights: UOp, ragged: bool) -> UOp:
    after = (1,) * (x.ndim - axis - 1)
    index: list[Any] = [slice(None)] * axis + [bounded(positions, x.shape[axis])]
    taken = x[tuple(index)]
    products = _weighted(taken, weights.reshape((*weights.shape, *after)), ragged)
    return products.sum((axis + 1,), dtype=x.dtype).contiguous()


def _weighted(taken: UOp, weights: UOp, ragged: bool) -> UOp:
    return weights.ne(0).where(taken * weights, taken.const_like(0)) if ragged else taken * weights


def _tables(
    ctx: Context, mode: str, sizes: Ints, counts: Ints, align: bool, scales: Sequence[float | None], back: bool,
    dtype: DType,
) -> list[tuple[UOp, UOp]]:  # fmt: skip
    scales = [*scales, *[None] * (len(sizes) - len(scales))]  # trailing scales that are None are not passed
    return [
        table(mode, size, count, align, scale, back, dtype, ctx.device)
        for size, count, scale in zip(sizes, counts, scales, strict=True)
    ]


def _interpolation(dims: int, mode: str, aligned: bool) -> tuple[Callable[..., UOp], Callable[..., UOp]]:
    def forward(ctx: Context, x: UOp, output_size: Ints, *rest: Any) -> UOp:
        """Image at another size."""
        if not dtypes.is_float(x.dtype) and not mode.startswith("nearest"):
            raise Declined  # the CPU uses fixed-point weights for uint8
        align, scales = (rest[0], rest[1:]) if aligned else (False, rest)
        dtype = opmath(x.dtype)
        sizes, counts = x.shape[-dims:], ctx.out.size[-dims:]
        if mode.startswith("nearest"):
            tables = _tables(ctx, mode, sizes, counts, False, scales, False, dtypes.float32)
            return gather(x, [positions for positions, _ in tables]).reshape(ctx.out.size)
        tables = _tables(ctx, mode, sizes, counts, align, scales, False, dtype)
        return resample(cast(x, dtype), tables, ragged=mode.endswith("_aa"))

    def backward(ctx: Context, grad: UOp, output_size: Ints, input_size: Ints, *rest: Any) -> UOp:
        """Gradient of the image."""
        if not dtypes.is_float(grad.dtype):
            raise Declined
        align, scales = (rest[0], rest[1:]) if aligned else (False, rest)
        dtype = opmath(grad.dtype)
        sizes, counts = ctx.out.size[-dims:], grad.shape[-dims:]
        return resample(cast(grad, dtype), _tables(ctx, mode, sizes, counts, align, scales, True, dtype), ragged=True)

    return forward, backward


_FAMILIES = [
    *((f"upsample_nearest{d}d", d, "nearest", False) for d in (1, 2, 3)),
    *((f"_upsample_nearest_exact{d}d", d, "nearest_exact", False) for d in (1, 2, 3)),
    ("upsample_linear1d", 1, "linear", True),
    ("upsample_bilinear2d", 2, "linear", True),
    ("upsample_trilinear3d", 3, "linear", True),
    ("upsample_bicubic2d", 2, "cubic", True),
    ("_upsample_bilinear2d_aa", 2, "linear_aa", True),
    ("_upsample_bicubic2d_aa", 2, "cubic_aa", True),
]
for _name, _dims, _mode, _aligned in _FAMILIES:
    _forward, _backward = _interpolation(_dims, _mode, _aligned)
    value(_name, deferrable=True)(_forward)
    value(f"{_name}_backward", deferrable=True)(_backward)


def _adaptive_average(dims: int) -> tuple[Callable[..., UOp], Callable[..., UOp]]:
    def forward(ctx: Context, x: UOp, output_size: Ints) -> UOp:
        """Mean of each region."""
        dtype = opmath(x.dtype)
        sizes, counts = x.shape[-dims:], ctx.out.size[-dims:]
        x = cast(x, dtype)
        if all(size % count == 0 for size, count in zip(sizes, counts, strict=True)):
            lead, each = x.shape[:-dims], [size // count for size, count in zip(sizes, counts, strict=True)]
            x = x.reshape((*lead, *(n for pair in zip(counts, each, strict=True) for n in pair)))
            inner = tuple(range(len(lead) + 1, x.ndim, 2))
            return x.sum(inner, dtype=dtype) * (1.0 / math.prod(each))
        return resample(x, _tables(ctx, "regions", sizes, counts, False, (), False, dtype), ragged=True)

    def backward(ctx: Context, grad: UOp, x: UOp) -> UOp:
        """Share of each element in the regions that contain it."""
        dtype = opmath(grad.dtype)
        sizes, counts = x.shape[-dims:], grad.shape[-dims:]
        return resample(cast(grad, dtype), _tables(ctx, "regions", sizes, counts, False, (), True, dtype), ragged=True)

    return forward, backward


for _dims in (2, 3):
    _forward, _backward = _adaptive_average(_dims)
    value(f"_adaptive_avg_pool{_dims}d", deferrable=True)(_forward)
    value(f"_adaptive_avg_pool{_dims}d_backward", deferrable=True)(_backward)
