"""Sampling an image or a volume at the points of a grid, and its gradients.

Defines grid_sampler_2d, grid_sampler_3d and their gradients, by one rule for any number of dimensions.

Along each dimension a point has a few taps (an index, a weight, the weight's derivative). All modes, gradients and
dimensions are sums over products of taps. Written as loops over the points (`loop_kernels`), the sums are one kernel.
There the gradient of the image, where many points may add to one element, is a plain `+=`.
Rules follow aten/src/ATen/native/GridSampler.h.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, value
from ..lazy.dtypes import opmath
from ..runtime.loop_kernels import Array, Index, LoopProgram, kernel
from .arithmetic import absolute, divide, rint, subtract

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
FIRST, LAST, NOTHING = range(3)  # the element that a nan coordinate reads if coordinates are clipped to the image


class Tap(NamedTuple):
    """One element along a dimension that contributes to a point."""

    place: UOp  # int32, in range for any coordinate, nan included
    inside: UOp  # whether the element exists
    weight: UOp
    slope: UOp  # derivative of the weight by the point's coordinate


class Mode(NamedTuple):
    """Rules for reading points."""

    interpolation: int
    padding: int
    align_corners: bool
    of_nan: int
    skips: bool  # whether missing elements are skipped; otherwise each is a 0, whose product with a weight may be nan


def _mode(rank: int, interpolation: int, padding: int, align_corners: bool, backward: bool = False) -> Mode:
    """Mode of the CPU's kernels, which compute the points of an image together, and those of a volume one by one."""
    of_nan = FIRST if rank == 2 else NOTHING if backward else LAST
    return Mode(interpolation, padding, align_corners, of_nan, skips=rank == 3)


def _scale(size: int, align_corners: bool) -> float:
    """Number of elements per unit of the grid's coordinates."""
    return (size - 1) / 2 if align_corners else size / 2


def _clipped(x: UOp, size: int) -> tuple[UOp, UOp]:
    """(x clipped to [0, size - 1], its derivative); at both ends the derivative is 0."""
    low, high = x <= 0, x >= size - 1
    one = x.const_like(1.0)
    return low.where(0.0, high.where(float(size - 1), x)), (low | high).where(0.0, one)


def _reflected(x: UOp, size: int, align_corners: bool) -> tuple[UOp, UOp]:
    """(x reflected at both ends until it is between them, its derivative)."""
    low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
    one = x.const_like(1.0)
    if not span:
        return x.const_like(0.0), x.const_like(0.0)
    offset = subtract(x, low)
    distance, sign = absolute(offset), (offset < 0).where(-1.0, one)
    flips = divide(distance, span).floor()
    rest = subtract(distance, flips * span)
    odd = (flips * 0.5).floor().ne(flips * 0.5)
    return odd.where(subtract(span, rest), rest) + low, odd.where(-sign, sign)


def _padded(x: UOp, size: int, mode: Mode) -> tuple[UOp, UOp]:
    """(the coordinate to read for x, its derivative)."""
    if mode.padding == ZEROS:
        return x, x.const_like(1.0)
    outer_slope = x.const_like(1.0)
    if mode.padding == REFLECTION:
        x, outer_slope = _reflected(x, size, mode.align_corners)
    inner, slope = _clipped(x, size)
    of_nan = {FIRST: x.const_like(0.0), LAST: x.const_like(size - 1.0), NOTHING: x}[mode.of_nan]
    return x.ne(x).where(of_nan, inner), slope * outer_slope


def _tap(at: UOp, size: int, weight: UOp, slope: UOp) -> Tap:
    inside = (at > -1) & (at < size)  # tinygrad's >= and <= are true for nan
    return Tap(inside.where(at, 0.0).cast(dtypes.int32), inside, weight, slope)


_A = -0.75  # constant of the cubic convolution kernel, as on the CPU


