"""Arbitration of programs by float64: the side with the larger rounding error fails; other differences stay
failures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.program.float64 import truth_of
from conformance.program.model import Input, Program, Storage
from conformance.program.shadow import reference
from conformance.program.steps.op import Step

CANCELS = [0.0, -8.0, -2.5]
"""Inputs for which torch CPU's logsumexp in bfloat16 has an error of four hundredths."""


class Instead(TorchDispatchMode):
    """Mode that replaces one op."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = self.function if func.overloadpacket.__name__ == self.name else func
        return own(*args, **(kwargs or {}))


class Other(Target):
    """torch CPU with one op replaced."""

    name = "other"

    def __init__(self, op: str, function: Callable[..., Any]) -> None:
        super().__init__()
        self.mode = Instead(op, function)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with self.mode:
            yield


def once(x: torch.Tensor, dim: list[int], keepdim: bool = False) -> torch.Tensor:
    """logsumexp that rounds once."""
    return torch.logsumexp(x.double(), dim, keepdim).to(x.dtype)


def t(name: str) -> dict[str, str]:
    return {"t": name}


def program(*steps: Step, values: Any = CANCELS, dtype: str = "bfloat16", grad: bool = False) -> Program:
    count = len(values)
    return Program((Storage(dtype, count, values),), (Input("a", 0, dtype, (count,), (1,), 0, grad),), steps)


LOGSUMEXP = Step("logsumexp", (t("a"), 0, True), out=("b",))


class TestJudged:
    """The target agrees with float64, and the CPU does not."""

    @pytest.mark.parametrize("more", [
        (), (Step("mul", (t("b"), 2), out=("c",)),), (Step("copy_", (t("a"), t("b"))),),
        (Step("add", (t("b"), {"tensor": [1.0], "dtype": "bfloat16"}), out=("c",)),),
    ])  # fmt: skip
    def test_the_cpu_rounds_more(self, more: tuple[Step, ...]) -> None:
        """A result that rounds once passes, and so do later results computed from it. Constants, dtypes and writes are
        widened too."""
        verdict = judge_program(program(LOGSUMEXP, *more), Other("logsumexp", once))
        assert (verdict.mismatches, verdict.arbitrated) == ((), True)

    def test_beside_a_loop_over_something_else(self) -> None:
        """A loop over another tensor does not prevent arbitration. Regression test: the loop ran in float64 without the
        step that creates its operand, which ended arbitration."""
        other = Step("neg", ({"tensor": [1.0, 2.0, 3.0], "dtype": "bfloat16"},), out=("z",))
        loop = Step("loop", (), body=(Step("augment", (t("z"), {"i": [1, 0]}, 1)),), times=2)
        verdict = judge_program(program(other, loop, LOGSUMEXP), Other("logsumexp", once))
        assert (verdict.mismatches, verdict.arbitrated) == ((), True)

    def test_two_dtypes_in_one_storage(self) -> None:
        """A storage that inputs of two dtypes share has no values in float64, so the difference stands."""
        inputs = tuple(Input(name, 0, dtype, (3,), (1,)) for name, dtype in (("a", "float32"), ("b", "int32")))
        shared = Program((Storage("float32", 3),), inputs, (Step("exp", (t("a"),), out=("c",)),))
        verdict = judge_program(shared, Other("exp", lambda x: x * 3))
        assert [mismatch.where for mismatch in verdict.mismatches] == ["c"]

    def test_what_agrees_is_not_judged(self) -> None:
        """torch CPU against itself needs no arbitration."""
        verdict = judge_program(program(LOGSUMEXP), Other("logsumexp", torch.logsumexp))
        assert (verdict.passed, verdict.arbitrated) == (True, False)

    def test_a_later_fault_is_the_first_bad_step(self) -> None:
        """A step that only rounds less is not the first bad step, and its result is no finding beside another."""

        class Tripling(Other):
            @contextlib.contextmanager
            def active(self) -> Iterator[None]:
                with self.mode, Instead("mul", lambda x, y: x + x + x):
                    yield

        verdict = judge_program(program(LOGSUMEXP, Step("mul", (t("b"), 2), out=("c",))), Tripling("logsumexp", once))
        assert (verdict.bad_step, [mismatch.where for mismatch in verdict.mismatches]) == (2, ["c"])


def further(units: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """An exponential with an error of this number of float32 units in the last place, away from 0."""
    return lambda x: (x.double().exp() * (1 + units * 2**-23)).to(x.dtype)


EXP = Step("exp.edge", (t("a"),), out=("b",))
AMPLIFIED = {
    "a steep function": (Step("exp.edge", (t("b"),), out=("c",)), 4.0),
    "a jump": (Step("log", (t("b"),), out=("l",)), Step("floor.edge", (t("l"),), out=("c",)), 1.0),
    "a division with a rest": (
        Step("remainder.edge", ({"tensor": [3e4], "dtype": "float32"}, t("b")), out=("c",)),
        3.0,
    ),
}


class TestAmplified:
    """A later step may amplify a unit in the last place of an earlier result."""

    @pytest.mark.parametrize("case", AMPLIFIED)
    def test_a_unit_in_the_last_place_is_no_finding(self, case: str) -> None:
        """An amplified unit in the last place passes. Regression test: exp(exp(4.0)) was a finding, although the inner
        result was within 0.56 units and the CPU's within 0.44."""
        *steps, value = AMPLIFIED[case]
        amplified = program(EXP, *steps, values=[value], dtype="float32")  # type: ignore[arg-type]
        for units in (-0.9, 0.9):
            assert judge_program(amplified, Other("exp", further(units))).passed, units

    def test_more_is(self) -> None:
        """A larger error is a finding, even if the tolerance accepts it in the first step."""
        steep = program(EXP, AMPLIFIED["a steep function"][0], values=[4.0], dtype="float32")  # type: ignore[arg-type]
        assert not judge_program(steep, Other("exp", further(8))).passed

    def test_a_wrong_last_step_is(self) -> None:
        """No step follows that could amplify a rounding error. By the vector width of the CPU, log(exp(1)) is 1 or just
        below it, so both 0 and 1 are right answers; these are beyond them."""
        jump = program(EXP, *AMPLIFIED["a jump"][:-1], values=[1.0], dtype="float32")  # type: ignore[arg-type]
        assert not judge_program(jump, Other("floor", lambda x: torch.floor(x) - 2)).passed
        assert not judge_program(jump, Other("floor", lambda x: torch.floor(x) + 1.5)).passed

    def test_a_jump_from_where_both_stand_is(self) -> None:
        """A jump is a finding if both sides start from the same printed value. Regression test: round(log(exp(2.5))) of
        3 was excused because of log, although its result is 2.5 on both sides."""
        steps = (Step("log", (t("b"),), out=("c",)), Step("round.edge", (t("c"),), out=("d",)))
        jump = program(EXP, *steps, values=[2.5], dtype="float32")
        away = Other("round", lambda x: torch.where(x.frac().abs() == 0.5, x + 0.5 * x.sign(), x.round()))
        assert [m.where for m in judge_program(jump, away).mismatches] == ["d"]

    def test_the_sign_of_a_zero_of_relu_is_open(self) -> None:
        """1 / relu(-0.0) is an infinity of either sign, but no number; the sign of other zeros counts. Regression test:
        a device whose relu returns 0.0 was a finding."""
        positive = Other("relu", lambda x: torch.relu(x) + 0.0)
        inverse = Step("reciprocal", (t("b"),), out=("c",))
        relu = program(Step("relu", (t("a"),), out=("b",)), inverse, values=[-0.0, 2.0], dtype="float32")
        verdict = judge_program(relu, positive)
        assert (verdict.mismatches, verdict.arbitrated) == ((), True)
        wrong = Other("reciprocal", lambda x: torch.reciprocal(x).clamp(-1e30, 1e30))
        assert [m.where for m in judge_program(relu, wrong).mismatches] == ["c"]
        neg = program(Step("neg", (t("a"),), out=("b",)), inverse, values=[0.0, 2.0], dtype="float32")
        assert not judge_program(neg, Other("neg", lambda x: torch.neg(x) + 0.0)).passed


