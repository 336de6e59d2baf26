"""Convolutions of any number of spatial dimensions, plain and transposed, and their gradients: one kernel each.

Defines `windows` and `spread`, the two ways in which convolution and pooling traverse an image, and their products. A
transposed convolution is a convolution with the flipped kernel of the input spread by the stride. Gradients are
therefore sums over windows too, and nothing is scattered.
The module does not depend on strides in memory: the caller handles them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import Context, decomposition, value
from ..dispatch.tensors import cast
from ..lazy.dtypes import opmath
from .matmul import accumulate, stored
from .reduction import total

Ints = Sequence[Any]  # of int; tinygrad types the sizes of shapes as possibly symbolic


def windows(x: UOp, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, counts: Ints, fill: float = 0) -> UOp:
    """(..., *sizes) -> (..., *counts, *kernel): the `counts` windows of each of the last dimensions.

    Window o begins at o * stride - padding. Positions outside the input read as `fill`. Input beyond the last window is
    not used. Padding may be negative.
    """
    spatial = x.shape[-len(kernel) :]
    reach = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(counts, stride, dilation, kernel, strict=True)]
    around = [(p, r - i - p) for p, r, i in zip(padding, reach, spatial, strict=True)]
    lead = ((0, 0),) * (x.ndim - len(kernel))
    x = x._pad_constant((*lead, *around), fill)
    if len(kernel) > 2 and any(p > 0 for pair in around for p in pair):
        x = x.contiguous()  # bounds checks in three dimensions take seconds to compile, and a padded copy needs none
    return x._pool(tuple(kernel), tuple(stride), tuple(dilation))


def spread(x: UOp, stride: Ints) -> UOp:
    """Insert stride - 1 zeros between neighbours along each of the last dimensions."""
    if all(s == 1 for s in stride):
        return x
    lead, spatial = x.shape[: -len(stride)], x.shape[-len(stride) :]
    x = x.reshape((*lead, *(n for i in spatial for n in (i, 1))))
    x = x.pad(((0, 0),) * len(lead) + tuple(p for s in stride for p in ((0, 0), (0, s - 1))))
    x = x.reshape((*lead, *(i * s for i, s in zip(spatial, stride, strict=True))))
    return x.shrink((None,) * len(lead) + tuple((0, (i - 1) * s + 1) for i, s in zip(spatial, stride, strict=True)))


def correlate(
    x: UOp, weight: UOp, stride: Ints, padding: Ints, dilation: Ints, groups: int, size: Ints, real: UOp | None = None
) -> UOp:
    """x (n, c, *spatial), weight (out, c / groups, *kernel) -> (n, out, *size): a convolution as in neural networks.

    Padding is zeros, whose products with infinite weights are nan. With `real`, a bool (*size, *kernel), only products
    where it is true count.
    """
    n, out, kernel, dims = x.shape[0], weight.shape[0], weight.shape[2:], len(size)
    patches = windows(x, kernel, stride, padding, dilation, size)
    patches = patches.reshape((n, groups, 1, weight.shape[1], *size, *kernel))
    weight = weight.reshape((1, groups, out // groups, weight.shape[1], *[1] * dims, *kernel))
    products = patches * weight
    if real is not None:
        products = real.where(products, products.const_like(0))
    return products.sum((3, *range(4 + dims, 4 + 2 * dims)), dtype=x.dtype).reshape((n, out, *size))


def correlate_transposed(
    x: UOp, weight: UOp, stride: Ints, padding: Ints, dilation: Ints, groups: int, size: Ints, exact: bool = False
) -> UOp:
    """The adjoint of `correlate`: x (n, in, *spatial), weight (in, c / groups, *kernel) -> (n, c, *size).

    The inserted zeros between elements of the input are not multiplied with the weights, which may be infinite. The
    zeros around the input are excluded too if `exact`, or for a stride above 1. In gradients by a stride of 1 that
    selection at the edges would take half of the time.
    """
    inputs, each, *kernel = weight.shape
    weight = weight.flip(tuple(range(2, weight.ndim))).reshape((groups, inputs // groups, each, *kernel))
    weight = weight.transpose(1, 2).reshape((groups * each, inputs // groups, *kernel))
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    one = [1] * len(size)
    real = _real(x.shape[2:], kernel, stride, before, dilation, size) if exact or max(stride) > 1 else None
    return correlate(spread(x, stride), weight, one, before, dilation, groups, size, real)


def _real(spatial: Ints, kernel: Ints, stride: Ints, before: Ints, dilation: Ints, size: Ints) -> UOp:
    """Mask (*size, *kernel) of the window elements of a spread input that are elements of the input."""
    dims, result = len(size), UOp.const(True, dtypes.bool)
    for d, (i, k, s, p, w, o) in enumerate(zip(spatial, kernel, stride, before, dilation, size, strict=True)):
        line = windows(spread(UOp.const(True, dtypes.bool).expand((i,)), [s]), [k], [1], [p], [w], [o])
        result = result & line.reshape(
            (*(o if e == d else 1 for e in range(dims)), *(k if e == d else 1 for e in range(dims)))
        )
    return result


def weight_gradient(x: UOp, grad: UOp, stride: Ints, padding: Ints, dilation: Ints, groups: int, kernel: Ints) -> UOp:
    """x (n, c, *spatial), grad (n, out, *size) -> (out, c / groups, *kernel)."""
    (n, c), (out, *size) = x.shape[:2], grad.shape[1:]
    dims = len(size)
    patches = windows(x, kernel, stride, padding, dilation, size)
    patches = patches.reshape((n, groups, 1, c // groups, *size, *kernel))
    grad = grad.reshape((n, groups, out // groups, 1, *size, *[1] * dims))
    summed = (0, *range(4, 4 + dims))
    return (patches * grad).sum(summed, dtype=x.dtype).reshape((out, c // groups, *kernel))


@value("convolution", deferrable=True)
def convolution(
    ctx: Context, x: UOp, weight: UOp, bias: UOp | None, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int,
) -> UOp:  # fmt: skip
    """Convolution with all options of nn.Conv1d/2d/3d and nn.ConvTranspose1d/2d/3d."""
    if min((*stride, *dilation)) <= 0 or min((*padding, *output_padding, 0)) < 0:
        raise MetaRejected("the meta kernel does not look at these numbers")
    dtype, size = _summed_in(accumulate(ctx), x.ndim - 2), ctx.out.size[2:]
    stride, padding, dilation = (_each(v, len(size)) for v in (stride, padding, dilation))
    product = functools.partial(correlate_transposed, exact=True) if transposed else correlate
    output = product(
        cast(stored(x), dtype), cast(stored(weight), dtype), stride, padding, dilation, groups, size
    )  # fmt: skip
    return output if bias is None else output + cast(bias, dtype).reshape((1, -1, *[1] * len(size)))


@value("convolution_backward", deferrable=True)
def convolution_backward(
    ctx: Context, grad: UOp, x: UOp, weight: UOp, bias_sizes: Ints | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, output_mask: Sequence[bool],
) -> tuple[UOp | None, ...]:  # fmt: skip
    """Gradients of the input, the weight and the bias."""
    dtype = _summed_in(opmath(grad.dtype), x.ndim - 2)
    stride, padding, dilation = (_each(v, x.ndim - 2) for v in (stride, padding, dilation))
    grad, x, weight = (cast(stored(v), dtype) for v in (grad, x, weight))
    walk = (stride, padding, dilation, groups)
    wanted_input, wanted_weight, wanted_bias = output_mask
    by_input = by_weight = by_bias = None
    if wanted_input:
        by_input = (correlate if transposed else correlate_transposed)(grad, weight, *walk, x.shape[2:])
    if wanted_weight:
        image, other = (grad, x) if transposed else (x, grad)
        by_weight = weight_gradient(image, other, *walk, weight.shape[2:])
    if wanted_bias:
        by_bias = total(grad, (0, *range(2, grad.ndim))).reshape((grad.shape[1],))
    return by_input, by_weight, by_bias


@decomposition("convolution_overrideable", "convolution_backward_overrideable")
def _overrideable(*args: Any) -> Any:
    """Convolution that `torch._convolution` calls on devices outside PyTorch; traced modules call it too."""
    known = torch.ops.aten.convolution.default
    if len(args) == len(known._schema.arguments):
        return known(*args)
    *inputs, output_mask = args
    return torch.ops.aten.convolution_backward.default(*inputs[:3], None, *inputs[3:], output_mask)


def _summed_in(dtype: DType, dims: int) -> DType:
    """Summation dtype: float64 for float32 in three dimensions, where the CPU adds hundreds of terms by blocks."""
    return dtypes.float64 if dims == 3 and dtype is dtypes.float32 else dtype


def _each(numbers: Ints, dims: int) -> Ints:
    """One number for each spatial dimension; torch accepts a single number for all."""
    return list(numbers) * dims if len(numbers) == 1 else list(numbers)
