"""Calls with further arguments: which arguments a call may leave out, that torch CPU takes them, and faults found."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.steps.draw import Draw
from conformance.selftest.argument_faults import ARGUMENT_FAULTS
from conformance.selftest.mutants import Planted, hunt
from conformance.sources.fuzzing import further_arguments
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.further_arguments import FurtherArguments, arguments_of, find_variations
from conformance.sources.fuzzing.kinds import FURTHER_ARGUMENTS, PERIOD
from conformance.sources.fuzzing.op_db import OpDbCalls, Planned

DTYPES = ("float32", "int64", "float64", "bool")


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def names(operator: str) -> set[str]:
    return {one.name for one in arguments_of(operator)}


def planned(operator: str, argument: str, count: int = 6) -> list[Planned]:
    """Calls of an operator with this argument."""
    source = FurtherArguments(OpDbCalls(DTYPES))
    (variation, *_) = (one for one in find_variations()[operator] if one.argument.name == argument)
    drawn = (source.plan(Draw(random.Random(at).randint), variation, ["float32"], 0) for at in range(count))
    return [call for call in drawn if call is not None]


class TestArguments:
    def test_they_are_those_of_the_schema(self):
        """Keywords with a default, of every overload; not a result, a device, or one that draws random numbers."""
        assert "alpha" in names("sub") and {"dtype", "keepdim"} <= names("mean") and {"correction"} <= names("var")
        assert {"rounding_mode"} <= names("div")
        assert not names("mean") & {"out", "device", "layout"}
        assert not names("sort") & {"values", "indices"}

    def test_a_python_function_has_its_own(self):
        """`reduction` is a word for a user, and a number in the schema of the kernel."""
        assert {"reduction", "weight", "label_smoothing"} <= names("nn.functional.cross_entropy")
        assert next(one for one in arguments_of("nn.functional.mse_loss") if one.name == "reduction").type == "str"

    def test_each_is_stated_once(self):
        """Several entries of one operator do not repeat its arguments."""
        for name, found in find_variations().items():
            pairs = [(one.variant, one.argument.name) for one in found]
            assert len(pairs) == len({*pairs}), name


class TestCalls:
    @pytest.mark.parametrize(
        ("operator", "argument"),
        [("sub", "alpha"), ("mean", "dtype"), ("sum", "keepdim"), ("var", "correction"), ("div", "rounding_mode"),
         ("nn.functional.softplus", "threshold"), ("nn.functional.mse_loss", "reduction")],
    )  # fmt: skip
    def test_they_state_the_argument(self, operator, argument):
        calls = planned(operator, argument)
        assert len(calls) > 3
        assert all(argument in call.step.kwargs and not call.raises for call in calls)

    def test_more_than_two_operands(self):
        assert {len(call.step.args[0]) for call in planned("cat", "operands", 12)} & {3, 4, 5}

    @pytest.mark.parametrize("stride", further_arguments.STRIDES)
    def test_a_row_has_the_stride(self, stride):
        """Also if op_db's samples of the operator have no operand of one dimension, as those of exp."""
        for call in planned("exp", stride):
            assert call.inputs[0].stride == (int(stride[-1]),) and call.inputs[0].size[0] > 1

    def test_special_values_for_their_replacements(self):
        storages = [storage.make() for call in planned("nan_to_num", "posinf") for storage in call.storages]
        assert torch.cat(storages).isinf().any()


class TestPrograms:
    def test_one_in_a_period(self):
        """Such a program has many calls, torch CPU agrees with itself on it, and it is the same again."""
        for number in range(FURTHER_ARGUMENTS.turns[0], 6 * PERIOD, PERIOD):
            program = Drawing().numbered(3, number)
            assert len(program.steps) > 4
            assert judge_program(program, load_target("cpu")).passed
            assert Drawing().numbered(3, number).to_json() == program.to_json()

    def test_steps_limit_them(self):
        for number in range(FURTHER_ARGUMENTS.turns[0], 4 * PERIOD, PERIOD):
            assert len(Drawing((1, 4)).numbered(3, number).steps) <= 4

    def test_what_programs_use_comes_first(self):
        """The operators that most programs call are among the first hundred of each seed."""
        for seed in range(3):
            first = further_arguments._ordered(seed, 0)[:100]
            assert {"mul", "cat", "addmm"} <= {*first}


