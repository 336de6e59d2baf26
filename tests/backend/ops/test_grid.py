"""grid_sample: modes, gradients, kernels and coordinates of nan and inf."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import grid_sample

from conformance import backend
from conformance.backend import kernels

MODES = [
    pytest.param(rank, mode, padding, align, marks=[pytest.mark.slow] if rank == 3 else [])
    for rank, mode, padding, align in itertools.product(
        (2, 3), ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
    )
    if (rank, mode) != (3, "bicubic")
]


def arguments(rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an image and a grid that reaches beyond it on all sides."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, *range(size, size + rank), dtype=torch.float64)
    return image, torch.randn(2, *[3] * rank, rank, dtype=torch.float64) * 1.5


@pytest.mark.parametrize(("rank", "mode", "padding", "align"), MODES)
def test_values_and_gradients(rank, mode, padding, align):
    """Each mode in both ranks agrees, with the gradients by image and grid, without a fallback."""
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
    """An image of one element with aligned corners agrees, although it has no interval to reflect at."""
    image, grid = torch.ones(1, 1, 1, 1), torch.tensor([[[[0.0, 0.0], [0.7, -3.0]]]])
    mine = grid_sample(image.to("tiny"), grid.to("tiny"), "bilinear", padding, True).cpu()
    torch.testing.assert_close(mine, grid_sample(image, grid, "bilinear", padding, True))


def test_one_kernel():
    """One kernel reads all neighbours. Formerly each neighbour was gathered by a separate kernel."""
    image, grid = (x.float().to("tiny") for x in arguments(2, 5))
    with kernels.count() as k:
        grid_sample(image, grid, "bicubic", align_corners=False).cpu()
    assert k.kernels == 1


NOWHERE = [float("nan"), float("inf"), -float("inf")]


def at_nowhere(rank: int, device: str, coordinates: list[float], *how: object) -> list[torch.Tensor]:
    """Return values and gradients at points with each of these coordinates in one dimension."""
    image = arguments(rank, 4)[0].float().to(device).requires_grad_()
    grid = torch.full((2, len(coordinates), *[1] * (rank - 2), rank, rank), 0.1)
    for i, coordinate in enumerate(coordinates):
        for d in range(rank):
            grid[:, i, ..., d, d] = coordinate
    grid = grid.to(device).requires_grad_()
    out = grid_sample(image, grid, *how)
    out.sum().backward()
    return [out.detach().cpu(), image.grad.cpu(), grid.grad.cpu()]


@pytest.mark.parametrize(("rank", "mode", "padding", "align"), [p for p in MODES if not p.values[3]])
def test_coordinates_of_nan_and_inf(rank, mode, padding, align):
    """nan and inf coordinates agree with the CPU. Formerly a nan made an index that ended the process, and an inf read
    0 where the CPU has nan."""
    coordinates = [*NOWHERE, 0.3]
    if rank == 2 and mode == "bilinear":  # for other coordinates, the CPU's gradient writes outside its memory
        coordinates = coordinates[{"zeros": 0, "border": 1, "reflection": 3}[padding] :]
    for mine, theirs in zip(
        *(at_nowhere(rank, device, coordinates, mode, padding, align) for device in ("tiny", "cpu")), strict=True
    ):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_coordinates_of_nan_kept_within_the_image(padding):
    """A nan coordinate reads the first element, as on the CPU, and its gradient goes there. The CPU's gradient ends the
    process."""
    out, of_image, of_grid = at_nowhere(2, "tiny", NOWHERE[:1], "bilinear", padding, False)
    image, grid = arguments(2, 4)[0].float(), torch.full((2, 1, 2, 2), 0.1)
    grid[..., 0, 0] = grid[..., 1, 1] = float("nan")
    torch.testing.assert_close(out, grid_sample(image, grid, "bilinear", padding, False))
    assert of_grid.isfinite().all() and of_image.sum().item() == pytest.approx(12)
