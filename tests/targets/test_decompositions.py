"""The target `decompositions`: it agrees where it should, runs the table, and a planted lie in the table is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.cause import cause_of
from conformance.program.model import Input, Program, Storage
from conformance.program.script import script
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import UNCAPTURED
from conformance.record.result import Outcome
from conformance.run.campaign.results import upstream_of
from conformance.run.failing_program import FailingProgram
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case
from tests.targets.lies import first_found

A = Input("a", 0, "float32", (2, 3), (3, 1), requires_grad=True)
SILU = Program(
    (Storage("float32", 6),),
    (A,),
    (
        Step("op_db:nn.functional.silu", (tensor("a"),), out=("b",)),
        Step("backward", (tensor("b"), {"tensor": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "dtype": "float32"})),
    ),
)
ADDS = Program((Storage("float32", 6),), (A,), (Step("add", (tensor("a"), 1), out=("b",)),))


def case(name: str, variant: str = "forward", dtype: str = "float32") -> Case:
    return Case(name, "", "op", dtype, variant, "as_sampled", 3)


def test_a_finding_of_a_reported_bug():
    """Its report names the issue. Regression test: findings of this target were compared with no issue."""
    target = load_target("decompositions")
    wide = Program(
        (Storage("complex64", 2, [0.0, {"complex": [1.0, 2.0]}]),), (Input("a", 0, "complex64", (1, 2), (2, 1)),)
    )
    program = wide.with_steps((Step("op_db:linalg.pinv", (tensor("a"),), out=("b",)),))
    verdict = judge_program(program, target)
    cause = cause_of(program, verdict)
    finding = FailingProgram(
        "", "FAIL", 0, program=program, mismatches=verdict.mismatches, bad_step=1, property=cause.property, op=cause.op
    )
    assert upstream_of(finding, target) == "known: pytorch#198118"


@pytest.fixture
def lying(monkeypatch):
    """Return a target whose decomposition of an operator returns its result plus 1."""

    def plant(op):
        target = load_target("decompositions")
        right = target.mode.table[op]
        target.mode.table[op] = lambda *args, **kwargs: right(*args, **kwargs) + 1
        return target

    return plant


class TestAgrees:
    def test_forward_and_backward_run_decompositions(self):
        """A program with a decomposed function and its gradient passes, and both decompositions ran."""
        target = load_target("decompositions")
        assert judge_program(SILU, target).passed
        assert target.mode.replaced >= 2

    def test_nothing_decomposed_is_no_pass(self):
        """A program without an operator of the table would compare torch CPU with itself."""
        verdict = judge_program(ADDS, load_target("decompositions"))
        assert verdict.unsupported == UNCAPTURED and not verdict.passed
        skipped = run_case(case("add"), load_target("decompositions"))
        assert skipped.outcome is Outcome.SKIP and skipped.samples == 0

    @pytest.mark.parametrize("name", ["nn.functional.gelu", "addr", "nn.functional.layer_norm"])
    def test_op_db_passes(self, name):
        """op_db runs on the target, gradients included."""
        assert run_case(case(name, "backward"), load_target("decompositions")).outcome is Outcome.PASS

    def test_sparse_tensors_are_declared(self):
        """Without the declaration, a sample with a sparse tensor fails."""
        sparse = case("sparse.sampled_addmm", "backward")
        assert run_case(sparse, load_target("decompositions")).outcome is Outcome.SKIP
        target = load_target("decompositions")
        target.facts = replace(target.facts, declarations=())
        assert run_case(sparse, target).outcome is Outcome.FAIL


class TestLies:
    def test_a_wrong_decomposition_is_found_in_op_db(self, lying):
        """The lie fails forward, and a wrong gradient formula fails backward only."""
        assert run_case(case("nn.functional.silu"), lying(torch.ops.aten.silu.default)).outcome is Outcome.FAIL
        target = lying(torch.ops.aten.silu_backward.default)
        assert run_case(case("nn.functional.silu"), target).outcome is Outcome.PASS
        result = run_case(case("nn.functional.silu", "backward"), target)
        assert result.outcome is Outcome.FAIL and result.oracles == ("grad",)

    def test_a_wrong_decomposition_is_found_in_programs(self, lying):
        """Drawn programs show that the decomposition of `sum` is wrong."""
        assert first_found(load_target("decompositions"), lying(torch.ops.aten.sum.default)) < 60

    def test_a_real_bug_is_found(self, tmp_path, standalone):
        """torch 2.13's decomposition of `take` returns a view. The script shows it without this package."""
        program = Program(
            (Storage("float32", 2), Storage("int64", 1)),
            (Input("a", 0, "float32", (2,), (1,)), Input("b", 1, "int64", (), ())),
            (Step("op_db:take", (tensor("a"), tensor("b")), out=("c",)), Step("add_", (tensor("c"), 1))),
        )
        target = load_target("decompositions")
        verdict = judge_program(program, target)
        assert verdict.bad_step == 1
        path = tmp_path / "script.py"
        path.write_text(script(program, target, verdict.mismatches))
        said = standalone(path)
        assert said.returncode == 1 and "value of a: expected [0.0, 1.0], got [1.0, 1.0]" in said.stdout, said
