"""Sampling at the points of a grid."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import grid_sample

from conformance import backend, kernels

MODES = [
    pytest.param(rank, mode, padding, align, marks=[pytest.mark.slow] if rank == 3 else [])
    for rank, mode, padding, align in itertools.product(
        (2, 3), ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
    )
    if (rank, mode) != (3, "bicubic")
]


def arguments(rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An image and a grid that reaches beyond it on all sides."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, *range(size, size + rank), dtype=torch.float64)
    return image, torch.randn(2, *[3] * rank, rank, dtype=torch.float64) * 1.5


@pytest.mark.parametrize(("rank", "mode", "padding", "align"), MODES)
def test_values_and_gradients(rank, mode, padding, align):
    """Each mode in both ranks, and the gradients by image and grid, all without the CPU."""
    results = []
    for device in ("cpu", "tiny"):
        image, grid = (x.to(device).requires_grad_() for x in arguments(rank, 4))
        with backend.no_fallback():
            out = grid_sample(image, grid, mode, padding, align)
            (out * torch.arange(3, device=device, dtype=out.dtype).view(1, 3, *[1] * rank)).sum().backward()
        results.append([out.detach().cpu(), image.grad.cpu(), grid.grad.cpu()])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_an_image_of_one_element(padding):
    """With its corners aligned there is nothing between them to reflect at."""
    image, grid = torch.ones(1, 1, 1, 1), torch.tensor([[[[0.0, 0.0], [0.7, -3.0]]]])
    mine = grid_sample(image.to("tiny"), grid.to("tiny"), "bilinear", padding, True).cpu()
    torch.testing.assert_close(mine, grid_sample(image, grid, "bilinear", padding, True))


def test_one_kernel():
    """All neighbours are read in one kernel; each was gathered by one of its own."""
    image, grid = (x.float().to("tiny") for x in arguments(2, 5))
    with kernels.count() as k:
        grid_sample(image, grid, "bicubic", align_corners=False).cpu()
    assert k.kernels == 1
