"""Shortfalls of a campaign with `--minutes`: one sentence, the result file, and the exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.engine.facts import TargetFacts
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor
from conformance.record import result as model
from conformance.record.finding import FAIL
from conformance.record.shortfall import FINDINGS, PROGRAMS, Shortfall
from conformance.run.campaign import campaign
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import SHARD, Plan
from conformance.run.failing_program import FailingProgram
from conformance.run.shrinking import TO_ANSWER, LocalShrinker
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawn import DrawnPrograms
from conformance.standalone.oracles import Mismatch

NEG = Program(
    (Storage("float32", 4),), (Input("a", 0, "float32", (4,), (1,)),), (Step("neg", (tensor("a"),), out=("b",)),)
)


def fuzz(folder: Path, *words: str) -> int:
    return main(["--target", "cpu", "--without", "op_db", "--reports", str(folder), *words])


@pytest.fixture
def one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for drawing is over when the first shard has ended."""
    monkeypatch.setattr(Campaign, "_enough", lambda self: self.result.done > 0)


class TestPrograms:
    SAID = f"Not judged: {60 - SHARD} of 60 programs (--minutes)"

    @pytest.mark.parametrize(("words", "end", "code"), [((), ".", 0), (("--strict",), "; --strict makes this a", 1)])
    def test_fewer_than_planned(
        self, tmp_path: Path, one_shard: None, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], end: str,
        code: int,
    ) -> None:  # fmt: skip
        """One sentence, a field of the result, and exit code 1 only with `--strict`."""
        assert fuzz(tmp_path, "--programs", "60", "--minutes", "9", *words) == code
        assert capsys.readouterr().out.count(f"{self.SAID}{end}") == 1
        run = model.load(tmp_path / "fuzz.json")
        assert run.not_judged == [Shortfall(PROGRAMS, 60 - SHARD, 60)] and run.strict is bool(words)

    @pytest.mark.parametrize("words", [("--programs", "60", "--minutes", "9"), ("--programs", "60")])
    def test_as_many_as_planned(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
    ) -> None:
        assert fuzz(tmp_path, *words, "--strict") == 0
        assert "Not judged" not in capsys.readouterr().out and model.load(tmp_path / "fuzz.json").not_judged == []

    def test_the_time_is_the_amount(self, tmp_path: Path, one_shard: None, capsys: pytest.CaptureFixture[str]) -> None:
        """Without `--programs`, a campaign of `--minutes` judges as many programs as it can, and never too few."""
        assert fuzz(tmp_path, "--minutes", "9", "--strict") == 0
        assert "Not judged" not in capsys.readouterr().out

    def test_no_program_at_all(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """That is less than any amount: nothing was compared, which stays exit code 2."""
        assert fuzz(tmp_path, "--minutes", "0.00001", "--strict") == 2
        assert "Not judged: all programs (--minutes); --strict" in capsys.readouterr().out

    def test_the_first_failure_ends_the_run(self, tmp_path: Path) -> None:
        """With `--stop-at-first-failure` the user wants no more programs."""
        running = planned(tmp_path, stop_at_first=True, programs=60)
        running.undrawn = True
        assert PROGRAMS not in {row.what for row in running.shortfalls()}


def planned(folder: Path, **options: object) -> Campaign:
    """A campaign with one finding that is not shrunk."""
    running = Campaign(Plan(DrawnPrograms(), "cpu", minutes=1.0, reports=folder, **options))  # type: ignore[arg-type]
    (folder / "failures").mkdir()
    wrong = (Mismatch("value", "b", "-1", "1"),)
    finding = FailingProgram(
        "value / neg", FAIL, 1, program=NEG, mismatches=wrong, bad_step=1, property="value", op="neg"
    )
    running.findings.known.append(finding)
    running.result.done = 20
    return running


class Shrinking(LocalShrinker):
    """A shrinker that ends when its clock says so."""

    def __init__(self, clock: list[float], ends: float) -> None:
        self.clock, self.ends = clock, ends

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        return self.smaller(finding, until)

    def _smaller(self, finding: FailingProgram, until: float) -> FailingProgram:
        self.clock[0] = self.ends
        return replace(finding, program=finding.program.with_steps(()))

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        return small


class TestFindings:
    @pytest.mark.parametrize(("ends", "cut"), [(10.0, 0), (60.0 - TO_ANSWER, 1), (60.0, 1)])
    def test_shrinking_that_time_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: float, cut: int
    ) -> None:
        """A finding whose shrinking reached the end of `--minutes` counts, also with a smaller program."""
        clock = [0.0]
        monkeypatch.setattr(campaign.time, "time", lambda: clock[0])
        running = planned(tmp_path)
        running.began_at = 0.0
        running._shrink(Shrinking(clock, ends), running.findings.known[0])
        assert running.findings.known[0].shrunk
        assert running.shortfalls() == [Shortfall(FINDINGS, 1, 1)] * cut
        data = running.findings.known[0].to_json()
        assert FailingProgram.from_json(data).cut is bool(cut), "--resume keeps it"

    def test_a_finding_that_is_not_shrunk(self, tmp_path: Path) -> None:
        assert planned(tmp_path).shortfalls() == [Shortfall(FINDINGS, 1, 1)]

    def test_a_finding_that_is_not_tried_without_the_backend(self, tmp_path: Path, monkeypatch) -> None:
        """Whether PyTorch has the bug too decides about the outcome, so the finding must be tried there."""
        running = planned(tmp_path)
        running.findings.known[0] = replace(running.findings.known[0], shrunk=True)
        monkeypatch.setattr(
            campaign, "describe_target", lambda spec: SimpleNamespace(facts=TargetFacts(siblings=("compile:eager",)))
        )
        assert running.shortfalls() == [Shortfall("findings on compile:eager", 1, 1)]
        running.findings.known[0] = replace(running.findings.known[0], elsewhere={"compile:eager": "agrees"})
        assert running.shortfalls() == []

    def test_an_unlimited_campaign_has_no_shortfall(self, tmp_path: Path) -> None:
        running = planned(tmp_path)
        running.plan = replace(running.plan, minutes=None)
        assert running.shortfalls() == []
