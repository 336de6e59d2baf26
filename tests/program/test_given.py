"""Programs on given inputs: a call of a Python function on argument trees, judged as any program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.engine.target import Target, TargetFacts
from conformance.program.execute import RunningProgram
from conformance.program.float64 import JudgedProgram
from conformance.program.model import GivenInput, Program, ProgramError
from conformance.program.steps import entry
from conformance.program.steps.op import ANY, Held, Step, StepError, tensor
from conformance.program.trial import Trial
from conformance.standalone.moving import MARKER
from conformance.standalone.torch_compat import TorchDispatchMode


def given(function: Callable[..., Any], first: Any, *args: Any, kind: str = entry.ENTRY, gradient: bool = False,
          **kwargs: Any) -> Program:  # fmt: skip
    """The program that calls the function, and with `gradient` differentiates its result."""
    trees = {"input": first, "args": args, "kwargs": kwargs}
    operands = tuple(map(tensor, trees))
    process = ({"object": Held(None)},)
    calls = [Step(f"{kind}:f", ({"object": Held(function)}, *(process if kind != entry.ENTRY else ()), *operands),
                  {"seed": 1}, ("result",), ANY)]  # fmt: skip
    if gradient:
        calls.append(Step(entry.BACKWARD, (tensor("result"), *process, *operands), {"seed": 1}, (), ANY, after=True))
    return Program((), (), tuple(calls), "a note", given=tuple(GivenInput(name, tree) for name, tree in trees.items()))


class Wrong(TorchDispatchMode):
    """Mode with a wrong sine and cosine, and with random numbers of its own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if func._schema.name in ("aten::cos", "aten::sin", "aten::randn") else result


def wrong() -> Target:
    target = type(load_target("cpu"))()
    target.active = Wrong  # type: ignore[method-assign]
    return target


def raising(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    raise ValueError("no")


class TestAnswers:
    def test_any_leaves(self) -> None:
        """Sparse tensors, nested trees and objects are inputs and results; the marker is the target's device."""
        eye = torch.eye(2).to_sparse()
        run = Trial.of(
            given(lambda x, *rest, **more: (x, rest, more), eye, [MARKER, "word"], flag=object), wrong()
        ).run()
        assert run.last.others["result[0]['layout']"] == "torch.sparse_coo"
        assert run.last.others["result[1][0][0]"] == torch.device("cpu") != MARKER

    def test_a_difference(self) -> None:
        mismatches = Trial.of(given(torch.cos, torch.ones(2)), wrong())
        found = mismatches.judge(mismatches.run()).mismatches
        assert [(one.oracle, one.where) for one in found] == [("value", "result")]

    def test_the_given_tensors_are_not_written(self) -> None:
        """Each run has copies, so a sample that writes its input can run again."""
        program = given(torch.Tensor.fill_, torch.zeros(2), 3.0)
        for _ in range(2):
            Trial.of(program, wrong()).run()
            RunningProgram(program).run(program.steps)
        assert program.given[0].value.tolist() == [0.0, 0.0]

    def test_an_error_is_an_answer(self) -> None:
        """The error ends the program, and what was written before it is observed."""
        program = given(raising, torch.ones(2, requires_grad=False), gradient=True)
        run = Trial.of(program, load_target("cpu")).run()
        assert run.last.error is not None and run.last.error.kind == "ValueError" and run.failed_step is None
        assert run.last.tensors["input"].value.tolist() == [2.0, 2.0]

    def test_kernels(self) -> None:
        """A device may run one kernel for each operator, one for the input that it receives, and one for each tensor
        that it gives back. Those of the whole program count."""
        x = torch.ones(2, requires_grad=True)
        forward, backward = (Trial.of(given(torch.cos, x, gradient=wanted), wrong()).cpu for wanted in (False, True))
        assert forward.most_kernels == 1 + 1 + 2
        assert backward.most_kernels is not None and backward.most_kernels > forward.most_kernels

    def test_a_refusal_compares_the_error_only(self) -> None:
        terms = JudgedProgram(Program((), (), refusal="no")).terms
        assert (terms.oracles, terms.message) == ({"error"}, "no")


class Logged(Target):
    """Torch CPU that records the arguments of the function that it transforms."""

    name = "logged"
    facts = TargetFacts(transforms_program=True)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        yield None

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *operands: (self.seen.append(operands), function(*operands))[1]


class TestDerivatives:
    def test_only_the_function_is_transformed(self) -> None:
        """A compiler gets the call, and neither the drawing of directions nor the backward."""
        target = Logged()
        x = torch.ones(2, requires_grad=True)
        trial = Trial.of(given(torch.mul, x, 3.0, gradient=True), target)
        assert not trial.judge(trial.run()).mismatches
        assert [operands[1] for operands in target.seen] == [(3.0,)]

    @pytest.mark.parametrize(("kind", "gradient"), [(entry.ENTRY, True), (entry.FORWARD_OVER_BACKWARD, False)])
    def test_directions_are_those_of_torch_cpu(self, kind: str, gradient: bool) -> None:
        """A device of modes may draw other numbers: its gradients are taken along the same directions. Regression
        test: they were others, and only the answer in float64 acquitted the device."""
        x = torch.linspace(0.5, 1.0, 3, requires_grad=True)
        trial = Trial.of(given(torch.exp, x, kind=kind, gradient=gradient), wrong())
        assert trial.judge(trial.run()) == ([], False, False)
        trial = Trial.of(given(torch.sin, x, kind=kind, gradient=gradient), wrong())  # its derivatives are wrong, too
        assert trial.judge(trial.run()).mismatches

    @pytest.mark.parametrize(("kind", "gradient"), [(entry.ENTRY, True), (entry.FORWARD_OVER_BACKWARD, False)])
    def test_float64_has_the_same_directions(self, kind: str, gradient: bool) -> None:
        """Other dtypes would draw other numbers, so the run in float64 replays those of the sample's dtype."""
        program = given(torch.exp, torch.linspace(0.5, 1.0, 3, requires_grad=True), kind=kind, gradient=gradient)
        wide, narrow = (
            JudgedProgram(program).in_float64([], Trial.of(program, wrong()).cpu.run.last),
            RunningProgram(program),
        )
        narrow.run(program.steps)
        assert wide is not None
        pairs = [(wide.last.grads["input"], narrow.env["input"].grad)] if gradient else [
            (wide.last.tensors["result[0]"].value, narrow.env["result"][0])]  # fmt: skip
        for one, two in pairs:
            assert one is not None and one.dtype is torch.float64
            torch.testing.assert_close(one, two.double(), rtol=1e-6, atol=0)


class TestData:
    def test_it_cannot_be_saved(self) -> None:
        with pytest.raises(ProgramError, match=r"^a note: a program of given inputs cannot be saved$"):
            given(torch.cos, torch.ones(2)).to_json()

    def test_a_file_holds_no_function(self) -> None:
        """A program from a file cannot call a Python function of its choice."""
        step = {"op": "op_db.entry:f", "args": [{"object": "os.system"}, "ls", [], {}], "kwargs": {"seed": 1}}
        program = Program.from_json({"schema": 1, "storages": [], "inputs": [], "steps": [step]})
        with pytest.raises(StepError, match="is not understood"):
            RunningProgram(program).step(program.steps[0])
