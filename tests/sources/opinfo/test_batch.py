"""Several calls of an op as one compiled function: what passes, and what is compiled alone again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.record.result import Outcome, Result
from conformance.sources.opinfo import plan

LYING = "compile:{},import=tests.planted.lying_compilers"


def case(name: str, variant: str = "forward", samples: int = 6) -> plan.Case:
    return plan.Case(name, "", "unary", "float32", variant, "as_sampled", samples=samples)


def run(target: Any, one: plan.Case, together: bool = True) -> Result:
    from conformance.sources.opinfo.case import run_case

    return run_case(one, target, together=together)


class Counted:
    """A target whose compiled graphs are counted."""

    def __init__(self, spec: str) -> None:
        self.target, self.graphs = load_target(spec), 0
        compiled = self.target._compile  # type: ignore[attr-defined]

        def counting(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
            self.graphs += 1
            return compiled(graph, examples)

        self.target._compile = counting  # type: ignore[attr-defined]


@pytest.fixture
def eager() -> Counted:
    return Counted("compile:eager")


class TestPassing:
    """Calls that are right together."""

    @pytest.mark.parametrize("variant", ["forward", "method", "inplace"])
    def test_one_function_has_all_calls(self, eager: Counted, variant: str) -> None:
        """All calls of a case are compiled once. Alone, each is compiled separately. Both ways compare equally much."""
        together = run(eager.target, case("sin", variant))
        batches, eager.graphs = eager.graphs, 0
        alone = run(eager.target, case("sin", variant), together=False)
        assert (together.outcome, together.samples) == (Outcome.PASS, alone.samples)
        assert (batches, eager.graphs) == (1, alone.samples)

    def test_a_gradient_is_compiled_alone(self, eager: Counted) -> None:
        """A backward pass is outside of the function, so its calls do not form a batch."""
        result = run(eager.target, case("sin", "backward", samples=2))
        assert (result.outcome, eager.graphs) == (Outcome.PASS, result.samples)


class TestNotPassing:
    """Calls that a batch does not show to be right."""

    def test_a_wrong_call_fails_alone(self) -> None:
        """A call that is wrong in the batch is compiled alone, and only that call fails, as without a batch."""
        target = load_target(LYING.format("raises_small_relu"))
        together, alone = (run(target, case("nn.functional.relu"), way) for way in (True, False))
        assert together.outcome is alone.outcome is Outcome.FAIL
        assert 0 < together.failed == alone.failed < together.samples == alone.samples
        assert [failure.sample for failure in together.failures] == [failure.sample for failure in alone.failures]

    def test_a_graph_break_splits_the_batch(self, eager: Counted) -> None:
        """`tolist` breaks the graph, and then nothing shows which call the compiler received."""
        result = run(eager.target, case("nonzero_static"))
        assert result.outcome is Outcome.PASS
        breaking = run(eager.target, case("nonzero"))
        assert breaking == run(eager.target, case("nonzero"), together=False).replace(seconds=breaking.seconds)

    def test_a_death_in_a_batch_blames_no_call(self) -> None:
        """If the worker dies in a batch, the case runs again, each call alone."""
        from conformance.run.messages import Limits
        from conformance.sources.opinfo.pool import Cases

        with Cases(LYING.format("dies_of_two_relus"), Limits(unit=120, memory=12)) as pool:
            (result,) = pool.run([case("nn.functional.relu")])
        assert (result.outcome, result.failures) == (Outcome.PASS, ())
        assert result.samples > 1
