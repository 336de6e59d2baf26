"""Metamorphic relations: torch CPU keeps them, planted faults break them by name, and scripts show both answers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch

from conformance.declare import profile
from conformance.engine.aten_ops import OperatorNames
from conformance.engine.loading import load_target
from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.program.execute import RunningProgram
from conformance.program.metamorphic import UNRELATED
from conformance.program.model import Input, Program, Storage
from conformance.program.relations import (
    BATCH,
    DERIVATIVE,
    LAYOUT,
    ORDER,
    RELATIONS,
    REPETITION,
    UNUSED,
    related,
    relation_of,
)
from conformance.program.script import script
from conformance.program.source import source
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import Verdict, signature
from conformance.record import names
from conformance.record.errors import TargetError
from conformance.record.result import Outcome
from conformance.selftest.faults import Fault, InterceptedCall
from conformance.selftest.mutants import MutantTarget, Planted
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case

A, B = tensor("a"), tensor("b")


def program(*steps: Step, stride: tuple[int, int] = (1, 3), cells: int = 9) -> Program:
    """Two inputs of (3, 2) on storages of their own, the first one with these strides."""
    return Program(
        (Storage("float32", cells, {"seed": 1}), Storage("float32", 6, {"seed": 2})),
        (Input("a", 0, "float32", (3, 2), stride), Input("b", 1, "float32", (3, 2), (2, 1))),
        steps,
    )


EXP = Step("exp", (A,), out=("c",))
MIXED = program(EXP, Step("sum.dim", (tensor("c"), 1, False), out=("d",)), Step("add_", (B, 1)), Step("relu_", (A,)))


def rewritten(original: Program, name: str) -> str:
    """The rewritten program as the lines of its function."""
    other = related(original, name)
    return "" if other is None else source(other.program, numbers=other.numbers)


class TestRewrites:
    def test_layout(self):
        """Steps read contiguous clones of strided operands, and write through a clone that is copied back."""
        text = rewritten(MIXED, LAYOUT)
        assert "_1a = a.clone(memory_format=torch.contiguous_format)" in text and "c = _1a.exp()" in text
        assert "_4a.relu_()" in text and "a.copy_(_4a)" in text and "b.add_(1)" in text

    def test_batch(self):
        """A step of the tables runs on two parts of its rows; a reduction over the rows does not."""
        text = rewritten(MIXED, BATCH)
        assert "_1a0 = a.narrow(0, 0, 2)" in text and "c = torch.cat([_1c0, _1c1], 0)" in text
        assert "d = torch.cat([_2d0, _2d1], 0)" in text
        assert not rewritten(program(Step("sum.dim", (A, 0, False), out=("c",))), BATCH)
        assert not rewritten(program(Step("sort", (A, 1), out=("c", "d"))), BATCH)

    def test_derivative(self):
        """Plain autograd differentiates in place of transforms, and finds a wrong rule of the second derivative."""
        det = Step("transformed:exp", ("exp", "jvp(grad)", 0.5, A), out=("c",))
        assert "transformed('exp', 'autograd(autograd)', 0.5, a)" in rewritten(program(det), DERIVATIVE)
        assert not rewritten(MIXED, DERIVATIVE)
        target = load_target("metamorphic:cpu")
        assert not judge_program(program(det), target).mismatches
        jvp = torch.func.jvp
        with mock.patch.object(torch.func, "jvp", lambda *args: (jvp(*args)[0], 2 * jvp(*args)[1])):
            assert judge_program(program(det), target).relation == DERIVATIVE

    def test_a_derivative_under_a_mode(self):
        """No mode sees the operators of a derivative. Regression test: a nested transform under a dispatch mode ended
        the process within some hundred programs."""
        det = program(Step("transformed:exp", ("exp", "jvp(jvp)", 0.5, A), out=("c",)), Step("neg", (A,), out=("d",)))
        with OperatorNames() as seen:
            assert RunningProgram(det).run(det.steps)
        assert "aten::neg" in seen.names and "aten::exp" not in seen.names

    def test_no_derivative(self):
        """At a tie or a zero of op_db's operands, transforms and plain autograd may differ, and both are right.
        Regression test: torch CPU's `atan2` of zeros broke the relation."""
        at_zeros = Step("transformed:atan2", ("atan2", "jvp", 0, tensor("b"), tensor("b")), out=("c",))
        assert not rewritten(program(at_zeros), DERIVATIVE)

    @pytest.mark.parametrize("call", [("amax", {}), ("nn.functional.pad", {"mode": "constant"})])
    def test_a_derivative_of_any_call(self, call):
        """A derivative that is constant along the line is compared, and an argument may be called `mode`. Regression
        test: plain autograd raised, and so did the row."""
        name, keywords = call
        args = ([1, 1],) if keywords else ()
        linear = Step(f"transformed:{name}", (name, "jvp(grad)", 0.37, A, *args), keywords, ("c",))
        assert not judge_program(program(linear), load_target("metamorphic:cpu")).unsupported
        jvp = torch.func.jvp
        with mock.patch.object(torch.func, "jvp", lambda *args: (jvp(*args)[0], jvp(*args)[1] + 1)):
            assert judge_program(program(linear), load_target("metamorphic:cpu")).relation == DERIVATIVE

    def test_repetition(self):
        """A pure call is made twice, a write once."""
        text = rewritten(MIXED, REPETITION)
        assert text.count(".exp()") == 2 and text.count(".add_(1)") == 1

    def test_order(self):
        """Independent neighbours change places; a step and a reader of its result do not."""
        lines = rewritten(MIXED, ORDER).splitlines()
        assert [line.strip().partition("(")[0] for line in lines[1:5]] == [
            "c = a.exp",
            "b.add_",
            "d = c.sum",
            "a.relu_",
        ]
        assert not rewritten(program(EXP, Step("sum.dim", (tensor("c"), 1, False), out=("d",))), ORDER)
        assert not rewritten(program(EXP, Step("add_", (A, 1))), ORDER)

    def test_unused(self):
        """A call without a later use is left out."""
        text = rewritten(MIXED, UNUSED)
        assert "sum" not in text and "exp" in text and "add_" in text

    def test_strides_by_definition(self):
        """Steps whose answer is made of strides, and programs of random numbers, keep their operands."""
        assert not rewritten(program(Step("as_strided", (A, [2], [1], 0), out=("c",))), LAYOUT)
        random = program(EXP, Step("op_db:nn.functional.dropout", (A,), out=("d",)))
        assert not any(rewritten(random, name) for name in RELATIONS)

    def test_names(self):
        """The names of the relations are those that users write."""
        assert (*RELATIONS,) == names.RELATIONS


