"""Further calls of a program: their data, the verdict on each call, shrinking, and the script that repeats them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.calls import KEPT, change_of, has_meaning, judge_program, resolved
from conformance.program.cause import cause_of
from conformance.program.compiler_attribution import compiler_culprit
from conformance.program.model import Call, Input, Program, ProgramError, Storage, arguments_of, call_of
from conformance.program.reduce import reduce_program, settle
from conformance.program.script import script
from conformance.program.source import source
from conformance.program.steps.op import Step, tensor
from conformance.program.trial import Trial
from conformance.program.verdict import OPEN_ORDER, signature
from conformance.targets.functionalize import FunctionalizeTarget
from tests.run_script import Standalone

NUMBER = {"arg": "arg_1", "value": 2}
MOVED = Call({"a": {"offset": 1}})
LARGER = Call({"a": {"size": [3, 3], "stride": [3, 1]}})
OTHER_NUMBER = Call(arguments={"arg_1": 5})
OTHER_VALUES = Call({"a": {"values": {"seed": 3}}})
WITHOUT_GRAD = Call(under=("no_grad",))
CALLED = Program(
    (Storage("float32", 6), Storage("float32", 3)),
    (Input("a", 0, "float32", (2, 3), (3, 1)), Input("b", 1, "float32", (3,), (1,), 0, True)),
    (
        Step("add_", (tensor("a"), NUMBER)),
        Step("t", (tensor("a"),), out=("c",)),
        Step("mul", (tensor("b"), 2), out=("d",)),
    ),
    calls=(OTHER_VALUES, LARGER, OTHER_NUMBER, WITHOUT_GRAD),
)


class Stale(FunctionalizeTarget):
    """Functionalize with calls cached by a key that lacks something, as with a missing guard."""

    def __init__(self, key: Callable[..., Any]) -> None:
        super().__init__()
        self.parts = key

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose first answer for a key is also the answer for later calls with this key."""
        transformed, kept = super().transform(function), dict[Any, Any]()

        def call(*inputs: Any) -> Any:
            key = self.parts(*inputs)
            if key not in kept:
                kept[key] = transformed(*inputs)
            return kept[key]

        return call


