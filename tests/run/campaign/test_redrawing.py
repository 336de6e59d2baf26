"""Redrawing: the campaign replaces unsupported programs until it has judged the requested number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.record import result as model
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.source import progress_line
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.drawn import DrawnPrograms

CHOOSY = "class:tests.planted.choosy.Choosy"
WANTED = 30


def planned(reports: Path, **changes: object) -> Plan:
    return replace(
        Plan(DrawnPrograms(Drawing(without=("op_db",))), CHOOSY, programs=WANTED, reports=reports), **changes
    )


def outcome(campaign: Campaign) -> tuple[object, ...]:
    """The parts of a campaign's result that depend neither on the workers nor on interruptions."""
    causes = sorted((finding.cause(), sorted(finding.numbers)) for finding in campaign.findings)
    return campaign.result.done, vars(campaign.result), causes


def ran(plan: Plan) -> Campaign:
    campaign = Campaign(plan)
    campaign.run()
    return campaign


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return ran(planned(tmp_path_factory.mktemp("undisturbed")))


class TestRedrawing:
    def test_the_wanted_number_is_judged(self, undisturbed: Campaign) -> None:
        """The target supports only a part of the first programs; the next numbers replace the others."""
        done = undisturbed.result
        assert done.unsupported.total() > 0
        assert done.judged == WANTED
        assert undisturbed.following == done.done == WANTED + done.unsupported.total()
        assert progress_line(undisturbed).startswith(f"seed 0: {WANTED}/{WANTED} programs")
        assert any(number >= WANTED for finding in undisturbed.findings for number in finding.numbers)

    def test_two_workers(self, undisturbed: Campaign, tmp_path: Path) -> None:
        """The replaced programs do not depend on the number of workers."""
        assert outcome(ran(planned(tmp_path, jobs=2))) == outcome(undisturbed)

    def test_resumed_while_programs_are_drawn_again(self, undisturbed: Campaign, tmp_path: Path) -> None:
        def interrupt(campaign: Campaign) -> None:
            if campaign.following > WANTED:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Campaign(planned(tmp_path), tell=interrupt).run()
        seconds = list[float]()
        again = Campaign(planned(tmp_path, resume=True), tell=lambda at: seconds.append(at.running_seconds))
        again.run()
        assert min(seconds) > 0  # else the rate of the first line is absurd
        assert outcome(again) == outcome(undisturbed)

    def test_a_longer_campaign_goes_on(self, undisturbed: Campaign, tmp_path: Path) -> None:
        """A campaign resumed with more programs draws the same programs as one campaign of that length."""
        ran(planned(tmp_path, programs=10))
        again = ran(planned(tmp_path, resume=True))
        assert again.result.judged == WANTED
        assert outcome(again)[:2] == outcome(undisturbed)[:2]

    def test_a_part_of_a_seed(self, tmp_path: Path) -> None:
        """A part of a campaign replaces programs from its own blocks of numbers only."""
        half = ran(planned(tmp_path, programs=80, part=(2, 2)))
        assert half.result.judged == half.plan.wanted == 40
        numbers = {number for finding in half.findings for number in finding.numbers}
        assert {number // 20 % 2 for number in numbers} == {1}

    def test_one_that_leaves_out_everything(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """If the target supports no program, the campaign tries as many again and stops, and the run reports that
        nothing was compared."""
        words = ["--target", "class:tests.planted.choosy.Refusing", "--programs", "25", "--without", "op_db"]
        assert main([*words, "--reports", str(tmp_path)]) == 2
        drawn = model.load(tmp_path / "fuzz.json").drawn
        assert drawn is not None
        assert (drawn.programs, drawn.compared) == (50, 0)
        assert "no program was run that the target supports" in capsys.readouterr().err
