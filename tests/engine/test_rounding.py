"""Whether rounding explains a difference: errors relative to what they belong to."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from conformance.engine.judge import judge
from conformance.engine.loading import load_target
from conformance.engine.rounding import small_faults
from conformance.program.float64 import JudgedProgram, widened_answer
from conformance.sources.trace.call import RESULT, TracedCall

aten = torch.ops.aten
CPU = load_target("cpu")


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
        assert not judge(JudgedProgram(call.as_program()), want, got, CPU, {"value"}).mismatches
        again = functools.partial(widened_answer, call.as_program())
        return [fault.where for fault in small_faults(again, want.last, got.last)]

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
        monkeypatch.setattr(TracedCall, "_again", None)  # a call of None raises
        assert self.judged(undecided, x * x * 2) == []
