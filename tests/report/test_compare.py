"""Differences between two runs: each is named, and no others."""

from __future__ import annotations

import pytest

from conformance.record.program_stats import ProgramStats
from conformance.record.result import Outcome, Result
from conformance.report import compare
from tests.report.runs import campaign, failed, fuzz_finding, over, result, run


class TestCompare:
    """Changes between two runs."""

    @pytest.mark.parametrize(
        ("before", "after", "kind"),
        [
            (result(), failed(), "new failures"),
            (None, failed(), "new failures"),
            (failed(), result(), "fixed"),
            (failed(), failed(), "still failing"),
            (failed(), failed(oracle="stride"), "fails otherwise"),
            (result(), result(outcome=Outcome.FLAKY), "newly flaky"),
            (result(kernels=3), result(kernels=4), "kernels up"),
            (result(kernels=3), result(kernels=2), "kernels down"),
            (result(fallback=0), result(fallback=1), "fallback up"),
            (result(fallback=1), result(fallback=0), "fallback down"),
            (None, result(), "new"),
            (result(outcome=Outcome.XFAIL), failed(), "new failures"),
            (result(), result(outcome=Outcome.XFAIL), "declared"),
            (
                result(outcome=Outcome.XFAIL, samples=4, failed=1),
                result(outcome=Outcome.XFAIL, samples=4, failed=2),
                "more samples fail",
            ),
            (result(), result(arbitrated=1), "by float64"),
            (over(3), over(4), "kernels up"),
        ],
    )
    def test_kind(self, before: Result | None, after: Result, kind: str) -> None:
        """Each change has its kind and is counted once."""
        difference = compare.diff(run(*([before] if before else [])), run(after))
        assert {k: len(v) for k, v in difference.changes.items()} == {kind: 1}

    def test_no_change(self) -> None:
        """Equal runs have no changes."""
        both = run(result(kernels=3), result("sub"))
        assert compare.diff(both, both).changes == {}

    def test_a_second_fault_of_a_declared_case(self) -> None:
        """A declared case that fails in more of its samples is a regression. Regression test: a second fault in a
        declared case passed. More samples may show more failures, and fewer failures are no fault."""
        before = run(result(outcome=Outcome.XFAIL, samples=4, failed=2))
        for samples, count, regressions in ((4, 3, 1), (5, 3, 0), (4, 1, 0)):
            after = run(result(outcome=Outcome.XFAIL, samples=samples, failed=count))
            assert compare.diff(before, after).regressions == regressions

    def test_an_accepted_run_has_no_regression(self) -> None:
        """If the run becomes the baseline, its changes are listed and none fails it."""
        difference = compare.diff(run(result(kernels=3)), run(result(kernels=4)), accepted=True)
        assert (difference.count("kernels up"), difference.regressions, difference.worst) == (1, 0, [])

    def test_kernels_of_other_samples_are_not_compared(self) -> None:
        """More samples may take more kernels."""
        assert compare.diff(run(result(kernels=3)), run(result(kernels=9, samples=5))).changes == {}

    def test_gone(self) -> None:
        """A case missing from a full run is gone; one that a partial run did not select is only counted."""
        ops = [result(f"op{i}") for i in range(20)]
        assert compare.diff(run(*ops), run(*ops[1:])).count("gone") == 1
        narrower = run(ops[0])
        narrower.environment["selection"] = "fewer ops; shard 1/20"
        partial = compare.diff(run(*ops), narrower)
        assert (partial.count("gone"), partial.not_run) == (0, 19)

    def test_slower_run_is_reported_and_does_not_fail(self) -> None:
        """Times are multiples of each run's calibration loop, so a machine half as fast is no change. A slower run is a
        change, but no regression, because other work on the machine makes it slower too."""
        before = run(result(seconds=100.0), calibration=0.01)
        assert compare.diff(before, run(result(seconds=200.0), calibration=0.02)).changes == {}
        slow = compare.diff(before, run(result(seconds=500.0), calibration=0.01))
        assert {kind: len(changes) for kind, changes in slow.changes.items()} == {"time up": 1, "slower": 1}
        assert slow.regressions == 0
        assert "time: 5.00 of the baseline's" in slow.facts[0]

    def test_an_empty_cache_is_no_regression(self) -> None:
        """If a case schedules more than in the baseline, its time is not compared. Regression test: a run with an empty
        schedule cache took three times as long as the baseline, and failed."""
        before = run(result(seconds=100.0, scheduled=0), result("warm", seconds=100.0, scheduled=3), calibration=0.01)
        cold = run(result(seconds=900.0, scheduled=5), result("warm", seconds=110.0, scheduled=3), calibration=0.01)
        comparison = compare.diff(before, cold)
        assert (comparison.changes, comparison.regressions) == ({}, 0)
        assert comparison.facts[0].startswith("time: not compared of 1 cases")
        assert "time: 1.10 of the baseline's" in comparison.facts[1]
        slow = run(result(seconds=900.0, scheduled=0), result("warm", seconds=110.0, scheduled=3), calibration=0.01)
        assert compare.diff(before, slow).count("time up") == 1

    def test_one_slower_case_is_no_regression(self) -> None:
        """A slow case that a compiler's cache may explain is shown, but is no regression."""
        others = [result(f"op{i}", seconds=1.0) for i in range(100)]
        before = run(result(seconds=2.0), *others, calibration=0.01)
        comparison = compare.diff(before, run(result(seconds=20.0), *others, calibration=0.01))
        assert (list(comparison.changes), comparison.regressions) == (["slower"], 0)

    def test_fallback_share(self) -> None:
        """The share of calls on the CPU, before and after, covers cases that passed in both runs."""
        pairs = [(result(native=9, decomposed=0, fallback=1), result(native=10, decomposed=0, fallback=0))]
        comparison = compare.diff(run(*(a for a, _ in pairs)), run(*(b for _, b in pairs)))
        assert comparison.facts == ["CPU fallbacks: 10.00% of the calls before, 0.00% now"]

    def test_kernel_budgets(self) -> None:
        """A workload with more kernels or copies, or without a count, is a regression; a decrease is not."""
        before = run(result(), budgets={"mlp": {"kernels": 3, "copies_in": 2}, "cnn": {"kernels": 9}, "gone": {}})
        after = run(result(), budgets={"mlp": {"kernels": 4, "copies_in": 1}, "cnn": {"kernels": 9}})
        comparison = compare.diff(before, after)
        kinds = {kind: [change.id for change in changes] for kind, changes in comparison.changes.items()}
        assert kinds == {"budgets up": ["mlp: kernels"], "gone": ["workload gone"], "budgets down": ["mlp: copies_in"]}
        assert comparison.regressions == 2


