"""Sentences about a run, and campaigns on disk: loading, rejection, merging."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from conformance.record import result as model
from conformance.record.errors import ReportError
from conformance.record.merge import merge
from conformance.record.patterns import NOT_SHRUNK
from conformance.record.program_stats import ProgramStats
from conformance.record.result import Outcome, Run
from conformance.report import summary
from tests.report.runs import HOSTILE, campaign, failed, fuzz_finding, fuzz_json, result, run

AXES: dict[str, Any] = {"families": ["views", "writes"], "layouts": ["contiguous", "gaps"], "dtypes": ["bool"]}


def verdict(judged: Run) -> tuple[bool, str]:
    (one,) = summary.verdicts(judged)
    return one.good, one.sentence


class TestInterrupted:
    """Findings of a shard that did not end are known, and its programs are not counted."""

    def test_no_number_is_negative(self) -> None:
        """Regression test: the last line said "-8 passed"."""
        fuzz_run = campaign(
            fuzz_finding(), drawn=ProgramStats((0,), 0, failing=8, known=0), complete=False, interrupted=2
        )
        assert model.summary_line(fuzz_run) == "0 passed, 8 failed, 0 skipped"

    def test_findings_that_are_not_shrunk_wait_for_resume(self) -> None:
        late = fuzz_finding(pattern=NOT_SHRUNK.format("value"), shrunk=False)
        why = "since the run was interrupted: --resume goes on"
        assert summary.not_shrunk(campaign(late, interrupted=2)) == [f"1 finding not shrunk, {why}"]
        assert summary.not_shrunk(campaign(late)) == []  # a shortfall of the run says so


class TestLoad:
    """A campaign on disk."""

    def test_what_the_fuzzer_wrote(self, tmp_path: Path) -> None:
        """Loading keeps every field, including the outcome on sibling targets and the reasons for rejected steps; axes
        are optional."""
        data = fuzz_json(complete=False)
        data["drawn"] |= AXES
        (tmp_path / "fuzz.json").write_text(json.dumps(data))
        read = model.load(tmp_path / "fuzz.json")
        [finding] = [one.finding for one in read.findings]
        assert finding is not None
        assert read.drawn is not None
        assert (read.target, read.drawn.seeds, read.drawn.programs, finding.count) == ("tiny", (3,), 300, 26)
        assert finding.elsewhere == {"tiny:clang": "agrees"}
        assert read.drawn.avoided == {"write through overlapping memory": 3}
        assert read.drawn.cells["writes", "gaps", "bool"] == 3
        assert (read.drawn.layouts, read.complete) == (("contiguous", "gaps"), False)
        assert model.run_from_json(model.run_to_json(read), "f") == read

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            ([], "is not a conformance result"),
            ({"results": []}, "is not a conformance result"),
            (fuzz_json(schema=2), "result schema 2"),
            ({"kind": "fuzz", "schema": 3, "target": "tiny"}, "result schema 3 of the former kind 'fuzz'"),
            ({"kind": "conformance.opinfo", "schema": 1, "target": "tiny"}, "result schema 1 of the former kind"),
            ({"kind": "conformance", "schema": 5}, "target"),
            (fuzz_json(drawn={"cells": {"writes": {"gaps": 3}}}), "damaged"),
            (fuzz_json(drawn={"cells": {"writes": {"gaps": {"bool": "<b>"}}}}), "damaged"),
            (fuzz_json(drawn={"programs": True}), "damaged"),
            (fuzz_json(drawn={"families": "views"}), "damaged"),
            (fuzz_json(drawn=[]), "damaged"),
            (fuzz_json(results=["a finding"]), "damaged"),
            (fuzz_json(results=[{**fuzz_json()["results"][0], "finding": {"signature": 3}}]), "damaged"),
            (fuzz_json(results=[{**fuzz_json()["results"][0], "finding": {"count": 3}}]), "damaged"),
            (fuzz_json(results=[{**fuzz_json()["results"][0], "finding": {"signature": HOSTILE, "n": 3}}]), "damaged"),
        ],
    )
    def test_something_else(self, data: Any, words: str) -> None:
        """Data with another schema is rejected in one sentence. Regression test: any dict was accepted."""
        with pytest.raises(ReportError, match=words) as refused:
            model.run_from_json(data, "a.json")
        assert str(refused.value).startswith("a.json")
        assert "\n" not in str(refused.value)


class TestVerdict:
    """Tests of `verdicts`."""

    def test_all_is_well(self) -> None:
        """The verdict is good only if the campaign is complete, compared programs, and all of them agreed."""
        assert verdict(campaign()) == (True, "No finding in 300 drawn programs.")
        some, none = (campaign(drawn=ProgramStats((0,), 300, unsupported={"autograd": left})) for left in (299, 300))
        assert verdict(some) == (True, "No finding in 1 drawn program; the target leaves out 299 more.")
        assert verdict(none) == (False, "No drawn program was compared.")
        assert verdict(campaign(complete=False)) == (False, "The fuzz campaign was interrupted after 300 programs.")
        assert [each.exit_code() for each in (some, none, campaign(complete=False))] == [0, 2, 1]

    def test_findings(self) -> None:
        """The verdict counts all failing programs and the distinct causes."""
        fuzz_run = campaign(fuzz_finding("a", count=25), fuzz_finding("b"))
        assert verdict(fuzz_run) == (False, "26 of 300 drawn programs fail: 2 distinct causes.")
        assert fuzz_run.exit_code() == 1

    def test_findings_before_the_first_shard_ended(self) -> None:
        """The sentence of an interrupted campaign names no total. Regression test: it said 1 of 0."""
        early = campaign(fuzz_finding("a"), complete=False, drawn=ProgramStats((0,), 0))
        assert verdict(early) == (False, "1 drawn program failed before the interruption: 1 distinct cause.")
        late = campaign(fuzz_finding("a"), drawn=ProgramStats((0,), 0))
        assert verdict(late) == (False, "1 drawn program failed before the time was over: 1 distinct cause.")

    def test_known_findings(self) -> None:
        """Known findings are counted with their file; new findings still fail the campaign."""
        known = fuzz_finding("a", count=25).replace(outcome=Outcome.XFAIL, reason=f"{model.UNEXPLAINED}x")
        fuzz_run = campaign(known, expectations="t.toml")
        sentence = "1 known finding in 25 programs, declared in t.toml."
        assert verdict(fuzz_run) == (True, f"No new finding in 300 drawn programs; {sentence}")
        assert fuzz_run.exit_code() == 0
        assert summary.facts(fuzz_run) == ["1 declared failure not yet explained: give each a reason in t.toml"]
        fuzz_run.results.append(fuzz_finding("b"))
        assert verdict(fuzz_run) == (False, f"1 of 300 drawn programs fail: 1 distinct cause; {sentence}")

    def test_a_declared_finding_that_did_not_show(self) -> None:
        """A declared finding that did not show is no failing program, but it fails the campaign."""
        fuzz_run = campaign(fuzz_finding("declared: a", count=0).replace(outcome=Outcome.XPASS))
        assert verdict(fuzz_run) == (False, "1 declared finding did not show.")
        assert (fuzz_run.exit_code(), model.summary_line(fuzz_run)) == (1, "300 passed, 1 failed, 0 skipped")

    def test_two_halves(self) -> None:
        """The worse half of a run with both comes first."""
        assert [v.half for v in summary.verdicts(run(result()), campaign(fuzz_finding()))] == ["fuzz", "cases"]
        both = dataclasses.replace(campaign(), results=[failed()])
        assert [(v.half, v.good) for v in summary.verdicts(both)] == [("cases", False), ("fuzz", True)]

    def test_what_was_not_compiled(self) -> None:
        """Samples that did not reach the compiler are counted."""
        case_run = run(result(compiled=5, partly_compiled=0, not_compiled=2))
        said = ["5 of 7 samples: compiled", "2 of 7 samples: not compiled and so not compared"]
        assert summary.facts(case_run) == said


class TestMerge:
    """`merge` of campaigns."""

    def test_shards(self) -> None:
        """Counts are added, and a finding of both shards becomes one, with the shorter program."""
        one = campaign(fuzz_finding("a", count=2, steps=5, first=9), command="it",
                       drawn=ProgramStats((0,), 300, cells={("w", "gaps", "bool"): 1}, families=("w",)))  # fmt: skip
        two = campaign(fuzz_finding("b"), fuzz_finding("a", count=3, steps=2, first=4), command="that",
                       drawn=ProgramStats((4,), 300, cells={("w", "gaps", "bool"): 2}))  # fmt: skip
        both = merge([one, two])
        assert both.drawn is not None
        assert (both.drawn.programs, both.drawn.seeds, both.command, both.drawn.families) == (600, (0, 4), "", ("w",))
        assert both.findings == [fuzz_finding("a", count=5, steps=2, first=4), fuzz_finding("b")]
        assert both.drawn.cells == {("w", "gaps", "bool"): 3}
        assert merge([one]) == one

    def test_the_worse_outcome_stays(self) -> None:
        """A finding is declared only if every shard declares it."""
        known = fuzz_finding("a").replace(outcome=Outcome.XFAIL)
        assert merge([campaign(known), campaign(fuzz_finding("a"))]).exit_code() == 1
        assert merge([campaign(known), campaign(known)]).exit_code() == 0

    def test_an_interrupted_one(self) -> None:
        """An interrupted campaign makes the merged one incomplete."""
        assert not merge([campaign(), campaign(complete=False)]).complete

    def test_other_targets(self) -> None:
        """Campaigns of different targets cannot be merged."""
        with pytest.raises(ReportError, match="cpu, tiny"):
            merge([campaign(), campaign(target="cpu")])
