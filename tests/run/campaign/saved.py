"""Readers of the files that a campaign writes into its reports folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.record import result as model


def fuzz_result(reports: Path) -> dict[str, Any]:
    """Totals of `fuzz.json` and its findings, each with kind, signature, first mismatch and script."""
    run = model.load(reports / "fuzz.json")
    assert run.drawn is not None
    findings = [
        {**vars(result.finding), "mismatch": result.failures[0], "script": result.failures[0].script}
        for result in run.findings
    ]
    failing = sum(finding["count"] for finding in findings)
    return {**vars(run.drawn), "complete": run.complete, "findings": findings, "failing_programs": failing}
