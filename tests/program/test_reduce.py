"""Reduction: it also simplifies values, within its budget, and keeps the failure's signature."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.execute import make_inputs
from conformance.program.model import Input, Program, Storage
from conformance.program.reduce import PASSES, plainer_values, reduce_program, settle
from conformance.program.source import source
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import judge_program, signature
from conformance.sources.fuzzing.drawing import Drawing


def holding(values, dtype="float32", size=4):
    """A program that negates these values."""
    storage = Storage(dtype, size, values)
    return Program((storage,), (Input("a", 0, dtype, (size,), (1,)),), (Step("neg", (tensor("a"),), out=("b",)),))


def values_of(program):
    return program.storages[0].make().tolist()


def test_a_step_gives_all_results_that_it_names():
    """A step keeps as many results as it has names. Regression test: a reduced split had fewer parts than names, and
    its script failed on the CPU."""
    split = Step("split", (tensor("a"), 2), out=("b", "c"))
    program = Program((Storage("float32", 4),), (Input("a", 0, "float32", (4,), (1,)),), (split,))
    assert settle(program) == program
    small = reduce_program(program, lambda one: [step.op for step in one.steps] == ["split"])
    scope: dict = {"torch": torch}
    exec(source(small), scope)  # noqa: S102 - rendered from checked steps
    assert scope["program"](*make_inputs(small).values()).keys() == {"b", "c"}


CONSTANT = {"tensor": [1.5], "dtype": "float32"}
PLACES = {"tensor": [0], "dtype": "int64"}


@pytest.mark.parametrize(
    "step",
    [
        Step("op_db.inplace:exp_", (tensor("a"),)),
        Step("op_db.out:digamma", (CONSTANT,), {"out": tensor("a")}),
        Step("op_db.out:frexp", (CONSTANT,), {"out": {"tuple": [tensor("a"), {"tensor": [0], "dtype": "int32"}]}}),
    ],
)
def test_a_write_of_op_db_becomes_an_addition(step):
    """A write of op_db becomes `add_` if that fails too. Regression test: a write that is lost, whatever it computes,
    was a separate finding for each of 17 functions."""
    small = reduce_program(holding([0], size=1).with_steps((step,)), lambda one: len(one.steps) == 1)
    assert small.steps == (Step("add_", (tensor("a"), 0)),)


@pytest.mark.parametrize("call", [("zero_", ()), ("cumsum_", (0,)), ("masked_fill_", (tensor("a"), 2))])
def test_any_write_becomes_an_addition(call):
    """Any write becomes `add_` if that fails too. Regression test: strides that a write makes dense under torch.compile
    were a finding for each write, and for each op after it."""
    name, args = call
    small = reduce_program(holding([0], size=1).with_steps((Step(name, (tensor("a"), *args)),)), one_step)
    assert small.steps == (Step("add_", (tensor("a"), 0)),)


@pytest.mark.parametrize(
    ("name", "args"), [("abs", ()), ("cumsum", (0,)), ("index_select", (0, PLACES)), ("add", (2,))]
)
def test_any_result_becomes_a_negation(name, args):
    """A result becomes a negation unless only its own op fails."""
    whole = holding([0], size=1).with_steps((Step(name, (tensor("a"), *args), out=("b",)),))
    assert reduce_program(whole, one_step).steps == (Step("neg", (tensor("a"),), out=("b",)),)
    small = reduce_program(whole, lambda one: [step.op for step in one.steps] == [name])
    assert [step.op for step in small.steps] == [name]


def one_step(program):
    return len(program.steps) == 1


def test_a_new_tensor_keeps_its_device():
    """Reduction keeps the device argument of a new tensor. Regression test: without the device argument, the new tensor
    was on the CPU, and a finding about one device became one about two."""
    made = Step("full.state", ([2], 1.5), {"device": {"device": 0}}, out=("b",))
    small = reduce_program(holding([0]).with_steps((made,)), lambda one: len(one.steps) == 1)
    assert small.steps == (Step("full.state", ([], 0), {"device": {"device": 0}}, out=("b",)),)


class TestValues:
    @pytest.mark.parametrize(
        ("fails", "values"),
        [
            (lambda values: len(values) == 4, [0.0, 0.0, 0.0, 0.0]),
            (lambda values: 1.0 in values, [1.0]),
            (lambda values: len(values) > 1 and values[1] != values[0], [0.0, 1.0]),
            (lambda values: -2.5 in values, [0.0, 0.0, -2.5]),
            (lambda values: len(values) == 4 and -2.5 in values, [0.0, 0.0, -2.5, 0.0]),
            (lambda values: float("inf") in values, [0.0, float("inf")]),
        ],
    )
    def test_they_are_as_plain_as_can_be(self, fails, values):
        """Values become zeros if they do not matter, otherwise ones, otherwise a range, otherwise zeros with only the
        required values kept."""
        inf = {"number": "inf"}
        program = holding([3, inf, -2.5, 1])
        assert values_of(reduce_program(program, lambda one: fails(values_of(one)))) == values

    def test_zeros_are_the_plainest(self):
        """Zeros have no simpler candidate, and ones have only zeros, so reduction terminates."""
        assert list(plainer_values(holding([0, 0, 0, 0]))) == []
        assert [one.storages[0].values for one in plainer_values(holding([1, 1, 1, 1]))] == [[0, 0, 0, 0]]
        proposed = [one.storages[0].values for one in plainer_values(holding("arange"))]
        assert proposed == [[0, 0, 0, 0], [1, 1, 1, 1]]

    @pytest.mark.parametrize("dtype", ["bool", "uint8", "complex64", "bfloat16"])
    def test_every_dtype_has_them(self, dtype):
        """The candidates survive a round trip through JSON."""
        for one in plainer_values(holding({"seed": 3}, dtype)):
            assert Program.from_json(one.to_json()) == one
            make_inputs(one)

    def test_the_budget_holds(self):
        """The number of trials is limited, whatever the number of cells."""
        asked = []
        reduce_program(holding({"seed": 1}, size=200), lambda one: bool(asked.append(one)), 50)
        assert len(asked) == 50

    @pytest.mark.parametrize(
        "fault",
        ["slice drops the offset", "transpose is stale", "as_strided_ leaves stale strides", "mask is off by one"],
    )
    def test_the_signature_stays(self, fault):
        """A planted fault has the same signature with and without simple values, and two reductions give the same
        program."""
        mutant = load_target(f"mutant:{fault}")
        program, verdict = next(
            (drawn, verdict)
            for number in range(1000)
            if (verdict := judge_program(drawn := Drawing().numbered(0, number), mutant)).mismatches
        )

        def fails(candidate):
            found = judge_program(candidate, mutant, locate=False).mismatches
            return bool(found) and found[0].oracle == verdict.mismatches[0].oracle

        small = reduce_program(program, fails)
        assert small == reduce_program(program, fails)
        assert all(isinstance(one.values, list) or one.values == "arange" for one in small.storages)
        before = reduce_program(program, fails, passes=PASSES[:-1])
        assert str(signature(small, judge_program(small, mutant))) == str(
            signature(before, judge_program(before, mutant))
        )
