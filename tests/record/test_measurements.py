"""Measurements: sums, growth of counters, and measures that no module of the harness names."""

from __future__ import annotations

import pytest

from conformance.record.measurements import Measure, Measurements, Rise, growth
from conformance.record.result import Run
from conformance.report import compare, history, html, summary
from tests.report.runs import result

GRAPHS = Measure("graphs", "graphs", Rise.REGRESSION)
LAUNCHES = Measure("launches", "launches", Rise.UNTIMED)


def run(measure: Measure, count: int, **more: float) -> Run:
    """A run of one case with a count of a measure of a foreign target."""
    seconds = more.pop("seconds", 0.0)
    case = result(seconds=seconds).replace(measurements=Measurements({measure.name: count}))
    return Run("mine", [case], {"selection": "all"}, measures=(measure,), **more)  # type: ignore[arg-type]


class TestSums:
    def test_zero_is_not_unmeasured(self) -> None:
        """A sum keeps zeros, and a measure without a count stays without one."""
        both = Measurements({"a": 0}, {"a": 2}, {"a": {"x": 1}}) + Measurements({"a": 0, "b": 1}, {}, {"a": {"y": 2}})
        assert both == Measurements({"a": 0, "b": 1}, {"a": 2}, {"a": {"x": 1, "y": 2}})
        assert (both.get("a"), both.get("c")) == (0, None)

    def test_growth(self) -> None:
        """The growth of a counter by operator names only the operators that grew."""
        before, after = {"a": 3, "b": {"x": 1, "y": 1}}, {"a": 5, "b": {"x": 1, "y": 4}}
        assert growth(before, after) == Measurements({"a": 2, "b": 3}, {}, {"b": {"y": 3}})


class TestForeignMeasures:
    """A measure that only its target knows is compared, drawn and stored like any other."""

    @pytest.mark.parametrize(("before", "after", "kinds"), [(1, 2, ["graphs up"]), (2, 1, ["graphs down"]), (1, 1, [])])
    def test_a_rise_is_a_regression(self, before: int, after: int, kinds: list[str]) -> None:
        comparison = compare.diff(run(GRAPHS, before), run(GRAPHS, after))
        assert (list(comparison.changes), comparison.regressions) == (kinds, int(kinds == ["graphs up"]))

    def test_a_rise_that_explains_the_time(self) -> None:
        """After a rise of an untimed measure, times are not compared, and a fact says why."""
        before = run(LAUNCHES, 1, seconds=100.0, calibration=0.01)
        comparison = compare.diff(before, run(LAUNCHES, 2, seconds=900.0, calibration=0.01))
        assert (comparison.changes, comparison.facts) == (
            {},
            ["time: not compared of 1 cases, with more launches than in the baseline"],
        )
        assert compare.diff(before, run(LAUNCHES, 1, seconds=900.0, calibration=0.01)).count("time up") == 1

    def test_reports(self, tmp_path) -> None:
        """The terminal has a line about it, the page a column, and the history a trend."""
        case_run = run(GRAPHS, 0)
        assert summary.facts(case_run) == ["1 of 1 passed without graphs"]
        assert '"measures":[{"name":"graphs","unit":"graphs"' in html.render(case_run)
        for count in (4, 3):
            history.append(tmp_path / "h.sqlite", run(GRAPHS, count))
        trend = history.trends(tmp_path / "h.sqlite", case_run)[2]
        assert (trend.label, trend.values, trend.better) == ("graphs", (4.0, 3.0), 1)
