"""The counts of a case while its samples are compared.

Defines `CaseCounts`, which becomes the case's result.
"""

from __future__ import annotations

from collections import Counter

from conformance.record.measurements import NOT_COMPILED, UNMEASURED, Measurements
from conformance.record.names import NOT_COMPARED
from conformance.record.result import Failure, Named, Outcome, Result


class CaseCounts:
    """The counts of a case in progress, its measurements, and the first failure of each oracle."""

    def __init__(self, case: Named) -> None:
        self.case = case
        self.compared = self.arbitrated = self.tolerated = self.failed = self.excused = 0
        self.skipped = Counter[str]()
        self.failures: dict[str, Failure] = {}
        self.measured: Measurements = UNMEASURED

    def result(self, seconds: float = 0.0) -> Result:
        """Return the result of the case."""
        reason = "" if self.compared else ("; ".join(self.skipped) or "there is no sample for it")
        # A compiler may receive no ops from any sample.
        excused = self.measured.get(NOT_COMPILED) or 0 < self.excused == self.skipped.total()
        if not (self.compared or self.failures or excused):
            # A whole case may be skipped only if the target declares it beforehand; otherwise an expectation must
            # declare it.
            self.fail(Failure(NOT_COMPARED, "the whole case", "a comparison", "none", reason))
        passed = Outcome.PASS if self.compared else Outcome.SKIP
        outcome = Outcome.CRASH if "memory" in self.failures else Outcome.FAIL if self.failures else passed
        return self.case.result(
            outcome,
            samples=self.compared,
            arbitrated=self.arbitrated,
            tolerated=self.tolerated,
            skipped=self.skipped.total(),
            failed=self.failed,
            reason=reason,
            failures=tuple(self.failures.values()),
            measurements=self.measured,
            seconds=seconds,
        )

    def skip(self, reason: str, excused: bool = False) -> None:
        """Skip a sample. `excused` marks a reason that is no failure, even if it holds for every sample: a declaration
        of the target, or a sample with nothing to compare."""
        self.skipped[reason] += 1
        self.excused += excused

    def fail(self, failure: Failure) -> None:
        """Store the first failure of each oracle."""
        self.failures.setdefault(failure.oracle, failure)
