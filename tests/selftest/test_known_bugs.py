"""`conformance known-bugs`: repros of reported bugs, and the measurement of which of them a campaign finds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest

from conformance.engine.layers import LOWERING
from conformance.program.model import Call, Input, Program, Storage
from conformance.program.steps.op import Step, tensor
from conformance.record import result as model
from conformance.record.finding import CRASH, ON_CPU
from conformance.record.program_stats import ProgramStats
from conformance.record.result import Failure, Outcome, Result, Run
from conformance.record.upstream import DECISIVE, SETTING, bugs
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.results import MOST_STEPS
from conformance.run.failing_program import FailingProgram
from conformance.run.script_process import Forks
from conformance.selftest import known_bugs, repros
from conformance.selftest.known_bugs import FOUND, GONE, MISSED, NO_TARGET, NOT_RUN, Candidates
from conformance.sources.fuzzing.drawn import DrawnPrograms
from conformance.standalone.oracles import Mismatch

WITH_REPRO = [bug for bug in bugs() if bug.repro]
EXPAND = Step("expand", (tensor("a"), [4, 3]), out=("b",))
WRONG = (Mismatch("value", "b", "2.0", "8.0"),)


def finding(*steps: Step) -> FailingProgram:
    """A finding of AOTAutograd with a wrong value."""
    program = Program((Storage("float32", 3),), (Input("a", 0, "float32", (3,), (1,)),), steps)
    known = {"property": "value", "op": "expand", "culprit": "AOTAutograd"}
    return FailingProgram("value / fill_", "FAIL", 40, program=program, mismatches=WRONG, bad_step=len(steps), **known)  # type: ignore[arg-type]


WRITTEN = finding(EXPAND, Step("fill_", (tensor("b"), 2)))
"""A write through an expanded view: pytorch#197448."""
BESIDE = finding(EXPAND, Step("fill_", (tensor("a"), 2)))
"""The same operators, property and layer. The write goes to the base, so every element is written once."""


APART = (Step("add_", (tensor("a"), 1)), Step("mul", (tensor("b"), 2), out=("c",)))


def overlapping(steps: tuple[Step, ...] = APART) -> FailingProgram:
    """A finding in whose further call the two inputs share memory, without a known layer."""
    inputs = tuple(Input(name, at, "float32", (3,), (1,)) for at, name in enumerate("ab"))
    program = Program((Storage("float32", 3),) * 2, inputs, steps, calls=(Call({"b": {"beside": "a"}}),))
    wrong, op = (Mismatch("value", "c", "2.0", "0.0"),), "a further call with other aliasing"
    return FailingProgram("value / further", "FAIL", 40, program=program, mismatches=wrong, property="value", op=op)


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """The results of a campaign of 200 programs on aot_eager, which ran for 100 seconds, without a finding."""
    (tmp_path / "failures").mkdir()
    model.save(Run("aot_eager", seconds=100.0, drawn=ProgramStats(programs=200)), tmp_path / "fuzz.json")
    (tmp_path / "fuzz-progress.json").write_text(json.dumps({"campaign": "mine"}))
    return tmp_path


def save(reports: Path, one: FailingProgram, campaign: str = "mine", shrunk: bool = True) -> None:
    data = {**one.to_json(), "target": "aot_eager", "campaign": campaign, "numbers": [71, 47], "shrunk": shrunk}
    (reports / "failures" / f"{one.number}-{campaign}.json").write_text(json.dumps(data))


def status(reports: Path, number: int, gone: tuple[int, ...] = ()) -> str:
    rows = known_bugs.rows(WITH_REPRO, [known_bugs.read(reports / "fuzz.json")], gone)
    return next(row.status for row in rows if row.number == number)


