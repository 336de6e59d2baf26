"""Losses beyond the samples of OpInfo."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import binary_cross_entropy, multi_margin_loss, multilabel_margin_loss, smooth_l1_loss

from conformance import backend
from conformance.backend import kernels

SCORES = torch.tensor([[0.3, -0.2, 1.5], [0.1, 0.7, math.nan], [math.inf, 0.5, 0.2], [math.nan] * 3])
REDUCTIONS = ("none", "mean", "sum")


def same(loss, scores: torch.Tensor, target: torch.Tensor, **how: object) -> None:
    """Check the value and the gradient against the CPU. For a single frame the CPU may compute the value."""
    results = []
    for device in ("cpu", "tiny"):
        x = scores.to(device, copy=True).requires_grad_()
        with backend.no_fallback() if scores.dim() == 2 else nullcontext():
            value = loss(x, target.to(device), **how)
        value.sum().backward()
        results.append([value.detach().cpu(), x.grad.cpu()])
    torch.testing.assert_close(results[1], results[0], equal_nan=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss_leaves_nan_out(p, reduction):
    """A nan score exceeds no margin. torch's decomposition made the loss nan."""
    same(multi_margin_loss, SCORES, torch.tensor([1, 0, 0, 2]), p=p, margin=0.7, reduction=reduction)
    same(multi_margin_loss, SCORES[1], torch.tensor(1), p=p, reduction=reduction)


def test_multi_margin_loss_weights():
    """The target's weight applies, and a nan weight matters only if a score exceeds the margin."""
    weight = torch.tensor([0.5, math.nan, 2.0]).to
    for scores in (SCORES, torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 9.0]])):
        values = [
            multi_margin_loss(scores.to(d), torch.tensor([0, 1, 2, 2]).to(d), weight=weight(d), reduction="none").cpu()
            for d in ("cpu", "tiny")
        ]
        torch.testing.assert_close(values[1], values[0], equal_nan=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin_loss_ends_at_minus_one(reduction):
    """Targets end at the first -1. torch's decomposition counted class 0 for each ignored target."""
    target = torch.tensor([[2, 0, -1], [1, -1, 0], [-1, 1, 1], [0, 1, 2]])
    same(multilabel_margin_loss, torch.tensor([[0.3, -0.2, 1.5]] * 4), target, reduction=reduction)
    same(multilabel_margin_loss, SCORES, target, reduction=reduction)
    same(multilabel_margin_loss, SCORES[0], target[0], reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", [multi_margin_loss, multilabel_margin_loss])
def test_the_score_of_one_class_without_dimensions(loss, reduction):
    """The loss of a single class is 0, because there is no other class."""
    same(loss, torch.tensor(0.3), torch.tensor(0), reduction=reduction)


@pytest.mark.parametrize("loss", [multi_margin_loss, multilabel_margin_loss])
def test_targets_out_of_range(loss):
    """Targets out of range are refused with the CPU's message."""
    target = torch.tensor([0, 3]) if loss is multi_margin_loss else torch.tensor([[0, 1, -1], [0, 3, -1]])
    with pytest.raises(RuntimeError, match="out of range"):
        loss(SCORES[:2].to("tiny"), target.to("tiny"))


@pytest.mark.parametrize("wrong", [-0.5, 1.5, math.nan, -math.inf])
def test_probabilities_in_memory_are_looked_at(wrong):
    """The device refuses inputs and targets outside of 0 to 1, as the CPU does. It formerly accepted any numbers."""
    right, bad = torch.tensor([0.25, 0.75, 1.0]), torch.tensor([0.25, wrong, 0.5])
    for pair in ((bad, right), (right, bad)):
        for device in ("cpu", "tiny"):
            with pytest.raises(RuntimeError, match="should be between 0 and 1"):
                binary_cross_entropy(*(x.to(device) for x in pair))


def test_probabilities_to_be_computed_are_not_looked_at():
    """A lazy output of a network is not checked, and is computed together with its loss, without an extra kernel."""
    x, y = torch.tensor([0.3, -2.0, 5.0]).to("tiny"), torch.tensor([0.0, 1.0, 0.5]).to("tiny")
    with kernels.count() as ran:
        loss = binary_cross_entropy(torch.sigmoid(x), y)
    assert ran.kernels == 0
    torch.testing.assert_close(loss.cpu(), binary_cross_entropy(torch.sigmoid(x.cpu()), y.cpu()))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_gradient_of_smooth_l1_loss_at_nan(reduction):
    """The gradient of smooth_l1_loss at nan is the CPU's. It was formerly 0: torch's decomposition takes the sign of a
    nan difference."""
    x, y = torch.tensor([0.5, math.nan, math.inf, -3.0]), torch.tensor([0.0, 1.0, math.inf, math.nan])
    results = []
    for device in ("cpu", "tiny"):
        both = [one.to(device, copy=True).requires_grad_() for one in (x, y)]
        smooth_l1_loss(*both, reduction=reduction).sum().backward()
        results.append([one.grad.cpu() for one in both])
    torch.testing.assert_close(results[1], results[0], equal_nan=True)
