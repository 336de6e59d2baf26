"""A script in a fresh process: as `python FILE`, or as `__main__` in a fork of a server that has imported torch only.

Defines `run_alone`, `Ended` and `Forks`. Importing torch takes most of a script's time, and a fork saves that. The fork
has the module search path, the environment, the standard streams and the exit of `python FILE`. No device is loaded
before the fork, so the device has its fresh state. Forks are used where workers are forks (`processes.can_fork`), and
only while the server has one thread. A script may hang or print without end: each process has a time limit, and only
the lines that decide are stored.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Protocol

from conformance.run.processes import Forking, can_fork
from conformance.run.temporary import OwnedFolder

NO_DIFFERENCE = "no difference here"
"""Start of the line of a script that has compared everything and found nothing wrong."""
REPORTED = re.compile(rf"[a-z_]+ of .*: expected |{NO_DIFFERENCE}")
"""Start of a line that reports a difference (`oracles.Mismatch`), or that there is none."""

MOST_LINES, LONGEST_LINE, LAST = 500, 4_000, 5
"""Limits on stored output: reported differences of a script, characters of a line, and last lines."""


@dataclass
class Ended:
    """End of a script's process: its exit code (None at the time limit), the lines that report a difference or that
    there is none, and its last lines.
    """

    code: int | None
    reported: list[str]
    last: deque[str]


class Process(Protocol):
    """A running script, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""

    def wait(self) -> int:
        """Wait for the end and return the exit code."""


def run_alone(
    script: str,
    limit: float,
    ending: Callable[[], bool] = lambda: False,
    forks: Forks | None = None,
    python: str = sys.executable,
) -> Ended:
    """Run a script in a separate process, in the current folder: as `python FILE` with this interpreter, or in a fork
    if `forks` can fork. At the limit, or when `ending` returns true, the process and its children are killed.
    """
    with OwnedFolder("script-") as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        process, output = (forks.start(path) if forks is not None else None) or _spawned(path, python)
        over, done = threading.Event(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(process, time.monotonic() + limit, ending, over, done))
        watcher.start()
        ended = Ended(None, [], deque(maxlen=LAST))
        with output:
            while raw := output.readline(LONGEST_LINE):
                line = raw.decode("utf-8", "replace").strip()
                if REPORTED.match(line) and len(ended.reported) < MOST_LINES:
                    ended.reported.append(line)
                if line:
                    ended.last.append(line)
        code = process.wait()
        done.set()
        watcher.join()
        _kill(process)  # its children may have outlived it
        ended.code = None if over.is_set() else code
        return ended


def _spawned(path: Path, python: str) -> tuple[Process, IO[bytes]]:
    process = subprocess.Popen(
        [python, "-W", "ignore", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, process.stdout


def _watch(
    process: Process, until: float, ending: Callable[[], bool], over: threading.Event, done: threading.Event
) -> None:
    while not done.wait(0.1):
        if process.poll() is not None:
            break
        if time.monotonic() >= until or ending():
            over.set()
            break
    _kill(process)


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class Forks:
    """A server that has imported torch and `preload`, as `Target.preload` names it, and forks a process for each
    script. It starts with the first script."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._context = Forking(("torch", *preload, __name__))
        self._lock = threading.Lock()
        self.fit = can_fork()
        """Whether the server can fork, as far as is known."""

    def start(self, path: Path) -> tuple[Process, IO[bytes]] | None:
        """Run the script of this file in a fork. Return its process and its output, or None if the server cannot fork.
        Raises Stopped while the server starts.
        """
        with self._lock:
            if not self.fit:
                return None
            reads, writes = multiprocessing.Pipe(duplex=False)
            try:
                with writes:
                    folders = [entry or str(path.parent) for entry in self._search_path]
                    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a new process would inherit it
                    args = (str(path), folders, dict(os.environ), ignored, writes)
                    fork = _Fork(self._context.fork(run_as_main, args))
            except (OSError, EOFError):
                reads.close()
                self.fit = False
                return None
            with reads:
                return fork, os.fdopen(os.dup(reads.fileno()), "rb")

    @functools.cached_property
    def _search_path(self) -> list[str]:
        """The module search path of `python FILE`, with the empty string for the folder of the file."""
        with tempfile.TemporaryDirectory(prefix="conformance-script-") as folder:
            path = Path(folder) / "path.py"
            path.write_text("import sys\nprint(*sys.path, sep='\\0')", encoding="utf-8")
            printed = subprocess.run([sys.executable, str(path)], stdout=subprocess.PIPE, check=True, text=True).stdout
            own, entries = os.path.realpath(folder), printed.removesuffix("\n").split("\0")
            return ["" if os.path.realpath(entry) == own else entry for entry in entries]

    def close(self) -> None:
        """Release the server, which stays ready for other users in this process."""
        self._context.close()


class _Fork:
    """A fork of the server. Raises EOFError and OSError if the server ends before it forks."""

    def __init__(self, line: Connection) -> None:
        self._line, self._lock = line, threading.Lock()
        self._code: int | None = None
        self.pid: int = line.recv()

    def poll(self, seconds: float | None = 0.0) -> int | None:
        with self._lock:
            if self._code is None and self._line.poll(seconds):
                try:
                    self._code = int(self._line.recv())
                except (EOFError, OSError):  # the server is gone, and has killed its forks
                    self._code = -signal.SIGKILL
            return self._code

    def wait(self) -> int:
        while (code := self.poll(0.1)) is None:
            pass
        return code


def run_as_main(
    path: str, folders: Sequence[str], environment: Mapping[str, str], ignores_sigint: bool, output: Connection
) -> None:
    """Run a script in this fork of the server as `python -W ignore FILE` does, and end the interpreter as it does:
    exit functions run, threads are joined, and objects are destroyed.
    """
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignores_sigint else signal.default_int_handler)
    warnings.simplefilter("ignore")
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:], sys.path[:] = [path], folders
    for name in [name for name in sys.modules if name.partition(".")[0] == "conformance"]:
        del sys.modules[name]  # the script may find another copy, or none
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    vars(main)["__builtins__"] = builtins
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))  # noqa: S102 - our own
    except Exception as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None  # those of the script
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        raise SystemExit(1) from None
    raise SystemExit(0)
