"""Torch CPU in float64 with moved results: the error that rounding explains."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.executor import Executor
from conformance.engine.float64 import Float64Reference, Swayed
from conformance.sources.operator.calls import DrawnCall
from conformance.sources.operator.sides import Side

UNITS = 4.0
EPS = torch.finfo(torch.float32).eps
THIRDS = torch.arange(1.0, 65.0) / 3


def off(function, values: torch.Tensor, seed: int = 0, units: float = UNITS) -> torch.Tensor:
    """The distance of the moved answer from the one in float64, in ulp of float32 times the answer."""
    side = Side(function, DrawnCall("values", {"x": values}, 1))
    exact, moved = (
        Executor(target).run(side).last.tensors["result"].value
        for target in (Float64Reference(), Swayed(torch.float32, seed, units))
    )
    assert exact.dtype is moved.dtype is torch.float64
    return (moved - exact) / exact.abs() / EPS


class TestSwayed:
    def test_inputs_move_by_at_most_the_units(self):
        """Each element moves by itself, and a view adds nothing."""
        distance = off(lambda x: x.view(8, 8).t(), THIRDS)
        assert 0 < distance.abs().max() <= UNITS * 1.001 and len(distance.unique()) > 32

    @pytest.mark.parametrize("function", [lambda x: x / 7, lambda x: x.div_(7), lambda x: torch.div(x, 7, out=x)])
    def test_a_rounded_result_moves_too(self, function):
        """Also one that is written into its input."""
        distance = off(function, THIRDS)
        assert UNITS < distance.abs().max() <= 2 * UNITS * 1.001

    def test_an_exact_result_stays(self):
        """Float32 represents it, so nothing rounds."""
        assert not off(lambda x: x.new_full((3,), 0.5), THIRDS).any()

    def test_negative_units_move_the_other_way(self):
        """The spread of both runs then has the answer in its middle."""
        runs = [off(lambda x: x.clone(), THIRDS[:5], 3, units) for units in (UNITS, -UNITS)]
        assert torch.equal(runs[0].sign(), -runs[1].sign()) and runs[0].any()

    def test_cancellation_shows(self):
        """The difference of neighbours moves by more than its own units."""
        assert off(lambda x: x[1:] * 1.1 - x[:-1] * 1.1, THIRDS).abs().max() > 10 * UNITS