class SavesGraphs(FunctionalizeTarget):
    """Functionalize with answers that are saved for later processes by a key of the shapes, which lacks the values."""

    facts = replace(FunctionalizeTarget.facts, saves_graphs=True)
    saved: dict[Any, Any] | None = None

    @contextmanager
    def saving_graphs(self) -> Iterator[None]:
        """Start with nothing saved."""
        self.saved = {}
        yield
        self.saved = None

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which loads what was saved before it was transformed."""
        transformed, loaded = super().transform(function), dict(self.saved or {})

        def call(*inputs: Any) -> Any:
            key = tuple(value.shape for value in inputs if isinstance(value, torch.Tensor))
            result = loaded[key] if key in loaded else transformed(*inputs)
            if self.saved is not None:
                self.saved[key] = result
            return result

        return call


def only(*calls: Call) -> Program:
    return replace(CALLED, calls=calls)


class TestTheData:
    def test_json_keeps_calls(self) -> None:
        assert Program.from_json(CALLED.to_json()) == CALLED

    def test_json_keeps_a_restart(self) -> None:
        restarted = only(replace(LARGER, restarted=True))
        assert Program.from_json(restarted.to_json()) == restarted
        assert "restarted" not in only(LARGER).to_json()["calls"][0]

    def test_json_with_a_restart_that_is_neither_true_nor_false(self) -> None:
        damaged = CALLED.to_json()
        damaged["calls"][0]["restarted"] = "false"
        with pytest.raises(ProgramError, match="'restarted' of a call is 'false': write true or false"):
            Program.from_json(damaged)

    def test_a_program_without_calls_has_no_such_field(self) -> None:
        assert "calls" not in replace(CALLED, calls=()).to_json()
        assert all("same" not in one for one in CALLED.to_json()["inputs"])

    def test_a_call_is_a_program_of_its_own(self) -> None:
        larger = call_of(CALLED, 2)
        assert (larger.inputs[0].size, larger.storages[0].size, larger.calls) == ((3, 3), 9, ())
        assert arguments_of(call_of(CALLED, 3)) == {"arg_1": 5}
        assert {step.under for step in call_of(CALLED, 4).steps} == {("no_grad",)}

    @pytest.mark.parametrize(
        ("changed", "storages"), [({"beside": "a", "offset": 2}, [0, 0]), ({"alone": True}, [0, 2])]
    )
    def test_a_call_changes_which_inputs_share_memory(self, changed: dict[str, Any], storages: list[int]) -> None:
        assert [one.storage for one in call_of(only(Call({"b": changed})), 1).inputs] == storages

    def test_two_inputs_can_become_one_tensor(self) -> None:
        from conformance.program.execute import make_inputs

        inputs = make_inputs(call_of(only(Call({"b": {"same": "a"}})), 1))
        assert inputs["b"] is inputs["a"]

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (Call({"z": {"offset": 1}}), "'z', which the program does not have"),
            (Call(arguments={"n": 1}), "'n', which the program does not have"),
            (Call({"a": {"size": [2]}}), "dimensions"),
        ],
    )
    def test_a_call_that_does_not_fit_is_refused(self, call: Call, said: str) -> None:
        with pytest.raises(ProgramError, match=said):
            only(call).check()

    def test_the_function_takes_the_python_arguments(self) -> None:
        assert source(CALLED).startswith("def program(a, b, arg_1):\n    a.add_(arg_1)\n")

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (LARGER, "shape"),
            (OTHER_VALUES, "values"),
            (OTHER_NUMBER, "arguments"),
            (WITHOUT_GRAD, "global state"),
            (Call({"b": {"beside": "a", "offset": 1}}), "aliasing"),
            (Call({"a": {"dtype": "float64"}, "b": {"requires_grad": False}}), "dtype and requires_grad"),
            (replace(LARGER, restarted=True), "shape and process"),
            (Call(restarted=True), "process"),
            (Call(), "calls"),
        ],
    )
    def test_a_change_in_words(self, call: Call, words: str) -> None:
        assert change_of(only(call), 1) == words


class TestTheVerdict:
    def test_every_call_is_judged(self) -> None:
        verdict = judge_program(CALLED, FunctionalizeTarget())
        assert (verdict.mismatches, verdict.unsupported, verdict.calls) == ((), "", 5)

    def test_only_calls_that_compile_count_as_recompiled(self) -> None:
        verdict = judge_program(only(OTHER_VALUES, LARGER, OTHER_NUMBER), load_target("compile:eager"))
        assert (verdict.mismatches, verdict.calls, verdict.measured.get("recompiled")) == ((), 4, 2)

    def test_sizes_become_dynamic_when_they_change(self) -> None:
        larger = [Call({"a": {"size": [n, 3], "stride": [3, 1]}}) for n in (3, 4, 5)]
        counts = [
            judge_program(only(*larger), load_target(f"compile:eager{option}")).measured.get("recompiled")
            for option in ("", ",dynamic=auto", ",dynamic=yes")
        ]
        assert counts == [3, 1, 0]

    def test_the_first_answer_for_every_call_is_found(self) -> None:
        target = Stale(lambda *inputs: None)
        assert judge_program(replace(CALLED, calls=()), target).passed
        verdict = judge_program(CALLED, target)
        assert (verdict.call, verdict.change) == (1, "values")

    @pytest.mark.parametrize(
        ("call", "key", "change"),
        [
            (LARGER, lambda a, b, n: (a.dtype, n), "shape"),
            (OTHER_NUMBER, lambda a, b, n: a.shape, "arguments"),
            (Call({"a": {"dtype": "float64"}}), lambda a, b, n: a.shape, "dtype"),
            (Call({"b": {"requires_grad": False}}), lambda a, b, n: a.shape, "requires_grad"),
            (WITHOUT_GRAD, lambda a, b, n: a.shape, "global state"),
        ],
    )
    def test_a_missing_part_of_a_key_is_found(self, call: Call, key: Callable[..., Any], change: str) -> None:
        verdict = judge_program(only(call), Stale(key))
        assert (verdict.call, verdict.change) == (1, change)
        assert str(signature(only(call), verdict)).partition(" / ")[2].startswith(f"a further call with other {change}")
        assert cause_of(only(call), verdict).op == f"a further call with other {change}"

    def test_a_reused_result_is_found(self) -> None:
        class Reusing(FunctionalizeTarget):
            """Functionalize that writes each new result into the memory of the first one."""

            def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
                transformed, kept = super().transform(function), dict[str, Any]()

                def call(*inputs: Any) -> Any:
                    results = transformed(*inputs)
                    if "d" in kept:
                        results["d"] = kept["d"].detach().copy_(results["d"]).requires_grad_()
                    return kept.setdefault("first", results) and (kept.setdefault("d", results["d"]), results)[1]

                return call

        program = only(Call({"b": {"values": {"seed": 4}}}))
        assert judge_program(program, Reusing()).change in ("values", KEPT)

    def test_a_call_that_fails_as_the_first_one_is_a_finding_of_one_call(self) -> None:
        class Halving(FunctionalizeTarget):
            def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
                transformed = super().transform(function)
                return lambda *inputs: {
                    name: one * (1 if len(inputs[0]) == 2 else 2) for name, one in transformed(*inputs).items()
                }

        verdict = judge_program(CALLED, Halving())
        assert (verdict.call, verdict.change) == (2, "shape")
        trial, alone = resolved(Trial.of(CALLED, Halving()), verdict)
        program = trial.program
        assert (program.calls, program.inputs[0].size, alone.call) == ((), (3, 3), None)
        assert alone.mismatches

    def test_a_wrong_first_call_is_compiled_once_more_for_each_prefix(self) -> None:
        """The search for the bad step uses the answer of the first call. Each compilation of a failing program takes a
        compiler 0.2 s; the first call was formerly compiled twice more, and so was a function without steps."""
        compiled: list[int] = []

        class Doubling(FunctionalizeTarget):
            """Functionalize that doubles the result of `mul`."""

            def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
                transformed = super().transform(function)
                compiled.append(len(compiled))
                return lambda *inputs: {
                    name: one * 2 if name == "d" else one for name, one in transformed(*inputs).items()
                }

        target = Doubling()
        verdict = judge_program(CALLED, target)
        assert (verdict.call, compiled) == (0, [0])
        trial, alone = resolved(Trial.of(CALLED, target), verdict)
        assert (trial.program.calls, alone.bad_step, alone.vanished) == ((), 3, False)
        assert len(compiled) == 1 + 2  # all three steps, the first two

    @pytest.mark.parametrize(("falsified", "reason"), [(("i",), OPEN_ORDER), (("i", "d"), "")])
    def test_an_order_that_torch_leaves_open_hides_no_other_fault(
        self, falsified: tuple[str, ...], reason: str
    ) -> None:
        """Regression test: a function of two calls with positions of equal elements was never judged."""

        class Turning(FunctionalizeTarget):
            """Functionalize that turns some results around."""

            def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
                transformed = super().transform(function)
                return lambda *inputs: {
                    name: one.flip(-1) if name in falsified else one for name, one in transformed(*inputs).items()
                }

        steps = Step("topk", (tensor("a"), 2), out=("c", "i")), Step("neg", (tensor("a"),), out=("d",))
        ties, input_ = Storage("float32", 4, [1, 4, 4, 4]), Input("a", 0, "float32", (4,), (1,))
        verdict = judge_program(Program((ties,), (input_,), steps, calls=(Call(),)), Turning())
        assert (verdict.unsupported, bool(verdict.mismatches)) == (reason, not reason)

    def test_wrong_inputs_come_before_a_wrong_step(self) -> None:
        """A transform that falsifies an input is wrong with no step at all."""

        class Spoiling(FunctionalizeTarget):
            def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
                transformed = super().transform(function)
                return lambda *inputs: [inputs[0].add_(1), transformed(*inputs)][1]

        assert judge_program(replace(CALLED, calls=()), Spoiling()).bad_step == 0

    def test_a_saved_graph_whose_key_lacks_a_property_is_found(self) -> None:
        """A call as in a new process loads what the first call saved. Without the restart nothing is loaded."""
        target = SavesGraphs()
        verdict = judge_program(only(replace(OTHER_VALUES, restarted=True)), target)
        assert (verdict.call, verdict.change) == (1, "values and process")
        assert judge_program(only(replace(LARGER, restarted=True)), target).passed
        assert judge_program(only(OTHER_VALUES), target).passed

    def test_a_target_that_saves_nothing_has_no_such_calls(self) -> None:
        restarted = only(replace(LARGER, restarted=True))
        assert judge_program(restarted, FunctionalizeTarget()).unsupported == "a new process with saved graphs"

    def test_a_device_makes_the_first_call_only(self) -> None:
        assert judge_program(CALLED, load_target("cpu")).passed

    def test_a_call_without_a_meaning_is_no_call(self) -> None:
        wrong = Call({"a": {"size": [6], "stride": [1], "dtype": "bool"}})
        assert has_meaning(CALLED, FunctionalizeTarget())
        assert not has_meaning(only(wrong), FunctionalizeTarget())


class TestReducing:
    def test_the_smallest_program_keeps_one_call_with_one_change(self) -> None:
        target = Stale(lambda *inputs: inputs[-1])

        def fails(program: Program) -> bool:
            return bool(judge_program(program, target, locate=False).call)

        more = replace(LARGER, inputs={**LARGER.inputs, "b": {"requires_grad": False, "values": {"seed": 9}}})
        small = reduce_program(only(OTHER_NUMBER, more, OTHER_VALUES), fails)
        assert len(small.calls) == 1
        assert len(small.steps) == 1
        assert len(small.inputs) == 1

    @pytest.mark.parametrize("target", [SavesGraphs(), Stale(lambda *inputs: inputs[1:1])])
    def test_a_restart_stays_only_if_it_is_needed(self, target: FunctionalizeTarget) -> None:
        target.facts = replace(target.facts, saves_graphs=True)

        def fails(program: Program) -> bool:
            return bool(judge_program(program, target, locate=False).call)

        program = only(replace(OTHER_VALUES, restarted=True), OTHER_VALUES)
        assert fails(program)
        assert reduce_program(program, fails).restarts is isinstance(target, SavesGraphs)

    def test_an_input_of_a_call_goes_with_the_input(self) -> None:
        one = replace(CALLED, inputs=CALLED.inputs[:1], storages=CALLED.storages[:1], steps=CALLED.steps[:1])
        settled = settle(replace(one, calls=(Call({"a": {"offset": 0}, "b": {"requires_grad": False}}),)))
        assert settled is not None
        assert settled.calls == (Call({"a": {"offset": 0}}),)

    def test_a_call_that_loses_its_meaning_is_refused(self) -> None:
        reshaped = CALLED.with_steps((Step("view", (tensor("a"), [3, 2]), out=("c",)),))
        assert settle(replace(reshaped, calls=(LARGER,))) is None


class TestTheScript:
    @pytest.mark.parametrize("calls", [(OTHER_NUMBER, LARGER), (WITHOUT_GRAD,)])
    def test_a_script_makes_the_calls_and_shows_the_difference(
        self, calls: tuple[Call, ...], standalone: Standalone
    ) -> None:
        key = "tuple(inputs[:0])"
        setup = f"""
