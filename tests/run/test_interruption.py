"""Ctrl-C and SIGTERM at any moment of a command: one sentence, its exit code, and no remaining processes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import stretched, wait_until
from tests.run import signals

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

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
    pytest.mark.usefixtures("sigint_heeded"),
]


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
    signal comes this number of seconds after the start, and after the progress file matches `done`. Files whose name
    begins with a dot are being written, and are renamed at any time."""
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
    if done:
        wait_until(
            lambda: any(re.search(done, path.read_text()) for path in folder.glob("[!.]*progress*")),
            f"{done!r} is noted",
        )
    try:
        os.killpg(running.pid, number)
    except ProcessLookupError:
        assert running.poll() is not None
    out, errors = running.communicate(timeout=stretched(100))
    wait_until(lambda: not in_session(running.pid), "its processes have ended")  # multiprocessing's tracker is the last
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
        out, _ = running.communicate(timeout=stretched(60))
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


def start_ignoring(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command as `nohup` and the background of a script do: SIGINT is ignored."""
    running = subprocess.Popen(
        ["bash", "-c", "trap '' INT; exec \"$@\"", "bash", sys.executable, "-W", "ignore", "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    while running.poll() is None and not signals.ignores(running.pid, signal.SIGINT):
        time.sleep(0.001)
    return running


class TestIgnored:
    """A command that was started with SIGINT ignored does not end by Ctrl-C, which was for another job."""

    def test_fuzz_goes_on(self, tmp_path: Path) -> None:
        """Signals during the imports, the drawing and the report change nothing. Regression test: the command installed
        a handler in any case, and ended with 130."""
        words = ["conformance.fuzz", "--target", "cpu", "--seed", "0", "--programs", "40", "--reports", str(tmp_path)]
        running, sent = start_ignoring(words, tmp_path), 0
        while running.poll() is None:
            os.killpg(running.pid, signal.SIGINT)
            sent += 1
            time.sleep(0.1)
        said = running.communicate()[0]
        assert running.returncode == 0, said
        assert "40 passed, 0 failed, 0 skipped" in said
        assert sent > 5

    def test_trace_goes_on(self, tmp_path: Path) -> None:
        """The traced script runs to its end."""
        (tmp_path / "script.py").write_text(
            "import os, signal, torch\nos.kill(os.getpid(), signal.SIGINT)\nprint('sum', float(torch.ones(3).sum()))\n"
        )
        running = start_ignoring(["conformance", "trace", "--target", "device:meta", "script.py"], tmp_path)
        said = running.communicate()[0]
        assert "sum 3.0" in said and "interrupted" not in said
        assert running.returncode == 2  # it judged no call: the script computes on the CPU

    @pytest.mark.parametrize("name", ["fuzz", "conformance opinfo"])
    def test_sigterm_ends_it(self, name: str, tmp_path: Path) -> None:
        """SIGTERM is meant for this process: it ends it, with the exit code of the signal."""
        running = start_ignoring([*COMMANDS[name], "--reports", str(tmp_path)], tmp_path)
        wait_until(lambda: [*tmp_path.glob("[!.]*progress*")], "the command notes its progress")
        running.send_signal(signal.SIGTERM)
        said = running.communicate()[0]
        assert running.returncode == 143, said
        assert "interrupted" in said and "Traceback" not in said
