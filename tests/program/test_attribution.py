"""Attribution by replacement: one fault of an operator is found inside the operators that call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.engine.loading import load_target
from conformance.program.attribution import culprit
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor
from conformance.program.steps.states import SEEDS
from conformance.program.trial import Trial
from conformance.record import result as model
from conformance.record.causes import causes_of
from conformance.record.patterns import LESS_PRECISE
from conformance.run.failing_program import FailingProgram
from conformance.selftest.mutants import MutantTarget
from conformance.standalone.oracles import Mismatch
from tests.run_script import Standalone

PLANTED = Path(__file__).parents[1] / "planted"
CELLS = Storage("float32", 6, [-1.0, 2.0, -3.0, 4.0, -5.0, 6.0])
PROGRAMS = {
    name: Program((CELLS,), (Input("a", 0, "float32", (2, 3), (3, 1)),), (step,))
    for name, step in {
        "clone": Step("clone", (tensor("a"),), out=("b",)),
        "to": Step("to", (tensor("a"), {"dtype": "float64"}), out=("b",)),
        "rot90": Step("rot90", (tensor("a"), 0), out=("b",)),
        "neg": Step("neg", (tensor("a"),), out=("b",)),
        "relu": Step("relu", (tensor("a"),), out=("b",)),
    }.items()
}
"""Programs on the toy device. With both faults, the first three are wrong by `copy_`, `relu` by itself."""

SEEDED = {"under": (SEEDS[0],), "out": ("b",)}

SCRIPT = f"""
import json, sys
sys.path[:0] = {[str(PLANTED.parents[1]), str(PLANTED)]!r}
from conformance.engine.loading import load_target
from conformance.engine.loading import load_target
from conformance.program.attribution import culprit
from conformance.program.model import Program
from conformance.program.calls import judge_program
from conformance.program.steps.states import SEEDS
from conformance.program.trial import Trial
target, found = load_target("device:toy,import=toy_device,without=set_+unfold"), dict()
import toy_device
for name, program in json.loads(sys.argv[1]).items():
    toy_device.lost.clear()
    program = Program.from_json(program)
    wrong = judge_program(program, target).mismatches
    found[name] = culprit(Trial.of(program, target), wrong[0]) if wrong else "right"
