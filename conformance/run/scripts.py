"""Check of each finding's script in a fresh process: does it show its headline without the run?

Defines `confirm`, for findings of drawn programs and for cases of op_db. A script shows its headline if it ends with
exit code 1 and reports the same oracle on the same tensor. For a crash or a hang, its process has to end as the
headline says. A script may hang or print without end, so its process has a time limit, and only the lines that decide
are stored.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.record.finding import HARNESS, INVALID, gist
from conformance.record.result import SHOWS, UNEXPECTED, Failure, Outcome, Result, Run, counted
from conformance.run import signals
from conformance.run.messages import exit_in_words

BUDGET = 300.0
"""Time in seconds for starting scripts, unless the user passes another number; later ones do not run."""

STARTING = 30.0
"""Seconds that a script may take beyond the limit of a program or a case, for importing torch and the device."""

UNSEEN = ("kernels", "harness", "not compared", "memory")
"""Oracles of headlines that no script can show: scripts count no kernels and have no memory limit."""

REPORTED = re.compile(r"[a-z_]+ of .*: expected ")
"""Start of a line that reports a difference (`oracles.Mismatch`)."""

WHOLE = "the whole run"
"""Location that a script names for an error that no step expects."""

MOST_LINES, LONGEST_LINE, LAST = 500, 4_000, 5
"""Limits on stored output: reported differences of a script, characters of a line, and last lines."""


@dataclass
class Ended:
    """End of a script's process: its exit code (None at the time limit), its reported differences, and its
    last lines.
    """

    code: int | None
    reported: list[str]
    last: deque[str]


def confirm(run: Run, limit: float, seconds: float, jobs: int) -> None:
    """Run the script of each listed, undeclared result, `jobs` at a time, and note in the result whether it shows its
    headline.

    After `seconds` no further script starts, and the run's notes count the scripts that did not run. The time of the
    run includes that of its scripts.
    """
    chosen = [result for result in sorted(run.results, key=_first) if _has_script(result)]
    if not chosen or not seconds:
        return
    known: dict[str, str] = {}
    ending, began = threading.Event(), time.monotonic()
    until = began + seconds

    def shown(result: Result) -> tuple[str, str]:
        if ending.is_set() or time.monotonic() >= until:
            return result.id, ""
        return result.id, said_of(result, run_alone(result.failures[0].script, limit + STARTING, ending.is_set), limit)

    with ThreadPoolExecutor(min(jobs, len(chosen))) as pool:
        left: set[Future[tuple[str, str]]] = {pool.submit(shown, result) for result in chosen}
        try:
            while left:
                done, left = wait(left, 0.5, FIRST_COMPLETED)
                known |= dict(each.result() for each in done)
                signals.check()
        except KeyboardInterrupt:
            run.interrupted, run.complete = signals.signal_number(), False
        finally:
            ending.set()
    run.seconds += time.monotonic() - began
    run.results = [replace(result, alone=known.get(result.id, "")) for result in run.results]
    late = len(chosen) - sum(bool(said) for said in known.values())
    if late:
        run.notes.append(f"{counted(late, 'script')} not run, since the time was over: give --check-scripts more")


def _first(result: Result) -> tuple[bool, str]:
    return result.outcome not in UNEXPECTED, result.id


def _has_script(result: Result) -> bool:
    if not (result.outcome in UNEXPECTED or result.layer) or result.outcome is Outcome.XPASS or not result.failures:
        return False
    kind = result.finding.kind if result.finding else ""
    first = result.failures[0]
    return bool(first.script) and first.oracle not in UNSEEN and kind not in (INVALID, HARNESS)


def said_of(result: Result, ended: Ended, limit: float) -> str:
    """Return SHOWS if the script ended as its headline says, else the reason in words."""
    first = result.failures[0]
    dies, hangs = first.oracle == "crash", first.oracle == "timeout"
    if ended.code is None:
        return SHOWS if hangs else f"it runs longer than {limit + STARTING:g} s"
    if dies and exit_in_words(ended.code) in first.actual:
        return SHOWS
    if ended.code == 1 and not (dies or hangs) and any(_reports(line, first) for line in ended.reported):
        return SHOWS
    if ended.code == 0:
        return "it finds no difference"
    if ended.code < 0:
        return f"it {exit_in_words(ended.code)}"
    if ended.code == 1 and ended.reported:
        return f"it reports another difference: {ended.reported[0][:200]}"
    said = ended.last[-1][:200] if ended.last else "nothing is printed"
    return f"it ends with exit code {ended.code}: {said}"


def _reports(line: str, headline: Failure) -> bool:
    """Whether a line reports the headline's oracle and tensor.

    For an error, both types and the words of its text have to match too. An error that no step expects ends the whole
    script, at any step.
    """
    places = [headline.where.partition(" (")[0]]
    if headline.oracle != "error":
        return line.startswith(f"{headline.oracle} of {places[0]}: expected ")
    places += [WHOLE] if headline.expected == "no error" else []
    for where in places:
        ends = f"error of {where}: expected {headline.expected}, got {headline.actual}"
        if line.startswith(ends) and gist(line[len(ends) :]) == gist(headline.detail):
            return True
    return False


def run_alone(script: str, limit: float, ending: Callable[[], bool] = lambda: False) -> Ended:
    """Run a script as `python FILE` in a separate process, in the current folder. At the limit, or when `ending`
    returns true, the process and its children are killed.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-script-") as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        over, done = threading.Event(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(process, time.monotonic() + limit, ending, over, done))
        watcher.start()
        ended = Ended(None, [], deque(maxlen=LAST))
        assert process.stdout is not None
        while raw := process.stdout.readline(LONGEST_LINE):
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


def _watch(
    process: subprocess.Popen[bytes],
    until: float,
    ending: Callable[[], bool],
    over: threading.Event,
    done: threading.Event,
) -> None:
    while not done.wait(0.1):
        if process.poll() is not None:
            break
        if time.monotonic() >= until or ending():
            over.set()
            break
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
