"""Scripts of findings in new processes: each either reproduces its headline or gets a remark in the results."""

from __future__ import annotations

import math
import pathlib
import sys
import time

import pytest

from conformance.record import result as model
from conformance.record.errors import UsageError
from conformance.record.finding import DRAWING, Finding
from conformance.record.result import NOT_RUN, SHOWS, Failure, Outcome, Result, Run
from conformance.report.summary import facts
from conformance.run import messages, scripts
from conformance.run.processes import can_fork
from conformance.run.script_process import run_alone
from conformance.run.scripts import NO_SCRIPT_CAN, ScriptChecks, confirm, statement_about

LOST = "it finds no difference"
SAID = "print('{}')\nraise SystemExit({})"
ERROR = "error of the whole run: expected no error, got RuntimeError ({})"
ASSERTION = "error of step 1: expected no error, got RuntimeError (0 <= device.index() INTERNAL ASSERT FAILED)"


def result_of(script: str, oracle: str = "value", where: str = "c", **rest: str) -> Result:
    """A failing case whose first failure has this script and headline."""
    ends = {"expected": "1", "actual": "2", **rest}
    return Result(where, "", "program", "", Outcome.FAIL, failures=(Failure(oracle, where, **ends, script=script),))


def said(script: str, *headline: str, limit: float = 20 - scripts.STARTING, **rest: str) -> str:
    """The remark about a script with this headline."""
    result = result_of(script, *headline, **rest)
    return statement_about(result, run_alone(script, limit + scripts.STARTING), limit)


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

    def test_an_error_that_begins_with_a_quoted_name(self) -> None:
        """The script prints the error's text in brackets; the headline has no brackets."""
        parts = {"expected": "NotImplementedError", "actual": "no error"}
        text = '"max_pool1d_impl" not implemented for Int'
        script = SAID.format(f"error of step 1: expected NotImplementedError, got no error ({text})", 1)
        assert said(script, "error", "step 1", detail=text, **parts) == SHOWS

    def test_an_error_that_no_step_expects(self) -> None:
        """A device runs step by step and its finding names the failing step; its script runs all steps as one
        function."""
        script = SAID.format(ASSERTION.replace("step 1", "the whole run"), 1)
        detail = "7 <= device.index() INTERNAL ASSERT FAILED"
        assert said(script, "error", "step 1", expected="no error", actual="RuntimeError", detail=detail) == SHOWS
        assert said(script, "error", "step 1", expected="TypeError", actual="RuntimeError", detail=detail) != SHOWS

    def test_a_custom_operator_has_another_name(self) -> None:
        """A script defines custom operators in its own namespace. Regression test: the headline of an operator without
        a batching rule did not match."""
        text = "Batching rule not implemented for {}::add_to; the fallback path doesn't work"
        script = f"print({ERROR.format(text.format('script'))!r})\nraise SystemExit(1)"
        parts = {"expected": "no error", "actual": "RuntimeError"}
        assert said(script, "error", "the whole run", detail=text.format("conformance"), **parts) == SHOWS
        assert said(script, "error", "the whole run", detail=text.format("other"), **parts) != SHOWS

    def test_of_a_death(self) -> None:
        """The process must end with the same signal."""
        dies = {"expected": "an answer", "actual": "killed its process with SIGSEGV"}
        assert said("import os; os.kill(os.getpid(), 11)", "crash", "the program", **dies) == SHOWS
        assert said("import os; os.kill(os.getpid(), 6)", "crash", "the program", **dies) != SHOWS
        assert said(SAID.format("crash of the program: expected 1", 1), "crash", "the program", **dies) != SHOWS

    def test_of_a_device_that_leaves_python(self) -> None:
        """`sys.exit()` in an operator ends the script with 0, as a script ends that finds nothing."""
        dies = {"expected": "an answer", "actual": "ended its process with exit code 0"}
        assert said("import sys; sys.exit()", "crash", "the program", **dies) == SHOWS
        said_nothing = said("print('no difference here: either it is mended')", "crash", "the program", **dies)
        assert said_nothing == "it finds no difference"

    def test_of_a_lost_device(self) -> None:
        """The script of a program that lost the device must show the error that did it."""
        dies = {"expected": "an answer", "actual": f"{messages.LOST} (RuntimeError: assertion failed in sort)"}
        shown = "error of the whole run: expected no error, got RuntimeError ({})"
        assert said(SAID.format(shown.format("assertion failed in sort"), 1), "crash", "the program", **dies) == SHOWS
        assert said(SAID.format(shown.format("out of memory"), 1), "crash", "the program", **dies) != SHOWS

    def test_of_a_hang(self) -> None:
        """A script of a hang must exceed the limit, and any other script must not. Its child ends with it: otherwise
        the output would stay open for longer than a test may take."""
        hangs, limit = "import subprocess; subprocess.run(['sleep', '10000'])", 1 - scripts.STARTING
        assert said(hangs, "timeout", "the program", limit=limit) == SHOWS
        assert said(hangs, limit=limit) == "it runs longer than 1 s"
        assert said("print('here')", "timeout", "the program") != SHOWS

    def test_a_child_that_outlives_it(self) -> None:
        """The child keeps the script's output open for longer than a test may take, and the reader still returns."""
        script = "import subprocess; subprocess.Popen(['sleep', '10000']); " + SAID.format("value of c: expected 1", 1)
        assert said(script) == SHOWS


