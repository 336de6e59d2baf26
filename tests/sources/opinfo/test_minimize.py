"""Minimization of failing samples: planted faults end as short scripts that show the same headline in a new process."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from conformance.record.causes import pattern_of_result
from conformance.record.result import SHOWS, Failure, Outcome, Result, Run
from conformance.record.sentences import sentence
from conformance.run.messages import Death, ExitReason, Limits, TaskProgress
from conformance.run.program_workers import ProgramWorkers
from conformance.run.script_process import Ended, Forks, run_alone
from conformance.run.scripts import statement_about
from conformance.run.shrink_progress import ShrinkProgress
from conformance.run.shrinking import LocalShrinker
from conformance.sources.opinfo import minimize, runner
from conformance.sources.opinfo.finding import LONGEST_LINES
from conformance.sources.opinfo.plan import Case, Selection
from conformance.sources.opinfo.runner import Request, run
from conformance.standalone.script import own_part
from tests.sources.opinfo.conftest import PLANTED

LIMITS = Limits(unit=20.0, compiling=20.0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(PLANTED))


@pytest.fixture(scope="module")
def alone() -> Iterator[Callable[[str], Ended]]:
    """Runner of scripts in forks of a process that has imported torch, where the planted target can be imported."""
    with contextlib.closing(Forks()) as forks:
        yield lambda script: run_alone(f"import sys\nsys.path.append({str(PLANTED)!r})\n{script}", 60.0, forks=forks)
        assert forks.fit


def results(*ops: str, variants: Sequence[str] = ("forward",), layouts: Sequence[str] = ("as_sampled",)) -> Run:
    """The run of these ops on the planted target."""
    selection = Selection(ops, ("float32",), tuple(variants), tuple(layouts), 3)
    return run("planted", Request([selection], limits=LIMITS))


class TestCulprit:
    def test_dropouts_have_one_cause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sample too large for a short script still names the operator to blame, also for the other dtypes.
        Regression test: a wrong `bernoulli_` was a cause of its own for each dropout."""
        monkeypatch.setattr(minimize, "SECONDS", 100.0)
        names = ("nn.functional.dropout", "nn.functional.alpha_dropout")
        selection = Selection(names, ("float32", "float16"), ("forward",), ("as_sampled",), 3)
        spec = "device:cpu,import=tests.planted.lying_modes,call=bernoulli,without=version"
        done = run(spec, Request([selection], limits=LIMITS))
        assert [result.outcome for result in done.results] == [Outcome.FAIL] * 4
        assert {pattern_of_result(result) for result in done.results} == {"value of bernoulli"}
        assert "0 of 2 failures minimized (not smaller, but with the operator to blame: 2)" in done.notes