class TestCpu:
    def test_drawn_programs_keep_the_relations(self):
        """Of 40 drawn programs, torch CPU breaks no relation in any, and most have one."""
        target = load_target("metamorphic:cpu")
        verdicts = [judge_program(Drawing().numbered(3, number), target) for number in range(40)]
        assert not [verdict for verdict in verdicts if verdict.mismatches]
        assert sum(verdict.passed for verdict in verdicts) > 24

    def test_nothing_to_compare(self):
        """A program that no relation changes is no pass."""
        assert judge_program(program(Step("fill_", (B, 1))), load_target("metamorphic:cpu")).unsupported == UNRELATED

    def test_rounding_breaks_no_relation(self):
        """Sums whose order depends on strides differ by rounding, which is no finding."""
        steps = Step("sum.dims", (A, [0, 1], False), out=("c",)), Step("exp", (tensor("c"),), out=("d",))
        storage = Storage("float32", 40000, [(7919 * k % 1000) / 997 for k in range(40000)])
        original = Program((storage,), (Input("a", 0, "float32", (200, 200), (1, 200)),), steps)
        assert judge_program(original, load_target("metamorphic:cpu")).passed

    def test_op_db(self):
        """A case of op_db keeps the relations in a layout."""
        case = Case("addmm", "", "op", "float32", "forward", "transposed", 4)
        assert run_case(case, load_target("metamorphic:cpu")).outcome is Outcome.PASS


