"""Several calls of an op as one function, which a target compiles once.

Defines `passing`. A compiler takes about a second for each function, and hardly more for a function of several calls.
A call that is right in a batch has passed. Calls that fail in a batch are compiled one by one; only that result counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

from conformance.engine.executor import Execution, Executor, Transform, Watch
from conformance.engine.target import Target
from conformance.program.execute import ProgramSubject, SteppedProgram
from conformance.program.model import Program
from conformance.program.steps import entry
from conformance.program.trial import Trial
from conformance.record.names import SPECIALS_BACKWARD
from conformance.sources.opinfo import seeding
from conformance.standalone.moving import tensors
from conformance.standalone.observation import Observation, Raised

MOST_CALLS = 16
"""Number of calls in one function."""

APART = frozenset({"backward", "forward_over_backward", "error_inputs", *SPECIALS_BACKWARD})
"""Variants whose calls do not fit in one function: a part of the call is outside of the function, or the call must
raise."""


def passing(trials: Sequence[Trial], target: Target, watch: Watch, right: Callable[[int, Execution], bool]) -> set[int]:
    """Run the calls of op_db's entries in one function of the target, and return the places of those that are `right`.
    It is called with a call's place in `trials` and its run on the target.

    A call without a resulting tensor is left out, since nothing shows that the compiler received it. If the compiler
    takes the function in several parts, no call counts as right."""
    runs = [trial.cpu.run for trial in trials]
    places = [at for at, run in enumerate(runs) if run.last.error is None and tensors(run.outcome)]
    if len(places) < 2:
        return set()
    batch = Batch([trials[at].program for at in places])
    run = Executor(target).run(batch, watch=watch)
    capture = run.capture
    if run.last.error is not None or capture is None or capture.breaks or capture.ops < len(places):
        return set()
    return {at for at, result in zip(places, run.outcome, strict=True) if right(at, result)}


class Batch:
    """Calls as one subject: one function of the inputs of all calls."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs

    def inputs(self) -> tuple[list[dict[str, Any]], Collection[int]]:
        """Return the inputs of each call, and the storages of inputs that stay on the CPU."""
        each = [ProgramSubject(program).inputs() for program in self.programs]
        return [tree for tree, _ in each], {key for _, kept in each for key in kept}

    def begin(self, inputs: list[dict[str, Any]], target: Target, transform: Transform | None) -> RunningBatch:
        """Begin the function on inputs on the target. Raises TypeError for a target that transforms nothing."""
        if transform is None:
            raise TypeError("only a target that transforms functions runs a batch")
        return RunningBatch(self.programs, inputs, target, transform)


class RunningBatch:
    """A batch in progress. Its outcome is a run for each call."""

    count = 1

    def __init__(
        self, programs: Sequence[Program], inputs: list[dict[str, Any]], target: Target, transform: Transform
    ) -> None:
        self.target, self.transform, self.outcome = target, transform, list[Execution]()
        self.calls = [SteppedProgram(program, tree, target) for program, tree in zip(programs, inputs, strict=True)]

    def signature(self, number: int) -> Hashable:
        """Return None: the target compiles each function anew."""
        return None

    def advance(self, number: int) -> None:
        """Call the function. Raises the error of any call."""
        entries = [call.program.steps[0].args[0]["object"].value for call in self.calls]
        operands = [[*call.env.values()] for call in self.calls]
        calls = [entry.function_of(called, len(trees) > 3) for called, trees in zip(entries, operands, strict=True)]

        def function(each: list[list[Any]]) -> list[Any]:
            return [call(*trees) for call, trees in zip(calls, each, strict=True)]

        seeding.seed(self.target.device)
        for call, result in zip(self.calls, self.transform(function)(operands), strict=True):
            call.env["result"] = result

    def observe(self, target: Target) -> Observation:
        """Observe each call for the outcome. The batch itself has no observation."""
        for call in self.calls:
            inputs = {name: call.env[name] for name in call.inputs}
            try:
                seen, result = call.observe(target), call.outcome
            except Exception as error:  # one that a lazy device raises only when it computes
                seen, result = Observation(error=Raised.of(error)), None
            self.outcome.append(Execution((seen,), outcome=result, inputs=inputs))
        return Observation()