def _cubic(x: UOp) -> tuple[UOp, UOp]:
    """(cubic convolution kernel, its derivative) at a distance up to 1."""
    return ((_A + 2) * x - (_A + 3)) * x * x + 1.0, (3 * (_A + 2) * x - 2 * (_A + 3)) * x


def _cubic_far(x: UOp) -> tuple[UOp, UOp]:
    """(cubic convolution kernel, its derivative) at a distance of 1 to 2."""
    return ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A, (3 * _A * x - 10 * _A) * x + 8 * _A


def taps(coordinate: UOp, size: int, mode: Mode) -> list[Tap]:
    """Taps along a dimension of a point at this grid coordinate (-1 and 1 are the ends)."""
    scale = _scale(size, mode.align_corners)
    x = (coordinate + 1.0) * scale
    x = x if mode.align_corners else subtract(x, 0.5)
    if mode.interpolation == BICUBIC:
        low = x.floor()
        t = subtract(x, low)
        near, far = (_cubic(t), _cubic(subtract(1.0, t))), (_cubic_far(t + 1.0), _cubic_far(subtract(2.0, t)))
        weights = [far[0], near[0], (near[1][0], -near[1][1]), (far[1][0], -far[1][1])]
        places = [_padded(low + float(i), size, mode)[0] for i in (-1, 0, 1, 2)]
        return [_tap(rint(p), size, w, s * scale) for p, (w, s) in zip(places, weights, strict=True)]
    x, slope = _padded(x, size, mode)
    if mode.interpolation == NEAREST:
        return [_tap(rint(x), size, x.const_like(1.0), x.const_like(0.0))]
    low, slope = x.floor(), slope * scale
    t = subtract(x, low)
    return [_tap(low, size, subtract(1.0, t), -slope), _tap(low + 1.0, size, t, slope)]


class Corner(NamedTuple):
    """One element of the image that contributes to a point."""

    place: UOp  # in the flattened image
    inside: UOp
    weight: UOp
    slopes: list[UOp]  # derivatives of the weight by each of the grid's coordinates


def _element(corner: Corner, image: Array, n: Index, c: Index, dtype: DType) -> UOp:
    """Element of a corner, 0 outside the image."""
    element = image[n, c, corner.place].cast(dtype)
    return corner.inside.where(element, element.const_like(0.0))


def _corners(grid: Array, at: tuple[Index, Index], sizes: Sequence[int], mode: Mode, dtype: DType) -> list[Corner]:
    """All combinations of a point's taps; the grid's first coordinate is the image's last dimension."""
    rank = len(sizes)
    along = [taps(grid[(*at, rank - 1 - d)].cast(dtype), size, mode) for d, size in enumerate(sizes)]
    corners = []
    for chosen in itertools.product(*along):
        place = UOp.const(0, dtypes.int32)
        for size, tap in zip(sizes, chosen, strict=True):
            place = place * size + tap.place
        weight = math.prod((t.weight for t in chosen[1:]), start=chosen[0].weight)
        one = weight.const_like(1.0)
        slopes = [math.prod((t.slope if i == d else t.weight for i, t in enumerate(chosen)), start=one)
                  for d in reversed(range(rank))]  # fmt: skip
        inside = functools.reduce(operator.and_, (t.inside for t in chosen))
        corners.append(Corner(place, inside, weight, slopes))
    return corners


def _sample(p: LoopProgram, out: Array, image: Array, grid: Array, sizes: Sequence[int], mode: Mode) -> None:
    dtype = opmath(image.dtype)
    for n in p.loop(len(image), independent=True):
        for point in p.loop(grid.shape[1], independent=True):
            corners = _corners(grid, (n, point), sizes, mode, dtype)
            for c in p.loop(image.shape[1]):
                total = UOp.const(0.0, dtype)
                for corner in corners:
                    term = _element(corner, image, n, c, dtype) * corner.weight
                    total = total + (corner.inside.where(term, 0.0) if mode.skips else term)
                out[n, c, point] = total


