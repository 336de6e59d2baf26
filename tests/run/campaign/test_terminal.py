"""The findings of a campaign in the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step
from conformance.record.finding import FAIL
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.results import run_of
from conformance.run.campaign.terminal import summarize
from conformance.run.failing_program import FailingProgram
from conformance.sources.fuzzing.drawn import DrawnPrograms
from conformance.standalone.oracles import Mismatch

NEG = Program(
    (Storage("float32", 4, "arange"),),
    (Input("a", 0, "float32", (4,), (1,)),),
    (Step("neg", ({"t": "a"},), out=("b",)),),
)
WRONG = (Mismatch("value", "b", "1.0", "2.0"),)


def test_a_long_heading_is_not_cut(tmp_path: Path) -> None:
    """The heading of a finding names the operator in full on a narrow terminal. Regression test: the line was cut with
    dots, and the operator is the last word."""
    op = "nn.functional.scaled_dot_product_attention_with_a_name_that_is_long"
    campaign = Campaign(Plan(DrawnPrograms(), "cpu", reports=tmp_path))
    (tmp_path / "failures").mkdir()
    for number, name in enumerate((op, "exp")):
        finding = FailingProgram(
            f"value / {name}", FAIL, number, program=NEG, mismatches=WRONG, bad_step=1, property="value", op=name
        )
        campaign.findings.known.append(replace(finding, shrunk=True))
    campaign.result.done = 2
    console = Console(record=True, width=80, file=io.StringIO(), soft_wrap=True)
    summarize(campaign, run_of(campaign), console, "seed 0")
    lines = console.export_text().splitlines()
    assert f"── FAIL in 1 of 2 programs: value / {op}" in lines
    assert any(line.strip("─ ") == "FAIL in 1 of 2 programs: value / exp" and len(line) == 80 for line in lines)
