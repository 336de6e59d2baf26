"""`conformance repros`: a target that has a bug shows its repro, and no other does."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from conformance.record import result as model
from conformance.record.errors import UsageError
from conformance.record.repro import KINDS
from conformance.record.result import SHOWS, Outcome, Result
from conformance.record.upstream import bugs
from conformance.sources.repros.__main__ import main
from conformance.sources.repros.table import load, select
from scripts import findings
from scripts.pages import ROOT

SCHEMA = Path(model.__file__).with_name("result.schema.json")
BUGS = ("pytorch#196682", "median-expanded", "zeta-large", "pytorch#138425")
"""Bugs of torch CPU: a wrong derivative, wrong values, and a crash."""


def words(*names: str) -> list[str]:
    return [word for name in names for word in ("--op", name)]


def results(folder: Path) -> dict[str, Result]:
    return {result.op: result for result in model.load(folder / "repros.json").results}


class TestTable:
    def test_every_bug_and_every_script_is_a_case(self) -> None:
        """The index and the files of findings are complete, each name once, the worst kinds first."""
        cases = load()
        scripts = [script for finding in findings.read_all(ROOT / findings.FOLDER) for script in finding.scripts]
        assert len(cases) == sum(bool(bug.repro) for bug in bugs()) + len(scripts)
        assert len({case.op for case in cases}) == len(cases)
        assert [case.repro.rank for case in cases] == sorted(case.repro.rank for case in cases)
        assert {case.repro.kind for case in cases} <= {*KINDS}

    def test_a_finding_tells_when_a_reported_bug_was_mended(self) -> None:
        """The index knows the versions that show a bug, the file of its finding the first one that does not."""
        (case,) = select(["pytorch#195066"], KINDS)
        assert case.repro.mended == "torch 2.15.0" and case.repro.known.endswith("; mended in torch 2.15.0")

    def test_unknown_names(self) -> None:
        """A misspelt bug is one sentence with the nearest one."""
        with pytest.raises(UsageError, match="'median-expand'; did you mean median-expanded"):
            select(["median-expand"], KINDS)
        with pytest.raises(UsageError, match="no known bug among those is of the kinds crash"):
            select(["zeta-large"], ["crash"])


class TestCommand:
    def test_bugs_of_torch_show_on_torch(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Each bug shows, its script shows it alone, and the page has the silent ones first."""
        assert main(["--target", "cpu", *words(*BUGS), "--reports", f"{tmp_path}"]) == 1
        found = results(tmp_path)
        assert {name: str(result.outcome) for name, result in found.items()} == {
            "pytorch#196682": "FAIL",
            "median-expanded": "FAIL",
            "zeta-large": "FAIL",
            "pytorch#138425": "CRASH",
        }
        assert {result.alone for result in found.values() if result.scripted} == {SHOWS}
        text = (tmp_path / "repros.json").read_text()
        jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text()))
        page = (tmp_path / "repros.html").read_text()
        assert "4 of the 4 known bugs that were tried show" in page
        assert page.index("median-expanded") < page.index("pytorch#138425")
        said = capsys.readouterr().out
        assert "4 repros of known bugs: 4 shown, 0 shown as declared, 0 not shown, 0 cannot run" in said
        assert "value: pytorch#196682: cholesky_inverse has a wrong" in said

    def test_a_device_shows_its_own_bugs_only(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The toy device computes by torch CPU's kernels on memory without strides of 0, so it shows the bug of zeta;
        its own lost copies are no known bug. What it cannot run has a reason."""
        monkeypatch.setenv("TOY_FAULTS", "")
        monkeypatch.chdir(ROOT / "tests/planted")
        monkeypatch.syspath_prepend(str(ROOT / "tests/planted"))
        names = ("zeta-large", "pytorch#197829", "liger-rope-one-token")
        assert main(["--target", "device:toy,import=toy_device", *words(*names), "--reports", f"{tmp_path}"]) == 1
        found = results(tmp_path)
        assert found["zeta-large"].outcome is Outcome.FAIL and found["zeta-large"].alone == SHOWS
        assert found["pytorch#197829"].outcome is Outcome.PASS
        assert (found["liger-rope-one-token"].outcome, found["liger-rope-one-token"].reason) == (
            Outcome.SKIP,
            "needs liger",
        )

    def test_a_compiler_shows_what_reaches_it(self, tmp_path: Path) -> None:
        """aot_eager loses the write to a 0-d float64, as the finding says, has no bug of Inductor, and runs no script
        that compiles nothing."""
        names = ("lost-0d-float64-write", "inductor-mean-of-nothing", "zeta-large")
        assert main(["--target", "aot_eager", *words(*names), "--reports", f"{tmp_path}"]) == 1
        found = results(tmp_path)
        assert found["lost-0d-float64-write"].alone == SHOWS
        assert found["inductor-mean-of-nothing"].outcome is Outcome.PASS
        assert found["zeta-large"].reason == "does not call torch.compile, so it does not reach the compiler"

    def test_a_declared_bug_passes(self, tmp_path: Path) -> None:
        """--update-expectations declares what shows, and the next run fails only by what is new. A declaration of an
        unknown bug is refused."""
        file = tmp_path / "known.toml"
        run = ["--target", "cpu", "--reports", f"{tmp_path}", "--check-scripts", "0", "--expectations", f"{file}"]
        main([*run, *words("zeta-large"), "--update-expectations"])
        assert main([*run, *words("zeta-large")]) == 0
        assert results(tmp_path)["zeta-large"].outcome is Outcome.XFAIL
        assert main([*run, *words("zeta-large", "median-expanded")]) == 1
        file.write_text(file.read_text().replace("zeta-large", "zeta-larger"))
        assert main([*run, *words("zeta-large")]) == 2

    def test_resume(self, tmp_path: Path) -> None:
        """A run that stopped at its first bug goes on with the others."""
        run = ["--target", "cpu", *words("zeta-large", "median-expanded"), "--reports", f"{tmp_path}", "-n", "1"]
        assert main([*run, "--stop-at-first-failure", "--check-scripts", "0"]) == 1
        assert len(results(tmp_path)) == 1
        assert main([*run, "--resume", "--check-scripts", "0"]) == 1
        assert {result.outcome for result in results(tmp_path).values()} == {Outcome.FAIL} and len(
            results(tmp_path)
        ) == 2
