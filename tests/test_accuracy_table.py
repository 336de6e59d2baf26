"""The table of docs/device.md is generated from a run, worst case first."""

from __future__ import annotations

import pytest

from conformance.record.accuracy import ACCURACY, Accuracy
from conformance.record.result import Outcome, Result, Run
from scripts.accuracy_table import families, lines


@pytest.fixture
def run() -> Run:
    case_run = Run("tiny", environment={"torch": "2.13.0"})
    for name, error in (("exp", 0.5), ("sin", 1.5), ("mean", 0.6)):
        family = "reductions" if name == "mean" else "elementary"
        accuracy = Accuracy("result", error, 0.5, 0.3, 0.3, points=10)
        case_run.results.append(
            Result(name, "float32", "forward", ACCURACY, Outcome.PASS, family=family, samples=1, accuracy=accuracy)
        )
    return case_run


def test_the_worst_is_first(run):
    """The worst case is the first row, and each family names its own worst case."""
    table = lines(run)
    rows = [line for line in table if line.startswith("| `")]
    assert rows[0] == "| `sin` | float32 | forward | result | 1.5 (0.3) | 0.5 (0.3) | 3.0 |" and len(rows) == 3
    assert ["elementary", "2", "3.0", "`sin` float32 forward"] in families(run)
    assert ["reductions", "1", "1.2", "`mean` float32 forward"] in families(run)
