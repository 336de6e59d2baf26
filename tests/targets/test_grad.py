"""The targets `grad` and `jvp`: gradients agree with backward, and a wrong derivative is found."""

from __future__ import annotations

import pytest

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.gradients import with_gradient
from conformance.program.model import Input, Program, Storage
from conformance.program.script import script
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import UNCAPTURED
from conformance.record.result import Outcome
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case
from conformance.standalone.transforms import by_jvp, by_vjp
from tests.targets.lies import first_found

PLAIN = Program(
    (Storage("float32", 6, {"seed": 1}), Storage("float32", 3)),
    (Input("a", 0, "float32", (2, 3), (1, 2)), Input("b", 1, "float32", (3,), (1,))),
    (
        Step("mul", (tensor("a"), tensor("b")), out=("c",)),
        Step("t", (tensor("c"),), out=("d",)),
        Step("add_", (tensor("d"), 1)),
        Step("tanh", (tensor("d"),), out=("e",)),
    ),
)
SPECS = pytest.mark.parametrize("spec", ["grad", "jvp"])


def case(name: str) -> Case:
    return Case(name, "", "op", "float32", "backward", "as_sampled", 3)


def lying(spec, monkeypatch):
    """Return a target whose gradients are twice their right value."""
    target, derive = load_target(spec), {"grad": by_vjp, "jvp": by_jvp}[spec]

    def wrong(*args):
        results, pull = derive(*args)
        return results, lambda cotangents: [2 * gradient for gradient in pull(cotangents)]

    monkeypatch.setattr(type(target), "derive", staticmethod(wrong))
    return target


def test_a_program_gets_a_gradient():
    """Inputs that no step writes require grad, and a backward from the last computed result ends the program."""
    program = with_gradient(PLAIN)
    assert [one.requires_grad for one in program.inputs] == [True, True]
    assert program.steps[:-1] == PLAIN.steps
    assert program.steps[-1].op == "backward" and program.steps[-1].names() == ["e"]
    writes = PLAIN.with_steps((Step("add_", (tensor("a"), 1)), *PLAIN.steps))
    assert [one.requires_grad for one in with_gradient(writes).inputs] == [False, True]


@SPECS
class TestTargets:
    def test_agrees(self, spec):
        """A program with a view and a write inside has the right gradients; without a gradient it is no pass."""
        assert judge_program(with_gradient(PLAIN), load_target(spec)).passed
        assert judge_program(PLAIN, load_target(spec)).unsupported == UNCAPTURED

    @pytest.mark.parametrize("name", ["addmm", "linalg.solve", "logsumexp"])
    def test_op_db_passes(self, spec, name):
        """op_db's gradients agree."""
        assert run_case(case(name), load_target(spec)).outcome is Outcome.PASS

    def test_a_lie_is_found(self, spec, monkeypatch):
        """A wrong gradient is found in op_db and in drawn programs, by the oracle `grad`."""
        honest = load_target(spec)
        right = type(honest).derive
        target = lying(spec, monkeypatch)
        monkeypatch.setattr(honest, "derive", right, raising=False)
        result = run_case(case("addmm"), target)
        assert result.outcome is Outcome.FAIL and result.oracles == ("grad",)
        verdict = judge_program(with_gradient(PLAIN), target)
        assert [mismatch.oracle for mismatch in verdict.mismatches[:1]] == ["grad"]
        assert first_found(honest, target) < 100

    def test_a_script_runs_by_itself(self, spec, tmp_path, standalone):
        """The script makes the backward outside of the transformed function."""
        path = tmp_path / "script.py"
        path.write_text(script(with_gradient(PLAIN), load_target(spec)))
        said = standalone(path)
        assert said.returncode == 0 and "no difference here" in said.stdout, said


def test_complex_gradients():
    """jvp differentiates along the real and the imaginary part of each element."""
    complex_case = Case("mul", "", "op", "complex64", "backward", "as_sampled", 2)
    assert run_case(complex_case, load_target("jvp")).outcome is Outcome.PASS
