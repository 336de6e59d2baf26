"""Groups of failures: one per cause, whatever steps follow, and whichever step shows it."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.declare.declaration import unsupported as declare_unsupported
from conformance.declare.profile import Profile
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.reduce import reduce_program
from conformance.program.shadow import find_open_order
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import OPEN_ORDER, gist, signature, suspect
from conformance.record.finding import FAIL, FLAKY
from conformance.run.campaign.plan import Plan, Shard
from conformance.run.campaign.tasks import Part
from conformance.run.failing_program import FailingProgram
from conformance.run.shrink_program import shrink
from conformance.selftest.faults import Fault, InterceptedCall
from conformance.selftest.mutants import MutantTarget, Planted
from conformance.sources.fuzzing.drawn import DrawnPrograms
from conformance.standalone.moving import map_tensors
from conformance.standalone.oracles import Mismatch
from conformance.targets.cpu import CpuTarget
from conformance.targets.functionalize import FunctionalizeTarget


class Faulty(MutantTarget):
    """torch CPU with one or two faults of a test."""

    def __init__(self, argument: str = "") -> None:
        super().__init__("zero_ clears the storage")
        self.spec = "class:test_verdict.TwoFaults"

    def plant(self, ops: str, act: Callable[[InterceptedCall], object]) -> Faulty:
        self.mode = Planted(Fault(ops, act, "a test"))
        return self


class TwoFaults(Faulty):
    """`fill_` writes another number, and `abs` returns another dtype: the later step has the earlier oracle."""

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        self.plant("fill_ abs", lambda call: call.having(1, 0) if call.writes else call.run().double())


def program(*steps: Step) -> Program:
    return Program((Storage("float32", 6),), (Input("a", 0, "float32", (2, 3), (3, 1)),), steps)


def group(target: Faulty, *steps: Step) -> str:
    failing = program(*steps)
    return str(signature(failing, judge_program(failing, target)))


FILL, ABS = Step("fill_", (tensor("a"), 7)), Step("abs", (tensor("a"),), out=("b",))


class WrongFrom(FunctionalizeTarget):
    """A transform that falsifies the result `name` of a function that returns at least `least` results, and counts the
    functions that it receives and their results."""

    def __init__(self, name: str, least: int = 0) -> None:
        super().__init__()
        self.falsified, self.least, self.compiled = name, least, 0
        self.results: list[int] = []

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        transformed = super().transform(function)
        self.compiled += 1

        def call(*inputs: Any) -> Any:
            results = transformed(*inputs)
            self.results.append(len(results))
            wrong = len(results) >= self.least
            return {name: one * 2 if wrong and name == self.falsified else one for name, one in results.items()}

        return call


class Lenient(WrongFrom):
    """A transform that falsifies `name`, and whose steps do not raise."""

    def attempt(self, step: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        with contextlib.suppress(RuntimeError):
            step(*tensors)
        return "no error"


class TwoLayers(WrongFrom):
    """A stack of two such transforms, the second of them slow. Neither has parts to switch off."""

    slow = True

    def __init__(self, first: WrongFrom, name: str, least: int = 0) -> None:
        super().__init__(name, least)
        self.first = first

    def layers(self) -> list[tuple[str, WrongFrom]]:
        return [("first", self.first), ("second", self)]

    def applied(self) -> contextlib.AbstractContextManager[dict[str, list[str]]]:
        return contextlib.nullcontext({})

    def switched_off(self, kind: str, names: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


CHAIN = program(*(Step("neg", (tensor(name),), out=(out,)) for name, out in itertools.pairwise("abcdefghij")))
"""Nine steps; step n returns the tensor with the n-th letter from b."""

TWO_CHAINS = Program(
    (Storage("float32", 6), Storage("float32", 6)),
    (Input("a", 0, "float32", (2, 3), (3, 1)), Input("p", 1, "float32", (2, 3), (3, 1))),
    tuple(Step("neg", (tensor(name),), out=(out,)) for name, out in ("ab", "pf", "bc", "fg", "cd", "gh", "de", "hi")),
)
"""Four steps on `a` and four on `p`, alternating; the results of the second chain are `f` to `i`."""


class TestSearchOfTheBadStep:
    def test_the_step_that_differs_at_the_end_is_tried_first(self):
        """Two prefixes settle most searches. Each compilation takes a compiler 0.2 s; bisecting took five here."""
        target = WrongFrom("f")
        assert judge_program(CHAIN, target).bad_step == 5
        assert target.compiled == 1 + 2  # all steps, the first five, the first four

    def test_it_runs_on_the_first_layer_that_shows_the_difference(self):
        """The layers behind it cost time: Inductor starts a C++ compiler for each prefix."""
        first = WrongFrom("f")
        target = TwoLayers(first, "f")
        assert judge_program(CHAIN, target).bad_step == 5
        assert (target.compiled, first.compiled) == (1, 1 + 2)
        first = WrongFrom("f")
        target = TwoLayers(first, "f")
        target.slow = False
        assert judge_program(CHAIN, target).bad_step == 5
        assert (target.compiled, first.compiled) == (1 + 2, 0)
        sound = WrongFrom("no result")
        target = TwoLayers(sound, "f")
        assert judge_program(CHAIN, target).bad_step == 5
        assert (target.compiled, sound.compiled) == (1 + 2, 1)

    @pytest.mark.parametrize(("name", "functions"), [("no result", 1), ("b", 1 + 2)])
    def test_a_missing_error_names_its_step(self, name, functions):
        """If the steps before it are right, no prefix is compiled. Otherwise one of them may be its cause."""
        raising = Step("view", (tensor("b"), [77]), raises="RuntimeError")
        refused = program(CHAIN.steps[0], raising, *CHAIN.steps[1:])
        target = Lenient(name)
        verdict = judge_program(refused, target)
        assert (verdict.bad_step, target.compiled) == (2 if name != "b" else 1, functions)
        assert verdict.mismatches[0].where == "step 2"

    def test_a_step_that_is_wrong_only_with_later_steps(self):
        """The first prefix is right, so that the search bisects the rest. The last step of the wrong prefix counts."""
        target = WrongFrom("c", least=7)
        assert judge_program(CHAIN, target).bad_step == 7

    @pytest.mark.parametrize(("least", "bad", "results"), [(0, 6, [8, 3, 2]), (8, 8, [8, 3, 6, 8, 7])])
    def test_it_runs_on_the_steps_that_share_memory_with_the_suspect(self, least, bad, results):
        """They compile faster than the whole program, and the number stays that of the whole program. If they are right
        by themselves, the search runs on the whole program."""
        target = WrongFrom("h", least)
        verdict = judge_program(TWO_CHAINS, target)
        assert (verdict.bad_step, target.results) == (bad, results)

    def test_the_suspect_returned_or_wrote_what_differs(self):
        """It is the first step that did. An error of the whole run has no suspect."""
        changed = program(Step("t", (tensor("a"),), out=("v",)), *CHAIN.steps[:2], FILL)
        assert suspect(changed, [Mismatch("value", "v[0]", "1", "2")]) == 1
        assert suspect(changed, [Mismatch("value", "a", "1", "2"), Mismatch("value", "c", "1", "2")]) == 3
        assert suspect(changed, [Mismatch("error", "step 2", "no error", "RuntimeError")]) == 2
        assert suspect(changed, [Mismatch("error", "the run", "no error", "RuntimeError")]) == 0


class TestErrorOfAStep:
    """An error on a device, which names the step that raised it."""

    ERROR = Step("matmul", (tensor("b"), {"tensor": [[1.0]] * 3, "dtype": "float32"}), out=("c",))

    def test_what_was_wrong_before_is_the_cause(self):
        """The product refuses the dtype that `abs` returned: the finding is that of `abs`."""
        failing = program(ABS, self.ERROR)
        verdict = judge_program(failing, TwoFaults())
        assert (verdict.bad_step, verdict.mismatches[0].where) == (1, "step 2")
        assert verdict.wrong_first == "b should have dtype torch.float32 and has torch.float64"
        assert str(signature(failing, verdict)) == str(
            signature(program(ABS), judge_program(program(ABS), TwoFaults()))
        )

    def test_another_fault_before_is_not(self):
        """A wrong tensor that the failed step does not read is a finding of its own."""
        other = Step("abs", ({"tensor": [1.0], "dtype": "float32"},), out=("z",))
        target = Faulty().plant("abs mm", lambda call: call.run().double() if len(call.args) == 1 else call.missing)
        neg = Step("neg", (tensor("a"),), out=("b",))
        verdict = judge_program(program(other, neg, self.ERROR), target)
        assert (verdict.bad_step, verdict.wrong_first) == (3, "")


class TestSignature:
    def test_it_is_of_the_first_bad_step(self):
        """The signature is that of the first bad step. Regression test: it combined the first oracle of the final
        observation with the first bad step, which belonged to another fault."""
        verdict = judge_program(program(FILL, ABS), TwoFaults())
        assert [mismatch.oracle for mismatch in verdict.mismatches][:2] == ["value", "dtype"]
        assert (verdict.mismatches[0].where, verdict.wrong_first) == ("a", "")
        assert verdict.bad_step == 1
        assert str(signature(program(FILL, ABS), verdict)) == "value / fill_ / contiguous"
        assert group(TwoFaults(), ABS) == "dtype / abs / contiguous"

    def test_an_error_that_is_not_raised_comes_before_what_it_leads_to(self):
        """A write that must raise, and does not, also has wrong values."""

        def lets_through(call: InterceptedCall) -> object:
            torch.ops.aten.zero_(call.first[0] if call.first.dim() else call.first)
            return call.first

        rejected = Step("add_.error", (tensor("a"), 1), raises="RuntimeError")
        expanded = Program(
            (Storage("float32", 2),),
            (Input("a", 0, "float32", (2,), (0,), 1),),
            (Step("add_", rejected.args, raises="RuntimeError"),),
        )
        verdict = judge_program(expanded, Faulty().plant("add_", lets_through))
        assert [mismatch.oracle for mismatch in verdict.mismatches][:2] == ["error", "value"]
        assert str(signature(expanded, verdict)).startswith("error / no error: unsupported operation more than one")

    def test_one_text_is_one_group_whichever_step_meets_it(self):
        """Equal error texts are one group, whatever the step. Regression test: one error in two families was two
        groups."""

        def fails(call: InterceptedCall) -> object:
            raise ValueError(f"size mismatch, can't reshape ({call.first.numel()}) -> (1,)")

        target = Faulty().plant("fill_ abs", fails)
        assert group(target, FILL) == group(target, ABS) == "error / ValueError: size mismatch can t reshape"

    def test_an_error_without_a_text_keeps_the_family(self):
        """Without a text, the family distinguishes errors."""

        def fails(call: InterceptedCall) -> object:
            raise AssertionError

        target = Faulty().plant("fill_ abs", fails)
        assert group(target, FILL) == "error / copy / AssertionError"
        assert group(target, ABS) == "error / out of place / AssertionError"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (
                "Could not run 'aten::abs.out' with arguments from the 'tiny' backend.",
                "Could not run abs with arguments from the backend",
            ),
            ('size 3 of "b" at 0x7f', "size of at x f"),
            ("", ""),
        ],
    )
    def test_a_text_keeps_the_names_of_operators(self, text, words):
        """Two missing operators are two findings; numbers and other names are removed."""
        assert gist(text) == words


class TestShrinking:
    def test_what_comes_after_the_first_bad_step_goes_first(self, monkeypatch):
        """Shrinking keeps the first fault, although the second has an oracle of higher precedence."""
        monkeypatch.setattr("conformance.run.shrink_program.loaded", lambda spec: TwoFaults())
        failing = program(Step("zero_", (tensor("a"),)), FILL, ABS, Step("neg_", (tensor("b"),)))
        verdict = judge_program(failing, TwoFaults())
        finding = FailingProgram(
            str(signature(failing, verdict)),
            FAIL,
            0,
            program=failing,
            mismatches=verdict.mismatches,
            bad_step=verdict.bad_step,
        )
        small = shrink("two faults", finding, 60)
        assert [step.op for step in small.program.steps] == ["fill_"]
        assert small.signature.startswith("value / fill_ / ")
        assert json.dumps(small.to_json())

    @pytest.mark.parametrize(
        ("op", "spoilt", "left"),
        [
            ("relu_", "relu_ clamp_ add_ neg_", "add_"),
            ("neg_", "relu_ clamp_ add_ neg_", "add_"),
            ("neg_", "neg_", "neg_"),
        ],
    )
    def test_what_any_arithmetic_shows_is_one_finding(self, op, spoilt, left, monkeypatch):
        """A write that is lost, whatever it computes, becomes one finding. Regression test: it was one for each op. A
        loss in `neg_` only stays separate."""
        monkeypatch.setattr(
            "conformance.run.shrink_program.loaded", lambda spec: Faulty().plant(spoilt, lambda call: call.first)
        )
        failing = Program(
            (Storage("float32", 6, {"seed": 3}),),
            (Input("a", 0, "float32", (2, 3), (3, 1)),),
            (Step(op, (tensor("a"),)),),
        )
        verdict = judge_program(failing, Faulty().plant(spoilt, lambda call: call.first))
        small = shrink(
            "lost",
            FailingProgram("", FAIL, 0, program=failing, mismatches=verdict.mismatches, bad_step=verdict.bad_step),
            60,
        )
        assert small.signature.startswith(f"value / {left} / ")

    @pytest.mark.parametrize(("least", "steps", "again"), [(0, 1, False), (5, 5, True)])
    def test_trials_run_on_the_first_layer_that_shows_the_failure(self, least, steps, again, monkeypatch):
        """The result has to fail on the whole target too. Otherwise the trials run there. A function of one negation
        returns one result, and the layer behind may be wrong only with more."""
        first = WrongFrom("f")
        target = TwoLayers(first, "f", least)
        monkeypatch.setattr("conformance.run.shrink_program.loaded", lambda spec: target)
        verdict = judge_program(CHAIN, target)
        before = target.compiled
        small = shrink(
            "layers",
            FailingProgram("", FAIL, 0, program=CHAIN, mismatches=verdict.mismatches, bad_step=verdict.bad_step),
            60,
        )
        assert len(small.program.steps) == steps
        assert judge_program(small.program, target).mismatches
        assert first.compiled > 5
        assert (target.compiled - before > 5) is again

    def test_an_error_stays_the_error_that_it_was(self, monkeypatch):
        """Shrinking keeps the text of the original error, even if another error has the same type."""

        def fails(call: InterceptedCall) -> object:
            raise RuntimeError("no such memory" if call.first.storage_offset() else "no such kernel")

        monkeypatch.setattr("conformance.run.shrink_program.loaded", lambda spec: Faulty().plant("fill_", fails))
        failing = Program(
            (Storage("float32", 6),), (Input("a", 0, "float32", (4,), (1,), 2),), (Step("neg_", (tensor("a"),)), FILL)
        )
        verdict = judge_program(failing, Faulty().plant("fill_", fails))
        finding = FailingProgram("", FAIL, 0, program=failing, mismatches=verdict.mismatches, bad_step=verdict.bad_step)
        small = shrink("an error", finding, 60)
        assert small.signature == "error / RuntimeError: no such memory"
        assert small.program.inputs[0].offset == 1


class TestStepByStep:
    """Expressions that a lazy device computes correctly as a whole are also computed step by step."""

    def test_a_step_that_is_wrong_only_by_itself(self):
        """The eager run detects a wrong kernel of a single step. Regression test: a device passed if its kernel for a
        single step was wrong and its fused kernel was right."""

        class Lazy(CpuTarget):
            facts = replace(CpuTarget.facts, lazy=True)
            looks = 0

            def send(self, tree):
                self.looks = 0
                return super().send(tree)

            def fetch(self, tree):
                self.looks += 1
                fetched = super().fetch(tree)
                return map_tensors(fetched, lambda t: t + 1) if self.looks > 1 else fetched

        inputs = (Storage("float32", 2),), (Input("a", 0, "float32", (2,), (1,)),)
        steps = tuple(
            Step(op, args, {}, ("b",))
            for op, args in (("exp.fused", (tensor("a"),)), ("sub.fused", (tensor("b"), tensor("a"))))
        )
        assert judge_program(Program(*inputs, steps), CpuTarget()).passed
        verdict = judge_program(Program(*inputs, steps), Lazy())
        assert not verdict.passed
        assert "only when each step is computed by itself" in verdict.mismatches[0].detail


def _from_the_end(call: InterceptedCall) -> Any:
    """Sort or select as torch does, but prefer the last of equal elements."""
    last = call.first.size(-1) - 1
    values, positions = call.having(0, call.first.flip(-1))
    return values, positions.neg_().add_(last)  # in place, since positions may be those of `out=`


class TestOrderOfEqualElements:
    """Which of equal elements comes first is no answer to judge, in drawn programs as in samples of op_db."""

    POSITIONS = Input("i", 1, "int64", (2, 3), (3, 1))

    @pytest.mark.parametrize(
        ("step", "judged"),
        [
            (Step("topk", (tensor("a"), 2), out=("b", "c")), False),
            (Step("sort", (tensor("a"),), out=("b", "c")), False),
            (Step("sort", (tensor("a"),), {"stable": True}, out=("b", "c")), True),
            (Step("equal outs.out:topk", (tensor("a"), 3, -1), {"out": {"tuple": [tensor("a"), tensor("i")]}}), False),
        ],
    )
    def test_only_what_torch_promises_is_judged(self, step: Step, judged: bool) -> None:
        """Regression test: `topk` into its own operand, which had equal elements, was a finding on Vulkan."""
        target = Faulty().plant("topk sort", _from_the_end)
        storages = Storage("float32", 6, [1, 1, 2, 3, 4, 4]), Storage("int64", 6, [0] * 6)
        inputs = *program().inputs, self.POSITIONS
        verdict = judge_program(Program(storages, inputs, (step,)), target)
        assert (verdict.unsupported, bool(verdict.mismatches)) == ("" if judged else OPEN_ORDER, judged)
        distinct = Storage("float32", 6, [1, 6, 2, 3, 4, 1]), storages[1]
        assert judge_program(Program(distinct, inputs, (step,)), target).passed

    def test_reads_of_written_elements_are_not_judged(self) -> None:
        """`take_along_dim` accepts its operand as an out=, if it has gaps, and copies nothing. Regression test: Vulkan,
        which reads all elements before it writes them, was a finding."""
        gaps = replace(program().inputs[0], size=(3, 3), stride=(6, 2))
        target = Faulty().plant("gather", lambda call: call.having(0, call.first.clone()))
        order = {"tensor": [[2, 0, 1], [1, 2, 0], [0, 1, 2]], "dtype": "int64"}
        step = Step("equal outs.out:take_along_dim", (tensor("a"), order, 0), {"out": tensor("a")})
        verdict = judge_program(Program((Storage("float32", 18, "arange"),), (gaps,), (step,)), target)
        assert (verdict.unsupported, verdict.mismatches) == (OPEN_ORDER, ())

    def test_a_wrong_order_of_distinct_elements_stays_distinct(self) -> None:
        """A smaller program keeps elements that show the fault."""
        target = Faulty().plant("topk", lambda call: tuple(one.flip(-1) for one in call.run()))
        failing = program(Step("topk", (tensor("a"), 2), out=("b", "c")))
        assert judge_program(failing, target).mismatches
        small = reduce_program(failing, lambda one: bool(judge_program(one, target).mismatches))
        assert not find_open_order(small)

    def test_an_earlier_fault_is_judged(self) -> None:
        """A wrong value before the step with equal elements is no question of their order. Regression test: the whole
        program was not judged."""
        target = Faulty().plant("neg", lambda call: call.run().add_(1))
        order = Step("topk", (tensor("a"), 2), out=("b", "c"))
        steps = (Step("neg", (tensor("a"),), out=("d",)), order)
        ties = Storage("float32", 6, [1, 1, 2, 3, 4, 4])
        verdict = judge_program(Program((ties,), program().inputs, steps), target)
        assert (verdict.unsupported, verdict.bad_step) == ("", 1)

    @pytest.mark.parametrize(
        ("later", "judged"),
        [
            (Step("neg", (tensor("a"),), out=("d",)), True),
            (Step("neg", (tensor("b"),), out=("d",)), True),
            (Step("exp", (tensor("b"),), out=("d",)), False),
        ],
    )
    def test_a_later_fault_is_judged(self, later: Step, judged: bool) -> None:
        """If it does not come from the positions: the program without these shows it. Regression test: a wrong value
        after a step with equal elements was never judged."""
        wrong = lambda call: call.run().add_(1) if len(call.args) == 1 else _from_the_end(call)  # noqa: E731
        target = Faulty().plant("topk neg", wrong)
        ties = Storage("float32", 6, [1, 1, 2, 3, 4, 4])
        steps = Step("topk", (tensor("a"), 2), out=("c", "i")), Step("mul", (tensor("a"), 2), out=("b",)), later
        verdict = judge_program(Program((ties,), program().inputs, steps), target)
        assert (verdict.unsupported, bool(verdict.mismatches)) == ("" if judged else OPEN_ORDER, judged)


def _without_helper(call: InterceptedCall) -> object:
    if len(call.args) == 1:
        return call.run().add_(1)
    raise NotImplementedError("Could not run 'aten::_cummax_helper' with arguments from the 'xpu' backend.")


class TestDeclaredOperators:
    """A program that needs an operator which the profile declares missing counts as not run."""

    CUMMAX = Step("op_db.many:cummax", (tensor("a"), 0), out=("b", "c"))
    NEG = Step("neg", (tensor("a"),), out=("d",))

    @pytest.mark.parametrize(
        ("declared", "steps", "unsupported"),
        [
            ("aten::_cummax_helper", (CUMMAX,), "aten::_cummax_helper"),
            ("aten::_cummin_helper", (CUMMAX,), ""),
            ("aten::_cummax_helper", (NEG, CUMMAX), ""),  # the step before is wrong
        ],
    )
    def test_inside_of_a_kernel_of_torch(self, declared: str, steps: tuple[Step, ...], unsupported: str) -> None:
        """Torch's kernel of `cummax` calls it, and no mode sees that. Regression test: 33 of 84 findings on a published
        device repeated its profile."""
        target = Faulty().plant("cummax neg", _without_helper)
        declaration = declare_unsupported("no kernel", operator=declared)
        target.facts = replace(target.facts, profile=Profile(declarations=(declaration,)))
        verdict = judge_program(program(*steps), target)
        assert (verdict.unsupported, verdict.bad_step) == (unsupported, None if unsupported else 1)
        assert [wrong.where for wrong in verdict.mismatches] == (
            [] if unsupported else ["d" if self.NEG in steps else "step 1"]
        )


class TestVanished:
    """A failure that disappears in a second run of the program, or of its prefixes, has no first bad step."""

    PROGRAM = program(FILL, Step("add_", (tensor("a"), 1)))
    SAVED = FailingProgram(
        "as drawn", FAIL, 0, program=program(FILL, *PROGRAM.steps), mismatches=(Mismatch("value", "a", "8", "9", ""),)
    )

    @staticmethod
    def target() -> Faulty:
        """`add_` is wrong in its first, fourth, ... run: in the whole program, but in none of the runs that search for
        the first bad step."""
        counted = itertools.cycle((2, 1, 1))
        return Faulty().plant("add_", lambda call: call.having(1, next(counted)))

    def test_its_finding_is_flaky(self, monkeypatch):
        """A failure that disappears is FLAKY. Regression test: on a device whose memory is never written, its old
        content decided, and the finding had no step."""
        target = self.target()
        monkeypatch.setattr("conformance.run.campaign.tasks.loaded", lambda spec: target)
        verdict = judge_program(self.PROGRAM, target)
        assert verdict.vanished and not verdict.passed
        shard = Shard(Plan(DrawnPrograms(), "lost"), 0, 1)
        part = Part(shard, 0, 0, self.PROGRAM)
        assert part.confirmed(part.trial, verdict).kind == FLAKY
        steady = replace(verdict, bad_step=2, lazy_only=False)
        assert part.confirmed(part.trial, steady).kind == FAIL  # since the second run is wrong, as the first was

    def test_a_smaller_program_of_it_is_not_kept(self, monkeypatch):
        """The finding stays unshrunk, with its original step."""
        target = self.target()
        monkeypatch.setattr("conformance.run.shrink_program.loaded", lambda spec: target)
        assert shrink("lost", self.SAVED, 0) == self.SAVED
