"""Several calls of an op as one function, which a target compiles once.

Defines `passing`. A compiler takes about a second for each function, and hardly more for a function of several calls.
A call that is right in a batch has passed. A call without that proof is compiled alone, and that run alone decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

from conformance.engine.executor import AnsweredCall, Execution, Executor, Transform, Watch
from conformance.engine.target import Target
from conformance.record.names import SPECIALS_BACKWARD
from conformance.sources.opinfo import seeding
from conformance.sources.opinfo.call import SampleCall
from conformance.standalone.moving import tensors
from conformance.standalone.observation import Observation

MOST_CALLS = 16
"""Number of calls in one function."""

APART = frozenset({"backward", "forward_over_backward", "error_inputs", *SPECIALS_BACKWARD})
"""Variants whose calls do not fit in one function: a part of the call is outside of the function, or the call must
raise."""


def passing(
    pairs: Sequence[tuple[SampleCall, Execution]], target: Target, watch: Watch, right: Callable[[int, Execution], bool]
) -> set[int]:
    """Run the calls in one function of the target, and return the places of those that are `right`. It is called with
    a call's place in `pairs` and its run on the target.

    `pairs` has each call with its run on torch CPU. A call without a resulting tensor is left out, since nothing shows
    that the compiler received it. If the compiler takes the function in several parts, no call counts as right."""
    places = [at for at, (_, run) in enumerate(pairs) if run.last.error is None and tensors(run.outcome)]
    if len(places) < 2:
        return set()
    batch = Batch([pairs[at][0] for at in places])
    run = Executor(target).run(batch, watch=watch)
    capture = run.capture
    if run.last.error is not None or capture is None or capture.breaks or capture.ops < len(places):
        return set()
    return {at for at, result in zip(places, run.outcome, strict=True) if right(at, result)}


class Batch:
    """Calls as one subject: one function of the inputs of all calls."""

    def __init__(self, calls: Sequence[SampleCall]) -> None:
        self.calls = calls

    def inputs(self) -> tuple[list[dict[str, Any]], Collection[int]]:
        """Return the inputs of each call, and the storages of inputs that stay on the CPU."""
        return [call.tree for call in self.calls], {key for call in self.calls for key in call.sample.kept}

    def begin(self, inputs: list[dict[str, Any]], target: Target, transform: Transform | None) -> RunningBatch:
        """Begin the function on inputs on the target. Raises TypeError for a target that transforms nothing."""
        if transform is None:
            raise TypeError("only a target that transforms functions runs a batch")
        return RunningBatch(self.calls, inputs, target, transform)


class RunningBatch:
    """A batch in progress: one step. Its outcome is the run of each call."""

    count = 1

    def __init__(
        self, calls: Sequence[SampleCall], inputs: list[dict[str, Any]], target: Target, transform: Transform
    ) -> None:
        self.calls, self.inputs, self.target, self.transform = calls, inputs, target, transform
        self.outcome: list[Execution] = []
        self.results: list[Any] = []

    def signature(self, number: int) -> Hashable:
        """Return None: the target compiles each function anew."""
        return None

    def advance(self, number: int) -> None:
        """Call the function. Raises the error of any call."""
        runs = [call.run for call in self.calls]

        def function(trees: list[dict[str, Any]]) -> list[Any]:
            return [run(tree, _unchanged) for run, tree in zip(runs, trees, strict=True)]

        seeding.seed(self.target.device)
        self.results = self.transform(function)(self.inputs)

    def observe(self, target: Target) -> Observation:
        """Observe each call for the outcome. The batch itself has no observation."""
        for call, inputs, result in zip(self.calls, self.inputs, self.results, strict=True):
            answered = AnsweredCall(None, inputs, lambda result=result: result, call.tree)  # type: ignore[misc]
            answered.advance(1)
            self.outcome.append(Execution((answered.observe(target),), outcome=result, inputs=inputs))
        return Observation()


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