class TestConfirm:
    def test_what_does_not_show_comes_last(self) -> None:
        """Findings that do not reproduce come last in the report, in its facts and in its JSON. Scripts of declared
        findings run too."""
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
        assert [result.alone for result in run.results] == [LOST, SHOWS, LOST, ""]
        assert run.unexpected[-1].op == "a"
        assert "does not reproduce alone: it finds no difference" in run.unexpected[-1].remark
        assert "1 of 3 scripts show their headline" in facts(run)
        assert not run.notes
        again = model.run_from_json(model.run_to_json(run), "here")
        assert [result.alone for result in again.results] == [result.alone for result in run.results]

    @pytest.mark.parametrize(("seconds", "ended"), [(0.5, 1), (0.0, 0)])
    def test_scripts_without_time_are_marked(self, seconds: float, ended: int) -> None:
        """After the time is over, no script starts. Each result whose script did not start has a mark, and ranks behind
        the results whose script shows the headline and before those whose script does not. Regression test: such
        results had no mark."""
        slow = "import time; time.sleep(2); " + SAID.format("value of a: expected 1, got 2", 1)
        run = Run("cpu", [result_of(slow, where=name) for name in "abc"])
        confirm(run, 10, seconds, 1)
        assert [result.alone for result in run.results] == [*[SHOWS] * ended, *[NOT_RUN] * (3 - ended)]
        assert [result.remark for result in run.results][ended:] == [NOT_RUN] * (3 - ended)
        assert f"{3 - ended} scripts not run: --check-scripts gives them more seconds" in facts(run)
        lost = result_of("", where="_").replace(alone=LOST)
        shown = result_of("", where="z").replace(alone=SHOWS)
        ranked = Run("cpu", [lost, run.results[2], shown]).unexpected
        assert [result.op for result in ranked] == ["z", "c", "_"]

    def test_a_hang_needs_its_whole_time(self) -> None:
        """A script that shows a hang runs for the limit and the time of starting, 40 s here. Formerly it was started in
        the last seconds of `--minutes 2`, which then took three."""
        hang = result_of("import time; time.sleep(1000)", "timeout")
        run = Run("cpu", [hang, result_of(SAID.format("value of a: expected 1, got 2", 1), where="a")])
        confirm(run, 10, 30, 1)
        assert [result.alone for result in run.results] == [NOT_RUN, SHOWS]

    def test_what_no_script_can_show_is_marked(self) -> None:
        """A script cannot count kernels or draw a program, and has no memory limit. But it can measure its memory
        against a bound."""
        bound = {"expected": "at most 3 MiB", "actual": "9 MiB"}
        within = SAID.format("memory of result: expected at most 3 MiB, got 9 MiB ()", 1)
        ended = {"expected": "an answer", "actual": "took more memory than it may"}
        run = Run("cpu", [result_of("x", "kernels"), result_of("x", "memory", "b", **ended),
                          result_of("x", "timeout", DRAWING, **ended),
                          result_of(within, "memory", "result", **bound)])  # fmt: skip
        confirm(run, 10, 60, 1)
        assert [result.alone for result in run.results] == [NO_SCRIPT_CAN, NO_SCRIPT_CAN, NO_SCRIPT_CAN, SHOWS]
        assert facts(run) == ["1 of 1 script shows its headline"]

    def test_the_first_script_of_each_cause_is_first(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
    ) -> None:
        """A user needs one script of each cause before a second one of any. Scripts of declared findings come last."""
        order = tmp_path / "order"

        def finding(op: str, pattern: str, steps: int, count: int = 1) -> Result:
            script = f"open({str(order)!r}, 'a').write('{op} '); " + SAID.format("value of c: expected 1", 1)
            cause = Finding(f"value / {op}", property="value", op=op, pattern=pattern, steps=steps, count=count)
            return result_of(script).replace(finding=cause)

        results = [finding("a1", "a", 1, 9), finding("a2", "a", 2, 9), finding("a3", "a", 3, 9),
                   finding("b1", "b", 5), finding("b2", "b", 6),
                   finding("k1", "k", 1, 99).replace(outcome=Outcome.XFAIL)]  # fmt: skip
        run = Run("cpu", list(reversed(results)))
        confirm(run, 10, 60, 1)
        assert order.read_text().split() == ["a1", "b1", "a2", "b2", "a3", "k1"]
        assert {result.alone for result in run.results} == {SHOWS}

    def test_a_fork_only_confirms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A script that fails only because it runs in a fork shows its headline as `python FILE`. A hang is not run in
        a fork at all."""
        said = "value of c: expected 1, got 2"
        only_alone = f"import sys; bad = 'torch' not in sys.modules; print('{said}' * bad); raise SystemExit(bad)"
        hangs = "import sys, time\nif 'torch' in sys.modules: time.sleep(100)\nprint('it ends')"
        run = Run("cpu", [result_of(only_alone), result_of(hangs, "timeout", "the program")])
        monkeypatch.setattr(scripts, "STARTING", 5.0)
        confirm(run, 5, 60, 1)
        assert [result.alone for result in run.results] == [SHOWS, LOST]

    @pytest.mark.skipif(not can_fork(), reason="scripts are no forks here")
    def test_a_second_run_is_last(self, tmp_path: pathlib.Path) -> None:
        """A script that shows no headline in a fork runs again after all others: its second run may take long."""
        order = tmp_path / "order"
        notes = f"open({str(order)!r}, 'a').write('{{}} '); "
        lost = result_of(notes.format("lost") + SAID.format("", 0)).replace(outcome=Outcome.CRASH)
        shows = result_of(notes.format("shows") + SAID.format("value of d: expected 1, got 2", 1), where="d")
        run = Run("cpu", [lost, shows])
        confirm(run, 10, 60, 1)
        assert order.read_text().split() == ["lost", "shows", "lost"]
        assert [result.alone for result in run.results] == [LOST, SHOWS]


class TestScriptChecks:
    """Scripts that a campaign runs while it draws."""

    @staticmethod
    def counted(count: pathlib.Path, notes: str = "") -> Result:
        """A result whose script shows its headline, and adds a character to a file when it runs."""
        script = f"{notes}open({str(count)!r}, 'a').write('x'); " + SAID.format("value of c: expected 1, got 2", 1)
        return result_of(script)

    def test_a_script_runs_once(self, tmp_path: pathlib.Path) -> None:
        """Neither the campaign nor the end of the run runs it again, unless its code has changed. The number of
        programs in its comments changes all the time."""
        count = tmp_path / "count"
        with ScriptChecks("cpu", 20) as checks:
            assert checks.run(self.counted(count, "# FAIL in 1 program\n"), math.inf) == SHOWS
            assert checks.run(self.counted(count, "# FAIL in 2 programs\n"), math.inf) == SHOWS
        run = Run("cpu", [self.counted(count, "# FAIL in 3 programs\n"), self.counted(count, "pass\n").replace(op="d")])
        assert count.read_text() == "x"
        confirm(run, 20, 0.0, 1, checks.known)
        assert [result.alone for result in run.results] == [SHOWS, NOT_RUN]
        confirm(run, 20, 60, 1, checks.known)
        assert [result.alone for result in run.results] == [SHOWS, SHOWS] and count.read_text() == "xx"

    def test_the_end_of_the_time(self) -> None:
        """A script that would run longer than the campaign has no answer, and is not taken for a hang."""
        with ScriptChecks("cpu", 20) as checks:
            assert checks.run(result_of("import time; time.sleep(1000)"), time.time() + 0.1) == ""
        assert checks.known == {}

    def test_the_end_of_minutes(self) -> None:
        """A script that runs at the end is killed, and counts as not run. Regression test: `--minutes 2` could take the
        limit of a script longer."""
        run = Run("cpu", [result_of("import time; time.sleep(1000)")])
        confirm(run, 600, 60, 1, longest=0.2)
        assert [result.alone for result in run.results] == [NOT_RUN]


FAKE = """#!{python}
import sys
if "-c" in sys.argv:
    print("9.9.9")
