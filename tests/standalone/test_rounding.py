"""Whether rounding explains a difference: moved answers in float64."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from conformance.engine.rounding import UP, draw_signs
from conformance.standalone.operator_checks import observe_call
from conformance.standalone.rounding import Swayed, Widened, distance, move_by_units, represented

UNITS = 4.0
EPS = torch.finfo(torch.float32).eps
THIRDS = torch.arange(1.0, 65.0) / 3


def off(function, values: torch.Tensor, seed: int = 0, units: float = UNITS) -> torch.Tensor:
    """The distance of the moved answer from the one in float64, in ulp of float32 times the answer."""
    exact, moved = (
        observe_call(function, lambda: {"x": values}, conditions).tensors["result"].value
        for conditions in (Widened(), Swayed(torch.float32, seed, units))
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


class TestMove:
    """One move is the base of all judges of rounding."""

    def test_one_unit(self):
        """A number moves to its neighbour in float32, also below zero and in complex128."""
        values = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
        assert move_by_units(values, torch.float32, draw_signs(values, UP)).tolist() == [1 + EPS, -1 + EPS, 2 + 2 * EPS]
        number = torch.tensor([3 + 4j], dtype=torch.complex128)
        assert float((move_by_units(number, torch.complex64, torch.ones(1)) - number).abs()) == pytest.approx(5 * EPS)

    def test_the_gradient_is_that_of_the_value(self):
        """Otherwise a moved result would give another gradient, which rounding does not."""
        x = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
        move_by_units(x, torch.float32, draw_signs(x, UP)).backward()
        assert x.grad.tolist() == [1.0]

    def test_what_does_not_round_is_known(self):
        seen = represented(torch.tensor([0.5, 1 / 3, inf, nan], dtype=torch.float64), torch.float32)
        assert seen.tolist() == [True, False, True, True]


class TestDistance:
    def test_special_values(self):
        """Equal infinities and two nans are no difference; one of them is."""
        left, right = torch.tensor([inf, nan, inf, nan, 1.0]), torch.tensor([inf, nan, -inf, 1.0, 3.0])
        seen = distance(left, right)
        assert seen[:3].tolist() == [0.0, 0.0, inf] and seen[3].isnan() and seen[4] == 2

    def test_large_integers_are_not_rounded(self):
        """float64 cannot tell these numbers apart."""
        assert distance(torch.tensor([2**62 + 1]), torch.tensor([2**62])).tolist() == [1.0]