class TestFails:
    """Differences that float64 does not excuse."""

    def test_the_target_rounds_more(self) -> None:
        """The target is further from float64 than the CPU, whose answer is inexact too."""
        verdict = judge_program(program(LOGSUMEXP), Other("logsumexp", lambda *inputs: torch.logsumexp(*inputs) * 1.1))
        assert [m.oracle for m in verdict.mismatches] == ["value"]
        assert "float64" in verdict.mismatches[0].detail

    def test_as_far_on_the_other_side(self) -> None:
        """An error no larger than the CPU's is not enough: the target must be within the tolerance of float64."""
        cpu = torch.logsumexp(torch.tensor(CANCELS).bfloat16(), 0)
        right = once(torch.tensor(CANCELS).bfloat16(), [0])
        verdict = judge_program(program(LOGSUMEXP), Other("logsumexp", lambda *inputs: (2 * right - cpu).reshape(1)))
        assert not verdict.passed

    def test_a_number_that_was_only_moved(self) -> None:
        """-0.0 differs from 0.0 if bits must agree, although float64 shows no difference."""
        flip = Step("flip", (t("a"), [0]), out=("b",))
        verdict = judge_program(
            program(flip, values=[0.0, 1.0]), Other("flip", lambda x, dims: -torch.flip(-x, dims) + 0.0)
        )
        assert verdict.passed
        verdict = judge_program(
            program(flip, values=[-0.0, 1.0]), Other("flip", lambda x, dims: torch.flip(x, dims) + 0.0)
        )
        assert [m.oracle for m in verdict.mismatches] == ["value"]

    def test_a_write_outside_the_view(self) -> None:
        """A write outside the view fails, even if the result rounds less."""

        def writes(x: torch.Tensor, dim: list[int], keepdim: bool) -> torch.Tensor:
            result = once(x, dim, keepdim)
            x[1] = 3
            return result

        verdict = judge_program(program(LOGSUMEXP), Other("logsumexp", writes))
        assert not verdict.passed

    def test_a_program_that_decides_by_a_rounded_value(self) -> None:
        """If a comparison gives another result in float64, its value cannot be arbitrated: 0.0825 is more than 0.08,
        and 0.079 is not."""
        decides = program(LOGSUMEXP, Step("gt", (t("b"), 0.08), out=("c",)))
        assert "b" in truth_of(decides)[1].tensors and "c" not in truth_of(decides)[1].tensors
        verdict = judge_program(decides, Other("logsumexp", once))
        assert {m.where for m in verdict.mismatches} == {"b", "c"}

    def test_a_program_that_reads_bits(self) -> None:
        """Float bits differ in float64, so results from them cannot be arbitrated, but earlier results can. Regression
        test: a correct logsumexp failed, because a later step viewed another tensor as int8.
        """
        bits = Step("view.dtype", (t("b"), {"dtype": "int16"}), out=("c",))
        assert set(truth_of(program(LOGSUMEXP, bits))[1].tensors) == {"a", "b"}
        apart = Step("view.dtype", (t("a"), {"dtype": "int16"}), out=("c",))
        assert judge_program(program(LOGSUMEXP, bits), Other("logsumexp", once)).bad_step == 2
        assert judge_program(program(LOGSUMEXP, apart), Other("logsumexp", once)).arbitrated
        later = (apart, Step("mul", (t("b"), 2), out=("d",)))
        assert judge_program(program(LOGSUMEXP, *later), Other("logsumexp", once)).bad_step == 3

    def test_a_value_that_was_written_later(self) -> None:
        """The float64 value of a tensor before a write excuses no difference after it."""

        class Lost(Other):
            @contextlib.contextmanager
            def active(self) -> Iterator[None]:
                with self.mode, Instead("mul_", lambda x, y: x):
                    yield

        bits = Step("view.dtype", (t("a"), {"dtype": "int16"}), out=("c",))
        verdict = judge_program(program(LOGSUMEXP, bits, Step("mul_", (t("b"), 2))), Lost("logsumexp", once))
        assert verdict.bad_step == 3

    def test_a_conversion_that_is_none_in_float64(self) -> None:
        """A conversion of float32 to float64 is a copy, but in float64 it returns the same tensor, so a write to it has
        another effect."""
        to = Step("to", (t("a"), {"dtype": "float64"}), out=("b",))
        assert set(truth_of(program(to, Step("fill_", (t("b"), 3)), dtype="float32"))[1].tensors) == {"a"}

    def test_metadata(self) -> None:
        """Only values can be arbitrated."""

        def strange(x: torch.Tensor, dim: list[int], keepdim: bool) -> torch.Tensor:
            return once(x, dim, keepdim).expand(2)[1:]

        verdict = judge_program(program(LOGSUMEXP), Other("logsumexp", strange))
        assert {m.oracle for m in verdict.mismatches} > {"value"}


