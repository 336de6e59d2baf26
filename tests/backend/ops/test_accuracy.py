"""Rounding at the sizes of networks: against float64 the device is not much further off than the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import conformance.backend  # noqa: F401 - registers the device

TIMES = 4  # the CPU's error
ROUNDING = 2.0**-23  # of the largest result, which is as much as a lucky CPU may be off


def image() -> torch.Tensor:
    return torch.randn(32, 32, 24, 24) + 3


CASES: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), lambda: (image(),)),
    "layer_norm": (lambda x: F.layer_norm(x, (32, 24, 24)), lambda: (image(),)),
    "group_norm": (lambda x: F.group_norm(x, 4), lambda: (image(),)),
    "instance_norm": (F.instance_norm, lambda: (image(),)),
    "var": (lambda x: x.var((0, 2, 3)), lambda: (image(),)),
    "std": (lambda x: x.std(), lambda: (image(),)),
    "mean": (lambda x: x.mean(), lambda: (torch.rand(1000000),)),
    "log_softmax": (lambda x: x.log_softmax(1), lambda: (torch.randn(16, 10000),)),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.arange(x.shape[0], device=x.device)),
        lambda: (torch.randn(1000, 1000),),
    ),
    "a long product": (torch.matmul, lambda: (torch.rand(16, 10000), torch.rand(10000, 16))),
    "dot": (torch.dot, lambda: (torch.rand(30000), torch.rand(30000))),
}


@pytest.mark.parametrize("name", CASES)
def test_errors_against_float64(name: str) -> None:
    """The variance of batch_norm was summed in float32, which was 30 times less exact than the CPU, products of 10000
    terms were 7 times, and the mean of a cross entropy 10 times."""
    function, make = CASES[name]
    torch.manual_seed(0)
    inputs = make()

    def results(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        given = [x.to(dtype).to(device).requires_grad_() for x in inputs]
        result = function(*given)
        torch.manual_seed(1)
        weights = torch.randn(result.shape, dtype=torch.float32).to(dtype).to(device)
        return [t.detach().cpu().double() for t in (result, *torch.autograd.grad((result * weights).sum(), given))]

    exact, cpu, tiny = (
        results(*at) for at in (("cpu", torch.float64), ("cpu", torch.float32), ("tiny", torch.float32))
    )
    for right, expected, actual in zip(exact, cpu, tiny, strict=True):
        allowed = TIMES * max((expected - right).abs().max().item(), ROUNDING * right.abs().max().item() / 2)
        assert (actual - right).abs().max().item() <= allowed