@dataclass(frozen=True)
class Lie:
    """A fault, its relation, and the most drawn programs of seed 0 that find it."""

    ops: str
    act: Callable[[InterceptedCall], object]
    relation: str
    most: int


def _strided(call: InterceptedCall) -> object:
    result = call.run()
    return result + 1 if isinstance(call.first, torch.Tensor) and 0 in call.first.stride() else result


def _leaking(call: InterceptedCall) -> object:
    result = call.run()
    if result.dim() and result.size(0) > 1:
        result[-1] = result[0]
    return result


def _second_call(call: InterceptedCall) -> object:
    call.memory["calls"] = call.memory.get("calls", 0) + 1
    return call.run() + (call.memory["calls"] - 1)


def _after_a_write(call: InterceptedCall) -> object:
    result = call.run()
    call.memory["wrote"] = call.memory.get("wrote", False) or call.writes
    return result if call.writes or not call.memory["wrote"] else result + 1


def _writes_its_operand(call: InterceptedCall) -> object:
    result = call.run()
    call.first.detach().copy_(call.first.abs())
    return result


LIES = {
    "a kernel is wrong for stride 0": Lie("add mul sub abs neg", _strided, LAYOUT, 100),
    "a kernel reads the row of another example": Lie("exp abs neg mul add", _leaking, BATCH, 40),
    "a kernel answers differently on the second call": Lie("sum amax abs mul", _second_call, REPETITION, 40),
    "a kernel depends on an earlier write": Lie("abs mul add sum add_ fill_ mul_ copy_", _after_a_write, ORDER, 100),
    "a kernel writes its operand": Lie("abs", _writes_its_operand, UNUSED, 200),
}


class Lying(MutantTarget):
    """torch CPU with a fault, judged by relations."""

    def __init__(self, name: str, relations: tuple[str, ...] = names.RELATIONS) -> None:
        super().__init__("nothing")
        lie = LIES[name]
        self.mode = Planted(Fault(lie.ops, lie.act, name))
        oracles = self.facts.oracles & names.RELATED_ORACLES
        self.facts = replace(self.facts, relations=relations, oracles=oracles)
        self.prepare()


def first_broken(target: Target, most: int) -> tuple[Program, Verdict] | None:
    """The first drawn program of seed 1 that breaks a relation on this target, and its verdict."""
    for number in range(most):
        candidate = drawn(number)
        verdict = judge_program(candidate, target, locate=False)
        if verdict.mismatches:
            return candidate, verdict
    return None


@functools.cache
def drawn(number: int) -> Program:
    return Drawing(without=("op_db",)).numbered(1, number)


class TestPower:
    @pytest.mark.parametrize("name", [*LIES])
    def test_each_fault_breaks_its_relation(self, name):
        """The relation of a fault finds it within a fixed number of programs, and the mismatch names it."""
        lie = LIES[name]
        broken = first_broken(Lying(name, (lie.relation,)), lie.most)
        assert broken is not None and relation_of(broken[1].mismatches[0].detail) == lie.relation

    def test_the_step_is_located(self):
        """The first wrong step is the one with the fault, and the signature has the relation."""
        original = program(
            Step("add_", (B, 1)), Step("abs", (A,), out=("c",)), Step("neg", (B,), out=("d",)), stride=(0, 1)
        )
        verdict = judge_program(original, Lying("a kernel is wrong for stride 0"))
        assert (verdict.relation, verdict.bad_step) == (LAYOUT, 2)
        assert str(signature(original, verdict)) == "value / abs / expanded / layout"

    def test_either_side_may_be_wrong(self):
        """A kernel that is wrong on contiguous tensors only breaks the relation too, although the program is right."""
        target = Lying("a kernel is wrong for stride 0")
        wrong = lambda call: call.run() + call.first.is_contiguous()  # noqa: E731
        target.mode = Planted(Fault("abs", wrong, "a test"))
        assert judge_program(program(Step("abs", (A,), out=("c",))), target).relation == LAYOUT

    def test_op_db_finds_a_fault(self):
        """A case in a layout shows the fault of a stride class, as a minimal program of both calls."""
        case = Case("abs", "", "op", "float32", "forward", "expanded", 6)
        result = run_case(case, Lying("a kernel is wrong for stride 0"))
        assert result.outcome is Outcome.FAIL
        (failure,) = result.failures
        assert relation_of(failure.detail) == LAYOUT and "def related(" in failure.script

    def test_an_error_in_one_layout(self):
        """A call that raises for strided tensors only is a finding."""
        target = Lying("a kernel is wrong for stride 0")

        def raises(call: InterceptedCall) -> object:
            if not call.first.is_contiguous():
                raise RuntimeError("only contiguous tensors")
            return call.run()

        target.mode = Planted(Fault("tanh", raises, "a test"))
        (failure,) = run_case(Case("tanh", "", "op", "float32", "forward", "transposed", 6), target).failures
        assert (failure.oracle, failure.expected, failure.actual) == ("error", "no error", "RuntimeError")


