"""The fuzz command: exit codes, files on disk, several workers, and interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.program.model import read_program
from conformance.sources.fuzzing.command import main
from tests.patience import stretched, wait_until
from tests.run.campaign.saved import fuzz_result

CORPUS = Path(__file__).parents[3] / "conformance" / "program" / "corpus"


def fuzz(*words: object, reports: Path) -> int:
    """Run a campaign. Scripts do not run, since those of planted faults pass in a process without the fault."""
    return main([*map(str, words), "--without", "op_db", "--check-scripts", "0", "--reports", str(reports)])


def result(reports: Path) -> dict:
    return fuzz_result(reports)


class TestCampaign:
    def test_cpu_is_green(self, tmp_path, capsys):
        """torch CPU against itself has no findings, and the command prints the number of programs."""
        assert main(["--target", "cpu", "--programs", "60", "--reports", str(tmp_path)]) == 0
        assert "60/60 programs" in capsys.readouterr().out
        done = result(tmp_path)
        assert done["programs"] == 60
        assert done["findings"] == []
        assert done["cells"]
        assert list((tmp_path / "failures").iterdir()) == []

    def test_a_fault_is_found_shrunk_printed_and_kept(self, tmp_path, capsys):
        """A finding gives exit code 1 and a printed script. Its JSON and script are on disk and can be replayed and
        minimized."""
        target = "mutant:slice drops the offset"
        assert fuzz("--target", target, "--programs", 20, reports=tmp_path) == 1
        shown = capsys.readouterr().out
        assert "def program(a):" in shown
        done = result(tmp_path)
        assert min(finding["steps"] for finding in done["findings"]) == 1
        saved = sorted((tmp_path / "failures").glob("*.json"))
        assert len(saved) == len(done["findings"]) == len(list((tmp_path / "failures").glob("*.py")))
        assert min(len(read_program(path).steps) for path in saved) == 1
        assert fuzz("--target", target, "--replay", saved[0], reports=tmp_path) == 1
        assert fuzz("--target", target, "--minimize", saved[0], reports=tmp_path) == 1
        assert fuzz("--target", "cpu", "--replay", saved[0], reports=tmp_path) == 0

    def test_the_result_does_not_depend_on_the_workers(self, tmp_path):
        """The same programs fail, in the same groups, with one worker and with two."""
        target = "mutant:every third write is lost"
        totals = []
        for jobs in (1, 2):
            fuzz("--target", target, "--seed", 2, "--programs", 40, "-n", jobs, reports=tmp_path / str(jobs))
            done = result(tmp_path / str(jobs))
            totals.append(
                (done["failing_programs"], done["cells"], sum(finding["count"] for finding in done["findings"]))
            )
        assert totals[0] == totals[1]
        assert totals[0][0] > 0

    def test_stop_at_first_failure(self, tmp_path, capsys):
        """The campaign stops at the first failing program. Regression test: the shard's remaining programs ran too.
        `--resume` continues after that program."""
        words = ("--target", "mutant:transpose is stale", "--programs", 40, "--without", "op_db")
        assert fuzz(*words, "--stop-at-first-failure", reports=tmp_path) == 1
        done = result(tmp_path)
        assert done["failing_programs"] == 1
        assert done["programs"] == done["findings"][0]["number"] + 1 < 20
        assert fuzz(*words, "--resume", reports=tmp_path) == 1
        assert result(tmp_path)["programs"] == 40
        assert "40/40 programs" in capsys.readouterr().out


class TestInterruption:
    @pytest.mark.usefixtures("sigint_heeded")
    def test_ctrl_c_leaves_what_was_found(self, tmp_path):
        """Ctrl-C gives exit code 130 and one sentence, and the findings are on disk."""
        running = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "conformance.fuzz",
                "--target",
                "mutant:clone always aliases",
                "--programs",
                "100000",
                "--reports",
                str(tmp_path),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CORPUS.parents[2],
            start_new_session=True,
        )
        wait_until(lambda: list(tmp_path.glob("failures/mutant-*.json")), "a finding is saved")
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=stretched(60))
        assert running.returncode == 130
        assert "Traceback" not in errors
        assert "interrupted; the results so far are in the report" in errors
        assert "the same command with --resume goes on from there" in errors
        assert result(tmp_path)["findings"]


class TestBadUsage:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--target", "nonsense"], "unknown target 'nonsense'"),
            (["--target", "mutant:nonsense"], "there is no fault 'nonsense'"),
            (["--target", "cp"], "unknown target 'cp'; did you mean cpu?"),
            (["--target", "mutant:view is stal"], "there is no fault 'view is stal'; did you mean view is stale"),
            (["--only", "nonsense"], "unknown step family 'nonsense'"),
            (["--only", "vew"], "unknown step family 'vew'; did you mean view?"),
            (["--replay", "no/such/file.json"], "no/such/file.json does not exist: give the JSON file of a finding"),
            (["--target", "cpu", "--kernels", "no/file.json"], "no/file.json does not exist: --record-kernels writes"),
            (["--target", "cpu", "--programs", "0"], "nothing was compared"),
            (["--dtype", "float99"], "unknown dtype 'float99'; did you mean"),
            (["--target", "cpu", "--expectations", "missing.toml"], "missing.toml: there is no such file; correct the"),
            (["--target", "cpu", "--only", "setitem", "--without", "setitem"], "'setitem', which --without leaves out"),
            (["--target", "cpu", "--only", "autograd", "--dtype", "uint8"], "family 'autograd' cannot be drawn"),
            (
                ["--target", "functionalize", "--only", "questions", "--only", "nonsense"],
                "unknown step family 'nonsense'",
            ),
        ],
    )
    def test_one_sentence_and_exit_code_2(self, words, message, tmp_path, capsys):
        """Bad usage gives one sentence about the error, without a traceback."""
        assert fuzz(*words, reports=tmp_path) == 2
        said = capsys.readouterr().err
        assert message in said
        assert "Traceback" not in said

    def test_the_result_of_a_run_is_no_program(self, tmp_path, capsys):
        """`--replay` names the mistake if it gets the result of a campaign. Regression test: it asked the user to draw
        the program of another schema again."""
        (tmp_path / "fuzz.json").write_text('{"schema": 4, "results": []}')
        assert fuzz("--target", "cpu", "--replay", tmp_path / "fuzz.json", reports=tmp_path) == 2
        assert "fuzz.json: this is the result of a run, not a program" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "words",
        [
            ["--target", ""],
            ["--dtype", ","],
            ["--steps", "5"],
            ["--steps", "3..1"],
            ["--steps", "0..0"],
            ["-n", "0"],
            ["--seed", "x"],
            ["--programs", "-1"],
            ["--minutes", "0"],
            ["--nonsense"],
        ],
    )
    def test_options_are_checked(self, words, tmp_path):
        """Invalid option values end in one sentence and exit code 2."""
        with pytest.raises(SystemExit) as caught:
            fuzz(*words, reports=tmp_path)
        assert caught.value.code == 2

    def test_a_family_that_the_target_leaves_out(self, tmp_path, monkeypatch, capsys):
        """`--only` with a family that the target does not support is an error. Regression test: the campaign ran views
        only, and all of them passed."""
        (tmp_path / "quiet_target.py").write_text(
            "from conformance.declare.declaration import unsupported\n"
            "from dataclasses import replace\n"
            "from conformance.targets.cpu import CpuTarget\n\n\nclass Quiet(CpuTarget):\n"
            "    facts = replace(CpuTarget.facts, declarations=(unsupported('so', step='questions'),))\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        words = ("--target", "class:quiet_target.Quiet", "--programs", 2)
        assert fuzz(*words, "--only", "questions", reports=tmp_path) == 2
        assert "'questions', which target class:quiet_target.Quiet leaves out" in capsys.readouterr().err
        assert fuzz(*words, "--only", "setitem", reports=tmp_path) == 0

    def test_a_program_without_a_meaning_is_named(self, tmp_path, capsys):
        """If a step of one of several files raises on the CPU, the error message names the file."""
        data = json.loads((CORPUS / "swap-rows.json").read_text())
        (tmp_path / "a.json").write_text(json.dumps(data))
        (tmp_path / "b.json").write_text(json.dumps({**data, "steps": [{"op": "neg_", "args": [{"t": "a"}, 1]}]}))
        for words in (["--replay", tmp_path / "b.json"], ["--replay", tmp_path], ["--minimize", tmp_path / "b.json"]):
            assert fuzz("--target", "cpu", *words, reports=tmp_path / "reports") == 2
            said = capsys.readouterr().err
            assert f"{tmp_path / 'b.json'}: step 1 (neg_) raises TypeError on CPU" in said
            assert said.count("\n") == 1

    def test_reports_that_cannot_be_written(self, tmp_path, capsys):
        """A file in place of the reports folder is an error that names it."""
        (tmp_path / "file").write_text("")
        assert fuzz("--target", "cpu", "--programs", 1, reports=tmp_path / "file") == 2
        assert "file" in capsys.readouterr().err

    def test_a_smaller_program_that_cannot_be_saved_is_shown(self, tmp_path, capsys):
        """The minimized program is printed before it is saved. Regression test: a failed save lost it, with the minutes
        that shrinking took."""
        (tmp_path / "file").write_text("")
        program = CORPUS / "swap-rows.json"
        assert fuzz("--target", "mutant:select is stale", "--minimize", program, reports=tmp_path / "file") == 2
        said = capsys.readouterr()
        assert "# the first wrong step" in said.out
        assert "cannot be written" in said.err

    def test_an_empty_folder_is_not_a_pass(self, tmp_path, capsys):
        """Replay of an empty folder fails with exit code 2."""
        assert fuzz("--target", "cpu", "--replay", tmp_path, reports=tmp_path) == 2
        assert "no program" in capsys.readouterr().err


class TestCorpus:
    def test_known_bugs_replay_on_cpu(self, tmp_path):
        """Each program of the corpus runs on torch CPU and agrees with it."""
        assert fuzz("--target", "cpu", "--replay", CORPUS, reports=tmp_path) == 0

    @pytest.mark.slow
    def test_known_bugs_replay_on_tiny(self, tmp_path):
        """Each program of the corpus passes on `tiny`."""
        assert fuzz("--target", "tiny", "--replay", CORPUS, reports=tmp_path) == 0

    def test_each_names_its_bug(self):
        """Each program of the corpus has a note that describes its bug."""
        assert all(read_program(path).note for path in CORPUS.glob("*.json"))
        assert len(list(CORPUS.glob("*.json"))) >= 30
