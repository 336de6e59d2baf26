"""What a campaign reports is a function of what was found, in whatever order it came, and by whom it was made small."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.core.finding import FAIL
from conformance.fuzzing.campaign import Campaign
from conformance.fuzzing.plan import Plan, Shard
from conformance.fuzzing.shrinking import Apart, Settings
from conformance.fuzzing.worker import NOTHING, Finding
from conformance.run.messages import Death, Done, Fate, Task

FOUND = [Finding(FAIL, 0, number, f"value / op {number % 3}", NOTHING, property="value") for number in range(12)]


class Kept:
    """A pool that keeps what is handed to it, and answers when it is told to."""

    hang: frozenset[str] = frozenset()

    def __init__(self, answers: Sequence[Any] = ()) -> None:
        self.tasks: list[Task] = []
        self.answers = iter(answers)

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def ended(self) -> Any:
        while self.tasks:
            yield self.tasks.pop(0), next(self.answers)


def campaign(folder: Path, **options: Any) -> Campaign:
    (folder / "failures").mkdir(parents=True, exist_ok=True)
    return Campaign(Plan("cpu", reports=folder, **options), name="0123456789ab")


def on_disk(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((folder / "failures").iterdir())}


class TestOrder:
    def test_groups(self, tmp_path: Path) -> None:
        """Each group is shown by its program of the lowest number: by the one that came first, it once depended on how
        many workers there were."""
        seen = []
        for seed in range(4):
            made, found = campaign(tmp_path / str(seed)), list(FOUND)
            random.Random(seed).shuffle(found)
            for finding in found:
                made.add(finding)
            made._note_progress()
            assert [group.finding.number for group in made.ranked()] == [0, 1, 2]
            seen.append({name: text.replace(f"/{seed}/", "/") for name, text in on_disk(tmp_path / str(seed)).items()})
        assert all(one == seen[0] for one in seen)
        assert len(seen[0]) == 6

    def test_what_was_not_noted_counts_once(self, tmp_path: Path) -> None:
        """A finding's own file stays until its group and the progress are on disk; one that was killed between them is
        taken up from there, and running its shard again adds nothing."""
        made = campaign(tmp_path)
        made._note_progress()
        for finding in FOUND:
            (Shard(made.plan, finding.number, 1, made.name).found(finding.number)).write_text(
                json.dumps(finding.to_json())
            )
            made.add(finding)
        assert len([name for name in on_disk(tmp_path) if name.startswith("found-")]) == len(FOUND)
        again = campaign(tmp_path, resume=True)
        again._restore()
        for finding in FOUND:
            again.add(finding)
        again._note_progress()
        assert [len(group.numbers) for group in again.ranked()] == [4, 4, 4]
        assert not [name for name in on_disk(tmp_path) if name.startswith("found-")]


class TestApart:
    def test_a_known_group_costs_no_shrinking(self, tmp_path: Path) -> None:
        """The hundredth program of a group begins no task."""
        made, pool = campaign(tmp_path), Kept()
        apart = Apart(pool, Settings("cpu", 60))  # type: ignore[arg-type]
        for number in range(100):
            made.add(replace(FOUND[0], number=number))
            made._shrink_ahead(apart, 5)
        assert [task.name for task in pool.tasks] == ["shrinking program 0"]

    def test_no_more_than_its_share(self, tmp_path: Path) -> None:
        """Shrinking comes second: of many groups only so many are begun while programs are left to draw."""
        made, pool = campaign(tmp_path), Kept()
        apart = Apart(pool, Settings("cpu", 60))  # type: ignore[arg-type]
        for number in range(30):
            made.add(replace(FOUND[0], number=number, group=f"value / op {number}"))
            made._shrink_ahead(apart, 2)
        assert len(pool.tasks) == 2

    def test_answers_in_any_order(self) -> None:
        """What is asked for is what comes, whichever ends first; of a task that died it is the finding itself."""
        one, two, three = FOUND[:3]
        small = {finding.number: replace(finding, property="small") for finding in (one, two)}
        for order in itertools.permutations((one, two, three)):
            answers = [Death(Fate.CRASH, "died") if each is three else Done(small[each.number]) for each in order]
            apart = Apart(Kept(answers), Settings("cpu", 60))  # type: ignore[arg-type]
            for each in order:
                apart.begin(each)
            assert [apart.shrink(each, 0.0) for each in (one, two, three)] == [small[0], small[1], three]

    def test_an_error_is_raised_at_its_turn(self) -> None:
        """It is the finding's that asked, as if it had been shrunk then."""
        apart = Apart(Kept([Done(error=RuntimeError("odd"))]), Settings("cpu", 60))  # type: ignore[arg-type]
        apart.begin(FOUND[0])
        with pytest.raises(RuntimeError, match="odd"):
            apart.shrink(FOUND[0], 0.0)
