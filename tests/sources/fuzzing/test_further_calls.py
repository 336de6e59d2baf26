"""Drawing of further calls: every change occurs, each call has a meaning, and the steps stay those of the program."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from unittest import mock

import pytest
import torch

from conformance.engine.loading import describe_target, load_target
from conformance.engine.target import Target, TargetFacts
from conformance.program.calls import change_of, has_meaning, judge_program
from conformance.program.model import Call, Input, Program, Storage
from conformance.program.script import script
from conformance.program.steps import snippets
from conformance.program.steps.op import Step, tensor
from conformance.program.trial import Trial
from conformance.program.unsupported import unsupported_reason, unsupported_steps
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.further_calls import CHANGED_EVERY, CHANGES, with_calls
from conformance.standalone.oracles import compare

TARGET = describe_target("compile:eager")
COUNT = 6 * len(CHANGES)


@pytest.fixture(scope="module")
def drawn() -> list[tuple[Program, Program]]:
    drawing = Drawing(without=unsupported_steps(TARGET.facts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        programs = [(number, drawing.numbered(0, number)) for number in range(COUNT)]
        return [
            (program, with_calls(program, 0, n, TARGET))
            for n, program in programs
            if not unsupported_reason(program, TARGET.facts)
        ]


def test_a_program_has_at_most_three_further_calls_with_a_meaning(drawn: list[tuple[Program, Program]]) -> None:
    assert max(len(called.calls) for _, called in drawn) == 3
    assert all(has_meaning(called, TARGET) for _, called in drawn if called.calls)


def test_every_kind_of_change_occurs(drawn: list[tuple[Program, Program]]) -> None:
    more = [with_calls(one, seed, n, TARGET) for seed in (1, 2) for n, (one, _) in enumerate(drawn)]
    words = Counter(change_of(one, at + 1) for _, one in drawn for at in range(len(one.calls)))
    words += Counter(change_of(one, at + 1) for one in more for at in range(len(one.calls)))
    single = {word for name in words for word in name.split(" and ")}
    assert single >= {"shape", "stride", "dtype", "requires_grad", "aliasing", "arguments", "global state", "values"}
    assert words["offset"] > len(drawn) / 2


def test_most_calls_change_nothing_that_a_guard_checks(drawn: list[tuple[Program, Program]]) -> None:
    changed = [
        one for _, one in drawn if {change_of(one, at + 1) for at in range(len(one.calls))} - {"values", "offset"}
    ]
    assert COUNT / CHANGED_EVERY / 2 <= len(changed) <= COUNT / CHANGED_EVERY


def test_some_changed_calls_are_made_as_in_a_new_process(drawn: list[tuple[Program, Program]]) -> None:
    """Only on a target that saves graphs, where about half of the changed calls follow a restart."""
    saving = describe_target("compile:inductor")
    called = [(one, with_calls(before, 0, n, saving)) for n, (before, one) in enumerate(drawn)]
    assert not any(one.restarts for _, one in drawn)
    assert COUNT / CHANGED_EVERY / 4 <= sum(one.restarts for _, one in called) <= COUNT / CHANGED_EVERY * 3 / 4


def test_calls_keep_the_steps_of_the_program(drawn: list[tuple[Program, Program]]) -> None:
    for before, after in drawn:
        ops = [step.op for step in after.steps]
        assert ops[: len(before.steps)] == [step.op for step in before.steps]


def test_the_same_number_draws_the_same_calls(drawn: list[tuple[Program, Program]]) -> None:
    before, _ = drawn[5]
    assert with_calls(before, 0, 5, TARGET) == with_calls(before, 0, 5, TARGET)
    assert with_calls(before, 1, 5, TARGET) != with_calls(before, 0, 5, TARGET)


def negation() -> Program:
    inputs = (Input("a", 0, "float32", (2, 2), (2, 1)),)
    return Program((Storage("float32", 4, [1, 2, 3, 4]),), inputs, (Step("neg", (tensor("a"),), out=("b",)),))


def test_a_global_state_changes_the_answer() -> None:
    """A program is called under a global state with a step whose answer depends on it. Regression test: most of these
    calls had the answer of the call before, so no campaign found a compiler that guards no global state."""
    for changed in CHANGES["state"].candidates(negation(), random.Random(0)):
        first, second = (call.end.observation for call in Trial.of(changed, TARGET).calls)
        assert compare(first, second) or "deterministic" in changed.calls[0].under


def none_installed(*args, **kwargs) -> None: ...


@pytest.mark.parametrize(
    ("dropped", "kind"),
    [("GuardBuilder.DUPLICATE_INPUT", "same as before"), ("install_no_tensor_aliasing_guard", "apart before")],
)
def test_a_missing_guard_of_aliasing_is_found(dropped: str, kind: str) -> None:
    """Without torch's guard, some calls fail whose input becomes another input, or becomes its own again. Regression
    test: hardly any drawn inputs could be the same tensor, or no step read one after a write to the other."""
    target, verdicts = load_target("compile:aot_eager"), []
    for changed in CHANGES["aliasing"].candidates(negation(), random.Random(0)):
        before = "same as before" if changed.inputs[1].same else "apart before"
        if "same" in changed.calls[0].inputs["c"] and before == kind:
            with mock.patch(f"torch._dynamo.guards.{dropped}", none_installed):
                verdicts.append(judge_program(changed, target, locate=False))
            assert not judge_program(changed, target, locate=False).mismatches
    assert verdicts and all(verdict.mismatches and verdict.change == "aliasing" for verdict in verdicts)


@pytest.mark.parametrize("kind", snippets.OBJECTS)
def test_a_changed_object_changes_the_answer_and_is_restored(kind: str) -> None:
    """Each property of a Python object decides about the answer, during the call only."""
    x = torch.ones(2)
    before = snippets.reads_object(x, kind)
    with snippets.changed_object(kind):
        assert not torch.equal(snippets.reads_object(x, kind), before)
    assert torch.equal(snippets.reads_object(x, kind), before)


def test_some_calls_of_a_compiler_change_an_object() -> None:
    """Only a compiled function has guards for Python objects. Torch's guard of an attribute holds."""
    program = Program(
        (Storage("float32", 2),), (Input("a", 0, "float32", (2,), (1,)),), (Step("neg_", (tensor("a"),)),)
    )
    called = [with_calls(program, 0, number, TARGET) for number in range(CHANGED_EVERY * 2 * len(CHANGES))]
    changed = [one for one in called for at in range(len(one.calls)) if "object" in change_of(one, at + 1)]
    assert changed and all(has_meaning(one, TARGET) for one in changed)
    others = (with_calls(program, 0, number, describe_target("functionalize")) for number in range(len(called)))
    assert not any("object" in change_of(one, at + 1) for one in others for at in range(len(one.calls)))


def test_a_missing_guard_of_an_object_is_found(standalone, tmp_path) -> None:
    """A compiler that reads the object only once shows as a call after a change of the object, also in its script."""
    steps = (Step("side effects:attribute", (tensor("a"), "attribute"), out=("b",)),)
    inputs = (Input("a", 0, "float32", (2,), (1,)),)
    program = Program((Storage("float32", 2, [1, 2]),), inputs, steps, calls=(Call(under=("object:attribute",)),))
    assert not judge_program(program, load_target("compile:eager")).mismatches
    value = snippets.OBJECTS["attribute"][0]()
    kept = {"attribute": (lambda: value, snippets.OBJECTS["attribute"][1])}

    class Stale(Target):
        name = "stale"
        facts = TargetFacts(transforms_program=True, compiles=True)

        def transform(self, function):
            def call(*inputs):
                with mock.patch.dict(snippets.OBJECTS, kept):
                    return function(*inputs)

            return call

    verdict = judge_program(program, Stale())
    assert verdict.mismatches and verdict.change == "object"
    ran = standalone(script(program, load_target("compile:eager")))
    assert (ran.returncode, ran.stderr) == (0, "")