else:
    print("{said}")
    sys.exit({code})
"""


def fake_python(folder: pathlib.Path, said: str, code: int) -> str:
    """An interpreter with torch 9.9.9 under which every script prints this and ends with this code."""
    path = folder / f"python{code}"
    path.write_text(FAKE.format(python=sys.executable, said=said, code=code))
    path.chmod(0o755)
    return str(path)


class TestAlsoOn:
    @pytest.mark.parametrize(
        ("reported", "code", "remark"),
        [
            ("value of c: expected 1, got 2", 1, f"torch 9.9.9: {SHOWS}"),
            ("agrees", 0, "torch 9.9.9: it finds no difference"),
        ],
    )
    def test_another_version(self, tmp_path: pathlib.Path, reported: str, code: int, remark: str) -> None:
        """The remark of a finding names the other torch, and whether its script shows the headline there."""
        run = Run("cpu", [result_of(SAID.format("value of c: expected 1, got 2", 1)).replace(alone=SHOWS)])
        scripts.also_on(run, scripts.torch_of([fake_python(tmp_path, reported, code)]), 20, 60)
        assert run.results[0].remark == remark
        assert model.run_from_json(model.run_to_json(run), "x").results == run.results

    def test_this_version(self) -> None:
        """The same interpreter shows what it showed before."""
        import torch

        run = Run("cpu", [result_of(SAID.format("value of c: expected 1, got 2", 1)).replace(alone=SHOWS)])
        scripts.also_on(run, scripts.torch_of([sys.executable]), 20, 60)
        assert run.results[0].also_on == {f"torch {torch.__version__}": SHOWS}

    def test_only_scripts_that_show_here(self, tmp_path: pathlib.Path) -> None:
        run = Run("cpu", [result_of("").replace(alone="it finds no difference")])
        scripts.also_on(run, {fake_python(tmp_path, "", 0): "9.9.9"}, 20, 60)
        assert run.results[0].also_on == {}

    @pytest.mark.parametrize(("python", "why"), [("no-such-python", "cannot be started"), ("true", "not import torch")])
    def test_no_python_with_torch(self, python: str, why: str) -> None:
        with pytest.raises(UsageError, match=why):
            scripts.torch_of([python])
