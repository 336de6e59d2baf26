"""Readers of the files that a campaign writes into its reports folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.record import result as model


def fuzz_result(reports: Path) -> dict[str, Any]:
    """Totals of `fuzz.json` and its findings, each with kind, signature, first mismatch and script."""
    run = model.load(reports / "fuzz.json")
    assert run.drawn is not None
    found = [
        {**vars(one.finding), "mismatch": one.failures[0], "script": one.failures[0].script} for one in run.findings
    ]
    failing = sum(one["count"] for one in found)
    return {**vars(run.drawn), "complete": run.complete, "findings": found, "failing_programs": failing}
