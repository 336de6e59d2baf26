"""docs/sizes.csv is generated from a run, largest peak first."""

from __future__ import annotations

from conformance.record.footprint import SIZES, Footprint
from conformance.record.result import Failure, Outcome, Result, Run
from scripts.sizes_table import HEAD, rows


def test_the_largest_is_first():
    """The largest peak comes first, and a row without a peak gives the reason."""
    case_run = Run("tiny", environment={"torch": "2.13.0"})
    for name, peak in (("eq", 2**30), ("cat", 2**31)):
        footprint = Footprint(2**31, peak, 2**30, 4.0, 2.0)
        case_run.results.append(
            Result(name, "uint8", "forward", SIZES, Outcome.PASS, family="bytes", footprint=footprint)
        )
    late = (Failure("timeout", "target", "an answer", "gave no answer in 300 s"),)
    case_run.results.append(Result("roll", "uint8", "forward", SIZES, Outcome.TIMEOUT, family="bytes", failures=late))
    head, first, _, unmeasured = rows(case_run)
    assert len(head) == len(first) == len(unmeasured) == len(HEAD)
    assert first[:6] == ["cat, uint8", "bytes", "forward", "2,048 MiB", "2,048 MiB", "1,024 MiB"]
    assert first[6:] == ["4.0", "2.0", "2.0", "PASS"]
    assert "gave no answer in 300 s" in unmeasured[-1]
