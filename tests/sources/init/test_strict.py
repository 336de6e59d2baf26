"""Runs with a profile: lacking operators are one table and no failure; a working operator declared lacking fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.declare import profile as profiles
from conformance.declare.probed import UNTRIED_DTYPES, Probe, ProbedFeature, TrialAnswer
from conformance.record import result as model
from conformance.record.merge import merge
from conformance.record.missing_ops import MissingOperator, removed
from conformance.record.names import DTYPES
from conformance.record.result import Result, Run
from conformance.report.__main__ import main as report
from conformance.run.messages import Limits
from conformance.run.pool import LocalPool
from conformance.run.probe import resolve
from conformance.sources.accuracy.__main__ import main as accuracy
from conformance.sources.fuzzing.command import main as fuzz
from conformance.sources.opinfo.runner import main as opinfo
from tests.planted.tasks import needing_of

PLANTED = Path(__file__).parents[2] / "planted"
LACKS_EXP = """[target]
kind = "class"
name = "planted.PlantedTarget"

[[declare]]
scope = {operator = "aten::exp", op = "exp"}
property = "unsupported"
reason = "no kernel"
"""
WORKS = """[target]
kind = "cpu"

[[declare]]
scope = {operator = "aten::neg", op = "neg", step = ["neg_", "neg"]}
property = "unsupported"
reason = "no kernel"
"""


def unsupported(**scope: str) -> str:
    """A declaration of a profile; the values are in the form of TOML."""
    inner = ", ".join(f"{key} = {value}" for key, value in scope.items())
    return f'\n[[declare]]\nscope = {{{inner}}}\nproperty = "unsupported"\nreason = "so"\n'


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of a profile in the current folder, which the commands use by default."""
    monkeypatch.syspath_prepend(str(PLANTED))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "conformance.toml"


