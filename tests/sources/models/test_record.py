"""The command `conformance record`: its file, and its answers to bad usage."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conformance.program.recorded import Calls
from conformance.sources.models.record import main
from tests.patience import stretched

ROOT = Path(__file__).parents[3]
TRAINS = """
    import sys, torch
    net = torch.nn.Linear(3, int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    net(torch.ones(4, 3)).sum().backward()
    print("trained", sys.argv[1:], __name__)
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script."""

    def write(text: str):
        path = tmp_path / "net.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


class TestRecord:
    def test_a_file_of_distinct_calls(self, script, tmp_path, capsys):
        """The script runs as a main program with its arguments, and the last line counts its calls."""
        out = tmp_path / "calls.json"
        assert main([str(script(TRAINS)), "5", "--fast", "-o", str(out)]) == 0
        calls = Calls.load(out)
        assert calls.models == ["net"]
        linear = next(call for call in calls.calls if call.op == "addmm.default")
        assert [size for _, _, size, _, _ in linear.inputs] == [(5,), (4, 3), (3, 5)]
        said = capsys.readouterr().out
        assert "trained ['5', '--fast'] __main__" in said
        assert f"{len(calls.calls)} distinct calls of {calls.made['net']} calls of net" in said

    @pytest.mark.parametrize(("words", "own"), [
        (["a.json", "-o", "a.json"], ["a.json"]),
        (["mine", "--name", "mine", "--name=mine", "x"], ["mine", "x"]),
        (["--lr", "-1", "-o", "a.json", "y", "--fast"], ["--lr", "-1", "y", "--fast"]),
        (["-o", "a.json", "--", "-o", "b.json", "--", "--help"], ["-o", "b.json", "--", "--help"]),
        (["--help"], ["--help"]),
        (["--", "-o", "b.json"], ["-o", "b.json"]),
        (["--", "a", "--", "-o", "b.json"], ["a", "--", "-o", "b.json"]),
    ])  # fmt: skip
    def test_the_arguments_of_the_script(self, script, tmp_path, capsys, words, own, monkeypatch):
        """The script gets every word but the options of the command and their values. Regression test: the command
        removed each argument that equals a value of its options."""
        monkeypatch.chdir(tmp_path)
        assert main([str(script("import sys, torch; print(sys.argv[1:]); torch.ones(2).neg()")), *words]) == 0
        assert capsys.readouterr().out.startswith(f"{own}\n")

    @pytest.mark.parametrize("before", [[], ["-o", "a.json"], ["--name=mine", "-o", "a.json"]])
    @pytest.mark.parametrize("own", [[], ["a"], ["-o", "b.txt", "--", "--help"]])
    def test_two_dashes_before_the_script(self, script, tmp_path, capsys, before, own, monkeypatch):
        """The script follows `--`, and each word after it is the script's own. Regression test: after an option of the
        command, the script was missing."""
        monkeypatch.chdir(tmp_path)
        path = script("import sys, torch; print(sys.argv[1:]); torch.ones(2).neg()")
        assert main([*before, "--", str(path), *own]) == 0
        assert capsys.readouterr().out.startswith(f"{own}\n")

    @pytest.mark.parametrize(("words", "said"), [
        (["--"], "SCRIPT.py is missing"), (["-o", "a.json", "--"], "SCRIPT.py is missing"),
        (["--nmae", "x", "--", "net.py"], "there is no flag --nmae; did you mean --name"),
    ])  # fmt: skip
    def test_two_dashes_and_no_script(self, capsys, words, said):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err

    def test_the_name_of_the_model(self, script, tmp_path):
        assert main([str(script(TRAINS)), "-o", str(tmp_path / "calls.json.gz"), "--name", "mine"]) == 0
        assert Calls.load(tmp_path / "calls.json.gz").models == ["mine"]

    @pytest.mark.parametrize(("text", "said"), [
        ("import torch\ntorch.ones(2) + torch.ones(3)\n", "fails by itself: RuntimeError: The size of tensor a (2)"),
        ("import torch\n\ntorch.ones(2, 3).view(7)\n", ", line 3 of net.py; nothing was written"),
        ("x = (\n", "fails by itself: SyntaxError: '(' was never closed (net.py, line 1); nothing was written"),
        ("import torch, sys\ntorch.ones(2)\nsys.exit(3)\n", "ends itself with exit code 3; nothing was written"),
        ("import torch, sys\ntorch.ones(2)\nsys.exit('no\\ndata')\n", "ends itself: no data; nothing was written"),
        ("import asyncio\nraise asyncio.CancelledError(1)\n", "fails by itself: CancelledError: 1, line 2"),
        ("print(1)\n", "calls no operator that can be recorded"),
    ])  # fmt: skip
    def test_a_script_that_fails_loses_nothing(self, script, tmp_path, capsys, text, said):
        """One sentence and exit code 2; the file of an earlier recording stays."""
        out = tmp_path / "calls.json"
        assert main([str(script(TRAINS)), "-o", str(out)]) == 0
        before = out.read_bytes()
        capsys.readouterr()
        assert main([str(script(text)), "-o", str(out)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert out.read_bytes() == before

    @pytest.mark.parametrize(("words", "said"), [
        (["gone.py"], "gone.py: there is no such file"), (["{}", "-o", "calls.txt"], "ends with neither .json nor"),
        (["{}", "-o", "gone/calls.json"], "its folder does not exist"),
    ])  # fmt: skip
    def test_bad_usage(self, script, tmp_path, capsys, words, said, monkeypatch):
        """The message comes before the script runs."""
        monkeypatch.chdir(tmp_path)
        path = str(script("raise SystemExit('ran')"))
        assert main([word.format(path) for word in words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1

    def test_no_warning_of_torch(self, script, tmp_path):
        """Switching oneDNN off prints no warning. Regression test: each recording began with one about TF32."""
        words = [sys.executable, "-m", "conformance", "record", script(TRAINS), "-o", tmp_path / "calls.json"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=stretched(100), check=True)
        assert done.stderr == ""

    @pytest.mark.parametrize("ends", ["sys.stdout.close()", "sys.stdout = open('log.txt', 'w')"])
    @pytest.mark.parametrize("command", ["record", "trace --target cpu"])
    def test_a_script_that_takes_the_output(self, script, tmp_path, command, ends):
        """The last lines of the command are printed if its script closes or replaces the standard output. Regression
        test: they ended in a traceback of this package, or in the file of the script."""
        path = script(f"import sys, torch\ntorch.ones(3).neg()\n{ends}\n")
        words = [sys.executable, "-m", "conformance", *command.split(), path]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=stretched(100), check=False
        )
        assert done.returncode == 0 and not done.stderr
        assert done.stdout.startswith(("calls.json: 2 distinct calls", "2 calls judged on cpu: no wrong operator"))

    @pytest.mark.parametrize(
        ("ends", "code"), [("sys.exit(5)", 5), ("pass", 0), ("raise ValueError('of the fork')", 1)]
    )
    def test_a_fork_of_the_script(self, script, tmp_path, ends, code):
        """A fork of the script ends as under Python. Regression test: it recorded, too, and wrote the file itself."""
        path = script(f"""
            import os, sys, torch
            torch.ones(3).neg()
            process = os.fork()
            if process == 0:
                {ends}
            else:
                print("fork", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
        """)
        words = [sys.executable, "-m", "conformance", "record", path]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=stretched(100), check=False
        )
        assert done.returncode == 0 and done.stdout.startswith(f"fork {code}\n"), done.stdout
        assert done.stdout.count("calls.json") == 1 and ("of the fork" in done.stderr) is (code == 1)

    def test_a_script_that_ends_well_by_exit(self, script, tmp_path):
        assert main([str(script(TRAINS + "    sys.exit(0)\n")), "-o", str(tmp_path / "calls.json")]) == 0
