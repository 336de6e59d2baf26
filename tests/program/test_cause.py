"""Causes: the property and the op to blame, whichever write or read shows the difference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from conformance.program.calls import judge_program
from conformance.program.cause import cause_of, plainer
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import Verdict
from conformance.record.finding import MOVE
from conformance.selftest.faults import DISPATCH, FAULTS, FUNCTION, WRITES, Fault, InterceptedCall
from conformance.selftest.mutants import MutantTarget, Planted
from conformance.standalone.oracles import Mismatch
from tests.planted.liars import writes_wrong_cell

SLICE = Step("as_strided", (tensor("a"), [2], [2], 1), out=("b",))


def program(*steps: Step) -> Program:
    return Program((Storage("float32", 6),), (Input("a", 0, "float32", (6,), (1,)),), steps)


def warns_otherwise(call: InterceptedCall) -> Any:
    """A warning with another text than torch's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = call.run()
    warnings.warn("another text", UserWarning, stacklevel=2)
    return result


def cause(ops: str, act: Callable[[InterceptedCall], Any], *steps: Step, level: str = DISPATCH) -> str:
    """The cause of a program's failure on torch CPU with one fault."""
    target = MutantTarget("zero_ clears the storage")
    target.mode = Planted(Fault(ops, act, "a test", level))
    failing = program(*steps)
    verdict = judge_program(failing, target)
    assert verdict.mismatches
    return str(cause_of(failing, verdict, lambda other: bool(judge_program(other, target, locate=False).mismatches)))


class TestViewOrWrite:
    """The cause of a view and a write that are wrong together."""

    @pytest.mark.parametrize("op", ["mul.out", "add.out"])
    def test_an_empty_view_that_out_resizes(self, op: str) -> None:
        """A result of `out=` gives an empty view elements of the memory below. Regression test: one lost view was a
        finding of each `out=`, since writes to no elements show nothing."""
        empty = Step("as_strided", (tensor("a"), [0], [1], 0), out=("_b",))
        write = Step(op, (tensor("a"), 2), {"out": tensor("_b")})
        assert cause("as_strided", lambda call: call.run().clone(), empty, write) == "aliasing / as_strided"

    @pytest.mark.parametrize(
        ("ops", "write"),
        [
            ("frexp", Step("op_db.out:frexp", (tensor("a"),), {"out": {"tuple": [tensor("b"), tensor("c")]}})),
            ("_foreach_neg_", Step("_foreach_neg_", ([tensor("b"), tensor("c")],))),
        ],
    )
    def test_a_write_to_several_tensors(self, ops: str, write: Step) -> None:
        """Regression test: `out=` with several tensors counted as a write elsewhere, so one bug had two causes."""
        views = (Step("neg", (tensor("a"),), out=("b",)), Step("to", (tensor("a"), {"dtype": "int32"}), out=("c",)))

        def wrong(call: InterceptedCall) -> Any:
            result = call.run()
            (result or call.first)[1].add_(1)
            return result

        assert cause(ops, wrong, *views, write) == f"value / {write.op}"

    @pytest.mark.parametrize(
        "write",
        [
            Step("fill_", (tensor("b"), 7)),
            Step("add_", (tensor("b"), 1)),
            Step("copy_", (tensor("b"), 3)),
            Step("setitem", (tensor("b"), {"ellipsis": 0}, 5)),
        ],
        ids=lambda step: step.op,
    )
    def test_a_view_that_any_write_misses(self, write: Step) -> None:
        """If every write through a view is wrong, the view is the cause. Regression test: an `as_strided` that makes
        writes reach the wrong cell was a finding for each of these writes."""
        assert cause(f"as_strided {WRITES}", writes_wrong_cell, SLICE, write) == "aliasing / as_strided"

    @pytest.mark.parametrize(
        ("fault", "write"),
        [
            ("arithmetic on gaps is lost", Step("add_", (tensor("b"), 1))),
            ("copy_ into gaps is lost", Step("copy_", (tensor("b"), {"tensor": [7, 8], "dtype": "float32"}))),
        ],
    )
    def test_a_write_that_is_wrong_alone(self, fault: str, write: Step) -> None:
        """Another write through the same view is right, so the view is not to blame."""
        assert cause(FAULTS[fault].ops, FAULTS[fault].act, SLICE, write) == f"value / {write.op}"

    def test_a_lost_write_that_only_the_base_shows(self) -> None:
        """A program may not observe the written view. Regression test: one lost write was two findings, `value` where
        the view was observed, and `aliasing` where only its base was."""
        fault = FAULTS["arithmetic on gaps is lost"]
        gaps = Step("as_strided", (tensor("a"), [2], [2], 1), out=("_b",))
        assert cause(fault.ops, fault.act, gaps, Step("add_", (tensor("_b"), 1))) == "value / add_"

    @pytest.mark.parametrize("view", ["b", "_b"])
    def test_a_write_beside_its_tensor(self, view: str) -> None:
        """The write's target is right, but the memory around it is wrong."""
        fault = FAULTS["copy_ clobbers the gap"]
        gaps = Step("as_strided", (tensor("a"), [2], [2], 1), out=(view,))
        write = Step("copy_", (tensor(view), {"tensor": [7, 8], "dtype": "float32"}))
        assert cause(fault.ops, fault.act, gaps, write) == "aliasing / copy_"

    def test_an_element_of_the_answer(self) -> None:
        """Another warning is a wrong element of the step's answer; no tensor is wrong."""
        step = Step("warned", ("freedom", {"device": 0}))
        assert cause("var", warns_otherwise, step, level=FUNCTION) == "value / warned"

    def test_a_copy_where_a_view_is_due(self) -> None:
        """The copy has another offset too, but aliasing is the more severe property."""
        fault = FAULTS["as_strided is stale"]
        assert cause(fault.ops, fault.act, SLICE) == "aliasing / as_strided"


