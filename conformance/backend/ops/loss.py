"""Losses that torch does not decompose, or decomposes otherwise than its kernels compute; other losses simply fuse.

The module does not depend on strides: the caller handles them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import Context, decomposition, value
from ..dispatch.tensors import cast, constant
from ..lazy.dtypes import opmath
from ..runtime import torch_compat
from .arithmetic import divide, subtract
from .bounds import checked, in_memory, is_checked
from .reduction import total

NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def reduce(x: UOp, reduction: int) -> UOp:
    """All elements, or their mean, or their sum."""
    if reduction == NONE:
        return x
    sizes: Any = x.shape
    whole, count = _sum(x), math.prod(sizes)
    return whole if reduction == SUM else whole * constant(1.0 / count if count else math.nan, x.dtype)


def _sum(x: UOp) -> UOp:
    """The sum of all elements, 0-d."""
    return total(x.reshape((x.numel(),)), (0,)).reshape(())


@decomposition("binary_cross_entropy")
def binary_cross_entropy(
    self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = MEAN
) -> torch.Tensor:
    """torch's decomposition, with the CPU's check that probabilities lie in [0, 1].

    Only probabilities in memory are read. Reading pending ones would compute them separately from the loss.
    """
    for probabilities in (self, target):
        seen = in_memory(probabilities)
        if seen is not None and seen.numel():
            least, most = torch.aminmax(seen)
            if not (least >= 0 and most <= 1):
                raise MetaRejected("a probability lies outside of 0 to 1")
    result: torch.Tensor = torch_compat.decomposition_table[torch.ops.aten.binary_cross_entropy.default](
        self, target, weight, reduction
    )
    return result


@decomposition("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """torch's decomposition, corrected: there the gradient of a nan difference is 0, on the CPU it is nan."""
    grad: torch.Tensor = torch_compat.decomposition_table[torch.ops.aten.smooth_l1_loss_backward.default](
        grad_output, self, target, reduction, beta
    )
    difference = self - target
    return torch.where(difference.isnan(), difference.to(grad.dtype), grad)


@value("huber_loss", deferrable=True)
def huber_loss(ctx: Context, self: UOp, target: UOp, reduction: int = MEAN, delta: float = 1.0) -> UOp:
    """Half the square below delta, delta * (|x| - delta / 2) above."""
    dtype = opmath(ctx.out.computed)
    limit = constant(delta, dtype)
    far = (cast(self, dtype) - cast(target, dtype)).abs()
    return reduce((far <= limit).where(far.square() * 0.5, (far - limit * 0.5) * limit), reduction)


def _chosen(
    ctx: Context, scores: UOp, target: torch.Tensor, weight: UOp | None, ignore_index: int
) -> tuple[UOp, UOp, UOp]:
    """For each target: its class (one-hot along the class dimension), whether it counts, and its weight."""
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


def _labels(place: int) -> Callable[[Context], bool]:
    """Check of the labels, which follow the scores in the arguments."""

    def check(ctx: Context) -> bool:
        scores, target = ctx.args[place - 1], ctx.args[place]
        return is_checked(ctx, target, 0, scores.shape[0 if scores.dim() == 1 else 1], ctx.args[place + 3])

    return check


@value("nll_loss_forward", "nll_loss2d_forward", deferrable=True, index=_labels(1))
def nll_loss_forward(
    ctx: Context, self: UOp, target: UOp, weight: UOp | None, reduction: int, ignore_index: int
) -> tuple[UOp, UOp]:
    """(weighted negative scores of the targets, sum of the weights, or 0 without a reduction)."""
    scores = cast(self, opmath(ctx.out.computed))
    one_hot, counts, weights = _chosen(ctx, scores, ctx.args[1], weight, ignore_index)
    zero = constant(0, scores.dtype)
    picked = one_hot.where(scores, zero).sum(0 if scores.ndim == 1 else 1, dtype=scores.dtype)
    losses = counts.where(-picked * weights, zero)
    if reduction == NONE:
        return losses.reshape(ctx.out.size), zero
    whole, divisor = _sum(losses), _sum(weights)
    return (divide(whole, divisor) if reduction == MEAN else whole), divisor


@value("nll_loss_backward", "nll_loss2d_backward", deferrable=True, index=_labels(2))
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


def _margins(over: UOp, p: float, weights: UOp | None = None) -> UOp:
    """Positive amounts to the power of p, others 0; nan does not count (aten/src/ATen/native/LossMultiMargin.cpp)."""
    zero = over.const_like(0)
    terms = over * over if p == 2 else over
    return (zero < over).where(terms if weights is None else terms * weights, zero)


def _one_loss(reduction: int, single: bool) -> None:
    """Raise MetaRejected for the unreduced loss of a single frame, whose result has no batch dimension."""
    if reduction == NONE and single:
        raise MetaRejected("the decomposition that is the meta kernel has a dimension for it")


@value("multi_margin_loss")
def multi_margin_loss(
    ctx: Context, self: UOp, target: UOp, p: float = 1, margin: float = 1, weight: UOp | None = None,
    reduction: int = MEAN,
) -> UOp:  # fmt: skip
    """Amount by which other classes' scores come within the margin of the target's, averaged over the classes."""
    _one_loss(reduction, target.ndim == 0)
    dtype, classes = opmath(ctx.out.computed), self.shape[-1] if self.ndim else 1
    scores = cast(self, dtype).reshape((-1, classes))
    label = checked(ctx, ctx.args[1], 0, classes).reshape((scores.shape[0], 1))
    mine, zero = UOp.arange(classes).reshape((1, classes)).eq(label), constant(0, dtype)
    of_target = mine.where(scores, zero).sum(1, keepdim=True, dtype=dtype)
    weights = None
    if weight is not None:
        every = cast(weight, dtype).reshape((1, classes)).expand(scores.shape)
        weights = mine.where(every, zero).sum(1, keepdim=True, dtype=dtype)
    terms = mine.where(zero, _margins(subtract(margin, of_target) + scores, p, weights))
    losses = terms.sum(1, dtype=dtype) * (1.0 / classes)
    return reduce(losses, reduction).reshape(ctx.out.size)


@value("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(ctx: Context, self: UOp, target: UOp, reduction: int) -> tuple[UOp, UOp]:
    """(loss over each of several targets, which end at the first -1, and all other classes; mask of the targets)."""
    _one_loss(reduction, target.ndim <= 1)
    dtype, classes = opmath(ctx.out.computed), self.shape[-1] if self.ndim else 1
    scores = cast(self, dtype).reshape((-1, classes))
    label = checked(ctx, ctx.args[1], -1, classes).reshape(scores.shape)
    place, zero = UOp.arange(classes), constant(0, dtype)
    end = label.eq(-1).where(place.cast(label.dtype), classes).min(1, keepdim=True)
    mine = label.unsqueeze(2).eq(place) & (place < end).unsqueeze(2)  # (frame, which of its targets, class)
    is_target = mine.any(1)
    of_target = mine.where(scores.unsqueeze(1), zero).sum(2, keepdim=True, dtype=dtype)
    counts = mine.any(2).unsqueeze(2) & is_target.logical_not().unsqueeze(1)
    terms = counts.where(_margins(subtract(1.0, of_target) + scores.unsqueeze(1), 1), zero)
    losses = terms.sum((1, 2), dtype=dtype) * (1.0 / classes)
    return reduce(losses, reduction).reshape(ctx.out.size), is_target.reshape(ctx.outs[1].size)