class TestFindings:
    """Changes between two campaigns."""

    def test_new_fixed_and_known(self) -> None:
        """Findings are matched by signature."""
        before, after = (
            campaign(fuzz_finding("old"), fuzz_finding("both")),
            campaign(fuzz_finding("both"), fuzz_finding("new")),
        )
        kinds = {kind: [one.id for one in changes] for kind, changes in compare.diff(before, after).changes.items()}
        assert kinds == {
            "new failures": ["program::new"],
            "fixed": ["program::old"],
            "still failing": ["program::both"],
        }

    @pytest.mark.parametrize(
        "drawn",
        [
            ProgramStats((0,), 299),
            ProgramStats((1,), 300),
            ProgramStats((0,), 300, options="--steps 1..2"),
            ProgramStats((0,), 0),
        ],
    )
    def test_what_was_not_drawn_is_not_fixed(self, drawn: ProgramStats) -> None:
        """A finding missing under another seed, fewer programs or another drawing may still exist."""
        difference = compare.diff(campaign(fuzz_finding("old")), campaign(drawn=drawn))
        assert (difference.changes, difference.not_run) == ({}, 1)
        assert (
            compare.diff(campaign(fuzz_finding("old")), campaign(drawn=ProgramStats((0, 1), 600))).count("fixed") == 1
        )
        assert compare.diff(campaign(fuzz_finding("old")), campaign(complete=False)).changes == {}
