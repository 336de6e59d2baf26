"""The packages with operators: their list, their findings, and the tables; in their environments, the scripts."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from scripts import cuda_stand_ins, findings, packages
from scripts.pages import ROOT

KNOWN = packages.read_all()
FOUND = [finding for finding in findings.read_all(ROOT / findings.FOLDER) if finding.layer in findings.PACKAGES]
ON_SOME_MACHINES = {"bitsandbytes-gemv-aborts": "bitsandbytes on a CPU with AVX512-BF16"}
"""Findings whose script shows the bug on some machines only, with their needs. No test runs them."""

RUN = [
    pytest.param(script, KNOWN[script.needs], id=f"{finding.name}:{number}")
    for finding in FOUND
    for number, script in enumerate(finding.scripts, 1)
    if finding.name not in ON_SOME_MACHINES
]


class TestFindings:
    def test_each_has_a_script_that_its_package_runs(self):
        """Every script is counted: it needs a package of the list, or is named above."""
        needs = {finding.name: {script.needs for script in finding.scripts} for finding in FOUND}
        names = {package.layer: package.name for package in KNOWN.values()}
        wanted = {finding.name: {ON_SOME_MACHINES.get(finding.name, names[finding.layer])} for finding in FOUND}
        assert needs == wanted

    @pytest.mark.parametrize("finding", FOUND, ids=lambda finding: finding.name)
    def test_a_script_is_short_and_names_its_package(self, finding):
        """At most 25 lines, and the version of the list."""
        package = next(one for one in KNOWN.values() if one.layer == finding.layer)
        assert all(len(script.code.strip().splitlines()) <= 25 for script in finding.scripts)
        assert any(version.endswith(f" {package.version}") for version in finding.versions)

    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    @pytest.mark.parametrize(("script", "package"), RUN)
    def test_a_script_prints_both_answers(self, script, package):
        """In the package's environment, which the first script installs."""
        assert packages.output(script, package).split() == script.prints.split()


class TestChecks:
    @pytest.mark.parametrize("package", KNOWN.values(), ids=KNOWN)
    def test_known_differences_have_a_finding(self, package):
        """A word like `torchaudio-lfilter-compile` in a check file is the name of a finding of the package, and each
        finding that a check shows is named."""
        names = {finding.name for finding in FOUND if finding.layer == package.layer}
        text = (ROOT / package.checks).read_text(encoding="utf-8")
        named = {*re.findall(rf"\b{package.name}(?:-\w+)+\b", text)}
        assert named <= names and len(named) >= len(names) - 1

    @pytest.mark.parametrize("package", KNOWN.values(), ids=KNOWN)
    def test_each_operator_is_checked(self, package):
        """Each test of a check file calls `conformance.check`, itself or by the function `same`."""
        tree = ast.parse((ROOT / package.checks).read_text(encoding="utf-8"))
        tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        assert len(tests) == package.operators() >= 10
        assert all(re.search(r"(conformance\.check|\bsame)\(", ast.unparse(node)) for node in tests)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with one package and its findings."""
    for path in (packages.LIST, KNOWN["fla"].checks, KNOWN["liger"].checks):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text())
    lines = (ROOT / packages.LIST).read_text().partition("[liger]")
    (tmp_path / packages.LIST).write_text("".join(lines[1:]))
    (tmp_path / findings.FOLDER).mkdir()
    for name in ("liger-ignored-rows", "expand-adds-up"):
        path = findings.FOLDER / f"{name}.toml"
        (tmp_path / path).write_text((ROOT / path).read_text())
    return tmp_path


class TestTables:
    def test_are_current(self):
        """docs/packages/ shows the list and the findings; if not, run python -m scripts.packages."""
        assert packages.main(["--check"]) == 0

    def test_rows(self, copy, capsys):
        """A package with one finding, and one without; findings of PyTorch are not in these tables."""
        assert packages.main(["--check"], copy) == 1
        assert "packages.csv is stale; run python -m scripts.packages" in capsys.readouterr().err
        assert packages.main([], copy) == 0 == packages.main(["--check"], copy)
        rows = (copy / packages.TABLES / "packages.csv").read_text().splitlines()
        assert rows[1].startswith("Liger Kernel,0.8.5,") and rows[1].endswith(",1,0") and rows[2].endswith(",0,0")
        assert len((copy / packages.TABLES / "findings.csv").read_text().splitlines()) == 2


class TestRun:
    def test_other_lines_fail_the_run(self, monkeypatch, capsys):
        """A difference that the check file does not name, and a script with other lines, are exit code 1."""
        package = KNOWN["liger"]
        monkeypatch.setattr(packages, "install", lambda package, root: (Path("python"), {}))
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "other lines"))
        assert packages.run(package) == 1
        assert "liger-ignored-rows prints other lines:\nother lines" in capsys.readouterr().err

    def test_a_script_that_was_mended_and_an_exit_code(self, monkeypatch):
        """The exit code of pytest stays."""
        package = dataclasses.replace(KNOWN["liger"], layer="none")
        monkeypatch.setattr(packages, "install", lambda package, root: (Path("python"), {}))
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 3, ""))
        assert packages.run(package) == 3


class TestStandIns:
    def test_source(self):
        """Each missing function ends the process; the one that counts devices answers."""
        text = cuda_stand_ins.source(["allocate", cuda_stand_ins.COUNT])
        assert "void allocate(void) { abort(); }" in text and text.count(cuda_stand_ins.COUNT) == 1

    def test_nothing_is_missing_here(self, tmp_path):
        """A folder without extensions of these packages needs no symbol."""
        assert cuda_stand_ins.unresolved(tmp_path) == []
