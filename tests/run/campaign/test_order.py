"""A campaign's report depends on its set of findings, not on their order or on the process that shrinks them."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.program.model import Input, Program, ProgramError, Storage
from conformance.program.steps.op import Step, tensor
from conformance.record.finding import FAIL
from conformance.record.result import Outcome
from conformance.record.shortfall import ON_LAYER, Shortfall
from conformance.run.campaign.campaign import PROGRESS, Campaign
from conformance.run.campaign.plan import Plan, Shard
from conformance.run.campaign.results import result_of, run_of
from conformance.run.campaign.shrinking_order import SHRUNK_EACH, ShrinkingOrder
from conformance.run.campaign.terminal import why_not_shrunk
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Death, Done, ExitReason, Limits, Task
from conformance.run.shrink_program import SAME
from conformance.run.shrinking import RemoteShrinker
from conformance.sources.fuzzing.drawn import DrawnPrograms

ONE = Program(
    (Storage("float32", 1),), (Input("a", 0, "float32", (1,), (1,)),), (Step("neg", (tensor("a"),), out=("b",)),)
)
FOUND = [FailingProgram(f"value / op {number % 3}", FAIL, number, property="value") for number in range(12)]


class Kept:
    """Pool that stores submitted tasks and yields prepared answers on request."""

    hang: frozenset[str] = frozenset()
    target, limits = "cpu", Limits()

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
    return Campaign(Plan(DrawnPrograms(), "cpu", reports=folder, **options), name="0123456789ab")


def on_disk(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((folder / "failures").iterdir())}


class TestOrder:
    def test_equal_signatures(self, tmp_path: Path) -> None:
        """The program with the lowest number represents its finding. Regression test: the first to arrive did, which
        depended on the number of workers."""
        seen = []
        for seed in range(4):
            running, findings = campaign(tmp_path / str(seed)), list(FOUND)
            random.Random(seed).shuffle(findings)
            for finding in findings:
                running.findings.add(finding)
            running._note_progress()
            assert [finding.number for finding in running.findings.ranked()] == [0, 1, 2]
            seen.append({name: text.replace(f"/{seed}/", "/") for name, text in on_disk(tmp_path / str(seed)).items()})
        assert all(one == seen[0] for one in seen)
        assert len(seen[0]) == 6

    def test_what_was_not_noted_counts_once(self, tmp_path: Path) -> None:
        """A finding's own file stays until the joined finding and the progress are on disk. After a kill between the
        two, resuming reads it, and a second run of its shard adds nothing."""
        running = campaign(tmp_path)
        running._note_progress()
        for finding in FOUND:
            (Shard(running.plan, finding.number, 1, running.name).path_of(finding.number)).write_text(
                json.dumps(finding.to_json())
            )
            running.findings.add(finding)
        assert len([name for name in on_disk(tmp_path) if name.startswith("found-")]) == len(FOUND)
        again = campaign(tmp_path, resume=True)
        again._restore()
        for finding in FOUND:
            again.findings.add(finding)
        again._note_progress()
        assert [finding.count for finding in again.findings.ranked()] == [4, 4, 4]
        assert not [name for name in on_disk(tmp_path) if name.startswith("found-")]

    def test_a_damaged_finding_is_not_lost(self, tmp_path: Path) -> None:
        """Resuming names the file of a finding that cannot be read. Regression test: the finding was left out."""
        first = campaign(tmp_path)
        first.findings.add(FOUND[0])
        first._note_progress()
        (saved,) = (tmp_path / "failures").glob("*.json")
        (tmp_path / "failures" / "own.json").write_text("[]")
        for damage in ({"others": [{}]}, {"program": {}}):
            saved.write_text(json.dumps({**json.loads(saved.read_text()), **damage}))
            with pytest.raises(ProgramError, match=f"{saved.name} cannot be read"):
                campaign(tmp_path, resume=True)._restore()
        saved.write_text(saved.read_text()[:99])  # an incomplete copy
        with pytest.raises(ProgramError, match=f"{saved.name} cannot be read"):
            campaign(tmp_path, resume=True)._restore()

    def test_progress_of_another_version(self, tmp_path: Path) -> None:
        """The findings beside it have other fields. One sentence says which version wrote it, and what to do."""
        first = campaign(tmp_path)
        first._note_progress()
        written = json.loads(first.plan.progress.read_text())
        first.plan.progress.write_text(json.dumps({**written, "schema": PROGRESS - 1}))
        sentence = f"it has schema {PROGRESS - 1}, and this version reads schema {PROGRESS}): run without --resume"
        with pytest.raises(ProgramError, match=re.escape(sentence)):
            campaign(tmp_path, resume=True)._restore()

    def test_two_parts_of_one_program(self, tmp_path: Path) -> None:
        """Two parts of a program fail with one error in other operators. Its number counts in both findings. Regression
        test: the first one lost its only number, and the campaign ended with a traceback."""
        running = campaign(tmp_path)
        for part, operator in enumerate(("sin", "exp")):
            program = Program((), (), (Step(operator, (tensor("a"),), out=("b",)),))
            running.findings.add(FailingProgram("error / text", FAIL, 3, program=program, property="error", part=part))
        (known,) = running.findings
        running.findings.split(known, replace(known, shrunk=True, needed=frozenset({"sin"})))
        assert [(each.numbers, each.operators) for each in running.findings.ranked()] == [
            ({3}, {"sin"}),
            ({3}, {"exp"}),
        ]


class TestBugsOfTorch:
    """Findings that also show without the backend. Regression test: on a right backend, shrinking them took 600 of the
    636 seconds of a campaign."""

    def test_they_are_shrunk_last(self, tmp_path: Path) -> None:
        """A finding of the backend's own comes first, however many programs show a bug of PyTorch."""
        running = campaign(tmp_path)
        for number in range(5):
            running.findings.add(replace(FOUND[0], number=number, layer="compile:aot_eager"))
        running.findings.add(replace(FOUND[1], number=9))
        assert [finding.layer for finding in running.order.queue()] == ["", "compile:aot_eager"]

    @pytest.mark.parametrize(("layer", "due"), [("", True), ("compile:aot_eager", False)])
    def test_one_example_of_a_pattern(self, tmp_path: Path, layer: str, due: bool) -> None:
        """The second operator with one pattern is not shrunk, while a finding of the backend's own is. PyTorch's are
        shrunk only if they fail the run."""
        running = campaign(tmp_path, fail_on_torch_bugs=True)
        running.findings.add(replace(FOUND[0], layer=layer))
        running.findings.add(replace(FOUND[1], layer=layer))
        first, second = running.findings
        assert first.pattern_if_shrunk == second.pattern_if_shrunk != ""
        assert running.order.is_due(first) and running.order.is_due(second)
        running.findings.substitute(first, replace(first, shrunk=True))
        assert running.order.is_due(second) is due

    def test_they_are_not_shrunk(self, tmp_path: Path) -> None:
        """PyTorch's own do not fail the run, so no smaller program is tried. Regression test: on a right backend, 200
        programs had not ended after 25 minutes, of which shrinking took most."""
        running = campaign(tmp_path)
        running.findings.add(replace(FOUND[0], layer="compile:aot_eager"))
        running.findings.add(FOUND[1])
        assert [finding.layer for finding in filter(running.order.is_due, running.order.queue())] == [""]


