"""Execution of a program: step by step on a device, or as one function that a target transforms.

Defines `RunningProgram`, the state of a running program, and `ProgramSubject`, the program as the executor runs it. A
step makes the same call on every device, so the reference and the target differ only in the device of the inputs.
A compiler's bugs depend on the calls that it compiles together. So it receives the whole program as one function, with
the same calls as the script. Other modules interpret the differences."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from conformance.engine.executor import StepFailed, Transform, signature_of
from conformance.engine.target import Target
from conformance.program.model import LOOP, Program, arguments_of, call_of
from conformance.program.source import caller, source
from conformance.program.steps import snippets
from conformance.program.steps.entry import BACKWARD, FORWARD_OVER_BACKWARD
from conformance.program.steps.functions import TRANSFORMED
from conformance.program.steps.op import ANY, Op, Step, decode, dtype_of, is_local
from conformance.program.steps.states import defined_by, within
from conformance.program.steps.table import OPS
from conformance.record.errors import UserError
from conformance.standalone.device import is_lost
from conformance.standalone.modes import without_modes
from conformance.standalone.moving import copied_to_host, observable, rebuild, send_tree, taken_apart, tensors
from conformance.standalone.observation import Observation, Raised, observe, versions_of
from conformance.standalone.torch_compat import count_modes

NO_ERROR = "no error"
"""Answer of a step that must raise and does not."""


class Broken(StepFailed):
    """Error of torch on reading `grad_fn` of a tensor after a step; torch's error is the cause."""


