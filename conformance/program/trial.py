"""A trial: one program on one target, with torch CPU's answer.

Defines `Trial` and `CpuAnswer`. Judging, confirming, shrinking and attributing a failure all need torch CPU's answer to
the same program, some on other targets: the layers of a compiler, or PyTorch without the backend. A trial carries the
answer along, so torch CPU computes it once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from conformance.engine.executor import Execution, Executor, Watch, no_watch
from conformance.engine.judge import Judgement, judge
from conformance.engine.loading import reference as cpu
from conformance.engine.target import Target, TargetFacts
from conformance.program.execute import ProgramSubject
from conformance.program.float64 import JudgedProgram
from conformance.program.model import Program, call_of
from conformance.program.shadow import Reference, aten_ops_of, reference, references_after_each_step
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import compare


class CpuFunction(Target):
    """Target that runs a program on torch CPU as one function, without a compiler."""

    name = "cpu function"
    facts = TargetFacts(transforms_program=True)

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function in a wrapper: the executor refuses a target that returns the function itself."""
        return functools.partial(function)


class CpuAnswer:
    """Torch CPU's answer to a program of one call. Each part is computed when it is first read.

    Reading a part raises ProgramError if a step has no defined meaning, or raises an error that it does not declare."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @functools.cached_property
    def run(self) -> Execution:
        """The run that ends with the answer. A program of given inputs is no drawn one: op_db says that its call has a
        meaning, so no shadow judges it."""
        if self.program.given:
            return Executor(cpu()).run(ProgramSubject(self.program))
        return Execution((self.end.observation,))

    @functools.cached_property
    def end(self) -> Reference:
        """The answer at the end of the program."""
        return reference(self.program)

    @functools.cached_property
    def after_each_step(self) -> list[Reference]:
        """The answer after each step."""
        return list(references_after_each_step(self.program))

    @functools.cached_property
    def most_kernels(self) -> int | None:
        """The bound on a device's kernels: the aten ops on torch CPU, and one move for each storage that is sent or
        fetched. None if the ops cannot be counted."""
        ops = aten_ops_of(self.program)
        moves = moves_of(self.run.last) if self.program.given else self.end.moves
        return None if ops is None else ops + moves

    @functools.cached_property
    def same_unwatched(self) -> bool:
        """Whether the answer is the same without observations between the steps.

        If the base of a view starts to require grad, torch updates the view when the view is inspected (see the
        findings). A step-by-step run inspects it after each step; a transformed function does not."""
        unwatched = Executor(CpuFunction()).run(ProgramSubject(self.program)).last
        return not compare(self.end.observation, unwatched, oracles=CpuFunction.facts.oracles, exact=self.end.exact)


@dataclass(frozen=True)
class Trial:
    """A program on a target. `calls` has torch CPU's answer to each call of the program, the first call included: each
    call is a program of its own."""

    program: Program
    target: Target
    calls: tuple[CpuAnswer, ...]

    @classmethod
    def of(cls, program: Program, target: Target) -> Trial:
        """Return the trial of a program on a target."""
        return cls(program, target, tuple(CpuAnswer(call_of(program, at)) for at in range(len(program.calls) + 1)))

    @property
    def cpu(self) -> CpuAnswer:
        """Torch CPU's answer to the first call."""
        return self.calls[0]

    def on(self, target: Target) -> Trial:
        """Return the trial of the same program on another target."""
        return replace(self, target=target)

    def of_call(self, at: int) -> Trial:
        """Return the trial of one call alone, 0 for the first."""
        return Trial(self.calls[at].program, self.target, (self.calls[at],))

    def beginning(self, count: int) -> Trial:
        """Return the trial of the first `count` steps, at least one, of a program of one call."""
        cpu = CpuAnswer(self.program.with_steps(self.program.steps[:count]))
        cpu.after_each_step = self.cpu.after_each_step[:count]
        cpu.end = cpu.after_each_step[-1]
        return Trial(cpu.program, self.target, (cpu,))

    def run(self, *, stepwise: bool = False, watch: Watch = no_watch) -> Execution:
        """Run the first call on the target; see `Executor.run`."""
        return Executor(self.target).run(ProgramSubject(self.cpu.program), stepwise=stepwise, watch=watch)

    def judge(self, actual: Observation | Execution, oracles: Collection[str] | None = None) -> Judgement:
        """Return the differences of the target's answer to the first call, and whether float64 acquitted it. Only
        these oracles judge; all of the target's if they are None."""
        subject = JudgedProgram(self.cpu.program, () if self.cpu.program.given else self.cpu.end.exact)
        got = actual if isinstance(actual, Execution) else Execution((actual,))
        return judge(subject, self.cpu.run, got, self.target, self.target.facts.oracles if oracles is None else oracles)


def moves_of(seen: Observation) -> int:
    """Return the kernels allowed for moving data: one for each storage that is sent or fetched."""
    fetched = {tensor.alias for tensor in seen.tensors.values()}
    return len(seen.storages) + len(fetched) + sum(grad is not None for grad in seen.grads.values())