class TestReportedBugs:
    """Findings that may be reported bugs are shrunk after those that nobody knows."""

    @pytest.mark.parametrize(
        ("spec", "order"),
        [("inductor", ["neg", "flip"]), ("compile:inductor,dynamic=yes", ["neg", "flip"]), ("cpu", ["flip", "neg"])],
    )
    def test_they_are_shrunk_later(self, tmp_path: Path, spec: str, order: list[str]) -> None:
        """pytorch#198270 is a write of a rearranged self. Only the compiler shows it, under any name and option."""
        running = campaign(tmp_path)
        running.plan = replace(running.plan, target=spec)
        for number, ops in enumerate((("index_put_", "flip", "add_"), ("neg",))):
            steps = tuple(Step(op, (tensor("a"),)) for op in ops)
            found = replace(FOUND[number], program=ONE.with_steps(steps), op=ops[-1], property="value")
            running.findings.add(replace(found, numbers=frozenset({number}) if number else frozenset(range(10, 15))))
        queued = [finding.program.steps[min(1, len(finding.program.steps) - 1)].op for finding in running.order.queue()]
        assert queued == order
        known = {finding.program.steps[0].op: running.order.may_be_known(finding) for finding in running.findings}
        assert known["neg"] == "" and ("pytorch#198270" in known["index_put_"]) is (spec != "cpu")

    @pytest.mark.parametrize(("tried", "due"), [(300, [True, True]), (301, [True, False])])
    def test_they_take_at_most_a_third_of_a_campaign(self, tmp_path: Path, tried: int, due: list[bool]) -> None:
        """Three smaller programs for each program take half as long as these. A finding that nobody knows is shrunk in
        any case. Regression test: shrinking 26 findings took 49 % of 200 programs of `aot_eager`, and with four smaller
        programs for each 40 %."""
        running = campaign(tmp_path)
        running.plan = replace(running.plan, target="inductor")
        for number, ops in enumerate((("neg",), ("index_put_", "flip", "add_"))):
            steps = tuple(Step(op, (tensor("a"),)) for op in ops)
            running.findings.add(replace(FOUND[number], program=ONE.with_steps(steps), op=ops[-1], property="value"))
        running.result.done, running.tried = 100, tried
        assert [running.order.is_due(finding) for finding in running.order.queue()] == due

    @pytest.mark.parametrize(
        ("tried", "shrunk", "layer", "why"),
        [
            (301, 0, "", "it may be pytorch#1, and others were shrunk first"),
            (300, 0, "", "--minutes was over before its turn"),
            (301, SHRUNK_EACH, "", "smaller findings have the same pattern"),
            (301, 0, "compile:aot_eager", "it is no bug of your backend"),
        ],
    )
    def test_the_end_says_why(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: int, shrunk: int, layer: str, why: str
    ) -> None:
        """The reason is that of the campaign. Regression test: each finding whose cause needs no shrinking had smaller
        findings of its pattern, also where it was the only one."""
        monkeypatch.setattr(ShrinkingOrder, "may_be_known", lambda self, finding: "pytorch#1")
        running = campaign(tmp_path)
        running.result.done, running.tried = 100, tried
        finding = replace(FOUND[0], property="missing error")
        running.findings.known = [finding, *(replace(finding, shrunk=True) for _ in range(shrunk))]
        assert finding.precise
        assert why_not_shrunk(result_of(finding).replace(layer=layer), finding, running) == why


