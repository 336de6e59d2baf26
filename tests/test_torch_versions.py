"""The page of versions: faults of this package found under another torch, and the latest result of each version."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script as a module, with its results in a temporary folder."""
    spec = importlib.util.spec_from_file_location("torch_versions", ROOT / "scripts" / "torch_versions.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses looks its class's module up
    spec.loader.exec_module(module)
    (tmp_path / "docs").mkdir()
    (tmp_path / module.PART.page).write_text(f"{module.PART.begin}\n{module.PART.end}\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def ended(code: int, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, text)


def entry(torch: str, checks: dict, tinygrad: str = "") -> dict:
    return {"torch": torch, "tinygrad": tinygrad, "python": "3.11", "date": "2026-01-01", "checks": checks}


class TestTests:
    @pytest.mark.parametrize(
        ("code", "text", "counts"),
        [
            (0, "...\n223 passed, 7 deselected, 2 warnings in 59.43s\n", (223, 0, 0, 0)),
            (
                1,
                "F\n= short test summary info =\nFAILED tests/a.py::b - x\n1 failed, 2 passed, 3 skipped in 1s\n",
                (2, 1, 3, 1),
            ),
            (2, "E\nERROR tests/a.py\n1 error in 1s\n", (0, 1, 0, 1)),
            (1, "+++ Timeout +++\n", (0, 0, 0, 1)),
            (5, "no tests ran in 0.01s\n", (0, 0, 0, 1)),
        ],
    )
    def test_counts(self, script, code, text, counts):
        """A failing test is a fault. A run without a summary is also a fault."""
        outcome = script.of_tests(ended(code, text))
        assert (outcome.passed, outcome.failed, outcome.skipped, outcome.faults) == counts


class TestRuns:
    def of(self, script, folder: Path, target: str, *results: dict, code: int = 1, complete: bool = True):
        (folder / "fuzz.json").write_text(json.dumps({"results": results, "complete": complete}))
        return script.of_run(script.Check("fuzz", target, ()), ended(code, "58 passed, 2 failed, 0 skipped\n"), folder)

    def test_a_finding_about_torch_is_no_fault(self, script, tmp_path):
        """A finding that is true of torch is no fault: functionalization loses strides."""
        result = {"op": "clone", "outcome": "FAIL", "failures": [{"oracle": "stride"}]}
        outcome = self.of(script, tmp_path, "functionalize", result)
        assert (outcome.passed, outcome.failed, outcome.faults, outcome.said) == (58, 2, 0, "clone (stride)")

    def test_the_same_on_the_reference_is_one(self, script, tmp_path):
        """The same finding on cpu or tiny is a fault. torch CPU against itself has no failures, and tiny should have
        none."""
        result = {"op": "clone", "outcome": "FAIL", "failures": [{"oracle": "stride"}]}
        assert [self.of(script, tmp_path, target, result).faults for target in ("cpu", "tiny")] == [1, 1]

    def test_an_exception_of_the_harness_is_one(self, script, tmp_path):
        """An exception of the harness is a fault on every target."""
        result = {"op": "clone", "outcome": "FAIL", "failures": [{"oracle": "harness"}]}
        assert self.of(script, tmp_path, "meta", result).faults == 1

    def test_a_run_that_broke_off_is_one(self, script, tmp_path):
        """An incomplete run is a fault even without a failure. A run without a result is also a fault."""
        assert self.of(script, tmp_path, "meta", code=0, complete=False).faults == 1
        assert self.of(script, tmp_path, "meta", code=2).faults == 1
        outcome = script.of_run(script.Check("op_db", "meta", ()), ended(2, "conformance: no\n"), tmp_path / "none")
        assert (outcome.faults, outcome.said) == (1, "conformance: no")


class TestPage:
    def test_the_last_result_of_each_version(self, script):
        """A new check of a version replaces its last check. Versions are sorted by number."""
        outcome = {"passed": 1, "failed": 0, "faults": 0, "said": ""}
        script.keep(entry("2.15.0", {"fuzz cpu": outcome}))
        script.keep(
            entry("2.9.1", {"fuzz cpu": {**outcome, "passed": 7, "failed": 1, "faults": 1, "said": "add (value)"}})
        )
        script.keep(entry("2.15.0", {"fuzz cpu": {**outcome, "passed": 60}}))
        rows = [line for line in (script.ROOT / script.PART.page).read_text().splitlines() if line.startswith("|2.")]
        assert rows == ["|2.9.1|-|2026-01-01|**7/1**|", "|2.15.0|-|2026-01-01|60/0|"]
        assert [one["checks"]["fuzz cpu"]["said"] for one in script.read()] == ["add (value)", ""]

    def test_a_suite_keeps_the_other_results(self, script, monkeypatch):
        """A suite is one more result of its version, with its own date and table; an older torch is refused."""
        installed = {"torch": "2.15.0+cpu", "tinygrad": "0.14.0", "python": "3.11"}
        monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: ended(0, json.dumps(installed)))
        monkeypatch.setattr(script, "run", lambda check, python: script.Outcome(2190, 0, date="2026-02-03"))
        script.keep(entry("2.15.0", {"fuzz cpu": {"passed": 60, "failed": 0, "faults": 0}}, "0.14.0"))
        script.keep(entry("2.14.1", {"fuzz cpu": {"passed": 58, "failed": 0, "faults": 0}}, "0.14.0"))
        assert script.check_all("python", "main") == 0
        rows = [line for line in (script.ROOT / script.PART.page).read_text().splitlines() if line.startswith("|2.")]
        assert rows == [
            "|2.14.1|0.14.0|2026-01-01|58/0|", "|2.15.0|0.14.0|2026-01-01|60/0|", "|2.15.0|0.14.0|2026-02-03|2190/0|"
        ]  # fmt: skip
        installed |= {"torch": "2.12.1", "tinygrad": ""}
        assert script.check_all("python", "main") == 2

    def test_the_tracked_page_is_that_of_the_tracked_results(self, script):
        """The tracked page is generated from the tracked results."""
        for path in (script.RESULTS, script.PART.page):
            (script.ROOT / path).write_bytes((ROOT / path).read_bytes())
        assert script.page() == 0
        assert (script.ROOT / script.PART.page).read_text() == (ROOT / script.PART.page).read_text()