def stale(function):
    transformed, kept = torch.func.functionalize(function), {{}}
    def call(*inputs):
        key = {key}
        if key not in kept:
            kept[key] = transformed(*inputs)
        return kept[key]
    return call
DEVICE, transform = 'stale', stale
"""
        target = Stale(lambda *inputs: inputs[:0])
        target.script = lambda: setup  # type: ignore[method-assign]
        program = only(*calls)
        verdict = judge_program(program, target)
        trial, verdict = resolved(Trial.of(program, target), verdict)
        program = trial.program
        text = script(program, target, verdict.mismatches)
        ran = standalone(text)
        assert ran.returncode == 1, ran.stdout + ran.stderr
        assert verdict.mismatches[0].oracle in ran.stdout
        assert f"in call {len(program.calls) + 1}" in text

    def test_the_script_of_a_restart(self, standalone: Standalone) -> None:
        """Inductor loads the saved graph of separate inputs for inputs that share memory, and the script shows it."""
        program = Program(
            (Storage("float32", 1), Storage("float32", 3)),
            (Input("a", 0, "float32", (1,), (1,)), Input("b", 1, "float32", (3,), (1,))),
            (Step("add_", (tensor("b"), 1)), Step("mul", (tensor("a"), 2), out=("c",))),
            calls=(Call({"b": {"beside": "a", "offset": 0}}, restarted=True),),
        )
        target = load_target("inductor")
        verdict = judge_program(program, target)
        assert (verdict.call, verdict.change) == (1, "aliasing and process")
        assert compiler_culprit(Trial.of(program, target), verdict.mismatches[0]) == "Inductor: without saved graphs"
        assert judge_program(call_of(program, 1), target).passed
        ran = standalone(script(program, target, verdict.mismatches))
        assert (ran.returncode, ran.stdout.splitlines()[:2]) == (1, ["cpu [2.0]", "inductor [0.0]"])

    def test_inputs_that_come_to_overlap_are_found_on_aot_eager(self) -> None:
        """The class of pytorch#139789: no guard says that two inputs do not overlap."""
        program = Program(
            (Storage("float32", 5), Storage("float32", 5)),
            (Input("a", 0, "float32", (5,), (1,)), Input("b", 1, "float32", (5,), (1,))),
            (
                Step("sum", (tensor("b"),), out=("c",)),
                Step("add_", (tensor("a"), tensor("c"))),
                Step("mul", (tensor("b"), 2), out=("d",)),
            ),
            calls=(Call({"b": {"beside": "a", "offset": 3}}),),
        )
        verdict = judge_program(program, load_target("compile:aot_eager"))
        assert (verdict.call, verdict.change) == (1, "aliasing")
