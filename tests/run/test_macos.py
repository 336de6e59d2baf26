"""The commands on a simulated macOS: spawned workers, no fork, no /proc and no limit of memory by rlimit.

`tests/planted/macos/sitecustomize.py` defines the simulation. Each process of a test has it, workers included.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.record import result as model
from tests.patience import stretched, wait_until
from tests.run.campaign.saved import fuzz_result
from tests.run.process_tree import PLANTED

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PLANTED / "macos", ROOT, PLANTED)))}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="simulates macOS on Linux")


def started(*words: str, folder: Path) -> subprocess.Popen[str]:
    """Start `python WORDS` on the simulated macOS, in this folder and in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=ENVIRONMENT,
        start_new_session=True,
    )


def finished(*words: str, folder: Path) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of `python WORDS` on the simulated macOS."""
    process = started(*words, folder=folder)
    out, errors = process.communicate(timeout=stretched(110))
    return process.returncode, out, errors


def test_the_simulation(tmp_path: Path) -> None:
    """A process sees the platform `darwin`, and has neither fork nor /proc nor a limit of memory."""
    lines = (
        "import multiprocessing, os, pathlib, resource, sys",
        "assert sys.platform == 'darwin' and multiprocessing.get_start_method() == 'spawn'",
        "assert not any(hasattr(os, name) for name in ('fork', 'forkpty', 'sched_getaffinity'))",
        "for path in ('/proc', '/proc/self/status'):",
        "    assert not os.path.exists(path) and not pathlib.Path(path).exists()",
        "for act in (lambda: open('/proc/self/status'), lambda: os.listdir('/proc/self/task'),",
        "            lambda: resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))):",
        "    try:",
        "        act()",
        "    except (FileNotFoundError, ValueError):",
        "        continue",
        "    raise AssertionError",
    )
    code, _, errors = finished("-c", "\n".join(lines), folder=tmp_path)
    assert code == 0, errors


class TestPrograms:
    WORDS = ("-m", "conformance.fuzz", "--target", "cpu", "--seed", "0")

    def test_pass(self, tmp_path: Path) -> None:
        """Every drawn program runs and passes, and the workers print nothing."""
        code, out, errors = finished(*self.WORDS, "--programs", "30", folder=tmp_path)
        assert (code, errors) == (0, "")
        assert out.splitlines()[-1] == "30 passed, 0 failed, 0 skipped"

    @pytest.mark.slow
    @pytest.mark.usefixtures("sigint_heeded")
    def test_stop_and_resume(self, tmp_path: Path) -> None:
        """After Ctrl-C the report has the programs so far, and `--resume` runs the others."""
        words = (*self.WORDS, "--programs", "300", "--only", "setitem")
        campaign = started(*words, folder=tmp_path)
        progress = tmp_path / "reports" / "fuzz-progress.json"
        wait_until(
            lambda: progress.exists() and re.search('"following": [1-9]', progress.read_text()), "a program is noted"
        )
        os.killpg(campaign.pid, signal.SIGINT)
        _, errors = campaign.communicate(timeout=stretched(60))
        assert (campaign.returncode, errors.count("\n")) == (130, 1), errors
        assert 0 < fuzz_result(tmp_path / "reports")["programs"] < 300
        assert finished(*words, "--resume", folder=tmp_path)[0] == 0
        assert fuzz_result(tmp_path / "reports")["programs"] == 300


class TestSamples:
    WORDS = ("-m", "conformance.opinfo_runner", "--check-scripts", "0")

    def test_pass(self, tmp_path: Path) -> None:
        """The samples of two operators pass."""
        code, out, errors = finished(*self.WORDS, "--target", "cpu", "--op", "add", "--op", "sum", folder=tmp_path)
        assert (code, errors) == (0, "")
        assert out.splitlines()[-1] == "8 passed, 0 failed, 0 skipped"

    @pytest.mark.slow
    def test_a_crash_and_a_hang(self, tmp_path: Path) -> None:
        """Each is the result of its own operator, and the other operators run."""
        words = ("--target", "class:planted.PlantedTarget", "--dtype", "float32", "--timeout", "2")
        ops = ("--op", "atan", "--op", "acosh", "--op", "neg", "--compile-limit", "2")
        assert finished(*self.WORDS, *words, *ops, folder=tmp_path)[0] == 1
        results = model.load(tmp_path / "reports" / "opinfo.json").results
        outcomes = {result.name: result.outcome.value for result in results}
        assert outcomes == {"atan": "CRASH", "acosh": "TIMEOUT", "neg": "PASS"}


@pytest.mark.slow
def test_deaths_of_workers(tmp_path: Path) -> None:
    """Each death has its reason, and the next task runs. Regression test: a limit of memory ended every worker at its
    start."""
    lines = (
        "if __name__ == '__main__':",
        "    import tasks",
        "    from conformance.run.messages import Limits, Task",
        "    from conformance.run.pool import LocalPool",
        "    with LocalPool('cpu', Limits(unit=2, compiling=60, memory=2, grace=1), 1, ['tasks']) as pool:",
        "        for function in tasks.segfaults, tasks.hangs_outside_python, tasks.eats_shared_memory, tasks.prints:",
        "            pool.submit(Task('it', function))",
        "            [(_, answer)] = pool.ended()",
        "            print(getattr(answer, 'said', answer))",
    )
    (tmp_path / "main.py").write_text("\n".join(lines))
    code, out, errors = finished("main.py", folder=tmp_path)
    assert code == 0, errors
    assert out.splitlines() == [
        "killed its process with SIGSEGV",
        "gave no answer in 2 s",
        "ran out of memory",
        "Done(value=1, error=None)",
    ]


def test_sizes_needs_linux(tmp_path: Path) -> None:
    """`conformance sizes` says in one sentence that memory cannot be measured. Regression test: an AttributeError."""
    code, _, errors = finished("-m", "conformance", "sizes", "--target", "cpu", "--op", "add_", folder=tmp_path)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "run this command on Linux with glibc" in errors


@pytest.mark.slow
def test_accuracy(tmp_path: Path) -> None:
    """`conformance accuracy` measures the errors of an operator, whose need of memory it estimates from the peak."""
    words = ("--target", "cpu", "--op", "exp", "--dtype", "float32")
    code, out, errors = finished("-m", "conformance", "accuracy", *words, folder=tmp_path)
    assert (code, errors) == (0, "")
    assert out.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"
