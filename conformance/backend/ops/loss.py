"""Losses that torch does not decompose, or decomposes so that targets are not checked; the others fuse as they are.

Must not know strides: they are the caller's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, value
from ..dispatch.tensors import cast, constant
from ..lazy.dtypes import opmath
from .bounds import checked
from .elementary import divide
from .reduction import total

NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def reduce(x: UOp, reduction: int) -> UOp:
    """All elements, their mean or their sum."""
    if reduction == NONE:
        return x
    sizes: Any = x.shape
    whole, count = _sum(x), math.prod(sizes)
    return whole if reduction == SUM else whole * constant(1.0 / count if count else math.nan, x.dtype)


def _sum(x: UOp) -> UOp:
    """The sum of all elements, 0-d."""
    return total(x.reshape((x.numel(),)), (0,)).reshape(())


@value("huber_loss")
def huber_loss(ctx: Context, self: UOp, target: UOp, reduction: int = MEAN, delta: float = 1.0) -> UOp:
    """Half the square below delta, delta * (|x| - delta / 2) above."""
    dtype = opmath(ctx.out.computed)
    limit = constant(delta, dtype)
    far = (cast(self, dtype) - cast(target, dtype)).abs()
    return reduce((far <= limit).where(far.square() * 0.5, (far - limit * 0.5) * limit), reduction)


def _chosen(
    ctx: Context, scores: UOp, target: torch.Tensor, weight: UOp | None, ignore_index: int
) -> tuple[UOp, UOp, UOp]:
    """For each target: which class it is (one-hot along the class dimension), whether it counts, and its weight."""
    dim = 0 if scores.ndim == 1 else 1
    classes = scores.shape[dim]
    label = checked(ctx, target, 0, classes, ignore_index)
    label = label.reshape(()) if scores.ndim == 1 else label
    counts = label.ne(ignore_index)
    place = UOp.arange(classes).reshape((1,) * dim + (classes,) + (1,) * (scores.ndim - dim - 1))
    one_hot = place.eq(label.unsqueeze(dim)).expand(scores.shape)
    weights = constant(1, scores.dtype).expand(counts.shape)
    if weight is not None:
        every = cast(weight, scores.dtype).reshape(place.shape).expand(scores.shape)
        weights = one_hot.where(every, constant(0, scores.dtype)).sum(dim, dtype=scores.dtype)
    return one_hot, counts, counts.where(weights, constant(0, scores.dtype))


@value("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    ctx: Context, self: UOp, target: UOp, weight: UOp | None, reduction: int, ignore_index: int
) -> tuple[UOp, UOp]:
    """(the weighted negative scores of the targets, the sum of the weights: 0 where nothing is reduced)."""
    scores = cast(self, opmath(ctx.out.computed))
    one_hot, counts, weights = _chosen(ctx, scores, ctx.args[1], weight, ignore_index)
    zero = constant(0, scores.dtype)
    picked = one_hot.where(scores, zero).sum(0 if scores.ndim == 1 else 1, dtype=scores.dtype)
    losses = counts.where(-picked * weights, zero)
    if reduction == NONE:
        return losses.reshape(ctx.out.size), zero
    whole, divisor = _sum(losses), _sum(weights)
    return (divide(whole, divisor) if reduction == MEAN else whole), divisor


@value("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    ctx: Context, grad_output: UOp, self: UOp, target: UOp, weight: UOp | None, reduction: int, ignore_index: int,
    total_weight: UOp,
) -> UOp:  # fmt: skip
    """Minus the weighted gradient at each target's class, zero elsewhere."""
    dtype = opmath(ctx.out.computed)
    one_hot, counts, weights = _chosen(ctx, cast(self, dtype), ctx.args[2], weight, ignore_index)
    grad = cast(grad_output, dtype)
    if reduction == MEAN:
        grad = divide(grad, cast(total_weight, dtype))
    grad = grad.reshape(counts.shape if reduction == NONE else (1,) * counts.ndim).expand(counts.shape)
    zero = constant(0, dtype)
    each = counts.where(-grad * weights, zero).unsqueeze(0 if self.ndim == 1 else 1)
    return one_hot.where(each.expand(self.shape), zero)
