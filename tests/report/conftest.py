"""A run with hostile text in every field from outside."""

from __future__ import annotations

import pytest

from conformance.record.accuracy import Accuracy
from conformance.record.result import Failure, Outcome, Run
from tests.report.runs import HOSTILE, result, run


@pytest.fixture
def hostile() -> Run:
    """A run with hostile text in every field from outside."""
    failure = Failure(
        "value", HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE, ((HOSTILE, HOSTILE, HOSTILE, True),),
        {"expected": {"size": [2, 2], "stride": [2, 1], "offset": 0}},
    )  # fmt: skip
    bad = result(
        HOSTILE,
        Outcome.FAIL,
        family=HOSTILE,
        reason=HOSTILE,
        failures=(failure,),
        parts={"fallback": {HOSTILE: 1}},
        fallback=1,
    )
    bad = bad.replace(accuracy=Accuracy(HOSTILE, 1e30, 0.5, 1.0, 0.5, HOSTILE, 3))
    case_run = run(bad, result(), command=HOSTILE, notes=[HOSTILE])
    case_run.environment[HOSTILE] = HOSTILE
    return case_run