class TestCandidates:
    """A campaign minimizes a finding only while it may be a bug that none is yet."""

    def test_a_finding_that_may_be_none(self, tmp_path: Path) -> None:
        wanted, running = Candidates("aot_eager"), Campaign(Plan(DrawnPrograms(), "aot_eager", reports=tmp_path))
        other = finding(Step("neg", (tensor("a"),), out=("b",)))
        for one in (WRITTEN, dataclasses.replace(other, number=41)):
            running.findings.known.append(one)
        first, last = (wanted(running, one) for one in running.findings)
        assert first > last == 0.0

    def test_an_operator_that_only_a_step_names(self, tmp_path: Path) -> None:
        """A legacy constructor is no operator of the dispatcher. Regression test: no finding with one was minimized, so
        #196467 was not found."""
        running = Campaign(Plan(DrawnPrograms(), "compile:eager", reports=tmp_path))
        sized = dataclasses.replace(
            finding(Step("sized", (tensor("a"), "FloatTensor"), out=("b",))), property="metadata"
        )
        running.findings.known.append(sized)
        assert Candidates("compile:eager")(running, running.findings.known[0]) > 0

    def test_what_is_cheap_comes_first(self, tmp_path: Path) -> None:
        """A short program comes before a long one, and a finding that ends its process last."""
        running, wanted = Campaign(Plan(DrawnPrograms(), "aot_eager", reports=tmp_path)), Candidates("aot_eager")
        program = WRITTEN.program.with_steps(WRITTEN.program.steps * 30)
        long, died = (dataclasses.replace(WRITTEN, number=41, program=program),
                      dataclasses.replace(WRITTEN, number=42, kind=CRASH))  # fmt: skip
        assert wanted(running, WRITTEN) > wanted(running, long) > wanted(running, died) > 0

    def test_a_bug_that_is_found(self, tmp_path: Path) -> None:
        """The second finding with the operators of #197448 is not needed. A look-alike of it does not count as it."""
        running = Campaign(Plan(DrawnPrograms(), "aot_eager", reports=tmp_path))
        again = dataclasses.replace(WRITTEN, number=41)
        for one in (BESIDE, again):
            running.findings.known.append(one)
        before = Candidates("aot_eager")(running, running.findings.known[1])
        running.findings.known[0] = dataclasses.replace(BESIDE, shrunk=True)
        beside = Candidates("aot_eager")(running, running.findings.known[1])
        running.findings.known[0] = dataclasses.replace(WRITTEN, shrunk=True)
        found = Candidates("aot_eager")(running, running.findings.known[1])
        assert 0 < before == beside
        assert 197448 in Candidates("aot_eager").matched(WRITTEN)
        assert found != before


