"""docs/upstream/NAME/ has one issue for each unreported finding, generated from its file and from measured outputs."""

from __future__ import annotations

import ast
import contextlib
import csv
import json
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.record.repro import KINDS
from conformance.report.pytorch_issue import ABLATION, FLOAT64, MEASURED, Packet
from conformance.run.script_process import Forks
from scripts import backend_packets, findings, packets
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
        assert {row["file"] for row in rows} == wanted and len(rows) == len(wanted) > 50
        ranks = [KINDS.index(row["kind"]) for row in rows]
        assert ranks == sorted(ranks)

    def test_packages_and_backends_have_issues(self) -> None:
        """Each finding of a package that no issue reports is in the list of its folder, each backend has a folder, and
        there is no other one."""
        wanted = {packets.PYTORCH: {row["file"] for row in table(packets.PYTORCH)}}
        for finding in EVERY:
            if finding.layer in findings.PACKAGES and not finding.issues:
                wanted.setdefault(packets.folder_of(finding), set()).add(f"{finding.name}.md")
        for path in (ROOT / backend_packets.FOLDER).glob("*.toml"):
            rows = dict(backend_packets.packets_of(path))
            wanted[next(iter(rows.values())).layer.replace("_", "-")] = {*rows}
        folders = [path for path in (ROOT / packets.FOLDER).iterdir() if path.is_dir()]
        assert {path.name: {file.name for file in path.glob("*.md")} for path in folders} == wanted
        assert all({row["file"] for row in table(name)} == files for name, files in wanted.items())

    def test_a_stale_or_unwanted_issue_fails_the_check(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The check names a changed file and one whose finding was reported; writing repairs both."""
        for folder in (findings.FOLDER, packets.FOLDER, backend_packets.FOLDER):
            shutil.copytree(ROOT / folder, tmp_path / folder)
        page = tmp_path / packets.PART.page
        shutil.copy(ROOT / packets.PART.page, page)
        assert packets.main(["--check"], tmp_path) == 0
        issue = tmp_path / packets.FOLDER / "pytorch/zeta-large.md"
        issue.write_text("stale")
        assert packets.main(["--check"], tmp_path) == 1 and "zeta-large.md is stale" in capsys.readouterr().err
        assert packets.main([], tmp_path) == 0 and "zeta" in issue.read_text()
        file = tmp_path / findings.FOLDER / "zeta-large.toml"
        file.write_text(file.read_text().replace("layer =", 'issues = ["pytorch#1"]\nlayer =', 1))
        assert packets.main(["--check"], tmp_path) == 1
        capsys.readouterr()
        assert packets.main([], tmp_path) == 0 and not issue.exists()
        written = page.read_text()
        assert f" of {len(table('pytorch')) - 1} " in written
        page.write_text((ROOT / packets.PART.page).read_text())
        assert packets.main(["--check"], tmp_path) == 1 and "docs/findings.md is stale" in capsys.readouterr().err

    def test_the_page_says_how_many_can_be_filed(self) -> None:
        """The number of the page is that of the list, and what the others lack is named."""
        rows = table("pytorch")
        whole = sum(not row["lacks"] for row in rows)
        assert f"{whole} of {len(rows)} pass" in " ".join((ROOT / packets.PART.page).read_text().split())
        packet = Packet("t", "error", "torch CPU", "x", "y", versions=("torch 2.15.0",), words=("t",), known="none")
        assert packets.ready([packet]).endswith("1 of 1 passes the checker of the form.")
        unsearched = replace(packet, known="")
        assert packets.ready([packet, unsearched, replace(unsearched, code="")]).endswith(
            "1 of 3 passes the checker of the form; 2 lack a search for earlier reports; 1: there is no script."
        )


class TestBackends:
    def test_each_claim_has_an_issue_that_can_run(self) -> None:
        """Each line of docs/backends/*.toml that says what is wrong is an issue of at most 25 lines, which binds each
        name that it uses."""
        for path in sorted((ROOT / backend_packets.FOLDER).glob("*.toml")):
            rows = [*backend_packets.packets_of(path)]
            code = tomllib.loads(path.read_text())["code"]
            assert len({name for name, _ in rows}) == len(rows) == len(re.findall(r"\S  # ", code))
            for name, packet in rows:
                loose = names_without_a_value(packet.code)
                assert not loose, (name, loose)
                assert packet.kind in KINDS and packet.got and packet.expected and len(packet.code.splitlines()) <= 25

    def test_a_claim_has_three_parts(self) -> None:
        for said, parts in (
            ("[0, 1], not [2]: why; more", ("[0, 1]", "[2]", "why; more")),
            ('RuntimeError "a: b", not a view', ('RuntimeError "a: b"', "a view", "")),
            ("ends the process", ("ends the process", "", "")),
        ):
            assert backend_packets.claim_parts(said) == parts

    def test_an_issue_has_the_lines_that_its_claim_needs(self) -> None:
        """A later tensor of the same name needs nothing of an earlier one, and no other claim is in the script."""
        found = dict(backend_packets.packets_of(ROOT / backend_packets.FOLDER / "vulkan.toml"))
        assert found["roll-add-8.md"].code.splitlines() == [
            "import torch, torchvulkan", 'd = "vulkan"', "",
            "x = torch.arange(3.0, device=d)", "x.roll(3, 0).add_(1)", "print(x.tolist())",
        ]  # fmt: skip


def names_without_a_value(code: str) -> set[str]:
    """Return the names that a script uses and binds nowhere."""
    tree = ast.parse(code)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in nodes if isinstance(node.ctx, ast.Store)} | {"print"}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    bound |= {alias.name.partition(".")[0] for node in imports for alias in node.names}
    return {node.id for node in nodes} - bound


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
