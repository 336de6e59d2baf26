"""The opinfo command: workers, files, exit codes, bad usage, and interruption without lost results."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.record import errors, names
from conformance.record import result as model
from conformance.record.result import Outcome, Result, Run
from conformance.run.journal import NAME, Journal
from conformance.sources.opinfo import plan, runner
from tests.patience import stretched, wait_until
from tests.run import signals
from tests.sources.opinfo.conftest import PLANTED

if TYPE_CHECKING:
    from .conftest import Command

TORCH = "torch-" + ".".join(importlib.metadata.version("torch").split(".")[:2])
"""Folder of baselines for the installed torch."""


def select(*catalog: plan.Entry, **chosen: Any) -> list[plan.Case]:
    return plan.select(catalog, [plan.Selection(**chosen)])


def journaled(command: Command) -> list[str]:
    """Ops in the journal of a running or killed run."""
    path = command.reports / "opinfo-progress.jsonl"
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return [model.result_from_json(json.loads(line)["result"]).name for line in lines]


class TestExpectationsFile:
    """Unknown names in the file are rejected before anything runs. Regression test: such an entry declared nothing."""

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{op = "sni"}', "t.toml, line 1: unknown op 'sni'; did you mean sin"),
            ('{op = "qrr"}', "t.toml, line 1: unknown op 'qrr'; did you mean qr?"),
            ('{op = "sin", variant = ["forwrad"]}', "line 1: unknown variant 'forwrad'; did you mean forward"),
            ('{op = "ops.aten.sni"}', ""),  # outside op_db, so this run cannot check the name
        ],
    )
    def test_a_misspelt_name(self, line: str, message: str, tmp_path: Path) -> None:
        """The error names the line and similar names."""
        (tmp_path / "t.toml").write_text(f'[[declare]]\nscope = {line}\nproperty = "*"\nreason = "r"\n')
        catalog = [plan.Entry("sin", "", "unary", frozenset({"float32"}), frozenset(), frozenset({"forward"}))]
        with pytest.raises(errors.ReportError, match=re.escape(message)) if message else contextlib.nullcontext():
            runner.check_names(tmp_path / "t.toml", catalog)

    @pytest.mark.parametrize(
        ("ops", "sentences"),
        [
            ('["qr", "cholesky"]', ["1 expectation skipped, since torch 2.15.0 has no qr, cholesky"]),
            ('"q?"', ["1 expectation skipped, since torch 2.15.0 has no q?"]),
            ('["qr", "sin"]', []),
        ],
    )
    def test_an_op_of_another_torch(
        self, ops: str, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An entry whose ops only other versions of torch have is skipped and counted. It formerly ended the run."""
        monkeypatch.setattr("conformance.record.versions.installed", lambda: "2.15.0")
        (tmp_path / "t.toml").write_text(f'[[declare]]\nscope = {{op = {ops}}}\nproperty = "*"\nreason = "r"\n')
        catalog = [plan.Entry("sin", "", "unary", frozenset({"float32"}), frozenset(), frozenset({"forward"}))]
        assert runner.check_names(tmp_path / "t.toml", catalog) == sentences

    @pytest.mark.slow
    def test_the_command_refuses_it(self, command: Command, tmp_path: Path) -> None:
        """The command exits with code 2 and writes nothing."""
        (tmp_path / "t.toml").write_text('[[declare]]\nscope = {op = "sni"}\nproperty = "*"\nreason = "r"\n')
        done = command("--target", "cpu", "--op", "sin", "--expectations", str(tmp_path / "t.toml"))
        assert (done.returncode, "unknown op 'sni'" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
        assert not list(command.reports.glob("conformance.html"))


class TestResume:
    """A killed or stopped run continues with `--resume`."""

    OPS = ("sinh", "sin", "cosh", "acosh")
    WORDS = ("--target", "planted", *(word for op in OPS for word in ("--op", op)), "--samples", "2")

    @pytest.mark.slow
    def test_each_case_once(self, command: Command) -> None:
        """After kill -9, `--resume` runs the remaining cases only; `sinh` fails once and then passes."""
        process = subprocess.Popen(
            command.words(*self.WORDS), env=command.environment, cwd=command.folder, stdout=subprocess.DEVNULL
        )
        wait_until(lambda: len(journaled(command)) == len(self.OPS) - 1, "all cases but the hanging `acosh` are noted")
        process.kill()
        process.wait()
        with open(command.reports / "opinfo-progress.jsonl", "a") as journal:
            journal.write('{"seconds": 1, "resu')  # killed in the middle of a line
        other = command(*self.WORDS, "--resume", "--dtype", "float64")
        assert (other.returncode, "is of another run" in other.stderr) == (2, True), other.stderr
        done = command(*self.WORDS, "--resume", "--limit", "3", "--compile-limit", "3")
        assert done.returncode == 1, done.stderr
        run = model.load(command.reports / "opinfo.json")
        assert {r.name: str(r.outcome) for r in run.results} == {
            "sinh": "FAIL",
            "sin": "PASS",
            "cosh": "PASS",
            "acosh": "TIMEOUT",
        }
        assert (run.complete, len(run.results)) == (True, len(self.OPS))
        assert not list(command.reports.glob("*.jsonl"))

    def test_a_damaged_journal(self, tmp_path: Path) -> None:
        """A damaged journal gives one sentence, and the file stays unchanged."""
        (tmp_path / NAME.format("opinfo")).write_text("{\n")
        with pytest.raises(errors.ReportError, match="run without --resume"):
            Journal(tmp_path, "opinfo", {}, resume=True)
        assert (tmp_path / NAME.format("opinfo")).read_text() == "{\n"
        with Journal(tmp_path, "opinfo", {}) as journal:
            assert journal.finished == []
        assert not (tmp_path / NAME.format("opinfo")).exists()

    def test_a_journal_of_another_version(self, tmp_path: Path) -> None:
        """A journal of another version says so in one sentence, and what to do. Formerly it was of another run, or
        damaged."""
        head = {"schema": 1, "target": "cpu"}
        (tmp_path / NAME.format("opinfo")).write_text(json.dumps(head) + "\n")
        with pytest.raises(errors.ReportError, match=r"has result schema 1 and this version reads .*without --resume"):
            Journal(tmp_path, "opinfo", {"target": "cpu"}, resume=True)

    def test_what_it_keeps(self, tmp_path: Path) -> None:
        """The journal keeps results and elapsed time, for a run of the same identity only."""
        result = Result("x", "float32", "forward", "as_sampled", Outcome.PASS)
        with Journal(tmp_path, "opinfo", {"target": "cpu"}) as journal:
            journal.seconds = 100.0
            journal.add(result)
        for _ in range(2):
            with Journal(tmp_path, "opinfo", {"target": "cpu"}, resume=True) as journal:
                assert journal.finished == [result]
                assert journal.seconds >= 100
        with pytest.raises(errors.UsageError, match="another run"):
            Journal(tmp_path, "opinfo", {"target": "tiny"}, resume=True)


class TestCommand:
    """The command, its workers, its files and its exit codes."""

    def test_crash_and_hang_end_to_end(self, command: Command) -> None:
        """A crash and a hang affect their own op only, and the page escapes text from the target."""
        outcomes = {"add": "FAIL", "sin": "PASS", "atan": "CRASH", "acosh": "TIMEOUT", "tan": "FAIL"}
        run, done = self.planted(command, outcomes, "--timeout", "3", "--compile-limit", "3")
        crash = next(r for r in run.results if r.name == "atan").failures[0]
        assert (crash.oracle, crash.where, "SIGSEGV" in crash.actual) == ("crash", "the target", True)
        assert "result = torch.atan(a)" in crash.script
        assert done.stdout.splitlines()[-1] == "1 passed, 4 failed, 0 skipped"
        page = (command.reports / "conformance.html").read_text()
        assert "<script>alert(1)" not in page
        assert "\x1b" not in page

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_every_death_end_to_end(self, command: Command) -> None:
        """An exit and excessive memory use are crashes; a case that passes on a rerun is flaky."""
        outcomes = {"asinh": "CRASH", "erf": "CRASH", "sinh": "FLAKY", "add": "FAIL", "sin": "PASS"}
        self.planted(command, outcomes, "--memory", "12", "--rerun-failures", "1")

    def planted(
        self, command: Command, outcomes: dict[str, str], *options: str
    ) -> tuple[Run, subprocess.CompletedProcess[str]]:
        words = [word for op in outcomes for word in ("--op", op)]
        done = command("--target", "planted", *words, "--samples", "2", "--check-scripts", "0", *options)
        assert done.returncode == 1, done.stderr
        run = model.load(command.reports / "opinfo.json")
        assert {r.name: str(r.outcome) for r in run.results} == outcomes
        return run, done

    @pytest.mark.slow
    def test_failures_are_declared_knowingly(self, command: Command, tmp_path: Path) -> None:
        """`--update-expectations` declares the failures, with reasons for the user to fill in. The next run is green
        and counts unexplained declarations. A declared failure that passes fails the run until its entry is removed."""
        words = ("--target", "planted", "--op", "add", "--op", "sin", "--samples", "2")
        file = ("--expectations", str(tmp_path / "t.toml"))
        assert command(*words).returncode == 1
        declared = command(*words, *file, "--update-expectations")
        assert declared.returncode == 0, declared.stderr
        assert "added: add::float32::forward::as_sampled" in declared.stdout
        green = command(*words, *file)
        assert green.returncode == 0, green.stdout
        assert "1 declared failure not yet explained" in green.stdout
        other = ("--target", "cpu", "--op", "add", "--samples", "2", *file)
        assert command(*other).returncode == 1
        assert "removed: value / add" in command(*other, "--update-expectations").stdout
        assert command(*other).returncode == 0

    def test_nothing_unexpected(self, command: Command) -> None:
        """A run without unexpected results exits with 0 and writes every form of the report."""
        done = command.as_process("--target", "cpu", "--op", "sin", "--samples", "2")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed, 0 skipped"), done.stderr
        names = {path.name for path in command.reports.iterdir()}
        written = {"opinfo.json", "opinfo.xml", "opinfo.ctrf.json", "opinfo-summary.md", "conformance.html"}
        assert names == written | {"history.sqlite"}

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--dtype", "float31"], "unknown dtype 'float31'; did you mean float32"),
            (["--variant", "forwards"], "did you mean forward"),
            (["--samples", "0"], "--samples '0'"),
            (["--target", "nope"], "unknown target 'nope'"),
            (["--baseline", "missing.json"], "missing.json does not exist"),
            (["--target", "cpu", "--expectations", "missing.toml"], "missing.toml: there is no such file; correct the"),
        ],
    )
    def test_bad_usage(self, command: Command, arguments: list[str], text: str) -> None:
        """Bad usage gives one sentence and exit code 2, and writes nothing."""
        done = command("--target", "cpu", *arguments)
        assert done.returncode == 2
        assert text in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(command.reports.glob("*")) if command.reports.exists() else True

    def test_a_baseline_of_nothing(self, command: Command, tmp_path: Path) -> None:
        """A run that compared nothing writes no baseline. Regression test: it wrote one without cases."""
        file = tmp_path / "baseline.json.gz"
        words = ("--target", "cpu", "--op", "sin", "--minutes", "0.0001", "--baseline", str(file), "--update-baseline")
        done = command(*words)
        assert (done.returncode, file.exists()) == (2, False), done.stderr

    @pytest.mark.slow
    def test_a_death_between_cases_is_nobodys(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If a worker dies between cases, no result is lost, and new workers run the remaining cases."""
        from conformance.run.messages import Limits
        from conformance.sources.opinfo.pool import Cases

        with Cases("planted", Limits(unit=60, memory=12)) as pool:
            catalog, _ = pool.catalog()
            first, *rest = select(*catalog, ops=("asin", "sin", "cosh", "sign"), samples=1)
            assert [r.outcome for r in pool.run([first])] == [Outcome.PASS]
            time.sleep(3)
            assert [r.outcome for r in pool.run(rest)] == [Outcome.PASS] * 3

    def test_a_target_that_ends_its_process(self, command: Command) -> None:
        """A target that kills the process while loading gives one sentence. The pool does not restart workers
        endlessly."""
        done = command("--target", "dying")
        assert done.returncode == 2
        assert "ends the process that loads it" in done.stderr

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            (f"reports/baseline/{TORCH}/cpu.json.gz", "no gzip", "cpu.json.gz cannot be read"),
            ("reports/expectations/cpu.toml", "[[declare]]\nscope = 3\n", "cpu.toml, line 1: an entry needs"),
            (
                "reports/expectations/cpu.toml",
                "a = 1\n= 2\n",
                "cpu.toml is not valid TOML: Invalid statement (at line 2",
            ),
            ("reports/history.sqlite", "no database " * 99, "history.sqlite is no usable history"),
            ("kernels.json", "{\n}}", "kernels.json, line 2: not valid JSON"),
        ],
    )
    def test_damaged_files(self, command: Command, tmp_path: Path, name: str, text: str, said: str) -> None:
        """A damaged file gives exit code 2 and a sentence with its name before anything runs, and it stays
        unchanged."""
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        words = ["--workloads", str(path)] if path.name == "kernels.json" else []
        done = command("--target", "cpu", "--op", "sin", *words)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert path.read_text() == text

    def test_no_room_for_results(self, tmp_path: Path) -> None:
        """A disk that becomes full during a run gives one sentence."""
        journal = Journal(tmp_path, "opinfo", {})
        journal.file = open("/dev/full", "w")  # noqa: SIM115 - closed by the journal
        with pytest.raises(errors.ReportError, match=r"jsonl cannot be written \(No space left on device\)"), journal:
            journal.add(Result("x", "float32", "forward", "as_sampled", Outcome.PASS))

    def test_a_regression_fails(self, command: Command) -> None:
        """A case missing since the baseline fails the run; a run that does not select it passes."""
        words = ("--target", "planted", "--op", "sin", "--samples", "2")
        assert command(*words, "--update-baseline").returncode == 0
        path = command.reports / "baseline" / TORCH / "planted.json.gz"
        baseline = model.load(path)
        baseline.results.append(baseline.results[0].replace(op="sinc"))
        model.save(baseline, path)
        gone = command(*words)
        assert (gone.returncode, "gone (1)" in gone.stdout) == (1, True)
        assert gone.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped, 1 regression since the baseline"
        assert (command.reports / "opinfo.xml").read_text().count("<failure") == 1
        accepted = command(*words, "--update-baseline")
        assert (accepted.returncode, "1 regression" in accepted.stdout) == (0, False)
        assert "<failure" not in (command.reports / "opinfo.xml").read_text()
        model.save(baseline, path)
        narrower = command(*words, "--dtype", "float64")
        assert (narrower.returncode, "2 cases of the baseline were not asked for" in narrower.stdout) == (0, True)

    def test_unknown_op(self, command: Command) -> None:
        """An unknown op is rejected with similar names after op_db is loaded."""
        done = command("--target", "cpu", "--op", "soft_max")
        assert done.returncode == 2
        assert "did you mean" in done.stderr

    def test_unwritable_reports(self, command: Command, tmp_path: Path) -> None:
        """A reports folder that is a file is rejected before anything runs."""
        (tmp_path / "taken").write_text("")
        done = command("--target", "cpu", "--reports", str(tmp_path / "taken"))
        assert done.returncode == 2
        assert "choose another with --reports" in done.stderr

    @pytest.mark.usefixtures("sigint_heeded")
    @pytest.mark.parametrize(
        ("first", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
    )
    def test_interrupt_keeps_results(self, command: Command, tmp_path: Path, first: signal.Signals, code: int) -> None:
        """After Ctrl-C or SIGTERM, even repeated, the first signal decides the exit code, and the JSON and the page
        have the results so far."""
        words = command.words("--target", "planted", "--op", "sin", "--op", "acosh")
        process = subprocess.Popen(
            words, env=command.environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: journaled(command), "a case is noted")
        signals.send(process, (first, signal.SIGINT, signal.SIGTERM))
        output, errors = process.communicate(timeout=stretched(60))
        assert process.returncode == code, output
        assert "the same command with --resume goes on from there" in errors
        run = model.load(command.reports / "opinfo.json")
        assert not run.complete
        assert [(r.name, r.outcome) for r in run.results] in ([("sin", Outcome.PASS)], [("acosh", Outcome.PASS)])
        assert "interrupted" in (command.reports / "conformance.html").read_text()

    @pytest.mark.slow
    def test_building_kernels_has_its_own_limit(self, command: Command) -> None:
        """Compilation that takes longer than the case limit is not a TIMEOUT. Regression test: it was one. A hang after
        or during compilation still is a TIMEOUT, each at its own limit."""
        words = ("--op", "sin", "--dtype", "float32", "--variant", "reference_inputs", "--timeout", "1")
        words += ("--samples", "12")
        built = command("--target", "class:building.Builds", *words)
        assert built.returncode == 0, built.stdout + built.stderr
        for target, limit, said in (("Hangs", "60", "in 1 s"), ("Stuck", "3", "in 3 s")):
            assert command("--target", f"class:building.{target}", *words, "--compile-limit", limit).returncode == 1
            [result] = model.load(command.reports / "opinfo.json").results
            assert result.outcome is Outcome.TIMEOUT
            assert result.failures[0].actual == f"gave no answer {said}"

    def test_a_hang_when_the_time_is_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A case that runs at the end of `--minutes` is named. Regression test: a device that hung in its first case
        got only the advice to give more minutes, since a hang has up to 300 s to build kernels."""
        monkeypatch.syspath_prepend(str(PLANTED))
        monkeypatch.setattr(runner, "SHARE", 0.0)
        selection = plan.Selection(("acosh",), ("float32",), samples=2)
        run = runner.run("planted", runner.Request(selections=[selection], seconds=5.0))
        assert not run.results
        assert run.shortfall == "Not judged: 1 of 1 cases of op_db (--minutes)."
        hung = r"acosh::float32::forward::as_sampled had given no answer after \d+ s when the time was over"
        assert re.fullmatch(hung, run.notes[0])

    def test_stop_at_first_failure(self, command: Command) -> None:
        """The run stops at the first undeclared failure and reports that; `--resume` continues."""
        words = ("--target", "planted", "--op", "add", "--op", "sub", "--op", "sin", "--samples", "2")
        words += ("--check-scripts", "0")
        done = command(*words, "--stop-at-first-failure")
        assert done.returncode == 1, done.stderr
        assert "stopped at the first failure" in done.stderr
        failed = [r.outcome for r in model.load(command.reports / "opinfo.json").results if r.outcome != Outcome.PASS]
        assert failed == [Outcome.FAIL]
        assert command(*words, "--resume").returncode == 1
        assert len(model.load(command.reports / "opinfo.json").results) == 3

    def test_nothing_compared_fails(self) -> None:
        """A run with skipped cases only, or with none, exits with 2."""
        skipped = Result("x", "float32", "out", "as_sampled", Outcome.SKIP, reason="nothing to give to out")
        assert Run("cpu", [skipped]).exit_code() == 2
        assert Run("cpu", []).exit_code() == 2

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("variant", names.VARIANTS)
    def test_cpu_against_itself(self, command: Command, variant: str) -> None:
        """All of op_db agrees with itself on torch CPU; any failure here is a fault of the harness."""
        done = command("--target", "cpu", "--variant", variant, "--samples", "5", "-n", "2")
        assert done.returncode == 0, done.stdout[-3000:]
