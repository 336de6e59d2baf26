"""Ctrl-C and SIGTERM at any moment of a command: one sentence, its exit code, and no remaining processes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COMMANDS = {
    "fuzz": ["conformance.fuzz", "--target", "cpu", "--seed", "0", "--programs", "100000"],
    "conformance fuzz": ["conformance", "fuzz", "--target", "cpu", "-n", "2", "--programs", "100000"],
    "opinfo": ["conformance.opinfo_runner", "--target", "cpu", "--suite", "main"],
    "conformance opinfo": ["conformance", "opinfo", "--target", "cpu", "-n", "2", "--suite", "main"],
    "unknown target": ["conformance.fuzz", "--target", "nonsense"],
    "unknown target of opinfo": ["conformance.opinfo_runner", "--target", "nonsense"],
}
STARTED = 0.3
"""Seconds of the interpreter's own start, during which no code of this package can handle a signal."""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(autouse=True)
def not_ignored() -> Iterator[None]:
    """Restore SIGINT's handler, which a shell's background job ignores, for processes started by these tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def in_session(session: int) -> list[str]:
    """Command lines of the running processes of a session."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            lines.append(line)
    return lines


def interrupted(
    words: list[str], after: float, number: signal.Signals, folder: Path, done: str = ""
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that gets a signal in all of its processes, as from a terminal. The
    signal comes this number of seconds after the start, and after the progress file matches `done`."""
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *words, "--reports", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    time.sleep(STARTED + after)
    until = time.monotonic() + 100
    while done and not any(re.search(done, path.read_text()) for path in folder.glob("*progress*")):
        assert time.monotonic() < until, f"no {done!r} is noted"
        time.sleep(0.05)
    try:
        os.killpg(running.pid, number)
    except ProcessLookupError:
        assert running.poll() is not None
    out, errors = running.communicate(timeout=100)
    left, until = in_session(running.pid), time.monotonic() + 10
    while left and time.monotonic() < until:  # multiprocessing's tracker ends after the others
        time.sleep(0.1)
        left = in_session(running.pid)
    assert not left
    return running.returncode, out, errors


class TestCtrlC:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", COMMANDS)
    def test_at_any_moment(self, name: str, tmp_path: Path) -> None:
        """The exit code is 130, or 2 if the unknown target was reported first, with at most one sentence and no
        traceback. Regression test: a worker, its fork server, or the command itself was interrupted in its imports and
        printed a traceback."""
        moments = random.Random(name)
        for _ in range(20):
            after = moments.uniform(0.0, 3.0)
            code, _, errors = interrupted(COMMANDS[name], after, signal.SIGINT, tmp_path)
            assert code == 130 or (code == 2 and "unknown" in name), (after, code, errors)
            assert errors.count("\n") <= 1, (after, errors)
            assert "Traceback" not in errors

    @pytest.mark.parametrize("after", [0.1, 1.2, 2.4])
    @pytest.mark.parametrize("name", ["fuzz", "conformance opinfo"])
    def test_at_some_moments(self, name: str, after: float, tmp_path: Path) -> None:
        """The same at three moments: while the command imports, while the server imports, and while a worker loads the
        target."""
        code, _, errors = interrupted(COMMANDS[name], after, signal.SIGINT, tmp_path)
        assert (code, errors.count("\n")) == (130, 1), errors

    def test_a_script_of_the_user_handles_it_itself(self, tmp_path: Path) -> None:
        """A command that runs a script leaves Ctrl-C to it, so that the script can save its work."""
        script = tmp_path / "script.py"
        script.write_text(
            "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"
            "except KeyboardInterrupt:\n    print('saved', flush=True)\n"
        )
        words = [sys.executable, "-m", "conformance", "kernels", str(script)]
        running = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
        assert out.startswith("saved\n")

    @pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
    def test_while_the_interpreter_ends(self, number: str) -> None:
        """The exit code is the command's own. Regression test: the signal ended a process that had reported its
        result, since the interpreter restores the default handlers before it deletes the modules."""
        lines = [
            "import os, signal, sys",
            "from conformance.run.signals import ends_imports",
            "class Last:",
            f"    def __del__(self, kill=os.kill, own=os.getpid(), number=signal.{number}): kill(own, number)",
            "ends_imports('conformance opinfo')",
            "last = Last()",
            "sys.exit(2)",
        ]
        done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (2, b"")

    @pytest.mark.parametrize(("name", "done"), [("fuzz", '"following": [1-9]'), ("conformance opinfo", '"outcome"')])
    def test_sigterm_to_all(self, name: str, done: str, tmp_path: Path) -> None:
        """The exit code is 143. A process killed by the signal is no finding, even if a worker dies before the command
        has received it."""
        code, _, errors = interrupted(COMMANDS[name], 1.0, signal.SIGTERM, tmp_path, done)
        assert code == 143
        assert "Traceback" not in errors
        report = tmp_path / ("fuzz.json" if name == "fuzz" else "opinfo.json")
        assert "SIGTERM" not in report.read_text()
