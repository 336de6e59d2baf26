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
from conformance.sources.operator.script import script as operator_script
from conformance.sources.sizes.script import MARKER as SIZES_MARKER
from conformance.sources.sizes.script import standalone as sizes_script
from conformance.sources.sizes.table import select
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import MARKER
from tests.sources.operator.test_finding import smallest
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


def run_with(module: str, text: str, folder: Path, before: str = MARKER) -> subprocess.CompletedProcess[str]:
    """Run a script that also imports a planted module, before its comparison."""
    assert text.count(before) == 1
    (folder / "one.py").write_text(text.replace(before, f"import {module}\n{before}"))
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

    @pytest.mark.parametrize("name", ["cpu", GUARDED, "compile:aot_eager", "decompositions", "tiny"])
    @pytest.mark.parametrize("where", ["    print_both()", "    return compare("])
    def test_error_keeps_its_exit_code_and_traceback(self, name, where, tmp_path, monkeypatch):
        """In the part in plain torch, and in the comparison."""
        monkeypatch.syspath_prepend(PLANTED)
        text = script(GRADIENT, describe_target(name))
        assert text.count(where) == 1
        done = run_with("busy_at_end", text.replace(where, f"    undefined_name\n{where}"), tmp_path)
        assert done.returncode == 1, done.stderr
        assert done.stderr.startswith("Traceback (most recent call last):")
        assert done.stderr.splitlines()[-1] == "NameError: name 'undefined_name' is not defined"

    def test_error_of_the_program_keeps_its_exit_code_and_traceback(self, tmp_path):
        """The script of a wrong value does not expect an error."""
        wrong = Mismatch("value", "b", "1", "2", "1 of 1")
        text = script(NEG, describe_target("cpu"), [wrong]).replace(".neg()", ".no_such_method()")
        done = run_with("busy_at_end", text, tmp_path)
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1] == "AttributeError: 'Tensor' object has no attribute 'no_such_method'"

    @pytest.mark.parametrize(("exit_", "code"), [("3", 3), ("", 0), ("'words'", 1)])
    def test_exit_of_the_program_is_the_exit_of_the_script(self, exit_, code, tmp_path):
        text = script(NEG, describe_target("cpu")).replace("    print_both()", f"    sys.exit({exit_})")
        assert run_with("busy_at_end", text, tmp_path).returncode == code

    def test_interrupt_ends_the_script_by_its_signal(self, tmp_path):
        """As of any Python script, so that a shell's loop over scripts ends too. SIGINT is ignored if the tests run
        under `nohup`, so the script does not inherit it."""
        text = script(NEG, describe_target("cpu"))
        handled = "    signal.signal(2, signal.default_int_handler)\n    os.kill(os.getpid(), 2)"
        (tmp_path / "one.py").write_text("import signal\n" + text.replace("    print_both()", handled))
        done = run(tmp_path, "one.py")
        assert done.returncode == -2
        assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"

    @pytest.mark.parametrize(("found", "code"), [("[]", 0), ("['wrong']", 1), ("undefined_name", 1)])
    def test_sizes_script_keeps_its_exit_code(self, found, code, tmp_path):
        (case,) = select(["softmax"], [], [], ["forward"], "small")
        text = sizes_script(case, "DEVICE = 'cpu'", "about")
        text = text.replace("found = faults(cpu, got)", f"return {found}")
        done = run_with("busy_at_end", text, tmp_path, SIZES_MARKER)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("NameError" in done.stderr) == (found == "undefined_name")
        assert "terminate" not in done.stderr

    @pytest.mark.parametrize("name", ["values", "mutation", "refusals"])
    def test_operator_script_keeps_its_exit_code(self, name, tmp_path):
        """The check ends the script with its own code."""
        trial, difference = smallest(name)
        text = operator_script(trial, difference)
        done = run_with("busy_at_end", text, tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert " of result: expected " in done.stdout or " of x: expected " in done.stdout
        assert "terminate" not in done.stderr

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

    @pytest.mark.parametrize("command", [("-m", "conformance.backend.kernels"), ("-m", "conformance", "kernels")])
    @pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(3)", 3), ("undefined_name", 1)])
    def test_kernels_keeps_the_exit_code_of_the_script(self, command, ending, code, tmp_path):
        lines = "import sys, torch, conformance.backend, busy_at_end\n(torch.ones(3).to('tiny') + 1).sum().item()\n"
        (tmp_path / "one.py").write_text(lines + ending)
        done = run(tmp_path, *command, "one.py")
        assert done.returncode == code, done.stdout + done.stderr
        assert "one.py:2" in done.stdout
        assert "terminate" not in done.stderr
