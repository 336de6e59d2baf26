"""Whether rounding explains a difference: moved answers in float64, and errors relative to what they belong to."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
import torch

from conformance.engine.executor import Executor
from conformance.engine.loading import load_target
from conformance.engine.rounding import (
    UP,
    Float64Reference,
    Swayed,
    distance,
    draw_signs,
    move_by_units,
    represented,
    small_faults,
)
from conformance.sources.operator.calls import DrawnCall
from conformance.sources.operator.sides import Side
from conformance.sources.trace.call import RESULT, TracedCall

UNITS = 4.0
EPS = torch.finfo(torch.float32).eps
THIRDS = torch.arange(1.0, 65.0) / 3

aten = torch.ops.aten
CPU = load_target("cpu")


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


def call(func, *args, **kwargs) -> TracedCall:
    return TracedCall(func, args, kwargs)


class TestSmallFaults:
    """Wrong values below the absolute tolerance are found, and rounding is none."""

    def judged(self, call: TracedCall, answer: torch.Tensor) -> list[str]:
        """Judge `answer` in place of torch CPU's result, and return the names of wrong tensors. The usual tolerances
        find nothing."""
        want = call.by_cpu()
        tensors = {**want.last.tensors, RESULT: replace(want.last.tensors[RESULT], value=answer)}
        got = replace(want, observations=(replace(want.last, tensors=tensors),))
        assert not call.compared(want, got, CPU, {"value"}).mismatches
        return [fault.where for fault in small_faults(call.widened_by, want.last, got.last)]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_a_wrong_gradient_of_a_mean_loss(self, dtype):
        """The gradients are all close to zero by torch.testing's tolerances, even if they are twice too large."""
        small = {torch.float32: 1e-6, torch.float64: 1e-8, torch.bfloat16: 1e-6}[dtype]
        gradient, x = torch.randn(64).to(dtype) * small, torch.randn(64).to(dtype)
        wrong = call(aten.gelu_backward.default, gradient, x)
        assert self.judged(wrong, aten.gelu_backward.default(gradient, x)) == []
        assert self.judged(wrong, 2 * aten.gelu_backward.default(gradient, x)) == [RESULT]
        if dtype != torch.bfloat16:  # the two formulas differ by less than its rounding
            assert self.judged(wrong, aten.gelu_backward.default(gradient, x, approximate="tanh")) == [RESULT]

    def test_another_order_of_a_sum(self):
        """A sum that cancels consists of rounding errors, in any order of its terms."""
        for seed in range(20):
            torch.manual_seed(seed)
            terms = torch.randn(2000)
            terms -= terms.mean()
            total = torch.zeros(())
            for term in terms[torch.randperm(2000)]:
                total = total + term
            assert self.judged(call(aten.sum.default, terms * 1e-3), total * 1e-3) == []

    def test_a_lost_term_of_a_sum(self):
        """A term is more than rounding."""
        terms = torch.arange(1.0, 65) * 1e-8
        assert self.judged(call(aten.sum.default, terms), terms[:-1].sum()) == [RESULT]

    @pytest.mark.parametrize(("func", "args"), [
        (aten.add.Tensor, (torch.ones(3), torch.ones(3))),  # not small
        (aten.mul.Tensor, (torch.zeros(3), torch.ones(3))),  # zero has no scale
        (aten.add.Tensor, (torch.arange(3), torch.arange(3))),  # no rounding
        (aten.mul.Tensor, (torch.ones(0), torch.ones(0))),
    ])  # fmt: skip
    def test_results_without_a_scale(self, func, args):
        """The usual judgement of these results is final."""
        assert self.judged(call(func, *args), func(*args)) == []

    def test_a_result_that_float64_cannot_decide(self, monkeypatch):
        """Without an answer in float64 nothing is a fault."""
        x = torch.rand(4) * 1e-6
        undecided = call(aten.mul.Tensor, x, x)
        monkeypatch.setattr(TracedCall, "widened_by", lambda self, reference: None)
        assert self.judged(undecided, x * x * 2) == []