class TestComposites:
    """Steps that use another op internally."""

    FILLED = Step("empty_filled", ([2], [1], {"dtype": "int32"}, {"device": 0}, 1), out=("c",))

    @pytest.mark.parametrize(
        "step",
        [FILLED, Step("resize_filled_", (tensor("a"), [9])), Step("fill_diagonal_", (tensor("c"), 3))],
        ids=lambda step: step.op,
    )
    def test_the_plain_use_is_found(self, step: Step) -> None:
        """The cause is the simple op if it fails alone too."""
        failing = (
            program(Step("view", (tensor("a"), 2, 3), out=("c",)), step)
            if step.args[0] == tensor("c")
            else program(step)
        )
        verdict = Verdict((Mismatch("value", "c", "[1]", "[2]", "1 of 1"),), len(failing.steps))
        plain = plainer(failing, verdict, lambda other: True)
        assert plain is not None and [one.op for one in plain.steps] == ["as_strided"]
        plain = plainer(failing, verdict, lambda other: len(other.steps) == 2)
        assert plain is not None and [one.op for one in plain.steps] == ["as_strided", "fill_"]
        assert plainer(failing, verdict, lambda other: False) is None

    def test_a_step_that_does_not_use_it_is_its_own_cause(self) -> None:
        """A step that does not call `as_strided` is not attributed to it, and neither is a difference that is not about
        memory."""
        wrong = Mismatch("value", "b", "[1]", "[2]", "1 of 1")
        plain = program(Step("neg", (tensor("a"),), out=("b",)))
        assert plainer(plain, Verdict((wrong,), 1), lambda other: True) is None
        assert plainer(program(SLICE), Verdict((wrong,), 1), lambda other: True) is None
        stride = Mismatch("stride", "c", "(1,)", "(2,)")
        assert plainer(program(self.FILLED), Verdict((stride,), 1), lambda other: True) is None


class TestErrors:
    """The cause of an error is the operator that its text names."""

    @pytest.mark.parametrize(
        ("expected", "actual", "text", "named"),
        [
            ("no error", "NotImplementedError", "not implemented is never a pass: Could not run 'aten::roll' with",
             "not implemented / roll"),
            ("no error", "RuntimeError", "Error while lowering: aten::as_strided, shape=f32", "error / as_strided"),
            ("no error", "RuntimeError", "boom", "error / neg"),
            ("IndexError", "RuntimeError", "aten::roll | boom", "wording / neg"),
            ("IndexError", "no error", "out of range", "missing error / neg"),
        ],
    )  # fmt: skip
    def test_by_its_text(self, expected: str, actual: str, text: str, named: str) -> None:
        """If the text names no operator, the step is the cause."""
        wrong = Mismatch("error", "step 1", expected, actual, text)
        assert str(cause_of(program(Step("neg", (tensor("a"),), out=("b",))), Verdict((wrong,), 1))) == named

    def test_at_the_move_of_the_inputs(self) -> None:
        """An error at the move of the inputs blames no step."""
        wrong = Mismatch("error", "the whole run", "no error", "RuntimeError", "Could not run 'aten::empty'")
        assert str(cause_of(program(), Verdict((wrong,), 0))) == f"error / {MOVE}"
