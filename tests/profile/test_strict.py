"""A run with a profile: what is lacking is one table and no failure, and what is declared lacking and works fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.core import result as model
from conformance.core.lacking import Lacking
from conformance.core.merge import merge
from conformance.core.result import Run
from conformance.fuzzing.command import main as fuzz
from conformance.opinfo.runner import main as opinfo

PLANTED = Path(__file__).parent.parent / "planted"
LACKS_EXP = """[target]
kind = "class"
name = "planted.PlantedTarget"

[[lacking]]
operator = "aten::exp"
opinfos = ["exp"]
"""
WORKS = """[target]
kind = "cpu"

[[lacking]]
operator = "aten::neg"
opinfos = ["neg"]
steps = ["neg_", "neg"]
"""


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile in the current folder, which the commands take by themselves."""
    monkeypatch.syspath_prepend(str(PLANTED))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "conformance.toml"


def test_what_is_lacking_is_counted_and_does_not_fail(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a case of its own exp failed; declared, it is a row of the table, with how often programs use it."""
    assert opinfo(["--target", "class:planted.PlantedTarget", "--op", "exp", "--samples", "2"]) == 1
    profile.write_text(LACKS_EXP)
    assert opinfo(["--op", "exp", "--op", "log", "--samples", "2"]) == 0
    made = model.load("reports/opinfo.json")
    assert [result.name for result in made.results] == ["log"] and made.target == "conformance.toml"
    (row,) = made.lacking
    assert (row.operator, row.cases, row.steps) == ("aten::exp", 1, ()) and row.measured > 10
    said = capsys.readouterr().out
    assert "aten::exp" in said and "1 operator declared lacking: 1 op_db cases not run" in said
    assert "Lacking, and so not run" in Path("reports/conformance.html").read_text()


@pytest.mark.slow
def test_what_works_is_reported_by_op_db(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the line to delete; a run that compares nothing else says so, too."""
    profile.write_text(WORKS)
    assert opinfo(["--op", "neg", "--op", "abs", "--samples", "1"]) == 1
    (found,) = [result for result in model.load("reports/opinfo.json").results if result.outcome == "XPASS"]
    where = "conformance.toml, line 4: delete the [[lacking]] entry of aten::neg, or on line 6 'neg' alone"
    assert (found.op, found.reason) == ("neg", f"declared lacking, and works: {where}")
    assert "declared lacking, and works" in capsys.readouterr().out


def test_what_works_is_reported_by_the_fuzzer(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps are not drawn, and programs that call the operator in another step are not run."""
    profile.write_text(WORKS)
    assert fuzz(["--programs", "40"]) == 1
    made = model.load("reports/fuzz.json")
    assert [(result.op, result.outcome) for result in made.results] == [("neg_", "XPASS")]
    assert made.drawn is not None and "neg_" not in made.drawn.unsupported
    assert "declared lacking: neg_" in capsys.readouterr().out
    data = json.loads(Path("reports/fuzz.json").read_text())
    assert data["lacking"][0]["steps"] == ["neg_", "neg"]


def test_a_program_that_calls_it_otherwise_is_left_out(profile: Path) -> None:
    """-a in another step than neg: decided from torch CPU's own calls, before anything runs on the target."""
    profile.write_text(WORKS.replace("aten::neg", "aten::clone").replace('"neg_", "neg"', '"clone"'))
    fuzz(["--programs", "60", "--only", "copies"])
    drawn = model.load("reports/fuzz.json").drawn
    assert drawn is not None and drawn.unsupported["aten::clone"] > 0


def test_only_dtypes_that_it_holds_are_drawn(profile: Path) -> None:
    """Of inputs and conversions; masks, indices and some results (fft's are complex) have dtypes of their own, and such
    programs are not run."""
    profile.write_text('[target]\nkind = "cpu"\ndtypes = ["float32"]\n')
    assert fuzz(["--programs", "30"]) == 0
    drawn = model.load("reports/fuzz.json").drawn
    assert drawn is not None and not drawn.options
    dtypes = {dtype for family, _, dtype in drawn.cells if family not in ("op_db", "edges")}
    assert "float32" in dtypes <= {"float32", "int64", "bool"}


def test_an_unknown_op_in_the_profile(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """op_db's names are known in a worker only; the sentence is the same."""
    profile.write_text(LACKS_EXP.replace('"exp"', '"expm"'))
    assert opinfo(["--op", "log"]) == 2
    assert "conformance.toml, line 7: unknown name 'expm' in 'opinfos'; did you mean" in capsys.readouterr().err


def test_shards_are_joined() -> None:
    """Cases add up; the most missed comes first."""
    one = Run("cpu", lacking=(Lacking("aten::a", 2, (), 1, 9, 0.1), Lacking("aten::b", 1, (), 5, 9, 0.2)))
    two = Run("cpu", lacking=(Lacking("aten::a", 3, (), 1, 9, 0.1),))
    assert [(row.operator, row.cases) for row in merge([one, two]).lacking] == [("aten::b", 1), ("aten::a", 5)]
