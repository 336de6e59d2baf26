"""The table of docs/accuracy.md is generated from a run, worst case first."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from conformance.record.accuracy import ACCURACY, Accuracy
from conformance.record.result import Outcome, Result, Run

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "accuracy_table.py"))


@pytest.fixture
def run() -> Run:
    made = Run("tiny", environment={"torch": "2.13.0"})
    for name, error in (("exp", 0.5), ("sin", 1.5), ("mean", 0.6)):
        family = "reductions" if name == "mean" else "elementary"
        accuracy = Accuracy("result", error, 0.5, 0.3, 0.3, points=10)
        made.results.append(
            Result(name, "float32", "forward", ACCURACY, Outcome.PASS, family=family, samples=1, accuracy=accuracy)
        )
    return made


class TestWritten:
    def test_the_worst_is_first(self, run):
        """The worst case is the first row, and each family names its own worst case."""
        page = SCRIPT["written"](f"# Page\n{SCRIPT['BEGIN']}\nold\n{SCRIPT['END']}\nend\n", run)
        rows = [line for line in page.splitlines() if line.startswith("| `")]
        assert rows[0] == "| `sin` | float32 | forward | result | 1.5 (0.3) | 0.5 (0.3) | 3.0 |" and len(rows) == 3
        assert "| elementary | 2 | 3.0 | `sin` float32 forward |" in page and "| reductions | 1 | 1.2 |" in page
        assert page.startswith("# Page\n") and page.endswith("\nend\n") and "old" not in page

    def test_twice_is_once(self, run):
        """A page that already has the table stays unchanged."""
        page = SCRIPT["written"](f"{SCRIPT['BEGIN']}{SCRIPT['END']}", run)
        assert SCRIPT["written"](page, run) == page

    def test_no_place(self, run):
        """A page without the markers is refused."""
        with pytest.raises(ValueError, match="has no lines"):
            SCRIPT["written"]("# Page", run)
