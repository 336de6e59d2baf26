"""Tolerances of a profile: what passes by them is counted and stated, and a larger error still fails."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.declare.profile import dumps, load
from conformance.declare.tolerances import EPSILON, LARGEST_PROPOSED, USUAL, DeclaredTolerance, covering, proposed
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor
from conformance.record import result as model
from conformance.record.errors import TargetError
from conformance.report.summary import facts
from conformance.selftest.faults import Fault
from conformance.selftest.mutants import MutantTarget, Planted
from conformance.sources.fuzzing.command import main as fuzz
from conformance.sources.opinfo.runner import main as opinfo
from conformance.standalone.torch_compat import default_tolerances

TARGET = """[target]
kind = "device"
name = "cpu"
import = "tests.planted.lying_modes"
call = "{}"

[[declare]]
scope = {{feature = "version"}}
property = "unsupported"
reason = "a mode hides the writes of list operators"
"""
TOLERANCE = """
[[tolerance]]
op = ["*mm", "matmul"]
dtype = "float32"
rtol = 0.016
atol = 1e-5
reason = "the matrix unit rounds to bfloat16"
"""
CASES = [word for name in ("mm", "matmul", "linalg.multi_dot") for word in ("--op", name)]


def run(folder: Path, call: str, tolerance: str = TOLERANCE) -> tuple[int, model.Run]:
    """Run three operators of op_db on a mode, with a profile of this tolerance."""
    profile = folder / "mode.toml"
    profile.write_text(TARGET.format(call) + tolerance)
    words = ["--dtype", "float32", "--variant", "forward", "--check-scripts", "0", "--reports", str(folder)]
    code = opinfo(["--target", str(profile), *CASES, *words])
    return code, model.load(folder / "opinfo.json")


class TestRun:
    def test_what_passes_by_a_tolerance_is_counted(self, tmp_path: Path) -> None:
        """Products that are rounded to bfloat16 pass where the profile declares it, and fail where it does not."""
        code, done = run(tmp_path, "rounded_products")
        assert code == 1
        outcomes = {result.name: (str(result.outcome), result.tolerated > 0) for result in done.results}
        assert outcomes == {"mm": ("PASS", True), "matmul": ("PASS", True), "linalg.multi_dot": ("FAIL", False)}
        assert f"{done.tolerated} samples of 2 cases pass only by the tolerances of the profile" in facts(done)
        stated = "float32 of *mm, matmul: rtol 0.016, atol 1e-05 (the matrix unit rounds to bfloat16)"
        assert done.environment["tolerances"] == stated
        page = (tmp_path / "conformance.html").read_text()
        assert stated in page
        assert "pass in some samples only by a tolerance of the profile" in page

    def test_a_fault_beyond_a_tolerance_fails(self, tmp_path: Path) -> None:
        """The same mode, with products of more than six elements that are 10 % too large."""
        code, done = run(tmp_path, "wrong_products")
        assert code == 1
        assert {str(result.outcome) for result in done.results} == {"FAIL"}

    def test_without_a_declaration_all_fail(self, tmp_path: Path) -> None:
        code, done = run(tmp_path, "rounded_products", "")
        assert (code, done.tolerated) == (1, 0)
        assert {str(result.outcome) for result in done.results} == {"FAIL"}
        assert "tolerances" not in done.environment

    def test_one_that_nothing_needs_is_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A tolerance by which nothing passes may hide a fault. One of an operator that did not run says nothing."""
        _, done = run(tmp_path, "nothing", TOLERANCE + TOLERANCE.replace('["*mm", "matmul"]', '"conv*"'))
        line = TARGET.count("\n") + 2
        [note] = done.notes
        samples = sum(result.samples for result in done.results if result.name in ("mm", "matmul"))
        assert note.startswith(
            f"no tolerance was needed by any of the {samples} samples that it covers: float32 of *mm"
        )
        assert f"(mode.toml, line {line}); remove it" in note
        assert note in capsys.readouterr().out and note in html.unescape((tmp_path / "conformance.html").read_text())
        _, done = run(tmp_path, "rounded_products")
        assert not done.notes

    @pytest.mark.parametrize(("call", "needed"), [("nothing", False), ("rounded_products", True)])
    def test_one_that_no_program_needs_is_named(self, tmp_path: Path, call: str, needed: bool) -> None:
        inputs = (Input("a", 0, "float32", (8, 8), (8, 1)), Input("b", 0, "float32", (8, 8), (1, 8)))
        numbers = Storage("float32", 64, [number / 7 for number in range(64)])
        program = Program((numbers,), inputs, (Step("matmul", (tensor("a"), tensor("b")), out=("c",)),))
        (tmp_path / "corpus").mkdir()
        (tmp_path / "corpus" / "one.json").write_text(dump(program))
        profile = tmp_path / "mode.toml"
        profile.write_text(TARGET.format(call) + TOLERANCE + TOLERANCE.replace('["*mm", "matmul"]', '"conv*"'))
        words = ["--corpus", str(tmp_path / "corpus"), "--programs", "0", "--reports", str(tmp_path)]
        assert fuzz(["--target", str(profile), *words]) == 0
        done = model.load(tmp_path / "fuzz.json")
        assert [note.partition(":")[0] for note in done.notes] == (
            [] if needed else ["no tolerance was needed by the one program that it covers"]
        )
        assert done.drawn is not None and done.drawn.tolerated == needed

    def test_in_a_program_it_holds_for_later_steps(self) -> None:
        """The step behind a product carries its error on. A program without a product has no tolerance."""
        target = MutantTarget("zero_ clears the storage")
        target.mode = Planted(Fault("neg", lambda call: call.run() * 1.01, "a test"))
        tolerance = DeclaredTolerance(("float32",), 0.016, 0.0, "so", ("matmul",))
        target.facts = replace(target.facts, tolerances=(tolerance,))
        inputs = (Input("a", 0, "float32", (8, 8), (8, 1)), Input("b", 0, "float32", (8, 8), (1, 8)))
        for op, passed in ("matmul", True), ("add", False):
            steps = (Step(op, (tensor("a"), tensor("b")), out=("c",)), Step("neg", (tensor("c"),), out=("d",)))
            verdict = judge_program(Program((Storage("float32", 64),), inputs, steps), target)
            assert (verdict.passed, verdict.tolerated) == (passed, passed)


