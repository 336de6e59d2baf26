"""Grouping of findings by cause: one per wrong op, one sentence for a failure of all programs, FLAKY victims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor
from conformance.record import result as model
from conformance.record.finding import FAIL
from conformance.record.result import Outcome
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.results import run_of
from conformance.run.campaign.tasks import ShardResult
from conformance.run.failing_program import FailingProgram
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawn import DrawnPrograms

LIARS = "class:tests.planted.liars."
VIEW = Step("as_strided", (tensor("a"), [2], [2], 1), out=("b",))


def program(*steps: Step) -> Program:
    return Program((Storage("float32", 6),), (Input("a", 0, "float32", (6,), (1,)),), steps)


def campaign(folder: Path, target: str, *programs: Program) -> tuple[int, model.Run]:
    """Run a campaign over these programs only, without drawn ones; return its exit code and the saved run."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, one in enumerate(programs):
        (corpus / f"{number}.json").write_text(dump(one))
    reports = folder / "reports"
    words = ["--target", target, "--programs", "0", "--corpus", str(corpus), "--check-scripts", "0"]
    code = main([*words, "--reports", str(reports)])
    return code, model.load(reports / "fuzz.json")


class TestOneCause:
    def test_a_wrong_as_strided_is_one_finding(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """All writes that land in the wrong cell of one view are one finding. Regression test: each write that lands in
        the wrong cell was a separate finding."""
        writes = [
            Step("fill_", (tensor("b"), 7)),
            Step("add_", (tensor("b"), 1)),
            Step("setitem", (tensor("b"), {"ellipsis": 0}, 5)),
        ]
        code, run = campaign(tmp_path, f"{LIARS}WrongCell", *(program(VIEW, write) for write in writes))
        (finding,) = [result.finding for result in run.results]
        assert finding is not None
        assert (code, finding.title(), finding.count, finding.steps) == (1, "aliasing / as_strided", 3, 2)
        assert len({finding.signature, *finding.signatures}) >= 3
        said = capsys.readouterr().out
        assert "3 failing, 1 distinct" in said
        assert "also seen as: value / " in said
        (saved,) = (tmp_path / "reports" / "failures").glob("*.json")
        assert saved.name.endswith("-aliasing-as_strided.json")
        assert f"python -m conformance.fuzz --replay {saved}\n" in said
        assert json.loads(saved.read_text())["target"] == f"{LIARS}WrongCell"
        assert "Seen as" in (tmp_path / "reports" / "fuzz.html").read_text()

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize(
        ("target", "programs"), [("Copying", 60), pytest.param("WrongCell", 250, marks=pytest.mark.slow)]
    )
    def test_drawn_programs(self, target: str, programs: int, tmp_path: Path) -> None:
        """A wrong as_strided is one finding, whatever op calls it. Regression test: `empty_filled`, `resize_filled_`,
        `fill_diagonal_` and `backward` call as_strided internally and were separate findings. There were four in 150
        programs, and their scripts printed uninitialized memory."""
        words = ["--target", f"{LIARS}{target}", "--seed", "0", "--programs", str(programs), "--without", "op_db"]
        assert main([*words, "--check-scripts", "0", "--reports", str(tmp_path)]) == 1
        (finding,) = [result.finding for result in model.load(tmp_path / "fuzz.json").results if result.finding]
        assert finding.title() == "aliasing / as_strided"
        assert finding.count >= 4

    def test_findings_that_were_not_shrunk(self, tmp_path: Path) -> None:
        """If the time runs out before shrinking, the report still joins findings of one cause. The smaller program
        represents them."""
        running = Campaign(Plan(DrawnPrograms(), "cpu", reports=tmp_path))
        (tmp_path / "failures").mkdir()
        long, short = program(VIEW, Step("neg_", (tensor("a"),))), program(VIEW)
        for number, failing in enumerate((long, short)):
            signature = f"stride / as_strided / {number}"
            running.findings.add(
                FailingProgram(
                    signature, FAIL, number, program=failing, bad_step=1, property="metadata", op="as_strided"
                )
            )
        (finding,) = running.findings.distinct()
        assert (finding.program, finding.numbers, len(running.findings)) == (short, {0, 1}, 2)
        assert len(list((tmp_path / "failures").glob("*.json"))) == 2

    @pytest.mark.parametrize(
        ("property", "joins"), [pytest.param("value", 2, id="value"), pytest.param("error", 6, id="error")]
    )
    def test_programs_of_a_shard_are_joined_at_once(
        self, property: str, joins: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The findings of one signature in a shard join the known finding together, but errors one by one, since they
        may have several causes. Regression test: 33,000 programs of one cause copied their numbers 33,000 times."""
        running, copies = Campaign(Plan(DrawnPrograms(), "cpu", reports=tmp_path)), []
        (tmp_path / "failures").mkdir()
        join = FailingProgram.of_programs

        def counted(self: FailingProgram, *others: FailingProgram) -> FailingProgram:
            copies.append(len(others))
            return join(self, *others)

        def shard(first: int) -> ShardResult:
            known = {"program": program(VIEW), "property": property, "op": "as_strided", "bad_step": 1}
            numbers = range(first, first + 6)
            return ShardResult(findings=[FailingProgram("alike", FAIL, number, **known) for number in numbers])

        running._take(shard(6))
        monkeypatch.setattr(FailingProgram, "of_programs", counted)
        running._take(shard(0))
        (finding,) = running.findings
        assert (finding.number, finding.numbers) == (0, {*range(12)})
        assert {path.name.rpartition("-")[2] for path in running.findings._taken if path.name.startswith("found-")} == {
            f"{number}.0.json" for number in range(12)
        }
        assert len(copies) == joins
        running._note_progress()
        assert [json.loads(path.read_text())["count"] for path in (tmp_path / "failures").glob("*.json")] == [12]

    def test_the_wanted_number_is_counted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Regression test: each line of progress walked through all 5,000 shards of 100,000 programs, twice."""
        walks, blocks = [], Plan._blocks
        monkeypatch.setattr(Plan, "_blocks", lambda self, *args: walks.append(args) or blocks(self, *args))
        plan = Plan(DrawnPrograms(), "cpu", programs=1000, part=(1, 2))
        assert (plan.wanted, plan.wanted, len(walks)) == (500, 500, 1)

    def test_order(self, tmp_path: Path) -> None:
        """The most severe property comes first; equal properties are ordered by count."""
        running = Campaign(Plan(DrawnPrograms(), "cpu", reports=tmp_path))
        for wrong, count in (("wording", 9), ("value", 1), ("aliasing", 1), ("value", 2), ("crash", 1)):
            finding = FailingProgram("", FAIL, 0, program=program(), bad_step=1, property=wrong, op=str(count))
            running.findings.known.append(replace(finding, numbers=frozenset(range(count))))
        order = [f"{finding.property} {finding.op}" for finding in running.findings.ranked()]
        assert order == ["crash 1", "aliasing 1", "value 2", "value 1", "wording 9"]

    @pytest.mark.parametrize(("minutes", "order"), [(None, "abcde"), (5.0, "eabdc")])
    def test_frequent_findings_shrink_early(self, minutes: float | None, order: str, tmp_path: Path) -> None:
        """If the time is limited, the findings of the most programs and the most severe ones take turns. Regression
        test: the finding of 90 programs was shrunk after all crashes and aliasing faults of one program, or never."""
        running = Campaign(Plan(DrawnPrograms(), "cpu", minutes=minutes, reports=tmp_path))
        for op, wrong, count in (
            ("a", "crash", 1),
            ("b", "aliasing", 9),
            ("c", "aliasing", 1),
            ("d", "value", 8),
            ("e", "wording", 90),
        ):
            finding = FailingProgram("", FAIL, 0, program=program(), bad_step=1, property=wrong, op=op)
            running.findings.known.append(replace(finding, numbers=frozenset(range(count))))
        assert [finding.op for finding in running.order.queue()] == [*order]
        running.findings.known[-1] = replace(running.findings.known[-1], shrunk=True)  # the turns of the others stay
        assert [finding.op for finding in running.order.queue()] == [*order.replace("e", "")]

    def test_order_of_shrinking(self, tmp_path: Path) -> None:
        """A command may ask for some of the findings, the most wanted first; equal ones keep the order of the page."""
        weights = {"b": 0.5, "c": 1.0, "d": 0.5}
        plan = Plan(DrawnPrograms(), "cpu", reports=tmp_path)
        running = Campaign(plan, wanted=lambda _, finding: weights.get(finding.op, 0.0))
        for op in "dabc":
            finding = FailingProgram("", FAIL, 0, program=program(), bad_step=1, property="value", op=op)
            running.findings.known.append(replace(finding, number="abcd".index(op), numbers=frozenset()))
        assert [finding.op for finding in running.order.queue()] == ["c", "b", "d"]
        drawn = run_of(running).drawn
        assert drawn is not None and drawn.unwanted == 1
        running.findings.known[-1] = replace(running.findings.known[-1], shrunk=True)
        assert [finding.op for finding in running.order.queue()] == ["b", "d"]


class TestTheMoveOfTheInputs:
    def test_it_is_one_sentence(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A failure common to all programs is one sentence without a script. Regression test: a failure common to all
        programs was listed as a finding with a script, or as several."""
        code, run = campaign(tmp_path, f"{LIARS}Unreachable", program(VIEW), program(Step("neg_", (tensor("a"),))))
        sentence = (
            "All 2 programs fail at the move of the inputs, before the first step, so that nothing else was compared: "
            "RuntimeError: no kernel image for this device"
        )
        said = capsys.readouterr().out
        assert (code, run.listed) == (1, [])
        assert said.count("no kernel image") == 1
        assert sentence in said
        assert "script:" not in said
        page = (tmp_path / "reports" / "fuzz.html").read_text()
        assert f"<p>{sentence}</p>" in page
        assert "def program" not in page


class TestPoisonedProcesses:
    def test_a_victim_is_flaky(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A program that fails only after another one in the same process is FLAKY. Regression test: a program that
        failed only because an earlier one had corrupted the process was reported as a bug. Its second run used the same
        process and failed too."""
        spoils = Step("unfold", (tensor("a"), 0, 2, 1), out=("b",))
        code, run = campaign(tmp_path, f"{LIARS}Poisoned", program(spoils), program(Step("neg_", (tensor("a"),))))
        (result,) = run.results
        assert (code, result.outcome) == (1, Outcome.FLAKY)
        assert result.finding is not None
        assert result.finding.title() == "flaky / error / neg_"
        assert "program -2, which its worker had run before it" in result.reason
        assert result.reason in capsys.readouterr().out


def test_one_error_of_two_operators(tmp_path: Path) -> None:
    """Programs with the same error are one group before they are shrunk. A program that lacks an operator of the shrunk
    one has another cause. Regression test: the bug of the second operator was hidden in the group of the first."""
    sin, exp = (Step(op, (tensor("a"),), out=(op,)) for op in ("sin", "exp"))
    total = Step("cumsum", (tensor("a"), 0), out=("sum",))
    steps = [(exp, sin), (sin,), (total, exp), (total, sin), (exp, total)]
    _, run = campaign(tmp_path, f"{LIARS}SameErrorTransform", *(program(*some) for some in steps))
    saved = [json.loads(path.read_text()) for path in (tmp_path / "reports" / "failures").glob("*.json")]
    counts = {" ".join(step["op"] for step in finding["program"]["steps"]): finding["count"] for finding in saved}
    assert counts == {"sin": 3, "cumsum": 2}
    assert len(run.results) == 2
