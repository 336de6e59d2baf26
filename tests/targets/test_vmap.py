"""The target `vmap`: it agrees where it should, each declaration is needed, and planted lies are found."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.script import script
from conformance.program.steps.op import Step, tensor
from conformance.program.unsupported import unsupported_reason, unsupported_steps, unsupported_traits
from conformance.record.errors import TargetError
from conformance.record.result import Outcome
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case
from conformance.standalone import transforms
from conformance.standalone.transforms import vmapped
from tests.targets.lies import first_found, needed

SHARED = Program(
    (Storage("float32", 12),),
    (Input("a", 0, "float32", (2, 3), (1, 3), 2), Input("b", 0, "float32", (2,), (2,), 1)),
    (
        Step("t", (tensor("a"),), out=("c",)),
        Step("add_", (tensor("c"), 1)),
        Step("mul_", (tensor("b"), 2)),
        Step("sum.dim", (tensor("a"), 0, False), out=("d",)),
    ),
)

OVERLAPPING = Program(
    (Storage("float32", 1),),
    (Input("a", 0, "float32", (), ()), Input("b", 0, "float32", (1,), (1,))),
    (Step("copy_", (tensor("b"), tensor("a")), raises="RuntimeError"),),
)


def case(name: str, variant: str = "forward", samples: int = 4) -> Case:
    return Case(name, "", "op", "float32", variant, "as_sampled", samples)


class TestAgrees:
    @pytest.mark.parametrize("spec", ["vmap", "vmap:position=0", "vmap:position=1", "vmap:position=2"])
    def test_writes_through_views_of_shared_storages(self, spec):
        """At every position of the batched dimension, inputs with gaps that share a storage see each other's writes."""
        assert judge_program(SHARED, load_target(spec)).passed

    def test_the_position_moves(self):
        """By default, inputs of different sizes are batched at different dimensions, and some are not batched."""
        seen = set()
        for size in range(1, 7):
            a, b = torch.ones(size, 2), torch.ones(2)
            dims = [transforms.choose([a, b], None, False)]
            seen.add(tuple(dims[0]))
        assert {None, 0, 1, 2} <= {dim for dims in seen for dim in dims}

    @pytest.mark.parametrize(
        ("name", "variant"),
        [("addmm", "backward"), ("cumsum", "inplace"), ("linalg.solve", "forward_over_backward"), ("where", "method")],
    )
    def test_op_db_passes(self, name, variant):
        """op_db runs on the target, with gradients and in place."""
        assert run_case(case(name, variant), load_target("vmap")).outcome is Outcome.PASS

    def test_a_script_runs_by_itself(self, tmp_path, standalone):
        """The script carries the transform."""
        path = tmp_path / "script.py"
        path.write_text(script(SHARED, load_target("vmap")))
        said = standalone(path)
        assert said.returncode == 0 and "no difference here" in said.stdout, said

    def test_a_misspelt_argument(self):
        """An unknown option of the target is one sentence."""
        with pytest.raises(TargetError, match=r"is not understood: write vmap\[:position=N\]"):
            load_target("vmap:dim=1")


class TestDeclarations:
    @pytest.mark.slow
    def test_each_is_needed(self):
        """Without any one declaration about programs, a drawn program fails."""
        assert all(needed(load_target("vmap"), also=[OVERLAPPING]))

    @pytest.mark.parametrize(("name", "variant"), [("to_sparse", "forward"), ("add", "out"), ("amax", "error_inputs")])
    def test_op_db_fails_without_them(self, name, variant):
        """Variants and sparse tensors fail on the transform too."""
        assert run_case(case(name, variant), load_target("vmap")).outcome is Outcome.FAIL

    def test_most_drawn_programs_run(self):
        """Drawing avoids most unsupported programs. Regression test: more than half of the programs did not run, nor
        did nineteen of twenty with op_db's entries."""
        target = load_target("vmap")
        drawing = Drawing(without=unsupported_steps(target.facts), traits=unsupported_traits(target.facts))
        for numbers in range(0, 80, 4), range(60):
            runs = [not unsupported_reason(drawing.numbered(5, number), target.facts) for number in numbers]
            assert sum(runs) > len(runs) / 2


class TestLies:
    def test_lost_writes(self, monkeypatch):
        """A transform that loses writes to inputs is found in programs and in op_db."""
        monkeypatch.setattr(transforms.Examples, "write_back", lambda self: None)
        assert run_case(case("add", "inplace"), load_target("vmap")).outcome is Outcome.FAIL
        lying = judge_program(SHARED, load_target("vmap"))
        assert {mismatch.oracle for mismatch in lying.mismatches} == {"value"}

    def test_mixed_examples(self, monkeypatch):
        """A wrong answer of one batched position only, here the other example's, is found in drawn programs."""
        honest, right = load_target("vmap"), transforms.pick
        lying = load_target("vmap")

        def wrong(results, dims):
            return [result[0] for result in results] if 1 in dims else right(results, dims)

        def transform(function):
            def call(*inputs):
                with monkeypatch.context() as patch:
                    patch.setattr(transforms, "pick", wrong)
                    return vmapped(function)(*inputs)

            return call

        monkeypatch.setattr(lying, "transform", transform)
        assert first_found(honest, lying) < 40

    def test_a_real_bug_is_found(self):
        """torch 2.13 has no batching rule for `moveaxis`, though for `movedim`."""
        for name, passes in ("movedim", True), ("moveaxis", False):
            program = SHARED.with_steps((Step(name, (tensor("a"), 0, 1), out=("c",)),))
            assert judge_program(program, load_target("vmap")).passed is passes