class TestScript:
    def test_it_shows_both_calls_and_exits(self, tmp_path, standalone):
        """The script defines both programs, runs them on one device, and its exit code says whether they agree."""
        original = program(Step("abs", (A,), out=("c",)))
        verdict = judge_program(original, Lying("a kernel is wrong for stride 0"))
        assert not verdict.mismatches
        verdict = judge_program(
            program(Step("abs", (A,), out=("c",)), stride=(0, 1)), Lying("a kernel is wrong for stride 0")
        )
        path = tmp_path / "script.py"
        text = script(original, load_target("metamorphic:cpu"), verdict.mismatches, bad_step=1)
        path.write_text(text)
        assert "Relation 'layout'" in text and "def related(a, b):" in text
        said = standalone(path)
        assert said.returncode == 0 and "no difference here" in said.stdout, said.stderr
        path.write_text(text.replace("c = _1a.abs()", "c = _1a.abs() + 1"))
        said = standalone(path)
        assert said.returncode == 1 and "value of c: expected" in said.stdout, said.stderr

    def test_a_transformed_function(self, tmp_path, standalone):
        """The script of a target that transforms functions transforms both programs."""
        verdict = judge_program(
            program(Step("abs", (A,), out=("c",)), stride=(0, 1)), Lying("a kernel is wrong for stride 0")
        )
        path = tmp_path / "script.py"
        path.write_text(script(MIXED, load_target("metamorphic:vmap"), verdict.mismatches))
        said = standalone(path)
        assert said.returncode == 0 and said.stdout.startswith("layout "), said.stderr


class TestSpec:
    def test_a_target_within(self):
        """The spec names a target that it judges. Strides are not compared, and torch CPU is not asked."""
        target = load_target("metamorphic:decompositions")
        assert target.facts.relations == names.RELATIONS and target.spec == "metamorphic:decompositions"
        assert "stride" not in target.facts.oracles and not target.facts.siblings
        with pytest.raises(TargetError, match="unknown target 'wrong'"):
            load_target("metamorphic:wrong")

    def test_names_of_files(self):
        """A target judged by relations has files of its own."""
        assert profile.identity("metamorphic:device:x,without=set_") == "metamorphic:device:x"
        assert profile.file_name("metamorphic:cpu") == "metamorphic-cpu"
        assert profile.file_name("metamorphic:profiles/jax.toml") == "metamorphic-jax"
        assert (
            profile.usual("cpu", "metamorphic") == profile.usual("metamorphic:cpu", "metamorphic") == "metamorphic:cpu"
        )

    @pytest.mark.parametrize("spec", ["vmap", "decompositions", "functionalize", "fake"])
    def test_other_targets(self, spec):
        """Targets that transform functions, or hold no values, are judged by relations too."""
        assert judge_program(MIXED, load_target(f"metamorphic:{spec}")).passed
