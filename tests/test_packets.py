"""docs/upstream/NAME/ has one issue for each unreported finding, generated from its file and from measured outputs."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from pathlib import Path

import pytest

from conformance.record.repro import KINDS
from conformance.report.pytorch_issue import ABLATION, FLOAT64, MEASURED
from conformance.run.script_process import Forks
from scripts import findings, packets
from scripts.pages import ROOT

EVERY = findings.read_all(ROOT / findings.FOLDER)


def table(folder: str) -> list[dict[str, str]]:
    with (ROOT / packets.FOLDER / folder / "index.csv").open() as file:
        return [*csv.DictReader(file)]


class TestFiles:
    def test_are_current(self) -> None:
        """The files are those that the script writes; if not, run python -m scripts.packets."""
        assert packets.main(["--check"]) == 0

    def test_every_unreported_finding_has_an_issue(self) -> None:
        """The list has each finding of PyTorch that the newest release shows and no issue reports, the worst first."""
        release, rows = findings.newest(EVERY), table("pytorch")
        new = [finding for finding in EVERY if findings.status(finding) == "not in the index"]
        wanted = {f"{finding.name}.md" for finding in new if release in finding.versions or finding.partly}
        assert {row["file"] for row in rows} == wanted and len(rows) == len(wanted) > 100
        ranks = [KINDS.index(row["kind"]) for row in rows]
        assert ranks == sorted(ranks)

    def test_a_stale_or_unwanted_issue_fails_the_check(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The check names a changed file and one whose finding was reported; writing repairs both."""
        for folder in (findings.FOLDER, packets.FOLDER):
            shutil.copytree(ROOT / folder, tmp_path / folder)
        assert packets.main(["--check"], tmp_path) == 0
        issue = tmp_path / packets.FOLDER / "pytorch/zeta-large.md"
        issue.write_text("stale")
        assert packets.main(["--check"], tmp_path) == 1 and "zeta-large.md is stale" in capsys.readouterr().err
        assert packets.main([], tmp_path) == 0 and "zeta" in issue.read_text()
        file = tmp_path / findings.FOLDER / "zeta-large.toml"
        file.write_text(file.read_text().replace("layer =", 'issues = ["pytorch#1"]\nlayer =', 1))
        assert packets.main(["--check"], tmp_path) == 1
        assert packets.main([], tmp_path) == 0 and not issue.exists()


class TestMeasure:
    def test_each_side_is_of_the_finding(self) -> None:
        """Without a compiler a wrong value of aot_eager is right, and the backend shows it as the file says."""
        finding = next(finding for finding in EVERY if finding.name == "lost-0d-float64-write")
        code = finding.scripts[0].code
        with contextlib.closing(Forks(("torch._dynamo",))) as forks:
            assert packets.printed(code, "", False, forks).splitlines() == ["6.0", "6.0", "6.0"]
            assert packets.printed(code, "aot_eager", False, forks).split() == finding.scripts[0].prints.split()
            assert "exit code 3" in packets.printed("import os; os._exit(3)", "", False, forks)

    def test_compiled_findings_have_an_ablation(self) -> None:
        """What was measured is there for each finding that needs it."""
        measured = json.loads((ROOT / MEASURED).read_text())
        for finding in packets.unreported(EVERY):
            if packets.folder_of(finding) == packets.PYTORCH:
                needs = {*ABLATION} if finding.layer in ("torch.compile", "Inductor") else set()
                needs |= {FLOAT64} if finding.kind == "value" else set()
                assert {*measured.get(finding.name, {})} == needs, finding.name
