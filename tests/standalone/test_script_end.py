"""A script ends with its own exit code, also while a thread of torch needs the interpreter.

The planted threads need it all the time. Before `end_script`, each of these scripts was ended by SIGABRT, "terminate
called without an active exception", while the interpreter was finalized.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.engine.loading import describe_target
from conformance.program.script import script
from conformance.standalone.script import MARKER
from tests.targets.test_device import TestBackward, program_of

PLANTED = Path(__file__).parent.parent / "planted"
GUARDED = "device:guarded,import=guarded_device,without=storages+set_+as_strided+data_ptr"
GRADIENT, NEG = TestBackward.WRITTEN, program_of("neg")


def run(folder: Path, *words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in the folder, where planted modules are found, with a buffered standard output."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PLANTED), *sys.path]), "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        check=False,
        env=environment,
    )


def run_with(module: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that also imports a planted module, before its comparison."""
    assert text.count(MARKER) == 1
    (folder / "one.py").write_text(text.replace(MARKER, f"import {module}\n{MARKER}"))
    return run(folder, "one.py")


class TestScript:
    @pytest.mark.parametrize(
        ("name", "program", "code"),
        [
            ("cpu", GRADIENT, 0),
            ("device:cpu", GRADIENT, 0),
            (GUARDED, GRADIENT, 1),
            (GUARDED, NEG, 0),
            ("compile:aot_eager", GRADIENT, 0),
            ("compile:off_by_one,import=liars", program_of("neg"), 1),
            ("decompositions", NEG, 0),
            ("functionalize", NEG, 0),
            ("tiny", GRADIENT, 0),
        ],
    )
    def test_busy_thread_keeps_exit_code_and_output(self, name, program, code, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(PLANTED)
        done = run_with("busy_at_end", script(program, describe_target(name)), tmp_path)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("no difference here" in done.stdout) != code
        assert "where the elements of a lie" in done.stdout
        assert not done.stderr

    def test_device_is_closed_while_its_autograd_thread_is_busy(self, tmp_path):
        """Exit functions run, also those that a device registered, after the comparison."""
        done = run_with("busy_device", script(GRADIENT, describe_target(GUARDED)), tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == "the device is closed"
        assert not done.stderr

    def test_thread_pool_finishes_its_work(self, tmp_path):
        (tmp_path / "pooled.py").write_text(
            "import concurrent.futures, time\n"
            "pool = concurrent.futures.ThreadPoolExecutor()\n"
            "pool.submit(lambda: (time.sleep(1), print('the pool is done')))\n"
        )
        done = run_with("pooled", script(NEG, describe_target("cpu")), tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == "the pool is done"

    def test_script_that_raises_does_not_exit_with_0(self, tmp_path):
        text = script(NEG, describe_target("cpu")).replace(MARKER, f"{MARKER}\nORACLES = undefined_name")
        done = run(tmp_path, "-c", text)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "NameError: name 'undefined_name' is not defined"

    def test_closed_pipe_is_reported_by_the_interpreter(self, tmp_path):
        """As of any Python script: `python one.py | true` ends with 120."""
        reading, writing = os.pipe()
        os.close(reading)
        (tmp_path / "one.py").write_text(script(NEG, describe_target("cpu")))
        done = run(tmp_path, "one.py", stdout=writing)
        os.close(writing)
        assert done.returncode == 120
        assert "BrokenPipeError" in done.stderr

    def test_program_that_runs_a_script_goes_on(self, tmp_path):
        """`runpy` makes the script the main module for a while; the process ends with its own exit code."""
        (tmp_path / "one.py").write_text(script(NEG, describe_target("cpu")))
        host = (
            "import runpy\n"
            "try: runpy.run_path('one.py', run_name='__main__')\n"
            "except SystemExit as end: print('script', end.code)\n"
            "raise SystemExit(3)\n"
        )
        done = run(tmp_path, "-c", host)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (3, "script 0")


class TestCommand:
    """Commands that run a user's script in their own process."""

    SCRIPT = (
        "import torch, busy_device\n"
        "a = torch.ones(3).to('guarded').requires_grad_()\n"
        "(a {} 2).backward(torch.ones(3).to('guarded'))\n"
    )

    @pytest.mark.parametrize("command", [("-m", "conformance.sources.trace"), ("-m", "conformance", "trace")])
    def test_trace_keeps_its_exit_code(self, command, tmp_path):
        (tmp_path / "one.py").write_text(self.SCRIPT.format("*"))
        done = run(tmp_path, *command, "--target", GUARDED, "one.py")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "wrong operators" in done.stdout
        assert done.stdout.splitlines()[-1] == "the device is closed"
        assert "terminate" not in done.stderr

    def test_record_keeps_its_exit_code(self, tmp_path):
        (tmp_path / "one.py").write_text("import torch, busy_at_end\ntorch.ones(3).neg()\n")
        done = run(tmp_path, "-m", "conformance", "record", "one.py")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("calls.json: ")
