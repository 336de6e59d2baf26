"""A known fault hides no other: programs are judged further behind a difference, and what is not judged is counted."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import pytest

from conformance.core.loading import load_target
from conformance.fuzzing.plan import Plan, Shard
from conformance.fuzzing.worker import Finding, run_shard
from conformance.program.model import Program
from conformance.program.verdict import judge_program
from tests.planted.pairs import Pair

FAULTS = (
    "slice drops the offset",
    "transpose is stale",
    "select is stale",
    "view is stale",
    "expand is stale",
    "diagonal is stale",
    "split does not alias",
    "detach does not alias",
    "empty_strided is contiguous",
    "copy_ clobbers the gap",
    "index_put_ does not accumulate",
    "every third write is lost",
    "arithmetic on gaps is lost",
    "fill_ ignores the offset",
    "out= ignores strides",
    "mask is off by one",
    "alpha is ignored",
    "clone is always contiguous",
    "comparison gives uint8",
    "item ignores the offset",
)
"""Twenty faults that are found soon when they are alone. None is planted in operators that another one calls."""

QUICK = (
    ("diagonal is stale", "every third write is lost"),
    ("slice drops the offset", "clone is always contiguous"),
    ("view is stale", "comparison gives uint8"),
    ("split does not alias", "mask is off by one"),
)
MOST = 1000
"""Programs that are drawn for a pair."""


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def beginning(finding: Finding) -> Program:
    """The finding's program up to its first wrong step."""
    return finding.program.with_steps(finding.program.steps[: finding.step])


def found_alone(findings: list[Finding], fault: str, other: str) -> bool:
    """Whether a finding shows this fault and not the other: its steps up to the first wrong one fail on the one fault
    alone, and pass on the other alone."""
    mine, theirs = load_target(f"mutant:{fault}"), load_target(f"mutant:{other}")
    programs = [beginning(finding) for finding in findings if finding.step]
    return any(judge_program(p, mine).mismatches and not judge_program(p, theirs).mismatches for p in programs)


def hunted(one: str, other: str, folder: Path, monkeypatch) -> tuple[bool, bool]:
    """Whether a campaign on both faults finds each."""
    pair = Pair(one, other)
    pair.prepare()
    monkeypatch.setattr("conformance.fuzzing.worker.loaded", lambda spec: pair)
    plan = Plan(f"mutant:{one}", programs=MOST, reports=folder)
    seen = [False, False]
    for shard in plan.shards("pairs"):
        findings = run_shard(shard).findings
        for at, (fault, hidden) in enumerate(((one, other), (other, one))):
            seen[at] = seen[at] or found_alone(findings, fault, hidden)
        if all(seen):
            break
    return seen[0], seen[1]


class TestPairs:
    @pytest.mark.parametrize(("one", "other"), QUICK)
    def test_each_of_two_faults_is_found(self, one, other, tmp_path, monkeypatch):
        assert hunted(one, other, tmp_path, monkeypatch) == (True, True)

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("one", FAULTS)
    def test_every_other_of_twenty_faults_is_found_behind_one(self, one, tmp_path, monkeypatch):
        hidden = [
            other
            for other in FAULTS[FAULTS.index(one) + 1 :]
            if hunted(one, other, tmp_path, monkeypatch) != (True, True)
        ]
        assert hidden == []


class TestParts:
    """A program with several faults has several findings, each of a part of it."""

    def test_a_program_gives_a_finding_for_each_fault(self, tmp_path, monkeypatch):
        pair = Pair("view is stale", "comparison gives uint8")
        pair.prepare()
        monkeypatch.setattr("conformance.fuzzing.worker.loaded", lambda spec: pair)
        plan = Plan("mutant:view is stale", programs=200, reports=tmp_path)
        findings = [one for shard in itertools.islice(plan.shards("parts"), 10) for one in run_shard(shard).findings]
        parts = {}
        for finding in findings:
            parts.setdefault(finding.number, []).append(finding.part)
        assert any(len(numbers) > 1 for numbers in parts.values())
        assert all(numbers == list(range(len(numbers))) for numbers in parts.values())

    def test_each_finding_is_on_disk_under_its_part(self, tmp_path, monkeypatch):
        pair = Pair("view is stale", "every third write is lost")
        pair.prepare()
        monkeypatch.setattr("conformance.fuzzing.worker.loaded", lambda spec: pair)
        shard = Shard(Plan("mutant:view is stale", reports=tmp_path), 0, 20, "named")
        findings = run_shard(shard).findings
        assert {shard.found(one.number, one.part) for one in findings} == {*(tmp_path / "failures").glob("found-*")}
