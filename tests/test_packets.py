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
from conformance.report.pytorch_issue import ABLATION, FLOAT64, MEASURED, Packet, find_faults
from conformance.run.script_process import Forks
from scripts import backend_packets, findings, packets
from scripts.pages import ROOT, PageError

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
            wanted[backend_packets.folder_of(next(iter(rows.values())))] = {*rows}
        folders = [path for path in (ROOT / packets.FOLDER).iterdir() if path.is_dir()]
        there = {path.name: {file.name for file in path.glob("*.md")} - {packets.README} for path in folders}
        assert there == wanted
        assert all({row["file"] for row in table(name)} == files for name, files in wanted.items())

    def test_a_stale_or_unwanted_issue_fails_the_check(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The check names a changed file and one whose finding was reported; writing repairs both."""
        for folder in (findings.FOLDER, packets.FOLDER, backend_packets.FOLDER):
            shutil.copytree(ROOT / folder, tmp_path / folder)
        page = tmp_path / packets.PART.page
        for part in (packets.PART, packets.BACKENDS):
            shutil.copy(ROOT / part.page, tmp_path / part.page)
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

    def test_the_pages_say_how_many_can_be_filed(self) -> None:
        """The numbers of both pages and of each folder's README are those of the lists, and what the others lack is
        named."""
        whole, lists = dict[str, tuple[int, int]](), (ROOT / packets.FOLDER).glob("*/index.csv")
        for name in (path.parent.name for path in lists):
            rows = table(name)
            whole[name] = sum(not row["lacks"] for row in rows), len(rows)
            readme = (ROOT / packets.FOLDER / name / packets.README).read_text()
            assert f" {whole[name][0]} of {whole[name][1]} pass" in readme
        of_package = {*map(packets.folder_of_layer, findings.PACKAGES)} & {*whole}
        of_backend = {*whole} - of_package - {packets.PYTORCH}
        for names, part in (
            ({packets.PYTORCH}, packets.PART),
            (of_package, packets.PART),
            (of_backend, packets.BACKENDS),
        ):
            passing, every = (sum(numbers) for numbers in zip(*(whole[name] for name in names), strict=True))
            assert f" {passing} of {every} pass the checker of the form." in (ROOT / part.page).read_text()
        packet = Packet("t", "error", "torch CPU", "x", "y", versions=("torch 2.15.0",), words=("t",), known="none")
        assert packets.passing([packet]) == "1 of 1 passes the checker of the form."
        unsearched = replace(packet, known="")
        assert packets.passing([packet, unsearched, replace(unsearched, code="")]) == (
            "1 of 3 passes the checker of the form; 2 lack a search for earlier reports; 1: there is no script."
        )


class TestBackends:
    def test_each_claim_has_an_issue_that_can_run(self) -> None:
        """Each line of docs/backends/*.toml that says what is wrong, and that no issue reports, is an issue of at most
        25 lines, which binds each name that it uses."""
        for path in sorted((ROOT / backend_packets.FOLDER).glob("*.toml")):
            rows = [*backend_packets.packets_of(path)]
            code = tomllib.loads(path.read_text())["code"]
            reported = ["issues" in search for search in backend_packets.searches_of(path).values()]
            assert len({name for name, _ in rows}) == len(rows) == len(re.findall(r"\S  # ", code)) - sum(reported)
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

    def test_the_title_names_no_line_that_only_reads(self) -> None:
        """Regression test: three titles said that `a.cpu()` gives a wrong answer."""
        found = dict(backend_packets.packets_of(ROOT / backend_packets.FOLDER / "tinygrad.toml"))
        assert found["add-4.md"].title.startswith("`a.add_(1)` gives [1.0, 1.0], not [0.0, 0.0]")

    def test_an_issue_has_the_settings_before_its_claim(self) -> None:
        """Regression test: the issue about uninitialized memory lacked the line that asks for nan."""
        found = dict(backend_packets.packets_of(ROOT / backend_packets.FOLDER / "opencl.toml"))
        assert found["empty-tolist-20.md"].code.splitlines()[3:] == [
            "torch.use_deterministic_algorithms(True)", "print(torch.empty(2, device=d).tolist())",
        ]  # fmt: skip

    def test_a_wrong_value_has_a_reference(self) -> None:
        """Each issue of a wrong value, and no other one, has what its lines print on torch CPU in float64."""
        measured = json.loads((ROOT / backend_packets.MEASURED).read_text())
        for path in (ROOT / backend_packets.FOLDER).glob("*.toml"):
            rows = backend_packets.packets_of(path)
            wrong = {name.removesuffix(".md") for name, packet in rows if packet.kind == "value"}
            assert {*measured.get(path.stem, {})} == wrong, path.name

    def test_a_reference_needs_no_backend(self) -> None:
        """The lines that load the backend are gone, and 16-bit floats are float64. The lines run on torch CPU."""
        code = (
            'import torch, torchax\ntorchax.enable_globally()\nd = "jax"\n\n'
            "x = torch.ones(1, dtype=torch.bfloat16, device=d)\nx.add_(2**-20)\nprint(x.item())"
        )
        script = backend_packets.reference_script(code)
        assert script.splitlines()[:3] == ["import torch", 'd = "cpu"', ""]
        with contextlib.closing(Forks(())) as forks:
            assert packets.printed(script, "", True, forks) == str(1 + 2**-20)


class TestSearches:
    def test_one_search_serves_several_claims(self, backends: Path) -> None:
        """The issue has the words and the result. A claim without a search is not ready."""
        before, after = (replace_searches(backends, text) for text in ("", SEARCH.format(claims='"eq-2", "eq-5"')))
        faults = ["no earlier report was searched for"]
        assert all(find_faults(packet)[-1:] == faults for packet in before.values())
        for name in ("eq-2.md", "eq-5.md"):
            assert after[name].words == ("torchvulkan eq_",) and "Found: no thread." in after[name].known
            assert not find_faults(after[name])
        assert find_faults(after["roll-add-8.md"]) == faults

    def test_a_reported_claim_becomes_no_issue(self, backends: Path) -> None:
        reported = SEARCH.format(claims='"roll-add-8"') + 'issues = ["owner/name#1"]\n'
        before, after = (replace_searches(backends, text) for text in ("", reported))
        assert {*before} - {*after} == {"roll-add-8.md"}

    def test_a_search_of_no_claim_is_refused(self, backends: Path) -> None:
        """A wrong name of a claim, and an unknown key, are one sentence."""
        with pytest.raises(PageError, match="has searches for roll-9, which no claim has as its name"):
            replace_searches(backends, SEARCH.format(claims='"roll-9"'))
        with pytest.raises(PageError, match="has a search with claims, words, day, found; give claims, words, date"):
            replace_searches(backends, SEARCH.format(claims='"eq-2"').replace("date", "day"))


SEARCH = """
[[searched]]
claims = [{claims}]
words = "torchvulkan eq_"
date = "2026-11-29"
found = "no thread"
"""


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    """A copy of the claims about torchvulkan."""
    return Path(shutil.copy(ROOT / backend_packets.FOLDER / "vulkan.toml", tmp_path))


def replace_searches(path: Path, text: str) -> dict[str, Packet]:
    """Replace the searches of a backend's file by this text, and return its issues."""
    path.write_text(path.read_text().partition("\n[[searched]]")[0] + text)
    return dict(backend_packets.packets_of(path))


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