def test_what_is_lacking_is_counted_and_does_not_fail(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Undeclared, the case exp fails. Declared, it is a row of the table, with its frequency in programs."""
    words = ["--target", "class:planted.PlantedTarget", "--op", "exp", "--samples", "2", "--check-scripts", "0"]
    assert opinfo(words) == 1
    profile.write_text(LACKS_EXP)
    assert opinfo(["--op", "exp", "--op", "log", "--samples", "2"]) == 0
    run = model.load("reports/opinfo.json")
    assert [result.name for result in run.results] == ["log"] and run.target == "conformance.toml"
    (row,) = run.lacking
    assert (row.operator, row.cases, row.steps) == ("aten::exp", 1, ()) and row.measured > 10
    said = capsys.readouterr().out
    assert "aten::exp" in said and "1 operator declared lacking: 1 op_db entry, 1 op_db case not run" in said
    assert "Lacking, and so not run" in Path("reports/conformance.html").read_text()


@pytest.mark.slow
def test_what_works_is_reported_by_op_db(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run names the line to delete, even if it compares no other case."""
    profile.write_text(WORKS)
    assert opinfo(["--op", "neg", "--op", "abs", "--samples", "1"]) == 1
    (unexpected,) = [result for result in model.load("reports/opinfo.json").results if result.outcome == "XPASS"]
    where = "conformance.toml, line 4: delete 'neg' from that [[declare]] entry"
    assert (unexpected.op, unexpected.reason) == ("neg", f"declared lacking, and works: {where}")
    assert "declared lacking, and works" in capsys.readouterr().out


def test_what_works_is_reported_by_the_fuzzer(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The declared steps are not drawn, and programs that call the operator in another step do not run."""
    profile.write_text(WORKS)
    assert fuzz(["--programs", "40"]) == 1
    run = model.load("reports/fuzz.json")
    assert [(result.op, result.outcome) for result in run.results] == [("neg_", "XPASS")]
    assert run.drawn is not None and "neg_" not in run.drawn.unsupported
    assert "declared lacking: neg_" in capsys.readouterr().out
    data = json.loads(Path("reports/fuzz.json").read_text())
    assert data["lacking"][0]["steps"] == ["neg_", "neg"]


def test_a_program_that_calls_it_otherwise_is_left_out(profile: Path) -> None:
    """A program that calls the operator in another step does not run. torch CPU's own calls decide that, before
    anything runs on the target."""
    profile.write_text(WORKS.replace("aten::neg", "aten::clone").replace('"neg_", "neg"', '"clone"'))
    fuzz(["--programs", "60", "--only", "copies"])
    drawn = model.load("reports/fuzz.json").drawn
    assert drawn is not None and drawn.unsupported["aten::clone"] > 0


def test_only_dtypes_that_it_holds_are_drawn(profile: Path) -> None:
    """The dtypes restrict inputs and conversions. Masks, indices and some results, such as complex ones of fft, may
    have other dtypes; such programs do not run."""
    names = [name for name in DTYPES if name != "float32"]
    profile.write_text('[target]\nkind = "cpu"\n' + unsupported(dtype=f"{names}"))
    fuzz(["--programs", "30"])
    drawn = model.load("reports/fuzz.json").drawn
    assert drawn is not None and not drawn.options
    dtypes = {dtype for family, _, dtype in drawn.cells if family not in ("op_db", "edges")}
    assert "float32" in dtypes <= {"float32", "int64", "bool"}


SAID = {
    "feature set_": "declared lacking, and works: conformance.toml, line 4: delete 'set_' from that [[declare]] entry",
    "feature storages": "declared lacking, and works: conformance.toml, line 4: delete 'storages' from that "
    "[[declare]] entry",
    "dtype int16": "declared lacking, and works: conformance.toml, line 9: delete that [[declare]] entry",
}
"""Reasons of the findings for `TestFeatures.FALSE`."""


class TestFeatures:
    """A profile that excludes supported features or dtypes fails. Regression test: with such a profile of torch CPU,
    the run was green and no output mentioned the reduced checks. Only operators were tried again."""

    FALSE = '[target]\nkind = "cpu"\n' + unsupported(feature='["set_", "storages"]') + unsupported(dtype='"int16"')

    def test_by_the_fuzzer(self, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The probe's table is printed and saved, with the effects of the profile's entries marked."""
        profile.write_text(self.FALSE)
        assert fuzz(["--programs", "5"]) == 1
        run = model.load("reports/fuzz.json")
        reasons = {result.op: result.reason for result in run.results if result.finding}
        assert reasons == SAID and run.counts() == {"XPASS": 3}
        assert run.environment["device: set_"] == "yes" and "int16" in run.environment["device: dtypes"]
        said = capsys.readouterr().out
        assert "What cpu has" in said and "inputs are made by as_strided" in said

    def test_by_op_db(self, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The result does not depend on the cases that run."""
        profile.write_text(self.FALSE)
        assert opinfo(["--op", "abs", "--samples", "1"]) == 1
        run = model.load("reports/opinfo.json")
        assert {result.op: result.reason for result in run.results if result.outcome == "XPASS"} == SAID
        assert run.environment["device: set_"] == "yes" and "What cpu has" in capsys.readouterr().out

    def test_a_true_profile_is_green(self, profile: Path) -> None:
        """A feature that the probe finds lacking, as `init` did, gives no contradiction and no note. This is the device
        of `test_a_wrong_feature_fails_each_command`, whose profile does not declare it."""
        profile.write_text(
            '[target]\nname = "cpu"\nimport = "odd_devices"\ncall = "has_no_unfold"\n' + unsupported(feature='"unfold"')
        )
        assert opinfo(["--op", "abs", "--samples", "1"]) == 0
        run = model.load("reports/opinfo.json")
        assert run.counts() == {"PASS": 3} and not run.notes
        assert run.environment["device: unfold"].startswith("no: NotImplementedError")

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            (opinfo, ["--op", "abs", "--samples", "1"]),
            (fuzz, ["--programs", "2", "--only", "arithmetic"]),
            (accuracy, ["--op", "abs", "--dtype", "float32", "--variant", "forward"]),
        ],
    )
    def test_a_wrong_feature_fails_each_command(
        self, profile: Path, capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], int], words: list[str]
    ) -> None:
        """The exit code is 1, and terminal, page, JUnit and CTRF show the failure. Regression test: the terminal said
        "mend the device, or declare it" above "3 passed, 0 failed", and the other forms said nothing."""
        profile.write_text('[target]\nname = "cpu"\nimport = "odd_devices"\ncall = "has_no_unfold"\n')
        assert command([*words, "--check-scripts", "0"]) == 1
        said, (junit,), (ctrf,) = (
            capsys.readouterr().out,
            Path("reports").glob("*.xml"),
            Path("reports").glob("*.ctrf.*"),
        )
        reason = (
            "conformance.toml does not declare the feature 'unfold' unsupported, and the probe's answer is no "
            "(NotImplementedError: unfold): mend the device, or declare it"
        )
        suite = ElementTree.parse(junit).getroot()[0]
        assert [case[0].get("message") for case in suite.iter("testcase") if len(case)] == [f"FAIL: {reason}"]
        assert suite.get("failures") == "1" and suite.get("errors") == "0"
        failed = [test for test in json.loads(ctrf.read_text())["results"]["tests"] if test["status"] == "failed"]
        assert [test["message"] for test in failed] == [reason]
        assert reason in said and "1 failed" in said
        assert any("does not declare the feature" in page.read_text() for page in Path("reports").glob("*.html"))

    def test_what_is_lacking_and_undeclared(self, profile: Path) -> None:
        """Each undeclared missing feature or dtype is a failure. Entries of the target's class count as declared, and a
        dtype that the probe does not try, such as float4_e2m1fn_x2, is not missing."""
        lost = [name for name in DTYPES if name not in ("float32", "bool", *UNTRIED_DTYPES)]
        profile.write_text('[target]\nname = "cpu"\n' + unsupported(feature='"set_"') + unsupported(dtype=f"{lost}"))
        rows = (
            ProbedFeature("set_", TrialAnswer.NO, "no"),
            ProbedFeature("views", TrialAnswer.WRONG, "t"),
            ProbedFeature("unfold", TrialAnswer.NO, "no"),
        )
        seen = Probe(rows, ("float32",), frozenset({"unfold"}))
        found, notes = profiles.load("conformance.toml").contradicted(seen)
        assert not notes and {one.outcome for one in found} == {model.Outcome.FAIL}
        assert {one.part: one.reason for one in found} == {
            "feature views": "conformance.toml does not declare the feature 'views' unsupported, and the probe's "
            "answer is wrong (t): mend the device, or declare it",
            "dtype bool": "conformance.toml does not declare the dtype 'bool' unsupported, and the probe's answer is "
            "that its values do not survive the way to the device and back: mend the device, or declare it",
        }

    @pytest.mark.parametrize("kind", ["meta", "functionalize"])
    def test_what_cannot_be_tried(self, profile: Path, kind: str) -> None:
        """A profile that cannot be tried gives a note and no failure."""
        profile.write_text(f'[target]\nkind = "{kind}"\n' + unsupported(feature='"set_"'))
        seen = resolve("conformance.toml", Limits(), strict=60)[1]
        assert seen is not None and seen.unmade
        assert profiles.load("conformance.toml").contradicted(seen) == (
            [],
            [f"set_: declared in conformance.toml and not tried: {seen.unmade}."],
        )

    def test_shards_say_it_once(self) -> None:
        """Every shard probes the device. Regression test: the same result in two shards ended the merge with an
        error."""
        run = Run("cpu", [Result("feature set_", "", "lacking", "", model.Outcome.XPASS)])
        assert len(merge([run, run]).results) == 1


def test_an_unknown_op_in_the_profile(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a worker can check op_db's names; the sentence is the same."""
    profile.write_text(LACKS_EXP.replace('"exp"', '"expm"'))
    assert opinfo(["--op", "log"]) == 2
    assert "conformance.toml, line 5: unknown op 'expm'; did you mean" in capsys.readouterr().err


def test_a_campaign_says_what_a_declaration_removes(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A campaign prints the number of entries that a declaration removes. Regression test: a wrong declaration silently
    removed 604 of 626 entries of op_db, although the profile named nine."""
    profile.write_text('[target]\nkind = "cpu"\n' + unsupported(operator='"aten::view"', op='"view"'))
    assert fuzz(["--programs", "6", "--only", "op_db"]) == 0
    run = model.load("reports/fuzz.json")
    (row,) = run.lacking
    assert row.operator == "aten::view" and len(row.entries) > 1
    entries = {cell.partition("|")[0] for cell in run.drawn.entries} if run.drawn else set()
    assert len(entries) > 10 and not entries & {*row.entries}
    assert f"1 operator declared lacking: {len(row.entries)} op_db entries not run" in capsys.readouterr().out


def test_one_page_for_one_target(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One device with and without a profile has one page. Regression test: a profile of `device:cpu` changed the spec,
    and the page lost the campaign. Result files keep the spec that ran, so replays are unchanged."""
    assert fuzz(["--target", "device:cpu", "--programs", "5"]) == 0
    profile.write_text('[target]\nkind = "device"\nname = "cpu"\n')
    assert opinfo(["--op", "abs", "--samples", "1"]) == 0
    page = Path("reports/conformance.html").read_text()
    assert "5 drawn programs" in page and "<h1>device:cpu</h1>" in page
    runs = [model.load(f"reports/{name}.json") for name in ("fuzz", "opinfo")]
    assert [run.target for run in runs] == ["device:cpu,without=nothing", "conformance.toml"]
    assert {run.identity for run in runs} == {"device:cpu"}
    assert report(["merge", "reports/fuzz.json", "reports/opinfo.json", "--reports", "joined"]) == 0
    assert "5 drawn programs" in Path("joined/conformance.html").read_text()


def test_shards_are_joined() -> None:
    """Case counts are added, and names are merged; the most frequent row comes first."""
    one = Run(
        "cpu",
        lacking=(
            MissingOperator("aten::a", 2, ("neg",), 1, 9, 0.1, ("x", "y"), ("view",)),
            MissingOperator("aten::b", 1, (), 5, 9, 0.2),
        ),
    )
    two = Run("cpu", lacking=(MissingOperator("aten::a", 3, (), 1, 9, 0.1, ("y", "z")),))
    assert [(row.operator, row.cases) for row in merge([one, two]).lacking] == [("aten::b", 1), ("aten::a", 5)]
    said = "3 op_db entries, 6 op_db cases, 1 step of 1 family"
    assert removed(merge([one, two]).lacking) == said


def test_a_form_that_is_lacking_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a device registers no kernel for an operator, it needs the out= form and the overrideable form. Programs call
    the operator, so the drawing did not notice a declaration of one of these forms."""
    monkeypatch.syspath_prepend(str(PLANTED))
    profile = tmp_path / "foreign.toml"
    profile.write_text(
        """[target]
kind = "device"
name = "foreign"
import = "foreign_device"
call = "without_convolution"
"""
        + unsupported(operator='"aten::convolution_overrideable"', step='"nn.functional.conv2d"')
        + unsupported(operator='"aten::exp.out"', op='"exp"')
    )
    with LocalPool(str(profile), Limits(), 1) as pool:
        needing = pool.ask(needing_of, str(profile))
    assert "aten::convolution" in needing
    assert "aten::exp.out" in needing and "aten::exp" not in needing  # the device has a kernel for this operator
