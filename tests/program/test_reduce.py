"""Reduction: it also simplifies values, within its budget, and keeps the failure's signature."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.execute import make_inputs
from conformance.program.model import Input, Program, Storage
from conformance.program.reduce import (
    PASSES,
    SAMPLE_PASSES,
    dense_inputs,
    fewer_arguments,
    fewer_elements,
    fewer_inputs,
    plainer_values,
    reduce_program,
    settle,
)
from conformance.program.source import source
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import signature
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


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (Step("op_db:nn.functional.one_hot", ({"tensor": 0.5, "dtype": "float32"},), raises="RuntimeError"), True),
        (Step("dtypes:nn.functional.selu", ({"tensor": [1], "dtype": "int64"},), raises="NotImplementedError"), True),
        (Step("op_db:nn.functional.one_hot", ({"tensor": 0.5, "dtype": "float32"},)), False),
    ],
)
def test_a_refused_call_stays_without_the_steps_before(refused, error):
    """A call that was drawn to be refused keeps its error while steps are removed; a call that was not drawn so gives
    no program. Regression test: no step was removed before refused calls of most operators, so one of `one_hot` had
    nine steps and seven inputs that it does not use."""
    before = (Step("neg", (tensor("a"),), out=("b",)), Step("add_", (tensor("b"), 1)))
    program = holding([0], size=1).with_steps((*before, refused))
    assert (settle(program) is not None) == error
    small = reduce_program(program, lambda one: any(step.op == refused.op for step in one.steps))
    assert small.steps == ((refused,) if error else program.steps)


def test_a_result_without_values_gives_no_program():
    """A smaller program has no result on the meta device. Regression test: shrinking a call that torch refuses for such
    an operand ended with "Cannot copy out of meta tensor", and the finding kept its steps."""
    condition, other = {"meta": [2], "dtype": "bool"}, {"meta": [2], "dtype": "float32"}
    kept = {"tensor": [1.5, 2.5], "dtype": "float32"}
    mixed, meta = Step("where", (condition, kept, kept), raises="RuntimeError"), Step("neg", (other,), out=("b",))
    program = holding([0], size=1)
    assert settle(program.with_steps((mixed,))) == program.with_steps((mixed,))
    assert settle(program.with_steps((meta,))) is None


@pytest.mark.parametrize("name", ["op_db:div", "op_db:mm"])
def test_a_tensor_without_values_that_torch_accepts_gives_no_program(name):
    """torch refuses a matrix and a matrix without values. If a shorter operand is accepted, the candidate has no
    meaning: `div` of a number returns a tensor without values, `mm` reads memory that is not there. Regression test:
    the shadow read the memory of both, and shrinking failed with "Cannot copy out of meta tensor"."""
    size = () if name == "op_db:div" else (1, 1)
    a = Input("a", 0, "float32", size, (1,) * len(size))
    step = Step(name, (tensor("a"), {"meta": [1, 1], "dtype": "float32"}), out=("b",), raises="RuntimeError")
    assert settle(Program((Storage("float32", 1, "arange"),), (a,), (step,))) is None


def one_step(program):
    return len(program.steps) == 1


def test_a_new_tensor_keeps_its_device():
    """Reduction keeps the device argument of a new tensor. Regression test: without the device argument, the new tensor
    was on the CPU, and a finding about one device became one about two."""
    factory = Step("full.state", ([2], 1.5), {"device": {"device": 0}}, out=("b",))
    small = reduce_program(holding([0]).with_steps((factory,)), lambda one: len(one.steps) == 1)
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
        trials = []
        reduce_program(holding({"seed": 1}, size=200), lambda one: bool(trials.append(one)), 50)
        assert len(trials) == 50

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
            mismatches = judge_program(candidate, mutant, locate=False).mismatches
            return bool(mismatches) and mismatches[0].oracle == verdict.mismatches[0].oracle

        small = reduce_program(program, fails)
        assert small == reduce_program(program, fails)
        assert all(isinstance(storage.values, list) or storage.values == "arange" for storage in small.storages)
        before = reduce_program(program, fails, passes=PASSES[:-1])
        assert str(signature(small, judge_program(small, mutant))) == str(
            signature(before, judge_program(before, mutant))
        )


def matrices(**inputs):
    """A program that adds two tensors, with these geometries on separate storages."""
    operands = [Input(name, at, "float32", *one) for at, (name, one) in enumerate(inputs.items())]
    names = [tensor(name) for name in inputs]
    storages = tuple(Storage("float32", 24) for _ in operands)
    return Program(storages, tuple(operands), (Step("op_db:add", (*names,), {"alpha": 2}, out=("result",)),))


class TestSample:
    """The passes for a sample of op_db: one call, whose operator, dtypes and values stay until the last pass."""

    def test_keeps_the_operator(self):
        """Without a condition on the call, the smallest call of the operator remains."""
        small = reduce_program(matrices(a=((2, 3, 4), (12, 4, 1)), b=((3, 4), (1, 3))), one_step, passes=SAMPLE_PASSES)
        assert small.steps == (Step("op_db:add", (tensor("a"), tensor("a")), out=("result",)),)
        assert small.inputs == (Input("a", 0, "float32", (), ()),) and small.storages == (Storage("float32", 1, [0]),)

    def test_shorter_dimensions_keep_values(self):
        """A dimension is cut in all inputs alike, and the elements left over keep their values and their layout."""
        program = matrices(a=((4, 3), (3, 1)), b=((4, 3), (1, 4)))
        whole = make_inputs(program)
        for cut in fewer_elements(program):
            left = make_inputs(cut)
            assert left["a"].size() == left["b"].size() and left["a"].numel() < 12
            assert left["a"].is_contiguous()
            for name in left:
                assert set(left[name].flatten().tolist()) <= set(whole[name].flatten().tolist())
        sizes = {tuple(make_inputs(cut)["a"].size()) for cut in fewer_elements(program)}
        assert {(1, 1), (2, 2), (4, 1), (2, 3), (3,), (4,)} <= sizes

    def test_wrong_element_stays(self):
        """A failure at the value of the last element keeps that element."""
        program = matrices(a=((4, 3), (3, 1)), b=((4, 3), (3, 1)))

        def fails(one):
            return 11.0 in make_inputs(one).get("b", torch.empty(0)).flatten()

        small = reduce_program(program, fails, passes=SAMPLE_PASSES[:-1])
        assert [one.size for one in small.inputs] == [(), ()]
        assert make_inputs(small)["b"].item() == 11.0

    def test_plain_layout(self):
        """Strides, offset and shared storage go, and the values stay."""
        program = matrices(a=((2, 3), (1, 2), 5), b=((2, 3), (0, 7)))
        shared = replace(program, inputs=(program.inputs[0], replace(program.inputs[1], storage=0)))
        plain = next(dense_inputs(shared))
        assert [one.stride for one in plain.inputs] == [(3, 1), (3, 1)] and len(plain.storages) == 2
        for name, value in make_inputs(shared).items():
            assert torch.equal(make_inputs(plain)[name], value)

    def test_layout_stays_where_it_matters(self):
        """A failure that needs gaps keeps gaps."""
        program = matrices(a=((3, 4), (8, 2), 1), b=((3, 4), (4, 1)))

        def fails(one):
            return not make_inputs(one)["a"].is_contiguous() and len(one.steps) == 1

        small = reduce_program(program, fails, passes=SAMPLE_PASSES)
        assert (small.inputs[0].size, small.inputs[0].stride) == ((2,), (2,))

    def test_gradient(self):
        """A gradient keeps its graph. Without a condition on the gradient, the backward step goes."""
        program = replace(holding("arange"), steps=())
        wants = replace(program.inputs[0], requires_grad=True)
        steps = (Step("op_db:sin", (tensor("a"),), out=("b",)), Step("backward", (tensor("b"), tensor("c"))))
        storages = (*program.storages, Storage("float32", 4, [0.5, 1.5, 2.5, 3.5]))
        program = Program(storages, (wants, Input("c", 1, "float32", (4,), (1,))), steps)

        def differentiates(one):
            return one.steps[-1].op == "backward" and one.steps[-1].raises is None

        small = reduce_program(program, differentiates, passes=SAMPLE_PASSES)
        assert small.steps == (steps[0], Step("backward", (tensor("b"),)))
        assert [(one.name, one.size, one.requires_grad) for one in small.inputs] == [("a", (), True)]
        small = reduce_program(program, lambda one: len(one.steps) >= 1, passes=SAMPLE_PASSES)
        assert [step.op for step in small.steps] == ["op_db:sin"]

    def test_arguments(self):
        """Keywords and positional arguments go if the call runs without them; a needed one stays."""
        program = holding("arange").with_steps((Step("op_db:sum", (tensor("a"), 0, True), {}, out=("b",)),))
        small = reduce_program(program, one_step, passes=(fewer_arguments,))
        assert small.steps[0].args == (tensor("a"),)
        program = holding("arange").with_steps((Step("op_db:cumsum", (tensor("a"),), {"dim": 0}, out=("b",)),))
        assert reduce_program(program, one_step, passes=(fewer_arguments,)) == program

    def test_deadline(self):
        """No trial begins after the deadline."""
        tried = []
        program = holding([3, 4, 5, 6])
        assert reduce_program(program, lambda one: not tried.append(one), until=0.0) == program
        assert tried == []


def test_a_storage_is_cut_to_its_inputs():
    """The first smaller storage ends with the last cell of an input."""
    program = replace(holding("arange", size=20), inputs=(Input("a", 0, "float32", (2, 2), (4, 1), 3),))
    assert next(fewer_inputs(program)).storages[0].size == 9