class TestTruth:
    def test_is_wide_and_leaves_the_default_dtype(self) -> None:
        """All floats are float64, including results of integers; afterwards the default dtype is restored."""
        steps = (Step("div", (t("a"), 2), out=("b",)), LOGSUMEXP)
        seen = truth_of(
            program(
                Step("to", (t("a"), {"dtype": "int64"}), out=("i",)),
                Step("div", (t("i"), 2), out=("j",)),
                values=[4.0, 2.0],
            )
        )[1]
        assert {name: one.dtype for name, one in seen.tensors.items()} == {
            "a": torch.float64, "i": torch.int64, "j": torch.float64}  # fmt: skip
        assert torch.get_default_dtype() is torch.float32
        assert set(truth_of(program(*steps[:1]))[1].tensors) == {"a", "b"}

    def test_gradients(self) -> None:
        """Gradients are computed in float64 too."""
        square = Step("mul", (t("a"), t("a")), out=("b",))
        backward = Step("backward", (t("b"), {"tensor": [1.0, 2.0], "dtype": "float32"}))
        seen = truth_of(program(square, backward, values=[1.5, 2.0], dtype="float32", grad=True))[1]
        assert seen.grads["a"] is not None
        assert seen.grads["a"].dtype is torch.float64

    def test_planted_rounding_agrees_with_the_shadow(self) -> None:
        """The run in float64 does not change the CPU's own run."""
        before = reference(program(LOGSUMEXP)).observation.tensors["b"].value
        truth_of(program(LOGSUMEXP))
        assert torch.equal(before, reference(program(LOGSUMEXP)).observation.tensors["b"].value)
