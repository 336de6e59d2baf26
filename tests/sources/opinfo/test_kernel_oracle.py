"""Kernel counts as an oracle: a case's bound follows from torch CPU's ops and the storages moved."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.engine.target import Target, TargetFacts
from conformance.record.measurements import KERNELS, Measurements
from conformance.record.result import Outcome, Result
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case


class Counting(Target):
    """Torch CPU with a configurable kernel count for each call."""

    name = "counting"
    facts = TargetFacts(measures=(KERNELS,))
    each = total = 0

    def counters(self) -> dict[str, int]:
        self.total += self.each
        return {"kernels": self.total}


@pytest.fixture
def counting() -> Counting:
    return Counting()


def kernels(result: Result) -> int | None:
    return result.measurements.get("kernels")


def exp(variant: str = "forward", name: str = "exp") -> Case:
    return Case(name, "", "unary", "float32", variant, "as_sampled", 2)


class TestBound:
    """One op on torch CPU, one storage sent and two fetched: at most four kernels per sample."""

    def test_within(self, counting: Counting) -> None:
        """A count within the bound passes, and the counts are in the result."""
        counting.each = 4
        result = run_case(exp(), counting)
        assert (result.outcome, result.samples) == (Outcome.PASS, 2)
        assert result.measurements == Measurements({"kernels": 8}, {"kernels": 8})

    def test_beyond(self, counting: Counting) -> None:
        """One kernel too many fails the oracle `kernels`, with a script of a sample."""
        counting.each = 5
        result = run_case(exp(), counting)
        assert (result.outcome, result.oracles, kernels(result)) == (Outcome.FAIL, ("kernels",), 10)
        (failure,) = result.failures
        assert (failure.expected, failure.actual) == ("at most 8", "10")
        assert "torch.exp" in failure.script

    def test_in_place_and_gradients(self, counting: Counting) -> None:
        """An in-place case fetches one storage only; a gradient adds one storage."""
        assert run_case(exp("inplace"), counting).measurements.most == {"kernels": 2 * (1 + 1 + 1)}
        ops = 2 * 3  # exp, the drawn cotangent, and mul
        assert run_case(exp("backward"), counting).measurements.most == {"kernels": ops + 2 * (1 + 2 + 1)}

    def test_not_judged(self, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
        """The count is recorded but not judged for error inputs, and for other measures."""
        counting.each = 100
        assert run_case(exp("error_inputs", "gather"), counting).outcome is Outcome.PASS
        monkeypatch.setattr(Counting, "facts", TargetFacts())
        counters = Counting.counters
        monkeypatch.setattr(Counting, "counters", lambda self: {"graphs": counters(self)["kernels"]})
        result = run_case(exp(), counting)
        assert (result.outcome, result.measurements.counts) == (Outcome.PASS, {"graphs": 200})


class TestRepeatable:
    """Counts depend on the case only."""

    def test_tiny_counts_a_remembered_schedule_as_the_first(self) -> None:
        """A cached schedule has the same kernel count as the first one. Regression test: a schedule from the cache did
        not record its stored results, so the next schedule computed them again."""
        case = exp(name="linalg.cholesky")
        assert len({kernels(run_case(case, load_target("tiny"))) for _ in range(3)}) == 1

    def test_what_other_cases_taught_is_forgotten(self) -> None:
        """Counts do not depend on earlier cases, because a number that changes is data. Regression test: a gradient
        took 34 or 35 kernels, depending on the numbers added before."""
        tiny = load_target("tiny")
        case = Case("nn.functional.triplet_margin_loss", "", "losses", "float32", "backward", "as_sampled", 4)
        first = kernels(run_case(case, tiny))
        tiny.reset_state()
        for number in (0.25, 0.5, 0.75):
            torch.ones(2).to(tiny.device) + number
        assert kernels(run_case(case, tiny)) == first
