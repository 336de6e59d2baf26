"""A finding as an issue: title, script, both answers, environment; text from outside is escaped."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

from conformance.record import result as model
from conformance.record.result import Failure, Outcome, Result, Run
from conformance.report import issue
from conformance.report.__main__ import main
from conformance.standalone.script import MARKER

SCRIPT = f'"""value of a"""\nimport torch\n\n{MARKER}\n\ndef compare(): ...\n'


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Replace torch's environment report, which takes seconds; one test below uses the real one."""
    monkeypatch.setattr(issue, "environment", lambda: "PyTorch version: 0")


def saved(folder, **changes):
    """A finding file of the fuzzer, with its script."""
    answer = {"oracle": "value", "where": "a", "expected": "[1.0]", "actual": "[2.0]", "detail": "1 of 1"}
    data = {
        "kind": "FAIL",
        "target": "mine",
        "signature": "value / add_",
        "mismatches": [answer],
        "program": {"steps": []},
    }
    path = folder / "one.json"
    path.write_text(json.dumps({**data, **changes}))
    path.with_suffix(".py").write_text(SCRIPT)
    return path


class TestIssue:
    @pytest.mark.parametrize("spelling", ["issue", "--issue"])
    def test_of_a_program(self, spelling, tmp_path, capsys):
        """The issue has the script's own part only, and both answers."""
        assert main([spelling, str(saved(tmp_path))]) == 0
        said = capsys.readouterr().out
        assert said.startswith(
            "# `mine: a should be [1.0] and is [2.0] (value / add_)`\n\nTarget: `mine`, compared with torch CPU.\n"
        )
        assert "import torch\n```" in said
        assert MARKER not in said
        assert "`a should be [1.0] and is [2.0]`\n\n```\ntorch CPU: [1.0]\nmine: [2.0]\n```" in said
        assert said.endswith("## Versions\n\n```\nPyTorch version: 0\n```\n")

    def test_of_a_case(self, tmp_path, capsys):
        """A case is selected by its id in a result file, optionally with a sample's number."""
        failures = (Failure("value", "result", "1", "2", "off", 3, "torch.add(Tensor[2] float32, 1)", SCRIPT),)
        failed = Result("add", "float32", "forward", "as_sampled", Outcome.FAIL, failures=failures)
        model.save(Run("mine", [failed]), tmp_path / "run.json")
        assert main(["issue", f"{failed.id}#3", "--run", str(tmp_path / "run.json")]) == 0
        said = capsys.readouterr().out
        assert said.startswith(
            "# `mine: torch.add(Tensor[2] float32, 1): result should be 1 and is 2 "
            "(add::float32::forward::as_sampled)`\n"
        )
        assert "torch CPU: 1\nmine: 2\n" in said
        assert main(["issue", "ad::float32::forward::as_sampled", "--run", str(tmp_path / "run.json")]) == 2
        assert "did you mean add::float32::forward::as_sampled?" in capsys.readouterr().err

    def test_what_a_probe_found_lacking_is_no_part_of_a_name(self, tmp_path, capsys):
        """A probe's list of missing features is no part of a target's name. Regression test: titles read
        `device:x,import=m,without=as_strided: ...`, or `without=nothing`."""
        main(["issue", str(saved(tmp_path, target="device:x,import=m,without=as_strided"))])
        said = capsys.readouterr().out
        assert said.startswith(
            "# `device:x,import=m: a should be [1.0] and is [2.0] (value / add_)`\n\nTarget: `device:x,import=m`,"
        )
        assert "without" not in said
        failures = (Failure("value", "result", "1", "2", "off", 3, "torch.add(1)", SCRIPT),)
        failed = Result("add", "float32", "forward", "as_sampled", Outcome.FAIL, failures=failures)
        model.save(Run("device:x,without=nothing", [failed]), tmp_path / "run.json")
        main(["issue", failed.id, "--run", str(tmp_path / "run.json")])
        assert "without" not in capsys.readouterr().out

    def test_aliasing(self, tmp_path, capsys):
        """An aliasing difference is described in words. Regression test: both answers read `torch CPU: b / mine: a`,
        the names of tensors."""
        answer = {"oracle": "alias", "where": "b", "expected": "a", "actual": "b", "detail": "the first tensor seen"}
        main(["issue", str(saved(tmp_path, mismatches=[answer]))])
        said = capsys.readouterr().out
        assert "torch CPU: b and a share memory\nmine: b shares memory with no result or input before it\n" in said

    @pytest.mark.parametrize(
        ("said", "ended"),
        [
            ("killed its process with SIGSEGV", "killed its process with SIGSEGV (signal 11)"),
            ("ended its process with exit code 3", "ended its process with exit code 3"),
            ("", "ends the process"),
        ],
    )
    def test_a_crash(self, said, ended, tmp_path, capsys):
        """A crash names its signal or exit code. Regression test: the answers read `an answer` and `CRASH`, of `a
        program of 1 steps`, without the signal."""
        step = {"op": "neg", "args": [{"t": "a"}]}
        main(["issue", str(saved(tmp_path, kind="CRASH", mismatches=[], said=said, program={"steps": [step]}))])
        text = capsys.readouterr().out
        assert f"`crash in a program of 1 step`\n\n```\ntorch CPU: runs to its end\nmine: {ended}\n" in text
        main(["issue", str(saved(tmp_path, kind="CRASH", mismatches=[], said=said, program={"steps": [step] * 2}))])
        assert "a program of 2 steps" in capsys.readouterr().out

    @pytest.mark.parametrize("spec", ["device:x,import=rich.console,call=f", "class:rich.console.Console"])
    def test_the_versions_name_the_backend(self, spec, tmp_path, capsys):
        """The versions include the backend's package. Regression test: they lacked it, because collect_env lists
        torch's own packages only."""
        main(["issue", str(saved(tmp_path, target=spec))])
        said = capsys.readouterr().out
        assert f"PyTorch version: 0\nrich: {importlib.metadata.version('rich')}\n```" in said
        main(["issue", str(saved(tmp_path, target="device:x,import=module_of_a_folder"))])
        assert capsys.readouterr().out.endswith("PyTorch version: 0\n```\n")

    def test_text_from_outside_starts_nothing(self, tmp_path, capsys):
        """Text from outside is always code: it cannot close a fence, open a tag, mention a user or emit a terminal
        escape."""
        evil = {
            "oracle": "error",
            "where": "a",
            "expected": "x",
            "actual": "```\n<script>\x1b[31m",
            "detail": "<b>``\n# x",
        }
        main(["issue", str(saved(tmp_path, mismatches=[evil], signature="@somebody <img>\n# two"))])
        said = capsys.readouterr().out
        assert "\x1b" not in said
        assert said.startswith("# ```` mine: a should raise x; on the target it raises ``` <script>")
        assert "(@somebody <img> # two) ````\n\nTarget" in said
        assert (
            "\n```` a should raise x; on the target it raises ``` <script>\N{SYMBOL FOR ESCAPE}[31m: <b>`` # x ````\n"
            in said
        )
        assert "\n````\ntorch CPU: x\nmine: ```\n<script>" in said

    def test_no_path_of_the_home_is_told(self, tmp_path, capsys, monkeypatch):
        """Home folders are removed from answers and from torch's environment, since errors of compilers contain file
        names."""
        monkeypatch.setenv("HOME", "/home/somebody")
        monkeypatch.setattr(issue, "environment", lambda: "PyTorch version: 0 in /home/somebody/env")
        answer = {"oracle": "error", "where": "a", "expected": "x", "actual": "no /home/somebody/x.so", "detail": ""}
        main(["issue", str(saved(tmp_path, mismatches=[answer]))])
        said = capsys.readouterr().out
        assert "somebody" not in said
        assert "mine: no ~/x.so" in said

    def test_what_is_no_finding(self, tmp_path, capsys):
        """A file without a finding gives one sentence and exit code 2."""
        (tmp_path / "two.json").write_text("{}")
        for path in (tmp_path / "two.json", tmp_path / "none.json"):
            assert main(["issue", str(path)]) == 2
            assert str(path) in capsys.readouterr().err

    @pytest.mark.slow
    def test_torch_is_asked_in_a_process_of_its_own(self, tmp_path):
        """A new process collects the versions, and the report command itself does not load torch."""
        code = (
            "import sys\nfrom conformance.report.__main__ import main\n"
            f"main(['issue', {str(saved(tmp_path))!r}])\nassert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "PyTorch version: " in done.stdout
