"""Scripts of findings in new processes: each either reproduces its headline or gets a remark in the results."""

from __future__ import annotations

import time

import pytest

from conformance.record import result as model
from conformance.record.finding import Finding
from conformance.record.result import SHOWS, Failure, Outcome, Result, Run
from conformance.report.summary import facts
from conformance.run import scripts
from conformance.run.scripts import confirm, run_alone, said_of

SAID = "print('{}')\nraise SystemExit({})"
ASSERTION = "error of step 1: expected no error, got RuntimeError (0 <= device.index() INTERNAL ASSERT FAILED)"


def result_of(script: str, oracle: str = "value", where: str = "c", **rest: str) -> Result:
    """A failing case whose first failure has this script and headline."""
    ends = {"expected": "1", "actual": "2", **rest}
    return Result(where, "", "program", "", Outcome.FAIL, failures=(Failure(oracle, where, **ends, script=script),))


def said(script: str, *headline: str, limit: float = 20 - scripts.STARTING, **rest: str) -> str:
    """The remark about a script with this headline."""
    result = result_of(script, *headline, **rest)
    return said_of(result, run_alone(script, limit + scripts.STARTING), limit)


class TestSaidOf:
    """The exit code and the reported difference must both match the headline."""

    @pytest.mark.parametrize(
        ("script", "answer"),
        [
            (SAID.format("value of c: expected 1, got 2", 1), SHOWS),
            (SAID.format("value of cd: expected 1, got 2", 1), "it reports another difference: value of cd"),
            (SAID.format("stride of c: expected 1, got 2", 1), "it reports another difference: stride of c"),
            (SAID.format("value of c: expected 1, got 2", 0), "it finds no difference"),
            (SAID.format("device x cannot be loaded", 2), "it ends with exit code 2: device x cannot be loaded"),
            ("raise ValueError('not this')", "it ends with exit code 1: ValueError: not this"),
            ("import os; os.kill(os.getpid(), 11)", "it killed its process with SIGSEGV"),
            ("", "it finds no difference"),
        ],
    )
    def test_of_a_difference(self, script: str, answer: str) -> None:
        """The script must report the oracle and the tensor."""
        assert said(script).startswith(answer)

    def test_another_error_is_not_the_headline(self) -> None:
        """A script must show the error type and text of its headline. Regression test: a script that died of autograd's
        internal assertion matched a headline with another RuntimeError."""
        parts = {"expected": "no error", "actual": "RuntimeError"}
        script = SAID.format(ASSERTION, 1)
        assert said(script, "error", "step 1", detail="sizes do not match at dimension 3", **parts) != SHOWS
        assert said(script, "error", "step 1", detail="7 <= device.index() INTERNAL ASSERT FAILED", **parts) == SHOWS

    def test_an_error_that_no_step_expects(self) -> None:
        """A device runs step by step and its finding names the failing step; its script runs all steps as one
        function."""
        script = SAID.format(ASSERTION.replace("step 1", "the whole run"), 1)
        detail = "7 <= device.index() INTERNAL ASSERT FAILED"
        assert said(script, "error", "step 1", expected="no error", actual="RuntimeError", detail=detail) == SHOWS
        assert said(script, "error", "step 1", expected="TypeError", actual="RuntimeError", detail=detail) != SHOWS

    def test_of_a_death(self) -> None:
        """The process must end with the same signal."""
        dies = {"expected": "an answer", "actual": "killed its process with SIGSEGV"}
        assert said("import os; os.kill(os.getpid(), 11)", "crash", "the program", **dies) == SHOWS
        assert said("import os; os.kill(os.getpid(), 6)", "crash", "the program", **dies) != SHOWS
        assert said(SAID.format("crash of the program: expected 1", 1), "crash", "the program", **dies) != SHOWS

    def test_of_a_hang(self) -> None:
        """A script of a hang must exceed the limit, and any other script must not; its children end with it."""
        hangs, limit = "import subprocess; subprocess.run(['sleep', '100'])", 1 - scripts.STARTING
        began = time.monotonic()
        assert said(hangs, "timeout", "the program", limit=limit) == SHOWS
        assert said(hangs, limit=limit) == "it runs longer than 1 s"
        assert said("print('here')", "timeout", "the program") != SHOWS
        assert time.monotonic() - began < 30

    def test_what_prints_without_end_is_ended(self) -> None:
        """Only the deciding lines of an endless output are stored."""
        ended = run_alone("while True: print('x' * 10_000)", 1.0)
        assert ended.code is None and len(ended.last) <= scripts.LAST

    def test_a_child_that_outlives_it(self) -> None:
        """The child keeps the script's output open, and the reader still returns."""
        began = time.monotonic()
        script = "import subprocess; subprocess.Popen(['sleep', '100']); " + SAID.format("value of c: expected 1", 1)
        assert said(script) == SHOWS
        assert time.monotonic() - began < 30


class TestConfirm:
    def test_what_does_not_show_comes_last(self) -> None:
        """Findings that do not reproduce come last in the report, in its facts and in its JSON. Scripts of declared
        findings do not run."""
        good, bad = SAID.format("value of b: expected 1, got 2", 1), SAID.format("nothing", 0)
        finding = Finding("value / b", count=1)
        listed = [
            result_of(bad, where="a").replace(finding=Finding("value / a", count=9)),
            result_of(good, where="b").replace(finding=finding),
            result_of(bad, where="c").replace(outcome=Outcome.XFAIL),
            result_of("", where="d").replace(finding=Finding("value / d", count=1)),
        ]
        run = Run("cpu", listed)
        assert run.unexpected[0].op == "a"
        confirm(run, 10, 60, 2)
        assert [result.alone for result in run.results] == ["it finds no difference", SHOWS, "", ""]
        assert run.unexpected[-1].op == "a"
        assert "does not reproduce alone: it finds no difference" in run.unexpected[-1].remark
        assert "1 of 2 scripts show their headline" in facts(run)
        assert not run.notes
        again = model.run_from_json(model.run_to_json(run), "here")
        assert [result.alone for result in again.results] == [result.alone for result in run.results]

    def test_a_run_says_how_many_were_left_out(self) -> None:
        """After the time is over, no script starts; with a time of zero, no script runs and no note appears."""
        slow = "import time; time.sleep(2)"
        run = Run("cpu", [result_of(slow, where=name) for name in "abc"])
        confirm(run, 10, 0.5, 1)
        assert run.notes == ["2 scripts not run, since the time was over: give --check-scripts more"]
        silent = Run("cpu", [result_of(slow)])
        confirm(silent, 10, 0, 1)
        assert not silent.notes and not silent.results[0].alone

    def test_what_no_script_can_show_is_not_run(self) -> None:
        """A script cannot count kernels."""
        run = Run("cpu", [result_of(SAID.format("", 0), "kernels")])
        confirm(run, 10, 60, 1)
        assert not run.results[0].alone and not run.notes