class TestRows:
    def test_found(self, reports: Path) -> None:
        save(reports, WRITTEN)
        (row,) = (row for row in known_bugs.rows(WITH_REPRO, [known_bugs.read(reports / "fuzz.json")])
                  if row.number == 197448)  # fmt: skip
        assert (row.status, row.programs, row.minutes, row.steps) == (FOUND, 48, 0.4, 2)
        assert (row.target, row.finding) == ("aot_eager", "value / expand")

    def test_missed(self, reports: Path) -> None:
        """A row names the campaign that missed the bug, also if the bug shows on other targets too."""
        rows = [*known_bugs.rows(WITH_REPRO, [known_bugs.read(reports / "fuzz.json")])]
        several = {bug.number for bug in WITH_REPRO if "aot_eager" in bug.targets[1:]}
        assert several
        assert {(row.target, row.status) for row in rows if row.number in several} == {("aot_eager", MISSED)}

    def test_look_alike(self, reports: Path) -> None:
        save(reports, BESIDE)
        assert status(reports, 197448) == MISSED

    def test_a_further_call(self, reports: Path) -> None:
        """The wrong call decides about the layer and the relation, since the first call is right."""
        save(reports, overlapping())
        assert status(reports, 139789) == FOUND

    def test_a_further_call_that_is_right(self, reports: Path) -> None:
        save(reports, overlapping((Step("add_", (tensor("a"), 1)), Step("mul", (tensor("a"), 2), out=("c",)))))
        assert status(reports, 139789) == MISSED

    def test_the_cause_of_a_long_program_is_not_sought(self, reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is no evidence. Regression test: compiling one of 10 steps without each part in turn took ten minutes."""
        sought = []
        monkeypatch.setattr(known_bugs, "culprit", lambda trial, first: sought.append(trial) or "")
        for count in (MOST_STEPS - 1, MOST_STEPS + 1):
            one = finding(*(Step("fill_", (tensor("a"), 2)) for _ in range(count)))
            save(reports, dataclasses.replace(one, number=count, culprit=""))
        status(reports, 197448)
        assert [len(trial.program.steps) for trial in sought] == [MOST_STEPS - 1]

    def test_not_minimized(self, reports: Path) -> None:
        """A long program has the operators of many bugs, so it counts only once it is minimized."""
        save(reports, WRITTEN, shrunk=False)
        assert status(reports, 197448) == MISSED
        more = (Step("neg", (tensor("a"),), out=(f"n{at}",)) for at in range(MOST_STEPS))
        save(reports, finding(*WRITTEN.program.steps, *more))
        assert status(reports, 197448) == MISSED

    def test_of_another_campaign(self, reports: Path) -> None:
        """Findings that another campaign left in the folder do not count."""
        save(reports, WRITTEN, campaign="another")
        assert status(reports, 197448) == MISSED

    def test_not_measured(self, reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bug that this torch does not show, one without a campaign, and one whose target does not exist."""
        assert status(reports, 197448, gone=(197448,)) == GONE
        assert status(reports, 178472) == NOT_RUN
        monkeypatch.setattr(known_bugs, "_loads", lambda spec: spec != "meta")
        assert status(reports, 178472) == NO_TARGET


class TestMain:
    def test_results(self, reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Results of an earlier campaign are measured without running anything."""
        save(reports, WRITTEN)
        words = ["--target", "aot_eager", "--results", str(reports / "fuzz.json"), "--check-scripts", "0"]
        assert known_bugs.main([*words, "--reports", str(reports)]) == 1
        assert "reported bugs: 1 found, " in capsys.readouterr().out
        data = json.loads((reports / "known-bugs.json").read_text())
        assert [row["number"] for row in data["bugs"] if row["status"] == FOUND] == [197448]
        assert "issues/197448" in (reports / "known-bugs.html").read_text()

    def test_share_of_later_reports(self) -> None:
        """The reports that were collected after a drawing have a share of their own, of those that were measured."""
        row = known_bugs.BugRow(1, "a", "inductor", FOUND)
        later = [dataclasses.replace(row, status=status, later=5) for status in (FOUND, MISSED, MISSED, GONE)]
        assert known_bugs.summary([row, *later]) == (
            "5 reported bugs: 2 found, 2 not found, 1 gone here; found of those collected after drawing 5: 1 of 3"
        )
        assert known_bugs.summary([row]) == "1 reported bugs: 1 found"

    def test_later_reports_are_marked(self, reports: Path) -> None:
        """A row says after which drawing its report was collected, whether or not it was found."""
        later = [dataclasses.replace(bug, later=5) for bug in WITH_REPRO if "aot_eager" in bug.targets]
        save(reports, WRITTEN)
        rows = [*known_bugs.rows(later, [known_bugs.read(reports / "fuzz.json")])]
        assert {row.status for row in rows} == {FOUND, MISSED} and {row.later for row in rows} == {5}

    def test_bad_usage(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A target without bugs, and a results file that does not exist, before a script of a bug runs. Regression
        test: the file was read minutes later."""
        assert known_bugs.main(["--target", "tiny"]) == 2
        assert "no bug of the index shows on tiny; choose from cpu, aot_eager" in capsys.readouterr().err
        words = ["--results", str(tmp_path / "none.json"), "--reports", str(tmp_path)]
        monkeypatch.setattr(known_bugs, "gone_here", lambda bugs: pytest.fail("scripts ran before the file was read"))
        assert known_bugs.main(words) == 2
        assert "none.json" in capsys.readouterr().err
        other = tmp_path / "other.json"
        model.save(Run("compile:aot_eager", drawn=ProgramStats(programs=9)), other)
        assert known_bugs.main(["--results", str(other), "--reports", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "other.json: no bug of the index shows on compile:aot_eager; choose from cpu, aot_eager" in said

    @pytest.mark.parametrize("name", ["failures/a.json", "fuzz-progress.json"])
    def test_damaged_files(self, reports: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
        """Text that is no JSON is one sentence, and other data is no finding. Regression test: both were tracebacks."""
        words = ["--results", str(reports / "fuzz.json"), "--check-scripts", "0", "--reports", str(reports)]
        (reports / name).write_text("[1")
        assert known_bugs.main(words) == 2
        assert f"{reports / name}, line 1: not valid JSON" in capsys.readouterr().err
        (reports / name).write_text("[1]")
        assert known_bugs.main(words) == 1

    def test_interrupted(
        self, reports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There is nothing to resume in results. Regression test: the sentence named --resume."""

        def interrupted(bugs: object) -> set[int]:
            raise KeyboardInterrupt

        monkeypatch.setattr(known_bugs, "gone_here", interrupted)
        assert known_bugs.main(["--results", str(reports / "fuzz.json"), "--reports", str(reports)]) == 130
        assert capsys.readouterr().err == "conformance known-bugs: interrupted; nothing was changed\n"


class TestCases:
    """Bugs that runs of op_db show."""

    @pytest.mark.parametrize(
        ("where", "outcome", "status"), [(ON_CPU, Outcome.CRASH, FOUND), (ON_CPU, Outcome.XFAIL, MISSED)]
    )
    def test_a_crash_of_torch_cpu(self, tmp_path: Path, where: str, outcome: Outcome, status: str) -> None:
        """A sample that ends torch CPU's process is written as a program that does not run. A declared failure is not
        found by the run."""
        failure = Failure("crash", where, "an answer", "SIGFPE", sample=0)
        names = {"op": "div", "overload": "trunc_rounding", "family": "binary", "dtype": "int32"}
        result = Result(**names, variant="end_values", layout="as_sampled", outcome=outcome, failures=(failure,))
        model.save(Run("cpu", [result], seconds=60.0), tmp_path / "opinfo.json")
        (row,) = (row for row in known_bugs.rows(WITH_REPRO, [known_bugs.read(tmp_path / "opinfo.json")])
                  if row.number == 138425)  # fmt: skip
        assert row.status == status
        assert (row.programs, row.minutes, row.steps) == ((1, 1.0, 1) if status == FOUND else (None, None, None))

    def test_another_operator(self, tmp_path: Path) -> None:
        """A crash of the same dtype in another operator is another bug."""
        failure = Failure("crash", ON_CPU, "an answer", "SIGFPE", sample=0)
        names = {"op": "remainder", "overload": "", "family": "binary", "dtype": "int32"}
        result = Result(**names, variant="end_values", layout="as_sampled", outcome=Outcome.CRASH, failures=(failure,))
        model.save(Run("cpu", [result], seconds=60.0), tmp_path / "opinfo.json")
        assert all(
            row.status != FOUND for row in known_bugs.rows(WITH_REPRO, [known_bugs.read(tmp_path / "opinfo.json")])
        )


@pytest.mark.slow
class TestRepros:
    @pytest.mark.parametrize("number", [bug.number for bug in WITH_REPRO])
    def test_shows(self, number: int) -> None:
        """Each repro shows its bug, and its fixed side does not. Without a part that the index names, it is gone."""
        (bug,) = (bug for bug in WITH_REPRO if bug.number == number)
        with contextlib.closing(Forks(("torch._dynamo",))) as forks:
            assert repros.runs(bug, forks=forks)
            assert not repros.runs(bug, fixed=True, forks=forks)
            for part in bug.parts:
                assert part.startswith((*DECISIVE, LOWERING, SETTING))
                assert not repros.runs(bug, part, forks=forks), part
