"""The target `export`: it agrees where it should, each declaration is needed, and planted lies are found."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.script import script
from conformance.program.steps.op import Step, tensor
from conformance.record.result import Outcome
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case
from conformance.standalone import transforms
from tests.targets.lies import first_found, needed

WRITES = Program(
    (Storage("float32", 12),),
    (Input("a", 0, "float32", (2, 3), (1, 3), 2),),
    (
        Step("t", (tensor("a"),), out=("c",)),
        Step("add_", (tensor("c"), 1)),
        Step("sum.dim", (tensor("a"), 0, False), out=("d",)),
    ),
)

ONLY_WRITES = WRITES.with_steps((Step("add_", (tensor("a"), 1)),))

SHARED = Program(
    WRITES.storages,
    (*WRITES.inputs, Input("b", 0, "float32", (2,), (2,), 1)),
    (*WRITES.steps, Step("mul_", (tensor("b"), 2))),
)

RAISES = WRITES.with_steps(
    (Step("expand.error", (tensor("a"), {"tuple": [7, 3]}), raises="RuntimeError"), *WRITES.steps)
)


def case(name: str, variant: str = "forward", samples: int = 4) -> Case:
    return Case(name, "", "op", "float32", variant, "as_sampled", samples)


class TestAgrees:
    @pytest.mark.parametrize("program", [WRITES, ONLY_WRITES], ids=["with a result", "without a result"])
    def test_writes_reach_the_inputs(self, program):
        """The saved and loaded program writes its inputs through views, also if it returns nothing."""
        assert judge_program(program, load_target("export")).passed

    @pytest.mark.parametrize(
        ("name", "variant"), [("addmm", "backward"), ("cumsum", "inplace"), ("sort", "forward"), ("where", "method")]
    )
    def test_op_db_passes(self, name, variant):
        """op_db runs on the target, with gradients and in place."""
        assert run_case(case(name, variant), load_target("export")).outcome is Outcome.PASS

    def test_a_script_runs_by_itself(self, tmp_path, standalone):
        """The script carries the transform."""
        path = tmp_path / "script.py"
        path.write_text(script(WRITES, load_target("export")))
        said = standalone(path)
        assert said.returncode == 0 and "no difference here" in said.stdout, said


class TestDeclarations:
    @pytest.mark.slow
    def test_each_is_needed(self):
        """Without any one declaration about programs, a drawn program fails."""
        assert all(needed(load_target("export"), also=[SHARED, RAISES]))

    @pytest.mark.parametrize("program", [SHARED, RAISES], ids=["shared", "raises"])
    def test_a_program_is_unsupported(self, program):
        """A program with a declared trait is counted as unsupported; it neither runs nor passes."""
        verdict = judge_program(program, load_target("export"))
        assert verdict.unsupported and not verdict.passed


class TestLies:
    def test_lost_writes(self, monkeypatch):
        """An exported program that loses the writes to its inputs is found in programs and in op_db."""
        load, honest, lying = torch.export.load, load_target("export"), load_target("export")

        class Lost:
            def __init__(self, file):
                self.right = load(file).module()

            def module(self):
                return lambda *tensors: self.right(*[tensor.clone() for tensor in tensors])

        def transform(function):
            def call(*inputs):
                with monkeypatch.context() as patch:
                    patch.setattr(torch.export, "load", Lost)
                    return transforms.exported(function)(*inputs)

            return call

        monkeypatch.setattr(lying, "transform", transform)
        assert run_case(case("add", "inplace"), lying).outcome is Outcome.FAIL
        assert first_found(honest, lying) < 20

    def test_a_constant_is_baked_in(self, monkeypatch):
        """A program that answers with the values of its trace, not of its inputs, is found in op_db."""
        load, lying = torch.export.load, load_target("export")

        class Baked:
            def __init__(self, file):
                self.right = load(file).module()

            def module(self):
                return lambda *tensors: self.right(*[torch.ones_like(tensor) for tensor in tensors])

        monkeypatch.setattr(torch.export, "load", Baked)
        assert run_case(case("add"), lying).outcome is Outcome.FAIL

    def test_a_real_bug_is_found(self):
        """torch 2.13 loads no program that calls `uniform_`, whose argument is called `from`."""
        verdict = judge_program(
            WRITES.with_steps((Step("random_zeros", ("uniform_", [2, 3], {"device": 0}), out=("c",)),)),
            load_target("export"),
        )
        assert [mismatch.oracle for mismatch in verdict.mismatches] == ["error"]