def _gradients(p: LoopProgram, *arrays: Any) -> None:
    *wanted, out, image, grid, sizes, mode = arrays
    of_grid, of_image = wanted[0], wanted[1] if len(wanted) > 1 else None
    # Differences of neighbours, summed over channels, cancel. The nearest mode reads the element without arithmetic.
    dtype = opmath(image.dtype) if mode.interpolation == NEAREST else dtypes.float64
    for n in p.loop(len(image), independent=True):
        if of_image is not None:
            for c in p.loop(image.shape[1]):
                for place in p.loop(image.shape[2]):
                    of_image[n, c, place] = 0.0
        for point in p.loop(grid.shape[1]):
            corners = _corners(grid, (n, point), sizes, mode, dtype)
            slopes = p.local(dtype, *[0.0] * len(sizes))
            for c in p.loop(image.shape[1]):
                gradient = out[n, c, point].cast(dtype)
                for corner in corners:
                    element = _element(corner, image, n, c, dtype)
                    for d, slope in enumerate(corner.slopes):
                        term = element * slope * gradient
                        slopes[d] = slopes[d] + (corner.inside.where(term, 0.0) if mode.skips else term)
                    if of_image is not None:
                        sum_ = of_image[n, c, corner.place] + corner.weight * gradient
                        of_image.set((n, c, corner.place), sum_, where=corner.inside)
            for d in range(len(sizes)):
                of_grid[n, point, d] = slopes[d]


def _flat(image: UOp) -> UOp:
    return image.reshape((*image.shape[:2], math.prod(image.shape[2:])))


def _points(grid: UOp) -> UOp:
    return grid.reshape((grid.shape[0], math.prod(grid.shape[1:-1]), grid.shape[-1]))


def _check_modes(*args: Any) -> None:
    """Raise RuntimeError for a mode that does not exist; torch CPU then returns memory without a value."""
    interpolation, padding, _ = (x for x in args if type(x) in (int, bool))
    for kind, number in ("interpolation", interpolation), ("padding", padding):
        if not 0 <= number <= 2:
            raise RuntimeError(f"grid_sampler(): expected {kind} mode to be 0, 1 or 2, but got {number}")


@value("grid_sampler_2d", "grid_sampler_3d", check=_check_modes)
def grid_sampler(ctx: Context, image: UOp, grid: UOp, interpolation: int, padding: int, align_corners: bool) -> UOp:
    """Values of the image at the grid's points, of shape (batch, channels, *points)."""
    inputs = [_flat(image), _points(grid)]
    shape = (*(int(s) for s in image.shape[:2]), int(inputs[1].shape[1]))
    sizes = tuple(int(s) for s in image.shape[2:])
    mode = _mode(len(sizes), interpolation, padding, align_corners)
    (out,) = kernel(_sample, [(shape, ctx.out.computed)], inputs, ctx.device, sizes, mode)
    return out.reshape(ctx.out.size)


@value("grid_sampler_2d_backward", "grid_sampler_3d_backward", check=_check_modes)
def grid_sampler_backward(
    ctx: Context, out: UOp, image: UOp, grid: UOp, interpolation: int, padding: int, align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[UOp | None, UOp | None]:  # fmt: skip
    """Gradients of the image and of the grid; the first only if `output_mask` requests it."""
    inputs = [_flat(out), _flat(image), _points(grid)]
    shapes = [tuple(int(s) for s in x.shape) for x in (inputs[2], inputs[1])]
    outputs = [(shapes[0], grid.dtype), (shapes[1], dtypes.float64)]  # at a border many points add to one element
    sizes = tuple(int(s) for s in image.shape[2:])
    mode = _mode(len(sizes), interpolation, padding, align_corners, backward=True)
    wanted = outputs[: 2 if output_mask[0] else 1]
    of_grid, *of_image = kernel(_gradients, wanted, inputs, ctx.device, sizes, mode)
    return of_image[0].reshape(image.shape) if of_image else None, of_grid.reshape(grid.shape)