# For each fault, a call with a changed result, and a similar call without one.
SEEN = {
    "sub ignores alpha": (lambda a, b: a.sub(b, alpha=2), lambda a, b: a.sub(b)),
    "mean with dtype= does not divide": (lambda a, b: a.mean(dtype=torch.float64), lambda a, b: a.mean()),
    "cat of three repeats the second": (lambda a, b: torch.cat([a, b, a]), lambda a, b: torch.cat([a, b])),
    "mul_ of stride 2 is lost": (lambda a, b: a.clone()[::2].mul_(3), lambda a, b: a.clone()[::3].mul_(3)),
    "addmm ignores beta": (
        lambda a, b: torch.addmm(a.view(2, 3), b.view(2, 3), a[:9].repeat(2)[:9].view(3, 3), beta=2),
        lambda a, b: torch.addmm(a.view(2, 3), b.view(2, 3), a[:9].repeat(2)[:9].view(3, 3)),
    ),
    "addcmul ignores value": (lambda a, b: a.addcmul(a, b, value=2), lambda a, b: a.addcmul(a, b)),
    "var ignores correction": (lambda a, b: a.var(0, correction=0), lambda a, b: a.var(0)),
    "searchsorted ignores right": (
        lambda a, b: torch.searchsorted(a, a, right=True), lambda a, b: torch.searchsorted(a, a)
    ),
    "nan_to_num ignores posinf": (lambda a, b: (a / 0).nan_to_num(posinf=2), lambda a, b: (a / 0).nan_to_num()),
    "softplus ignores threshold": (
        lambda a, b: torch.nn.functional.softplus(a, threshold=2), lambda a, b: torch.nn.functional.softplus(a)
    ),
    "div with trunc rounds down": (
        lambda a, b: a.neg().div(b, rounding_mode="trunc"), lambda a, b: a.neg().div(b, rounding_mode="floor")
    ),
    "prod of integers with dtype= is off by one": (
        lambda a, b: a.long().prod(dtype=torch.float32), lambda a, b: a.long().prod()
    ),
    "hstack of three forgets the third": (lambda a, b: torch.hstack([a, b, a]), lambda a, b: torch.hstack([a, b])),
    "block_diag of three forgets the third": (
        lambda a, b: torch.block_diag(a, b, a), lambda a, b: torch.block_diag(b, a)
    ),
    "exp of stride 3 reads densely": (lambda a, b: a[::3].exp(), lambda a, b: a[::2].exp()),
    "atan2 reads a strided second operand densely": (
        lambda a, b: a[:3].atan2(b[::2]), lambda a, b: a[::2].atan2(b[::2])
    ),
    "clamp_ of stride 3 is lost": (lambda a, b: a.clone()[::3].clamp_(2, 3), lambda a, b: a.clone()[::2].clamp_(2, 3)),
}  # fmt: skip


class TestFaults:
    @pytest.mark.parametrize("name", ARGUMENT_FAULTS)
    def test_a_fault_has_the_effect_of_its_name(self, name):
        """And none on the similar call that a generator draws more often."""
        from conformance.selftest.mutants import PlantedAbove

        fault = ARGUMENT_FAULTS[name]
        a, b = torch.arange(1.0, 7), torch.arange(6.0, 0, -1)
        wrong, right = SEEN[name]
        expected = [call(a, b) for call in (wrong, right)]
        with PlantedAbove(fault) if fault.level == "function" else Planted(fault):
            changed, same = wrong(a, b), right(a, b)
        assert changed.shape != expected[0].shape or not torch.equal(changed, expected[0])
        assert torch.equal(same, expected[1])

    @pytest.mark.parametrize(
        "name", ["sub ignores alpha", "mean with dtype= does not divide", "mul_ of stride 2 is lost",
                 "cat of three repeats the second"]
    )  # fmt: skip
    def test_programs_find_it(self, name):
        """Regression test: 300 programs of a campaign did not, since op_db's samples leave these arguments out."""

        class OfArguments(Drawing):
            def numbered(self, seed, number, tally=None):
                return super().numbered(seed, PERIOD * number + FURTHER_ARGUMENTS.turns[0], tally)

        assert hunt(name, OfArguments(), 0, 30).programs is not None