class TestWithoutBackend:
    """Findings that may be PyTorch's own are judged without the backend before any is shrunk."""

    LAYER = "passthrough"

    def running(self, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> tuple[Campaign, list[int]]:
        """A campaign of a device in Python, and the programs that it asks about, with what they do without it."""
        (folder / "failures").mkdir(parents=True)
        plan = Plan(
            DrawnPrograms(), "device:cpu,import=tests.planted.lying_modes,call=nothing", minutes=1.0, reports=folder
        )
        running, asked = Campaign(plan, name="0123456789ab"), []

        def elsewhere(self: Campaign, workers: Any, layer: str, finding: FailingProgram) -> str:
            asked.append(finding.number)
            return answer

        monkeypatch.setattr(Campaign, "_elsewhere", elsewhere)
        running.findings.add(replace(FOUND[0], layer=self.LAYER))
        running.findings.add(FOUND[1])
        return running, asked

    def test_a_bug_of_torch(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is judged once, and not shrunk."""
        running, asked = self.running(tmp_path, monkeypatch, f"{SAME} (value)")
        running._judge_without_backend()
        running._judge_without_backend()
        assert asked == [0] and [finding.layer for finding in running.findings] == [self.LAYER, ""]
        assert [running.order.is_due(finding) for finding in running.findings] == [False, True]

    def test_a_device_that_spoils_its_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A finding that shows without the device only in the worker's own process is the device's, and is shrunk."""
        running, asked = self.running(tmp_path, monkeypatch, "agrees")
        running._judge_without_backend()
        assert asked == [0] and [finding.layer for finding in running.findings] == ["", ""]
        assert all(map(running.order.is_due, running.findings))
        saved = json.loads(running.findings.path(running.findings.ranked()[0], ".json").read_text())
        assert saved["elsewhere"] == {self.LAYER: "agrees"}
        assert len(on_disk(tmp_path)) == 4

    def test_what_the_worker_saw_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without time for a separate process, the worker's answer stands, and the sentence says so. Regression test:
        with `--minutes 1`, PyTorch's own findings on a device in Python failed the run."""
        running, _ = self.running(tmp_path, monkeypatch, "")
        running.findings.known = [replace(finding, program=ONE) for finding in running.findings]
        own, of_torch = run_of(running).listed
        assert [(own.outcome, own.layer), (of_torch.outcome, of_torch.layer)] == [
            (Outcome.FAIL, ""), (Outcome.XFAIL, self.LAYER),
        ]  # fmt: skip
        assert Shortfall(ON_LAYER.format(self.LAYER), 1, 2) in running.shortfalls()


class TestApart:
    def test_a_known_finding_costs_no_shrinking(self, tmp_path: Path) -> None:
        """The hundredth program of a finding starts no new shrinking task."""
        running, pool = campaign(tmp_path), Kept()
        remote = RemoteShrinker(pool, 200)  # type: ignore[arg-type]
        for number in range(100):
            running.findings.add(replace(FOUND[0], number=number))
            running._shrink_ahead(remote, 5)
        assert [task.name for task in pool.tasks] == ["shrinking program 0"]

    def test_no_more_than_its_share(self, tmp_path: Path) -> None:
        """Before the end of drawing, only a limited number of findings shrink in advance."""
        running, pool = campaign(tmp_path), Kept()
        remote = RemoteShrinker(pool, 200)  # type: ignore[arg-type]
        for number in range(30):
            running.findings.add(replace(FOUND[0], number=number, signature=f"value / op {number}"))
            running._shrink_ahead(remote, 2)
        assert len(pool.tasks) == 2

    def test_answers_in_any_order(self) -> None:
        """Each request returns its own answer, in any order of completion. If the task died, the answer is the unshrunk
        finding."""
        one, two, three = FOUND[:3]
        small = {finding.number: replace(finding, property="small") for finding in (one, two)}
        for order in itertools.permutations((one, two, three)):
            answers = [Death(ExitReason.CRASH, "died") if each is three else Done(small[each.number]) for each in order]
            remote = RemoteShrinker(Kept(answers), 200)  # type: ignore[arg-type]
            for each in order:
                remote.begin(each)
            assert [remote.shrink(each, 0.0) for each in (one, two, three)] == [small[0], small[1], three]

    def test_an_error_is_raised_at_its_turn(self) -> None:
        """The error is raised for the finding that requested it, as in local shrinking."""
        remote = RemoteShrinker(Kept([Done(error=RuntimeError("odd"))]), 200)  # type: ignore[arg-type]
        remote.begin(FOUND[0])
        with pytest.raises(RuntimeError, match="odd"):
            remote.shrink(FOUND[0], 0.0)
