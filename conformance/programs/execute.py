"""Running a program, step by step, on a device.

Defines `Execution`, a program under way with its tensors by name, and `run`, which also observes it. The key insight: a
step is called the same way on every device, so the reference and the target differ in where the inputs lie and in
nothing else. What a difference means is not this module's business.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.core.observation import Observation, Raised, observe, versions_of
from conformance.core.target import Target
from conformance.programs.model import LOOP, Program
from conformance.programs.steps.op import Op, Step, StepError, decode, dtype_of
from conformance.programs.steps.table import OPS


class StepFailed(Exception):
    """A step raised where none was expected; the original error is the cause."""

    def __init__(self, number: int, step: Step) -> None:
        super().__init__(f"step {number} ({step.op})")
        self.number = number


class Broken(StepFailed):
    """After this step torch cannot even say what a tensor's place in the autograd graph is; the error is the cause."""


class Execution:
    """A program while it runs on a device: its tensors by name, and the plain answers that steps gave."""

    def __init__(self, program: Program, target: Target | None = None) -> None:
        self.program, self.target = program, target
        self.device = target.device if target else torch.device("cpu")
        made = make_inputs(program)
        self.env: dict[str, torch.Tensor] = target.send(made) if target else made
        self.inputs = tuple(self.env)
        self.answers: dict[str, Any] = {}
        self.versions = versions_of(self.env)
        self.done = 0

    def step(self, step: Step) -> None:
        """Run one step; an error that it declares becomes an answer, any other raises StepFailed (or Broken)."""
        self.done += 1
        try:
            self.perform(step)
        except StepError:
            raise
        except Exception as error:
            if step.raises is None:
                raise StepFailed(self.done, step) from error
            self.answers[f"step {self.done}"] = Raised.of(error)
        else:
            if step.raises is not None:
                self.answers[f"step {self.done}"] = "no error"
        # A view whose base has come to require grad learns of it only when somebody looks, and until then torch rejects
        # in-place writes to it: look, so that a program means the same whoever watches.
        try:
            for tensor in self.env.values():
                if isinstance(tensor, torch.Tensor):
                    _ = tensor.grad_fn
        except RuntimeError as error:
            raise Broken(self.done, step) from error

    def perform(self, step: Step, i: int = 0) -> None:
        """Run one step, whatever it raises."""
        if step.op == LOOP:
            for turn in range(step.times):
                for inner in step.body:
                    self.perform(inner, turn)
            return
        args = [decode(arg, self.env, self.device, i) for arg in step.args]
        kwargs = {key: decode(value, self.env, self.device, i) for key, value in step.kwargs.items()}
        result = self.call(OPS[step.op], args, kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        if step.out:
            self.env.update(zip(step.out, results, strict=False))
        elif not any(isinstance(part, torch.Tensor) for part in results) and result is not None:
            self.answers[f"step {self.done}"] = result

    def call(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call torch."""
        return op.run(args, kwargs)

    def observe(self, kernels: int | None = None, error: BaseException | None = None) -> Observation:
        """All that can be seen now."""
        made = {name: value for name, value in self.env.items() if name not in self.inputs}
        versions = self.versions if self.target is None or "version" in self.target.oracles else None
        seen = observe(
            {**made, **self.answers},
            {name: self.env[name] for name in self.inputs},
            target=self.target,
            versions=versions,
        )
        return replace(seen, kernels=kernels, error=Raised.of(error) if error else None)


def make_inputs(program: Program) -> dict[str, torch.Tensor]:
    """The inputs on the CPU, by name."""
    flats = [storage.make() for storage in program.storages]
    made: dict[str, torch.Tensor] = {}
    for one in program.inputs:
        tensor = torch.empty(0, dtype=dtype_of(one.dtype))
        tensor.set_(flats[one.storage].untyped_storage(), one.offset, one.size, one.stride)
        made[one.name] = tensor.requires_grad_() if one.requires_grad else tensor
    return made


@dataclass(frozen=True)
class Outcome:
    """What a run showed: in lazy mode one observation at the end, in eager mode one after each step."""

    observations: tuple[Observation, ...]
    failed_step: int | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)


def run(
    program: Program,
    target: Target,
    *,
    eager: bool = False,
    count: bool = False,
    watch: Callable[[int], None] = lambda number: None,
) -> Outcome:
    """Run a program on a target and observe it at the end, or, when `eager`, after each step.

    The target first forgets what earlier programs taught it, so that a program's kernels follow from it alone.
    `count` counts kernels, the observation's included. An error that no step declares ends the run; it is in the last
    observation, and `failed_step` says where (0: while the inputs moved; None: while observing). What was made before
    it is not observed.
    `watch` is told the number of each step before it runs, and one more before the lazy observation.
    """
    observations: list[Observation] = []
    target.reset_state()
    with target.kernels() if count else contextlib.nullcontext() as counted:
        failed: int | None = 0
        try:
            execution = Execution(program, target)
            failed = None
            for number, step in enumerate(program.steps, 1):
                watch(number)
                with target.active():
                    execution.step(step)
                if eager:
                    observations.append(execution.observe())
            watch(len(program.steps) + 1)
            if not eager or not program.steps:
                observations.append(execution.observe())
        except StepFailed as error:
            failed = error.number
            observations.append(Observation(error=Raised.of(error.__cause__ or error)))
        except StepError:
            raise
        except Exception as error:
            observations.append(Observation(error=Raised.of(error)))
    if counted is not None and counted.total is not None:
        observations[-1] = replace(observations[-1], kernels=counted.total)
    return Outcome(tuple(observations), failed)