class RunningProgram:
    """State of a running program: its tensors by name, and the Python values that steps returned. `inputs` are on
    `device`; the default is new inputs on the CPU. Given inputs, and the result of an entry of op_db, are trees.

    `transform` applies to the function under test of an entry. `drawn` are the directions of derivation of the run; the
    next ones come from `replayed` if it is set, since another dtype would draw other numbers. `send` moves them to a
    device of modes over torch CPU, which has tensors of its own. `settle` waits for the device, and `constant`
    converts a constant of a call. `error` is the error of a step that may raise any."""

    def __init__(
        self,
        program: Program,
        inputs: dict[str, Any] | None = None,
        device: torch.device | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.program, self.device = program, device or torch.device("cpu")
        self.env: dict[str, Any] = _new_inputs(program) if inputs is None else {**inputs}
        self.inputs = tuple(self.env)
        self.answers: dict[str, Any] = {}
        self.versions = {} if program.given else versions_of(self.env)
        self.done = 0
        self.apply: Transform = transform or _unchanged
        self.send: Callable[[Any], Any] = _unchanged
        self.settle: Callable[[], None] = lambda: None
        self.constant: Callable[[Any], Any] = _unchanged
        self.drawn: list[torch.Tensor] = []
        self.replayed: Iterator[torch.Tensor] | None = None
        self.error: Exception | None = None

    def step(self, step: Step) -> None:
        """Run one step and record an error that it declares as its answer.

        Raises StepFailed for an undeclared error, Broken if torch cannot compute a tensor's `grad_fn` afterwards."""
        if self.error is not None:
            return
        self.done += 1
        try:
            self.perform(step)
        except UserError:
            raise
        except Exception as error:
            if step.raises == ANY:
                self.error = error
                return
            if step.raises is None:
                raise StepFailed(self.done, step.op) from error
            self.answers[f"step {self.done}"] = Raised.of(error)
        else:
            if step.raises == ANY:
                return
            if step.raises is not None:
                self.answers[f"step {self.done}"] = NO_ERROR
        # If the base of a view starts to require grad, torch updates the view when its `grad_fn` is read. Until then
        # torch rejects in-place writes to the view. So read `grad_fn` after each step: then an observation between
        # steps does not change the program's meaning.
        try:
            _ = [tensor.grad_fn for tensor in self.env.values() if isinstance(tensor, torch.Tensor)]
        except RuntimeError as error:
            raise Broken(self.done, step.op) from error

    def run(self, steps: Iterable[Step]) -> bool:
        """Run steps up to an undeclared error, and return whether there is none."""
        try:
            for step in steps:
                self.step(step)
        except StepFailed:
            return False
        return True

    def perform(self, step: Step, i: int = 0) -> None:
        """Run one step and let its errors propagate."""
        if step.op == LOOP:
            for turn in range(step.times):
                for inner in step.inside():
                    self.perform(inner, turn)
            return
        op = OPS[step.op]
        if op.form.by_runner:
            result = op.form.run(self, *self.arguments(step))
            self.env.update(dict.fromkeys(step.out, result) if step.out or result is None else result)
            return
        result = self.within(step, lambda: self.call(op, *self.arguments(step, i)))
        results = result if isinstance(result, (tuple, list)) else (result,)
        if step.out:
            named = zip(step.out, results, strict=False)
            # A local name may stand for None or a number, such as a gradient that the call does not compute.
            made = {name: value for name, value in named if isinstance(value, torch.Tensor) or not is_local(name)}
            known = {id(tensor) for tensor in self.env.values()}
            self.env.update(made)
            # PyTorch does not define how often a kernel writes to its own new result: count writes from here on.
            self.versions |= {key: count for key, count in versions_of(made).items() if key not in known}
        elif not any(isinstance(part, torch.Tensor) for part in results) and result is not None:
            self.answers[f"step {self.done}"] = result
        if (op.settled and op.writes is not None) or op.uncounted:
            # PyTorch does not define how often a composite writes to its out= tensor: restart the count of writes.
            self.versions = versions_of(self.env)

    def within(self, step: Step, call: Callable[[], Any]) -> Any:
        """Return the result of the call under the step's states."""
        return within(step.under, self.device, call)

    def arguments(self, step: Step, i: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Return the step's positional and keyword arguments as Python values; `i` is the turn of a loop."""
        args = [decode(arg, self.env, self.device, i) for arg in step.args]
        return args, {key: decode(value, self.env, self.device, i) for key, value in step.kwargs.items()}

    def call(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call torch. A derivative of `torch.func` runs without modes: under a dispatch mode, nested transforms may end
        the process."""
        with without_modes() if op.family == TRANSFORMED else nullcontext():
            return op.run(args, kwargs)

    def draw(self, likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a direction of derivation for each tensor: drawn on the CPU, or that of another run. No mode sees the
        drawing, since a device of modes may have another generator."""
        if self.replayed is not None:
            return [drawn.to(like.dtype) for like, drawn in zip(likes, self.replayed)]
        modes = count_modes()
        with without_modes():
            drawn = [torch.randn(like.shape, dtype=like.dtype) for like in likes]
            self.drawn += drawn
            if modes and self.device.type == "cpu":
                return list(self.send(drawn))
        return [direction.to(like.device) for like, direction in zip(likes, drawn, strict=True)]

    def observe(self, target: Target | None = None) -> Observation:
        """Return the observation of the current state. `target` is None for torch CPU."""
        results = {name: value for name, value in self.env.items() if not (name in self.inputs or is_local(name))}
        inputs = {name: self.env[name] for name in self.inputs}
        if self.program.given:
            seen = {input_.name: inputs[input_.name] for input_ in self.program.inputs} | self.program.trees
            inputs = observable({name: inputs[name] for name in seen}, seen)
            if self.error is not None:
                return observe((), inputs, target=target, error=self.error)
            return observe(taken_apart(results), inputs, target=target)
        versions = self.versions if target is None or "version" in target.facts.oracles else None
        return observe({**results, **self.answers}, inputs, target=target, versions=versions)


class SteppedProgram(RunningProgram):
    """A program that the executor advances step by step on a target."""

    def __init__(
        self, program: Program, inputs: dict[str, Any], target: Target, transform: Transform | None = None
    ) -> None:
        super().__init__(program, inputs, target.device, transform)
        self.target, self.send, self.settle = target, target.send, target.synchronize

    @property
    def outcome(self) -> Any:
        """The result of an entry of op_db; None of another program."""
        return self.env.get("result") if self.program.given else None

    @property
    def count(self) -> int:
        """Number of steps of the program."""
        return len(self.program.steps)

    def signature(self, number: int) -> Hashable:
        """Return a key for the kernels of a step: its ops, their dtype arguments, and the signature of its tensors. An
        entry without a public name may call anything, so its key is unique."""
        step = self.program.steps[number - 1]
        if self.program.given:
            name = self.program.steps[0].args[0]["object"].name or object()
            return (step.op, name, self.program.note, signature_of(tensors([self.env[name] for name in self.inputs])))
        dtypes = [str(marker.get("dtype", "")) for marker in step.markers()]
        operands = [self.env[name] for name in step.names() if name in self.env]
        return (step.op, *(inner.op for inner in step.body), *dtypes, *signature_of(operands))

    def advance(self, number: int) -> None:
        """Run step `number`, counted from 1. Raises StepFailed.

        An asynchronous device reports a refused call later, so wait for it before the next step: that step would get
        the error otherwise, and the report would name it."""
        step = self.program.steps[number - 1]
        self.step(step)
        if self.answers.get(f"step {number}") == NO_ERROR:
            try:
                self.target.synchronize()
            except Exception as error:
                if is_lost(self.target):
                    raise StepFailed(number, step.op) from error
                self.answers[f"step {number}"] = Raised.of(error)


class TransformedProgram:
    """A running program as one function that a target transforms. Each call of the program is one step.

    If there are further calls, a last step reads the results of the first call again. The caller's calls after the
    return follow only a program without further calls."""

    def __init__(
        self, program: Program, calls: Sequence[dict[str, torch.Tensor]], target: Target, transform: Transform
    ) -> None:
        self.calls, self.outcomes = calls, []  # type: tuple[Sequence[dict[str, torch.Tensor]], list[dict[str, Any]]]
        self.states = [(), *(call.under for call in program.calls)]
        self.arguments = [arguments_of(call_of(program, number)) for number in range(len(calls))]
        self.count = len(calls) + (len(calls) > 1)
        self.device = target.device
        scope = functions(program, target.attempt, target.device)
        self.restarts = [False, *(call.restarted for call in program.calls)]
        self.function, self.after = transform(scope["program"]), scope.get("after")
        self.restart = lambda: transform(scope["program"])
        self.at = 0

    def signature(self, number: int) -> Hashable:
        """Return None: the target compiles each function anew."""
        return None

    def advance(self, number: int) -> None:
        """Make call `number` of the transformed function."""
        self.at = (number - 1) % len(self.calls)
        if number <= len(self.calls):
            arguments = [decode(value, {}, self.device) for value in self.arguments[self.at].values()]
            inputs = self.calls[self.at].values()
            if self.restarts[self.at]:
                self.function = self.restart()
            result = within(self.states[self.at], self.device, lambda: self.function(*inputs, *arguments))
            self.outcomes.append(result if self.after is None else self.after(result, *self.calls[0].values()))

    @property
    def outcome(self) -> dict[str, Any]:
        """The results of the current call."""
        return self.outcomes[self.at] if self.outcomes else {}

    def observe(self, target: Target) -> Observation:
        """Return the observation of the function's results and of its inputs after the call."""
        seen = {k: Raised.of(v) if isinstance(v, Exception) else v for k, v in self.outcome.items()}
        return observe(seen, self.calls[self.at], target=target)


@dataclass(frozen=True)
class ProgramSubject:
    """A program as a subject of the executor."""

    program: Program

    def inputs(self) -> tuple[dict[str, Any], Collection[int]]:
        """Return the program's inputs, and the storages of those that stay on the CPU."""
        given = self.program.given
        if not given:
            return make_inputs(self.program), ()
        data = make_inputs(self.program) if self.program.inputs else {}
        return {**data, **self.program.make_given()}, {key for one in given for key in one.kept}

    def begin(
        self, inputs: dict[str, Any], target: Target, transform: Transform | None
    ) -> SteppedProgram | TransformedProgram:
        """Return the running program: stepped, or as one function if there is a `transform`. Of a program of given
        inputs, the transform gets the function under test only."""
        if transform is None or self.program.given:
            return SteppedProgram(self.program, inputs, target, transform)
        return TransformedProgram(self.program, [inputs], target, transform)


@dataclass(frozen=True)
class CallsSubject:
    """A program with all its calls, as a subject of the executor on a target that transforms functions.

    `only` names one call to make, without the others."""

    program: Program
    only: int | None = None

    def inputs(self) -> tuple[list[dict[str, torch.Tensor]], tuple[int, ...]]:
        """Return the inputs of each call, and the empty tuple: no input stays on the CPU."""
        return [make_inputs(call_of(self.program, number)) for number in self._calls()], ()

    def _calls(self) -> Sequence[int]:
        return range(len(self.program.calls) + 1) if self.only is None else (self.only,)

    def begin(
        self, inputs: list[dict[str, torch.Tensor]], target: Target, transform: Transform | None
    ) -> TransformedProgram:
        """Return the running program. Raises TypeError for a target that transforms nothing."""
        if transform is None:
            raise TypeError("only a target that transforms functions makes further calls")
        running = TransformedProgram(self.program, inputs, target, transform)
        if self.only:
            running.restarts, running.states = [False], [self.program.calls[self.only - 1].under]
            running.arguments = [arguments_of(call_of(self.program, self.only))]
        return running


CPU = torch.device("cpu")


def functions(
    program: Program, attempt: Callable[..., Any], device: torch.device = CPU
) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return the function `program` of the program's inputs on this device and, if the caller makes calls after it,
    `after`. They call a step that must raise through `attempt`."""
    scope: dict[str, Any] = {"torch": torch, "numpy": numpy, "device": str(device), "attempt": attempt}
    steps = [step for step in program.every_step if step.op != LOOP]
    for name in {OPS[step.op].snippet for step in steps} - {""}:
        scope[name] = getattr(snippets, name)
    scope |= {name: getattr(snippets, name) for step in program.every_step for name in defined_by(step.under)}
    text = source(program) + caller(program)
    exec(compile(text, "<program>", "exec"), scope)  # noqa: S102 - the text is rendered from checked steps
    return {name: scope[name] for name in ("program", "after") if name in scope}


def _unchanged(value: Any) -> Any:
    return value


def _new_inputs(program: Program) -> dict[str, Any]:
    """Return the inputs on the CPU by name, the given ones as copies."""
    inputs: dict[str, Any] = make_inputs(program)
    if program.given:
        inputs |= send_tree(program.make_given(), lambda there: rebuild(there, copied_to_host), CPU)
    return inputs


def directions_of(program: Program) -> list[torch.Tensor]:
    """Return the directions of derivation that a program of given inputs draws on torch CPU."""
    if not any(step.op.startswith((BACKWARD, FORWARD_OVER_BACKWARD)) for step in program.steps):
        return []
    running = RunningProgram(program)
    running.run(program.steps)
    return running.drawn


def make_inputs(program: Program) -> dict[str, torch.Tensor]:
    """Return the inputs that are data on the CPU by name. Python objects lose the records of earlier runs."""
    snippets.noted()
    flats = [storage.make() for storage in program.storages]
    result: dict[str, torch.Tensor] = {}
    for input_ in program.inputs:
        if input_.same:
            result[input_.name] = result[input_.same]
            continue
        empty = torch.empty(0, dtype=dtype_of(input_.dtype))
        tensor = empty.set_(flats[input_.storage].untyped_storage(), input_.offset, input_.size, input_.stride).data
        result[input_.name] = tensor.requires_grad_() if input_.requires_grad else tensor
    return result
