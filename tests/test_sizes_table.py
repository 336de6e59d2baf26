"""The table of docs/sizes.md is generated from a run, largest peak first."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from conformance.record.footprint import SIZES, Footprint
from conformance.record.result import Failure, Outcome, Result, Run

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "sizes_table.py"))


def test_written():
    """The largest peak comes first, a row without a peak gives the reason, and a current page stays unchanged."""
    made = Run("tiny", environment={"torch": "2.13.0"})
    for name, peak in (("eq", 2**30), ("cat", 2**31)):
        footprint = Footprint(2**31, peak, 2**30, 4.0, 2.0)
        made.results.append(Result(name, "uint8", "forward", SIZES, Outcome.PASS, family="bytes", footprint=footprint))
    late = (Failure("timeout", "target", "an answer", "gave no answer in 300 s"),)
    made.results.append(Result("roll", "uint8", "forward", SIZES, Outcome.TIMEOUT, family="bytes", failures=late))
    page = SCRIPT["written"](f"# Page\n{SCRIPT['BEGIN']}\nold\n{SCRIPT['END']}\nend\n", made)
    rows = [line for line in page.splitlines() if line.startswith("| ") and "call" not in line]
    assert rows[0].startswith("| cat, uint8 | bytes | forward | 2,048 MiB | 2,048 MiB | 1,024 MiB | 4.0 | 2.0 | 2.0 |")
    assert "gave no answer in 300 s" in rows[2] and "3 findings" not in page and "1 findings" in page
    assert SCRIPT["written"](page, made) == page and "old" not in page
    with pytest.raises(ValueError, match="has no lines"):
        SCRIPT["written"]("# Page", made)
