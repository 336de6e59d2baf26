"""Cases whose workers die: their results, also if the time is over before they run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conformance.record.result import Outcome
from conformance.run.messages import Death, Done, ExitReason, Limits, Task, TaskProgress
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.pool import Cases

DIVISION = Case("div", "trunc_rounding", "binary", "int32", "end_values", "as_sampled", None)
SUM = Case("sum", "", "reductions", "int32", "end_values", "as_sampled", None)


class Scripted(Cases):
    """Cases with scripted answers instead of workers. The run ends with the last answer, as when the time is over."""

    def __init__(self, *answers: Done | Death) -> None:
        self.target, self.limits, self.answers = "cpu", Limits(unit=60), [*answers]
        self.setup, self.lacks, self.loops, self.deaths = "", frozenset(), [], {}
        self.submitted: list[Task] = []

    def submit(self, task: Task) -> None:
        self.submitted.append(task)

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Any]]:
        for answer in self.answers:
            yield self.submitted.pop(0), answer


def death(sample: int) -> Death:
    return Death(ExitReason.CRASH, "killed its process with SIGFPE", TaskProgress(0, "", (f"{sample}\tCPU\t",)))


class TestTimeOver:
    def test_a_crash_before_the_second_run_is_a_result(self) -> None:
        """A case with changed arguments runs again without the sample that ended its worker. If there is no time for
        that, the crash is reported all the same. Formerly the case had no result."""
        (result,) = Scripted(death(3)).run([DIVISION])
        assert (result.outcome, [failure.sample for failure in result.failures]) == (Outcome.CRASH, [3])

    def test_all_crashes_are_there(self) -> None:
        """Several deaths are one result with a failure for each."""
        (result,) = Scripted(death(3), death(5)).run([DIVISION])
        assert [failure.sample for failure in result.failures] == [5, 3] or [
            failure.sample for failure in result.failures
        ] == [3, 5]

    @pytest.mark.parametrize("error", [None, ValueError("a fault")])
    def test_no_case_has_two_results(self, error: Exception | None) -> None:
        """A case that ran again has one result, with the crash of its first run."""
        passed = SUM.result(Outcome.PASS, samples=2)
        again = Done((DIVISION.result(Outcome.PASS, samples=4), 0.0)) if error is None else Done(None, error)
        results = [*Scripted(death(3), Done((passed, 0.0)), again).run([DIVISION, SUM])]
        assert [result.op for result in results] == ["sum", "div"]
        assert results[1].outcome is Outcome.CRASH
        assert 3 in [failure.sample for failure in results[1].failures]
