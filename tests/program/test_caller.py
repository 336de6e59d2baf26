"""Calls of a program's caller after the return, and results that the program does not return."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.engine.target import Target, TargetFacts
from conformance.program.calls import judge_program
from conformance.program.execute import functions
from conformance.program.model import Input, Program, ProgramError, Storage
from conformance.program.reduce import reduce_program
from conformance.program.script import script
from conformance.program.shadow import reference
from conformance.program.source import caller, source
from conformance.program.steps.op import Step, tensor
from conformance.program.unsupported import unsupported_reason
from conformance.program.verdict import signature

NEUTRAL = Program(
    (Storage("float32", 3),),
    (Input("a", 0, "float32", (3,), (1,)),),
    (Step("mul", (tensor("a"), 1), out=("b",)), Step("add_", (tensor("b"), 1), after=True)),
)
"""The caller writes a result, which must not be the input."""

LOCAL = Program(
    NEUTRAL.storages,
    NEUTRAL.inputs,
    (Step("clone", (tensor("a"),), out=("_b",)), Step("neg", (tensor("_b"),), out=("c",))),
)


class ReturnsItsInput(Target):
    """Transform that returns its input in place of an equal result."""

    name = "returns its input"
    facts = TargetFacts(transforms_program=True)

    def transform(self, function):
        def transformed(*inputs):
            results = function(*inputs)
            return {
                name: next((one for one in inputs if one.shape == value.shape and one.equal(value)), value)
                for name, value in results.items()
            }

        return transformed

    def script(self):
        return """DEVICE = 'equal'

def transform(function):
    def transformed(a):
        made = function(a)
        return {name: a if a.equal(value) else value for name, value in made.items()}
    return transformed
"""


class TestCaller:
    def test_the_function_ends_before_its_calls(self):
        """The transformed function has the steps inside only; the caller's calls receive its results."""
        assert "add_" not in source(NEUTRAL)
        assert caller(NEUTRAL) == ("def after(made, a):\n    b = made['b']\n    b.add_(1)\n    return {**made}\n")
        both = functions(NEUTRAL, lambda step: step())
        results = both["program"](torch.arange(3.0))
        assert results["b"].tolist() == [0, 1, 2]
        both["after"](results, torch.arange(3.0))
        assert results["b"].tolist() == [1, 2, 3]

    @pytest.mark.parametrize("spec", ["cpu", "meta", "fake", "functionalize", "compile:aot_eager"])
    def test_every_target_makes_the_calls_of_the_caller(self, spec):
        """Devices make them as steps; targets that transform functions make them after the transformed function."""
        assert judge_program(NEUTRAL, load_target(spec)).passed

    def test_a_result_that_is_the_input_is_found(self, standalone, tmp_path):
        """A target that returns its input passes until the caller writes the result; the script shows that too."""
        target = ReturnsItsInput()
        target.facts = replace(target.facts, oracles=frozenset({"value", "storage"}))
        assert judge_program(NEUTRAL.with_steps(NEUTRAL.steps[:1]), target).passed
        verdict = judge_program(NEUTRAL, target)
        assert verdict.bad_step == 2
        assert str(signature(NEUTRAL, verdict)) == "value / add_ / contiguous"
        text = script(NEUTRAL, target, verdict.mismatches, bad_step=2)
        assert "b.add_(1)  # the first wrong step" in text.partition("def after")[2]
        run = standalone(text)
        assert run.returncode == 1
        assert "cpu [0.0, 1.0, 2.0]" in run.stdout
        assert "equal [1.0, 2.0, 3.0]" in run.stdout

    def test_a_smaller_program_still_has_its_caller(self):
        """The reducer keeps the calls of the caller apart."""
        target = ReturnsItsInput()
        target.facts = replace(target.facts, oracles=frozenset({"value", "storage"}))
        longer = NEUTRAL.with_steps(
            (
                Step("neg", (tensor("a"),), out=("c",)),
                *NEUTRAL.steps,
                Step("neg", (tensor("b"),), out=("d",), after=True),
            )
        )
        small = reduce_program(longer, lambda program: not judge_program(program, target).passed)
        assert [step.after for step in small.steps] == [False, True]

    @pytest.mark.parametrize(
        ("steps", "message"),
        [
            ((replace(NEUTRAL.steps[0], after=True), replace(NEUTRAL.steps[1], after=False)), "follows a step that is"),
            ((*LOCAL.steps, Step("neg", (tensor("_b"),), out=("d",), after=True)), "'_b' is not returned"),
        ],
    )
    def test_the_calls_of_the_caller_come_last_and_use_results(self, steps, message):
        """A program whose caller's calls cannot be made is one sentence."""
        with pytest.raises(ProgramError, match=message):
            NEUTRAL.with_steps(steps).check()

    def test_writes_to_shared_memory_are_a_trait(self):
        """`functionalize` does not promise that results share memory, so a caller's write to a view is excluded."""
        target = load_target("functionalize")
        view = NEUTRAL.with_steps((Step("t", (tensor("a"),), out=("b",)), NEUTRAL.steps[1]))
        assert unsupported_reason(view, target.facts) == "a caller that writes shared memory"
        assert not unsupported_reason(NEUTRAL, target.facts)


class TestLocalResults:
    def test_they_are_neither_returned_nor_observed(self):
        """A name that begins with `_` is in no observation and not in what the function returns."""
        assert set(reference(LOCAL).observation.tensors) == {"a", "c"}
        assert "'c': c" in source(LOCAL)
        assert "'_b'" not in source(LOCAL)

    @pytest.mark.parametrize("spec", ["cpu", "functionalize", "compile:aot_eager"])
    def test_targets_agree_on_them(self, spec):
        """A target runs steps with local results, and passes."""
        assert judge_program(LOCAL, load_target(spec)).passed

    def test_round_trip(self):
        """JSON keeps both."""
        for program in NEUTRAL, LOCAL:
            assert Program.from_json(program.to_json()) == program