print(json.dumps(found))
"""


class TestCulprit:
    @pytest.mark.parametrize("memory", ["", ",lucky_memory", ",no_fill_"], ids=["", "lucky", "no_fill_"])
    def test_inside_other_operators(self, memory: str, standalone: Standalone) -> None:
        """`copy_` is to blame where clone, to and rot90 call it, and relu where it is called by itself. Regression
        test: a lost `copy_` leaves the memory of a run before, which may hold the right values."""
        saved = json.dumps({name: program.to_json() for name, program in PROGRAMS.items()})
        said = standalone(SCRIPT, words=[saved], environment={"TOY_FAULTS": f"lost_copy_,relu{memory}"})
        assert json.loads(said.stdout or said.stderr) == {
            "clone": "copy_", "to": "copy_", "rot90": "copy_", "neg": "right", "relu": "relu",
        }  # fmt: skip

    def test_in_a_mutant(self) -> None:
        """A mutant of torch CPU is a mode, without which an operator is right."""
        target = MutantTarget("zero_ clears the storage")
        slice_ = Input("a", 0, "float32", (2,), (1,))
        zero = Program((CELLS,), (slice_,), (Step("zero_", (tensor("a"),)),))
        (wrong, *_) = judge_program(zero, target).mismatches
        assert culprit(Trial.of(zero, target), wrong) == "zero_"

    @pytest.mark.parametrize(
        ("mode", "step", "blamed"),
        [
            ("mul_out", Step("op_db.out:outer", (tensor("v"), tensor("v")), {"out": tensor("a")}), "mul"),
            ("mul_out", Step("op_db.out:kron", (tensor("v"), tensor("v")), {"out": tensor("w")}), "mul"),
            ("promoting_sub", Step("op_db:trapezoid", (tensor("v"), tensor("v")), out=("b",)), "sub"),
            ("promoting_sub", Step("op_db:diff", (tensor("v"),), out=("b",)), "sub"),
            ("bernoulli", Step("bernoulli_.certain", (tensor("v"), 0.0)), "bernoulli_"),
            ("bernoulli", Step("op_db:nn.functional.alpha_dropout", (tensor("v"), 0.5, True), **SEEDED), "bernoulli_"),
            ("bernoulli", Step("op_db:nn.functional.dropout2d", (tensor("m"), 0.5), **SEEDED), "bernoulli_"),
        ],
    )  # fmt: skip
    def test_inside_torchs_composites(self, mode: str, step: Step, blamed: str) -> None:
        """A device of a Python mode sees which operators torch's composites call. Regression test: a wrong `mul(out=)`
        was called "outer", a promotion of `sub` "trapezoid", and a wrong `bernoulli_` was four causes of dropouts."""
        target = load_target(f"device:cpu,import=tests.planted.lying_modes,call={mode},without=version")
        vector, matrix = Input("v", 0, "float32", (3,), (1,)), Input("a", 1, "float32", (3, 3), (3, 1))
        flat = replace(matrix, name="w", size=(9,), stride=(1,))
        image = Input("m", 2, "float32", (1, 2, 2, 1), (4, 2, 1, 1))
        cells = (CELLS, Storage("float32", 9), Storage("float32", 4))
        program = Program(cells, (vector, matrix, flat, image), (step,))
        verdict = judge_program(program, target)
        assert culprit(Trial.of(program, target), verdict.mismatches[0]) == blamed
        assert culprit(Trial.of(program, load_target("cpu")), verdict.mismatches[0]) == "", "it is right there"


FIRST = "1 of 1 elements differ (tolerance), first at (0,): expected 1.0, got {}"


class TestPattern:
    @pytest.mark.parametrize(
        ("detail", "op", "blamed", "pattern"),
        [
            ("", "clone", "copy_", "value of copy"),
            ("", "clone", "", "value of clone"),
            ("", "relu_", "relu", "value of relu"),
            (FIRST.format("nan"), "std", "copy_", "value of copy"),
            (FIRST.format("1.001"), "std", "sum", LESS_PRECISE),
        ],
    )
    def test_of_a_culprit(self, detail: str, op: str, blamed: str, pattern: str) -> None:
        """Findings of one culprit are one cause. Values that are only less precise are one already."""
        wrong = Mismatch("value", "b", "1.0", "7.0", detail)
        failing = FailingProgram(
            "value",
            "FAIL",
            0,
            shrunk=True,
            program=PROGRAMS["clone"],
            mismatches=(wrong,),
            bad_step=1,
            property="value",
            op=op,
            culprit=blamed,
        )
        assert failing.pattern == pattern
        assert FailingProgram.from_json(failing.to_json()).pattern == pattern
        assert replace(failing, kind="FLAKY").pattern == f"flaky: {pattern}"


class TestCampaign:
    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_one_cause(self, tmp_path: Path) -> None:
        """A campaign lists one lost `copy_` in three operators as one cause. Regression test: on the toy device it was
        one cause for each of 45 operators."""
        (tmp_path / "corpus").mkdir()
        for name in ("clone", "to", "rot90", "relu"):
            (tmp_path / "corpus" / f"{name}.json").write_text(dump(PROGRAMS[name]))
        words = [sys.executable, "-m", "conformance.fuzz", "--target", "device:toy,import=toy_device"]
        words += ["--programs", "0", "--corpus", str(tmp_path / "corpus"), "--check-scripts", "0"]
        words += ["--reports", str(tmp_path)]
        folders = [str(PLANTED), os.environ.get("PYTHONPATH", "")]
        faults = {"TOY_FAULTS": "lost_copy_,relu", "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        said = subprocess.run(
            words, text=True, capture_output=True, check=False, env=os.environ | faults, cwd=PLANTED.parents[1]
        )
        assert said.returncode == 1, said.stderr
        causes = causes_of(model.load(tmp_path / "fuzz.json").unexpected)
        assert {cause.pattern: len(cause.results) for cause in causes} == {"value of copy": 3, "value of relu": 1}
