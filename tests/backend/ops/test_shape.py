"""Operators that move elements, and cross products."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest
import torch
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from conformance.backend import kernels
from conformance.backend.ops import shape

MAX = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}


def first_of_cross(dtype: torch.dtype, a: float, b: float, c: float, d: float) -> float:
    """Return a * b - c * d as the first element of a cross product."""
    left, right = torch.tensor([0, a, c], dtype=dtype), torch.tensor([0, d, b], dtype=dtype)
    return torch.linalg.cross(left.to("tiny"), right.to("tiny")).cpu()[0].item()


class TestCross:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_product_that_overflows(self, dtype: torch.dtype) -> None:
        """The first product is exact, as in torch CPU, which fuses it with the subtraction. Formerly a difference of
        large numbers was inf, and nan if both products overflow."""
        largest = MAX[dtype]
        assert first_of_cross(dtype, largest, 1.5, largest, 1) == pytest.approx(largest / 2)
        assert first_of_cross(dtype, largest, -1.5, -largest, 1) == pytest.approx(-largest / 2)
        assert first_of_cross(dtype, largest, 2, largest, 0.5) == inf
        both = first_of_cross(dtype, largest, largest, largest, largest)
        assert both == (0 if dtype is torch.float32 else -inf)  # 0 in float64, where a product of float32 is exact

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_infinite_factors(self, dtype: torch.dtype) -> None:
        """A product is infinite, not too large."""
        assert isnan(first_of_cross(dtype, inf, 1, inf, 1))
        assert isnan(first_of_cross(dtype, MAX[dtype], 2, nan, 1))
        assert first_of_cross(dtype, MAX[dtype], 2, inf, 1) == -inf


class TestCat:
    def test_many_elements_are_chosen_by_their_place(self) -> None:
        """A list of 40 numbers is joined without padding, whose conditions take seconds to simplify, in one kernel;
        every bit stays."""
        numbers = [-0.0, nan, inf, *[float(i) for i in range(37)]]
        tensors = [torch.tensor(x).to("tiny") for x in numbers]
        with kernels.count() as k:
            joined = torch.stack(tensors).cpu()
        assert k.kernels == 1
        assert torch.equal(joined.view(torch.int32), torch.tensor(numbers).view(torch.int32))
        parts = [UOp.new_buffer("CPU", 1, dtypes.float32).reshape((1, 1)) for _ in numbers]
        graph = shape.joined(parts, 1)
        assert graph.shape == (1, len(numbers))
        assert not any(node.op is Ops.PAD and node.device is not None for node in graph.toposort())