class TestProfile:
    def test_a_round_trip(self, tmp_path: Path) -> None:
        path = tmp_path / "p.toml"
        path.write_text(TARGET.format("nothing") + TOLERANCE)
        profile = load(path)
        path.write_text(dumps(profile))
        assert load(path).tolerances == profile.tolerances
        [entry] = profile.tolerances
        assert (entry.op, entry.rtol) == (("*mm", "matmul"), 0.016)

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ('dtype = "float32"', 'dtype = "float31"', "no tolerance can be declared for the dtype 'float31'"),
            ('dtype = "float32"', 'dtype = "int64"', "no tolerance can be declared for the dtype 'int64'"),
            ('dtype = "float32"\n', "", "'dtype' must be a name or a non-empty list of names"),
            ("rtol = 0.016", "rtol = -1", "'rtol' must be a number, 0 or more"),
            ("rtol = 0.016", 'rtol = "x"', "'rtol' must be a number, 0 or more"),
            ("atol = 1e-5\n", "", "'atol' must be a number, 0 or more"),
            ("atol = 1e-5", "atol = inf", "'atol' must be a number, 0 or more"),
            ('reason = "the matrix unit rounds to bfloat16"', 'reason = ""', "an entry needs a non-empty 'reason'"),
            ("rtol", "tolerance", "unknown key 'tolerance'"),
            ("[[tolerance]]", "[tolerance]", "'tolerance' must be written as [[tolerance]] entries"),
        ],
    )
    def test_a_mistake_is_one_sentence(self, tmp_path: Path, old: str, new: str, said: str) -> None:
        path = tmp_path / "p.toml"
        path.write_text(TARGET.format("nothing") + TOLERANCE.replace(old, new))
        with pytest.raises(TargetError, match=r"^[^\n]*p\.toml[^\n]*$") as raised:
            load(path)
        assert said in str(raised.value)


class TestTolerances:
    @pytest.mark.parametrize(
        ("glob", "covered"),
        [
            ("linear", True), ("nn.functional.linear", True), ("nn.*", True), ("*", True),
            ("bilinear", False), ("functional.linear", False),
        ],
    )  # fmt: skip
    def test_an_operator_has_two_names(self, glob: str, covered: bool) -> None:
        declared = DeclaredTolerance(("float32",), 0.1, 0.2, "so", (glob,))
        found = covering([declared], ["op_db:nn.functional.linear", "neg_"])
        assert found == ({"float32": (0.1, 0.2)} if covered else {})

    def test_the_largest_of_several_holds(self) -> None:
        declared = [
            DeclaredTolerance(("float32", "float16"), 0.1, 0.0, "so", ("mm",)),
            DeclaredTolerance(("float32",), 0.01, 0.5, "so"),
        ]
        assert covering(declared, {"mm"}) == {"float32": (0.1, 0.5), "float16": (0.1, 0.0)}
        assert covering(declared, {"neg"}) == {"float32": (0.01, 0.5)}

    def test_the_usual_numbers_are_those_of_torch(self) -> None:
        for name in USUAL:
            dtype = getattr(torch, name)
            assert (USUAL[name], EPSILON[name]) == (default_tolerances(dtype)[0], torch.finfo(dtype).eps)

    def test_a_proposal_is_above_the_error_and_rounded_up(self) -> None:
        """An error within torch.testing's tolerance needs none, and one above a tenth is a fault."""
        ulps = [("exp", "float32", 41.0), ("log", "float32", 40.0), ("sin", "float32", 1.0), ("mm", "bfloat16", 4.0),
                ("inf", "float32", 1e30), ("half", "float16", LARGEST_PROPOSED * 2**10)]  # fmt: skip
        entries = {entry.op: (entry.dtype, entry.rtol) for entry in proposed(ulps, "so")}
        assert entries == {("exp", "log"): (("float32",), 1e-5), ("mm",): (("bfloat16",), 0.07)}
