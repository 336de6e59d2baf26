"""The mark of a script that was not run or does not show its headline: every form of a report has it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conformance.record import result as model
from conformance.record.result import NOT_RUN, SHOWS, Failure, Outcome, Result
from conformance.report import html, issue, machine, terminal
from tests.report.runs import campaign, fuzz_finding, result, run

LOST = "it finds no difference"
MARKS = [(NOT_RUN, NOT_RUN), (LOST, f"does not reproduce alone: {LOST}")]


def case(alone: str) -> Result:
    """A failing case of op_db with a script."""
    return result("relu", Outcome.FAIL, failures=(Failure("value", "result", "1", "2", script="x"),), alone=alone)


def program(alone: str) -> Result:
    """A finding of drawn programs with a script."""
    return fuzz_finding(script="x").replace(alone=alone)


def printed(failure: Result) -> str:
    """The end of an op_db run in the terminal."""
    text = io.StringIO()
    terminal.end(Console(file=text, width=300), run(failure), None, Path("reports/conformance.html"))
    return text.getvalue()


@pytest.mark.parametrize(("alone", "mark"), MARKS)
class TestMark:
    def test_of_a_case(self, alone: str, mark: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Regression test: a case whose script was not run had no mark."""
        monkeypatch.setattr(issue, "environment", lambda: "")
        marked, shown = case(alone), case(SHOWS)
        model.save(run(marked), tmp_path / "run.json")
        forms = {
            "JSON": lambda one: json.dumps(model.run_to_json(run(one))),
            "page": lambda one: html.render(run(one)),
            "summary": lambda one: machine.markdown(run(one), None),
            "JUnit": lambda one: machine.junit(run(one)),
            "CTRF": lambda one: machine.ctrf(run(one)),
            "terminal": printed,
        }
        for name, form in forms.items():
            wanted = alone if name == "JSON" else mark
            assert wanted in form(marked), name
            assert wanted not in form(shown), name
        assert f"In a fresh process: `{mark}`" in issue.issue(marked.id, tmp_path / "run.json")

    def test_of_a_program(self, alone: str, mark: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Regression test: a finding of programs whose script was not run had no mark."""
        monkeypatch.setattr(issue, "environment", lambda: "")
        marked, shown = program(alone), program(SHOWS)
        for form in (lambda one: html.render(campaign(one)), lambda one: machine.markdown(campaign(one), None)):
            assert mark in form(marked) and mark not in form(shown)
        saved: dict[str, Any] = {"kind": "FAIL", "target": "mine", "signature": "value / add_", "mismatches": [],
                                 "program": {"steps": []}, "alone": alone}  # fmt: skip
        (tmp_path / "one.json").write_text(json.dumps(saved))
        (tmp_path / "one.py").write_text("import torch")
        assert f"In a fresh process: `{mark}`" in issue.issue(str(tmp_path / "one.json"))
        (tmp_path / "one.json").write_text(json.dumps({**saved, "alone": SHOWS}))
        assert "In a fresh process" not in issue.issue(str(tmp_path / "one.json"))
