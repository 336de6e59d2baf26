"""Check of each finding's script in a fresh process: does it show its headline without the run?

Defines `confirm`, for the results of every command, and `ScriptChecks`, for those of a running campaign. A script shows
its headline if it ends with exit code 1 and reports the same oracle on the same tensor. For a crash or a hang, its
process has to end as the headline says. A fork (`script_process.Forks`) is faster than `python FILE`, but only confirms
a headline: after any other verdict, and for a hang, the script runs as `python FILE`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import MappingProxyType
from typing import Self

from conformance.record.causes import causes_of
from conformance.record.errors import UsageError
from conformance.record.finding import HARNESS, INVALID, NO_PROGRAM, gist
from conformance.record.names import MEASURED
from conformance.record.result import NOT_RUN, SHOWS, UNEXPECTED, Failure, Outcome, Result, Run
from conformance.record.shortfall import SCRIPTS, Shortfall
from conformance.run import signals
from conformance.run.execution_place import preloaded
from conformance.run.messages import LOST, exit_in_words
from conformance.run.script_process import NO_DIFFERENCE, Ended, Forks, run_alone
from conformance.standalone.script import PACKAGE_OPERATORS, SCRIPT_OPERATORS

BUDGET = 300.0
"""Time in seconds for starting scripts, unless the user passes another number; later ones do not run."""

STARTING = 30.0
"""Seconds that a script may take beyond the limit of a program or a case, for importing torch and the device."""

UNSEEN = (*MEASURED, "harness", "not compared", "memory")
"""Oracles of headlines that no script can show: scripts measure no device and have no memory limit."""

GRACE = 2.0
"""Seconds that a script which runs at the end of `--minutes` has left. Then it is killed, and counts as not run."""

WITHIN = "at most"
"""First words of the expected side of a measured bound. A script measures its own memory against such a bound."""

NO_SCRIPT_CAN = f"{NOT_RUN}: no script can show this headline"

WHOLE = "the whole run"
"""Location that a script names for an error that no step expects."""


class ScriptChecks:
    """Scripts of one target that run while a campaign still draws, and what they do.

        checks = ScriptChecks("device:mydevice,import=my_backend", limit=60)
        checks.run(result, until)  # "shows its headline"

    The comment lines of a script, such as the number of programs, do not count: `confirm` does not run it again."""

    def __init__(self, target: str, limit: float) -> None:
        self.target, self.limit = target, limit
        self.known: dict[str, str] = {}
        self._forks: Forks | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._forks is not None:
            self._forks.close()

    def run(self, result: Result, until: float) -> str:
        """Run a result's script, and return the value of `Result.alone`; "" if it cannot show its headline, or if it
        has not ended at `until`, in seconds since the epoch. Raises Stopped."""
        if not (result.scripted and _can_show(result)):
            return ""
        key = code_of(result.scripted.script)
        if key in self.known:
            return self.known[key]
        if self._forks is None:
            self._forks = Forks(_preloads(self.target, [result]))
        ending = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            try:
                for way in [self._forks if self._forks.fit else None, None]:
                    future = thread.submit(_verdict, result, self.limit, ending, way)
                    while not wait([future], 0.2).done:
                        signals.check()
                        if time.time() >= until:
                            ending.set()
                    if ending.is_set():
                        return ""
                    if verdict := future.result():
                        self.known[key] = verdict
                        return verdict
            finally:
                ending.set()
        return ""


def code_of(script: str) -> str:
    """Return a script without its comment lines, which say how often and when it was found."""
    return "\n".join(line for line in script.splitlines() if not line.startswith("# "))


def _preloads(target: str, results: Iterable[Result]) -> tuple[str, ...]:
    """Modules that the scripts of these results import in each fork, unless the server has imported them."""
    compiling = any("torch.compile(" in failure.script for result in results for failure in result.failures)
    return ("torch._dynamo", *preloaded(target)) if compiling else ()


def confirm(
    run: Run,
    limit: float,
    seconds: float,
    jobs: int,
    earlier: Mapping[str, str] = MappingProxyType({}),
    longest: float = math.inf,
) -> None:
    """Run the scripts of the results, `jobs` at a time, and note in each result whether its script shows its headline.

    After `seconds` no further script starts, and no script of a hang that would still run then. After `longest`
    seconds, scripts that still run are killed. Results without a verdict are marked as NOT_RUN. The scripts of
    `earlier` (`ScriptChecks.known`) do not run again. The time of the run includes that of its scripts.
    """
    scripted = [result for result in run.results if result.scripted and result.outcome is not Outcome.XPASS]
    known = {result.id: NOT_RUN if _can_show(result) else NO_SCRIPT_CAN for result in scripted}
    for result in scripted if earlier else ():
        if known[result.id] == NOT_RUN and result.scripted is not None:
            known[result.id] = earlier.get(code_of(result.scripted.script), NOT_RUN)
    chosen = [*_in_order(result for result in scripted if known[result.id] == NOT_RUN)]
    ending, began = threading.Event(), time.monotonic()
    until, killed = began + seconds, began + longest

    def shown(result: Result, way: Forks | None) -> tuple[Result, str]:
        assert result.scripted is not None  # as for all that are chosen
        needed = limit + STARTING if result.scripted.oracle == "timeout" else 0.0
        if ending.is_set() or time.monotonic() >= until - needed:
            return result, NOT_RUN
        verdict = _verdict(result, limit, ending, way)
        return result, NOT_RUN if ending.is_set() and verdict != SHOWS else verdict

    with contextlib.closing(Forks(_preloads(run.target, chosen))) as forks, ThreadPoolExecutor(jobs) as pool:
        way = forks if forks.fit else None
        left: set[Future[tuple[Result, str]]] = {pool.submit(shown, result, way) for result in chosen if seconds}
        try:
            while left:
                done, left = wait(left, 0.5, FIRST_COMPLETED)
                for result, verdict in [future.result() for future in done]:
                    if verdict:
                        known[result.id] = verdict
                    else:  # behind all scripts that have not run yet
                        left.add(pool.submit(shown, result, None))
                signals.check()
                if time.monotonic() >= killed:
                    ending.set()
        except KeyboardInterrupt:
            run.interrupted, run.complete = signals.signal_number(), False
        finally:
            ending.set()
    run.seconds += time.monotonic() - began
    run.results = [result.replace(alone=known.get(result.id, "")) for result in run.results]


def torch_of(pythons: Iterable[str]) -> dict[str, str]:
    """Return the torch version of each interpreter. Raises UsageError for one that cannot import torch."""
    known = {}
    for python in dict.fromkeys(pythons):
        words = [python, "-W", "ignore", "-c", "import torch; print(torch.__version__)"]
        try:
            process = subprocess.run(words, capture_output=True, text=True, timeout=STARTING * 2, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"--also-on {python}: it cannot be started ({error}); give a Python with torch") from None
        lines = process.stdout.split() if process.returncode == 0 else []
        if not lines:
            why = (process.stderr.strip().splitlines() or ["it prints nothing"])[-1]
            raise UsageError(f"--also-on {python}: it does not import torch ({why}); give a Python with torch")
        known[python] = lines[-1]
    return known


def also_on(run: Run, pythons: Mapping[str, str], limit: float, seconds: float) -> None:
    """Run the scripts that show their headline here under other interpreters, whose torch versions are the values, and
    note in each result what they do there. After `seconds` no further script starts."""
    until, began = time.monotonic() + seconds, time.monotonic()
    shown: dict[str, dict[str, str]] = {}
    for result in _in_order(result for result in run.results if result.alone == SHOWS):
        first = result.scripted
        assert first is not None  # a result whose script has run
        for python, version in pythons.items():
            if time.monotonic() >= until:
                statement = NOT_RUN
            else:
                statement = statement_about(result, run_alone(first.script, limit + STARTING, python=python), limit)
            shown.setdefault(result.id, {})[f"torch {version}"] = statement
    run.seconds += time.monotonic() - began
    run.results = [result.replace(also_on=shown.get(result.id, {})) for result in run.results]


def count_unrun(run: Run) -> list[Shortfall]:
    """Return how many scripts `confirm` and `also_on` did not start in their time. Scripts that cannot show their
    headline are not counted."""
    limit, here = "--check-scripts", [result.alone for result in run.results if result.alone]
    counts = {SCRIPTS: (here.count(NOT_RUN), sum(not text.startswith(NO_SCRIPT_CAN) for text in here))}
    for version in {version: 0 for result in run.results for version in result.also_on}:
        there = [result.also_on[version] for result in run.results if version in result.also_on]
        counts[f"{SCRIPTS} under {version}"] = (there.count(NOT_RUN), len(there))
    return [Shortfall(what, missing, planned, limit) for what, (missing, planned) in counts.items() if missing]


def _can_show(result: Result) -> bool:
    first, kind = result.scripted, result.finding.kind if result.finding else ""
    if first is None or first.where in NO_PROGRAM:
        return False
    unseen = first.oracle in UNSEEN and not first.expected.startswith(WITHIN)
    return not unseen and kind not in (INVALID, HARNESS)


def _in_order(results: Iterable[Result]) -> Iterator[Result]:
    """Yield the results in the order in which their scripts run: undeclared results before the others; of both, the
    first example of each cause, the worst cause first, then the second examples, and so on.
    """
    new, others = list[Result](), list[Result]()
    for result in results:
        (new if result.outcome in UNEXPECTED else others).append(result)
    for group in new, others:
        for examples in itertools.zip_longest(*(cause.results for cause in causes_of(group))):
            yield from (example for example in examples if example is not None)


def _verdict(result: Result, limit: float, ending: threading.Event, forks: Forks | None) -> str:
    """Run the script of a result, in a fork if there are `forks`, and return the value of `Result.alone`. Return "" if
    `python FILE` has to decide: a fork can only confirm a headline, and no hang, since a process may hang only as a
    fork.
    """
    first = result.scripted
    assert first is not None  # checked by the caller
    if forks is not None and first.oracle == "timeout":
        return ""
    statement = statement_about(result, run_alone(first.script, limit + STARTING, ending.is_set, forks), limit)
    return statement if forks is None or statement == SHOWS else ""


def statement_about(result: Result, ended: Ended, limit: float) -> str:
    """Return SHOWS if the script ended as its headline says, else the reason in words."""
    first = result.scripted or result.failures[0]
    dies, hangs = first.oracle == "crash", first.oracle == "timeout"
    if ended.code is None:
        return SHOWS if hangs else f"it runs longer than {limit + STARTING:g} s"
    # A device that calls `sys.exit()` ends its script with 0, and so does a script that finds nothing.
    compared = any(line.startswith(NO_DIFFERENCE) for line in ended.reported)
    if dies and exit_in_words(ended.code) in first.actual and not compared:
        return SHOWS
    if dies and ended.code == 1 and any(_loses(line, first) for line in ended.reported):
        return SHOWS
    if ended.code == 1 and not (dies or hangs) and any(_reports(line, first) for line in ended.reported):
        return SHOWS
    if ended.code == 0:
        return "it finds no difference"
    if ended.code < 0:
        return f"it {exit_in_words(ended.code)}"
    if ended.code == 1 and ended.reported:
        return f"it reports another difference: {ended.reported[0][:200]}"
    last = ended.last[-1][:200] if ended.last else "nothing is printed"
    return f"it ends with exit code {ended.code}: {last}"


def _loses(line: str, headline: Failure) -> bool:
    """Whether a line reports the error with which the headline's device was lost."""
    _, lost, error = headline.actual.partition(f"{LOST} (")
    kind, _, text = error.removesuffix(")").partition(": ")
    return bool(lost) and f"got {kind} (" in line and text in line


def _reports(line: str, headline: Failure) -> bool:
    """Whether a line reports the headline's oracle and tensor.

    For an error, both types and the words of its text have to match too. An error that no step expects ends the whole
    script, at any step. A script registers custom operators in another namespace.
    """
    places = [headline.where.partition(" (")[0]]
    if headline.oracle != "error":
        return line.startswith(f"{headline.oracle} of {places[0]}: expected ")
    places += [WHOLE] if headline.expected == "no error" else []
    kind, _, text = headline.actual.partition(":")
    for where in places:
        ends = f"error of {where}: expected {headline.expected}, got {kind}"
        stated = f"{text} {headline.detail}".replace(PACKAGE_OPERATORS, SCRIPT_OPERATORS)
        if line.startswith(ends) and gist(line[len(ends) :]) == gist(stated):
            return True
    return False
