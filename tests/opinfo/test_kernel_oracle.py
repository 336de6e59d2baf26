"""Kernels as an oracle: what a case's samples run together is held to torch CPU's ops and the storages that move."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from conformance.core.loading import load_target
from conformance.core.names import ORACLES
from conformance.core.result import Outcome
from conformance.core.target import KernelCount, Target
from conformance.opinfo.case import run_case
from conformance.opinfo.plan import Case


class Counting(Target):
    """Torch CPU, which says that each call ran as many kernels as it is told."""

    name = "counting"
    oracles = frozenset(ORACLES)
    each = 0

    @contextlib.contextmanager
    def kernels(self) -> Iterator[KernelCount]:
        count = KernelCount()
        yield count
        count.total = self.each


@pytest.fixture
def counting() -> Counting:
    return Counting()


def exp(variant: str = "forward", name: str = "exp") -> Case:
    return Case(name, "", "unary", "float32", variant, "as_sampled", 2)


class TestBound:
    """One op on torch CPU, one storage sent, two fetched: four kernels a sample."""

    def test_within(self, counting: Counting) -> None:
        """As many as are allowed pass, and the counts are in the result."""
        counting.each = 4
        result = run_case(exp(), counting)
        assert (result.outcome, result.samples) == (Outcome.PASS, 2)
        assert (result.kernels, result.eager, result.allowed) == (8, 2, 8)

    def test_beyond(self, counting: Counting) -> None:
        """One more fails by the oracle `kernels`, with a script of a sample."""
        counting.each = 5
        result = run_case(exp(), counting)
        assert (result.outcome, result.oracles, result.kernels) == (Outcome.FAIL, ("kernels",), 10)
        (failure,) = result.failures
        assert (failure.expected, failure.actual) == ("at most 8", "10")
        assert "torch.exp" in failure.script

    def test_in_place_and_gradients(self, counting: Counting) -> None:
        """In place nothing else is fetched; a gradient is one storage more."""
        assert run_case(exp("inplace"), counting).allowed == 2 * (1 + 1 + 1)
        backward = run_case(exp("backward"), counting)
        assert (backward.allowed or 0) - (backward.eager or 0) == 2 * (1 + 2 + 1)

    def test_not_judged(self, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
        """A target that does not list the oracle is counted and passes, and so do error inputs."""
        counting.each = 100
        assert run_case(exp("error_inputs", "gather"), counting).outcome is Outcome.PASS
        monkeypatch.setattr(Counting, "oracles", Counting.oracles - {"kernels"})
        result = run_case(exp(), counting)
        assert (result.outcome, result.kernels) == (Outcome.PASS, 200)


class TestRepeatable:
    """Counts that depend on nothing but the case."""

    def test_tiny_counts_a_remembered_schedule_as_the_first(self) -> None:
        """A case takes the same kernels however often its graphs were met before: one that ran from memory forgot what
        it had stored, so that the next schedule computed it again."""
        case = exp(name="linalg.cholesky")
        assert len({run_case(case, load_target("tiny")).kernels for _ in range(3)}) == 1

    def test_what_other_cases_taught_is_forgotten(self) -> None:
        """A number that changes is data: a gradient took 34 kernels or 35 by which numbers had been added before."""
        tiny = load_target("tiny")
        case = Case("nn.functional.triplet_margin_loss", "", "losses", "float32", "backward", "as_sampled", 4)
        first = run_case(case, tiny).kernels
        tiny.reset_state()
        for number in (0.25, 0.5, 0.75):
            torch.ones(2).to(tiny.device) + number
        assert run_case(case, tiny).kernels == first
