"""Shortfalls of a session: scripts, the probe of a profile, trials, minimized failures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.declare.probed import UNENDED, Probe
from conformance.record import result as model
from conformance.record.missing_ops import Attempt
from conformance.record.missing_ops import AttemptOutcome as Answer
from conformance.record.result import NOT_RUN, SHOWS, Failure, Outcome, Result, Run
from conformance.record.shortfall import FINDINGS, SCRIPTS, Shortfall
from conformance.run import profile_trials, scripts, session
from conformance.run.cases import SILENT, CaseOptions, CaseRun
from conformance.run.session import Session
from conformance.sources.fuzzing.command import main as fuzz

PROFILE = """[target]
kind = "cpu"

[[declare]]
scope = {operator = "aten::neg", op = "neg", step = ["neg_", "neg"]}
property = "unsupported"
reason = "no kernel"
"""


def case(alone: str = "", cut: bool = False, **also_on: str) -> Result:
    """A failed case whose script has this verdict."""
    failure = Failure("value", "result", script="print()", cut=cut)
    return Result("add", "", "forward", "", Outcome.FAIL, failures=(failure,), alone=alone, also_on=also_on)


def counted(run: Run, check_scripts: float | None = None, before: tuple[Shortfall, ...] = ()) -> list[Shortfall]:
    """The shortfalls that a session notes in a run."""
    of: Any = SimpleNamespace(args=SimpleNamespace(check_scripts=check_scripts), not_judged=[*before])
    Session._count_shortfalls(of, run)
    assert not of.not_judged, "a second run must not get them again"
    return run.not_judged


class TestScripts:
    def test_scripts_without_time_are_counted(self) -> None:
        """A script that can show no headline needs no time, so it does not count."""
        run = Run("cpu", [case(SHOWS), case(NOT_RUN), case(NOT_RUN), case(scripts.NO_SCRIPT_CAN), case()])
        assert counted(run) == [Shortfall(SCRIPTS, 2, 3, "--check-scripts")]

    def test_scripts_on_another_torch(self) -> None:
        run = Run("cpu", [case(SHOWS, **{"torch 2.9": NOT_RUN}), case(SHOWS, **{"torch 2.9": SHOWS})])
        assert counted(run) == [Shortfall(f"{SCRIPTS} under torch 2.9", 1, 2, "--check-scripts")]

    def test_the_user_wants_none(self) -> None:
        assert counted(Run("cpu", [case(NOT_RUN)]), check_scripts=0.0) == []

    def test_all_have_run(self) -> None:
        assert counted(Run("cpu", [case(SHOWS), case("it finds no difference")])) == []


class TestSession:
    def test_a_failure_that_is_not_minimized_to_the_end(self) -> None:
        run = Run("cpu", [case(SHOWS, cut=True), case(SHOWS)])
        assert counted(run) == [Shortfall(FINDINGS, 1, 2, "time of one finding")]

    def test_an_interrupted_run_says_only_that(self) -> None:
        late = Shortfall("cases of op_db", 1, 2)
        run = Run("cpu", [case(NOT_RUN, cut=True)], interrupted=2, not_judged=[late])
        Session._count_shortfalls(SimpleNamespace(not_judged=[]), run)  # type: ignore[arg-type]
        assert run.not_judged == []

    @pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 1)])
    def test_a_probe_that_did_not_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
    ) -> None:
        """A profile whose declarations were not probed is trusted, and the run says that it was."""
        late = Probe(seconds=60.0, unmade=f"{UNENDED} within 60 s")
        monkeypatch.setattr(session, "resolve", lambda spec, *_, **__: (spec, late))
        assert fuzz(["--target", "cpu", "--programs", "20", "--reports", str(tmp_path), *words]) == code
        rows = model.load(tmp_path / "fuzz.json").not_judged
        assert rows == [Shortfall("probes of the profile's declarations", 1, 1, "60 s")]

    @pytest.mark.parametrize(("answer", "late"), [("the time was over", True), ("there is no such subject", False)])
    def test_a_trial_without_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, late: bool
    ) -> None:
        """A trial without time is a shortfall of the run, and an impossible trial is a note."""
        untried = lambda pool, tasks, seconds: (Attempt(task.name, Answer.UNTRIED, said=answer) for task in tasks)  # noqa: E731
        monkeypatch.setattr(profile_trials, "trials", untried)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "conformance.toml").write_text(PROFILE)
        assert fuzz(["--programs", "20", "--reports", str(tmp_path)]) == 0
        run = model.load(tmp_path / "fuzz.json")
        rows = [Shortfall("trials of what the profile declares lacking", 1, 1, "60 s")]
        assert run.not_judged == (rows if late else [])
        assert any("could not be made" in note for note in run.notes) is not late

    def test_a_failure_that_is_not_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`--rerun-failures` tells a flaky failure from others, which needs time."""

        def end_late(running: CaseRun, pool: object) -> bool:
            running.until, running.again = 0.0, [SimpleNamespace(id="a case")]
            return False

        monkeypatch.setattr(CaseRun, "_run_cases", end_late)
        running = CaseRun("cpu", "cases", CaseOptions(reruns=1, seconds=1.0), SILENT)
        running.run(SimpleNamespace(busy=list))  # type: ignore[arg-type]
        assert running.result.not_judged == [Shortfall("failures that --rerun-failures repeats", 1, 1)]

    def test_a_failure_that_is_not_tried_on_pytorch_itself(self) -> None:
        """Two cases failed, and only one is tried on `passthrough` in time. Formerly a run went on there for as long as
        its cases took, beyond `--minutes`."""
        asked = list[float | None]()

        class Passthrough:
            def __enter__(self) -> Passthrough:
                return self

            def __exit__(self, *raised: object) -> None:
                pass

            def run(self, cases: list[Any], seconds: float | None = None) -> list[Result]:
                asked.append(seconds)
                return [case()]

        running = CaseRun("cpu", "cases", CaseOptions(seconds=5.0), SILENT)
        running.result.results = [case(), case().replace(op="sub")]
        running.chosen = {result.id: result for result in running.result.results}
        running.mark_torch_bugs("passthrough", lambda layer, jobs: Passthrough())  # type: ignore[arg-type, return-value]
        assert asked[0] is not None
        assert 0 < asked[0] <= 5
        assert running.result.not_judged == [Shortfall("findings on passthrough", 1, 2)]
        assert [result.layer for result in running.result.results] == ["passthrough", ""]