@pytest.mark.usefixtures("here")
class TestPlanted:
    @pytest.mark.parametrize(
        ("op", "variant", "layout", "call", "line"),
        [
            ("add", "forward", "transposed", "torch.add(Tensor[] float32, Tensor[] float32)", "torch.add(a, a)"),
            ("sub", "method", "gaps", "torch.Tensor.sub(Tensor[2, 1] float32, Tensor[2] float32)", "a.sub(b)"),
            ("mul", "backward", "as_sampled", "torch.mul(Tensor[] float32, Tensor[] float32)", "torch.mul(a, a)"),
            (
                "cos",
                "out",
                "expanded",
                "torch.cos(Tensor[2] float32 stride (0,), out=Tensor[] float32)",
                "torch.cos(a, out=b)",
            ),
        ],
    )
    def test_smallest_script(
        self, op: str, variant: str, layout: str, call: str, line: str, alone: Callable[[str], Ended]
    ) -> None:
        """The script has plain inputs, and at most 25 lines before the comparison part. Run alone, it exits with code 1
        and reports the headline, which is the sentence of its docstring."""
        (result,) = results(op, variants=[variant], layouts=[layout]).results
        first = result.failures[0]
        own = own_part(first.script)
        assert first.call == call and line in own
        assert len(own.splitlines()) <= LONGEST_LINES
        assert own.startswith(f'"""{sentence(first)[:90]}')
        ended = alone(first.script)
        assert ended.code == 1 and statement_about(result, ended, 60.0) == SHOWS, ended

    def test_crash(self, alone: Callable[[str], Ended]) -> None:
        """A crash is minimized by candidates that end their workers."""
        (result,) = results("atan").results
        assert result.outcome is Outcome.CRASH
        assert result.failures[0].call == "torch.atan(Tensor[] float32)"
        assert statement_about(result, alone(result.failures[0].script), 60.0) == SHOWS

    def test_once_for_each_operator_and_pattern(self) -> None:
        """The cases of one operator and pattern are minimized once, with forward calls in OpInfo's layout first. The
        others keep the script of their sample."""
        minimized = results("add", variants=["backward", "forward", "method"], layouts=["gaps", "as_sampled"])
        small = [result.id for result in minimized.results if "Minimized from" in result.failures[0].script]
        assert len(minimized.results) == 6 and small == ["add::float32::forward::as_sampled"]

    def test_other_result_of_out(self, alone: Callable[[str], Ended]) -> None:
        """A call that returns another tensor than `out` shows in the program."""
        (result,) = results("add", variants=["out"]).results
        assert result.failures[0].oracle == "alias"
        assert "result = torch.add(a, a, out=c)" in result.failures[0].script
        assert statement_about(result, alone(result.failures[0].script), 60.0) == SHOWS

    def test_derivative_in_forward_mode(self, alone: Callable[[str], Ended]) -> None:
        """The script has one helper function, and one number as the tangent, the cotangent and the operand."""
        (result,) = results("exp", variants=["forward_over_backward"]).results
        script = result.failures[0].script
        assert "forward_over_backward(torch.exp, [a], [a], a)" in script and "op_db" not in own_part(script)
        assert statement_about(result, alone(script), 60.0) == SHOWS

    def test_culprit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A minimized failure names the operator whose answer by torch CPU mends it, as a drawn program's does."""
        monkeypatch.setenv("TOY_FAULTS", "relu")
        request = Request([Selection(("nn.functional.relu",), ("float32",), samples=2)], limits=LIMITS)
        [result] = run("device:toy,import=toy_device,without=set_+unfold", request).results
        assert (result.failures[0].culprit, pattern_of_result(result)) == ("relu", "value of relu")

    def test_reason(self) -> None:
        """A call that no program can hold keeps the script of its sample, and the notes of the run say why."""
        case = Case("lu_unpack", "", "", "float32", "forward", "as_sampled")
        failure = Failure("value", "result[0]", "1.0", "2.0", "1 of 4 elements differ", script="from op_db")
        run = Run("planted", [case.result(Outcome.FAIL, samples=1, failed=1, failures=(failure,))])
        minimize.minimize(run, {case.id: case}, LIMITS)
        reason = "it cannot be written as a program: a result whose sign or phase is free: 1"
        assert run.notes == [f"0 of 1 failure minimized ({reason})"]
        assert run.results[0].failures == (failure,)

    def test_time_of_a_limited_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run with a time limit and a failure ends its cases early, so that time is left to minimize."""
        monkeypatch.setattr(runner, "SHARE", 1.0)
        selection = Selection(("add", "sin", "sub"), ("float32",), samples=2)
        minimized = run("planted", Request([selection], limits=LIMITS, seconds=600.0))
        assert [result.op for result in minimized.results] == ["add"]
        assert minimized.shortfall == "Not judged: 2 of 3 cases of op_db (--minutes)."
        assert "torch.add(a, a)" in minimized.results[0].failures[0].script


class TestOwner:
    """The process that owns the workers."""

    def test_no_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run without an undeclared failure starts no worker."""
        monkeypatch.setattr(minimize, "_minimized", None)
        passed = Result("add", "float32", "forward", "as_sampled", Outcome.PASS)
        known = passed.replace(op="mul", outcome=Outcome.XFAIL, failures=(Failure("value", "result", "1", "2"),))
        layer = known.replace(op="sub", outcome=Outcome.FAIL, layer="compile:eager")
        kernels = known.replace(op="div", outcome=Outcome.FAIL, failures=(Failure("kernels", "the whole run"),))
        minimized = Run("cpu", [passed, known, layer, kernels])
        cases = {
            result.id: Case(result.op, "", "", result.dtype, result.variant, result.layout)
            for result in minimized.results
        }
        minimize.minimize(minimized, cases, LIMITS)
        assert minimized.results == [passed, known, layer, kernels] and not minimized.notes

    def test_time_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run whose time is over starts no worker, and says so."""
        monkeypatch.setattr(minimize, "_minimized", None)
        failed = Result("add", "float32", "forward", "as_sampled", Outcome.FAIL, failures=(Failure("value", "result"),))
        minimized = Run("cpu", [failed])
        minimize.minimize(
            minimized, {failed.id: Case("add", "", "", "float32", "forward", "as_sampled")}, LIMITS, seconds=0
        )
        assert minimized.shortfall == "Not judged: 1 of 1 findings in their smallest form (--minutes)."

    def test_no_time_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure that its worker had no time for is counted as such. Regression test: its reason was "NoneType:
        None"."""
        monkeypatch.setattr(minimize, "_minimized", lambda target, cases, chosen, *_: [(id, "") for id in chosen])
        failed = Result("add", "float32", "forward", "as_sampled", Outcome.FAIL, failures=(Failure("value", "result"),))
        minimized = Run("cpu", [failed])
        minimize.minimize(minimized, {failed.id: Case("add", "", "", "float32", "forward", "as_sampled")}, LIMITS)
        assert minimized.shortfall == "Not judged: 1 of 1 findings in their smallest form (120 s)."

    @pytest.mark.parametrize(("same", "best"), [([ExitReason.CRASH], "smaller"), ([], "best")])
    def test_after_a_death(self, same: list[ExitReason], best: str) -> None:
        """The candidate that ended a worker is the smallest failing program of a crash. Of a wrong value it is not,
        and no worker tries it again."""
        note = TaskProgress(1, json.dumps(["best", "smaller"]))
        after = ShrinkProgress().after(Death(ExitReason.CRASH, "died", note), same)
        assert after == ShrinkProgress(best, frozenset({"smaller"}), 1)
        assert after.after(Death(ExitReason.CRASH, "died"), same).best == best

    def test_no_time(self) -> None:
        """Without time no trial begins."""
        case, failure = Case("add", "", "", "float32", "forward", "as_sampled"), Failure("value", "result", "1", "2")
        with ProgramWorkers("cpu", Limits()) as workers, LocalShrinker(workers, minimize.TRIALS) as shrinker:
            assert minimize.minimized(shrinker, case, failure, 0.0) == ""

    @pytest.mark.usefixtures("here")
    def test_a_program_that_ends_the_worker(self) -> None:
        """A failure whose program ends the worker, unlike its sample, stays as it is, with the reason."""
        case, failure = Case("atan", "", "", "float32", "forward", "as_sampled"), Failure("value", "result", "1", "2")
        with ProgramWorkers("planted", LIMITS) as workers, LocalShrinker(workers, minimize.TRIALS) as shrinker:
            answer = minimize.minimized(shrinker, case, failure, math.inf)
        assert answer == "its program ends the worker: killed its process with SIGSEGV"
