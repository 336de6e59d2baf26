"""Cases that are measured in workers with limits: the part that `conformance accuracy` and `conformance sizes` share.

Defines `Job`, `measured`, `run` and `recorded`. The key insight: a crash of the device, or of the harness, is the
result of one case and of no other; a job says only what its workers do.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conformance.core import expectations
from conformance.core.errors import UserError
from conformance.core.expectations import Expectation
from conformance.core.result import Failure, Outcome, Result, Run
from conformance.opinfo.isolation import FATES
from conformance.report import __main__ as report
from conformance.report.escape import escape_control_characters
from conformance.run import stop
from conformance.run.messages import Death, Fate, Limits, Task, WorkerDied, unusable
from conformance.run.pool import LocalPool


@dataclass(frozen=True)
class Job:
    """What workers do: `described` gives the target's environment and the dtypes that it holds (None: all), `run` the
    result of a case on the target of this spec; `modules` are loaded beforehand."""

    described: Callable[[str], tuple[dict[str, str], tuple[str, ...] | None]]
    run: Callable[[str, Any], Result]
    modules: Sequence[str]


class Measurable(Protocol):
    """A case: an id, a dtype, what is called, and how its result is made."""

    @property
    def id(self) -> str:
        """Unique in a run."""

    @property
    def dtype(self) -> str:
        """The dtype that a target must hold."""

    @property
    def call(self) -> str:
        """The call, in Python."""

    def result(self, outcome: Outcome, **rest: Any) -> Result:
        """A result of this case."""


def measured(pool: LocalPool, spec: str, job: Job, cases: Sequence[Measurable]) -> Iterator[Result]:
    """The result of each case as it ends. Raises TargetError where no worker can be started, and Stopped."""
    for case in cases:
        pool.submit(Task(case.id, job.run, (spec, case)))
    for task, answer in pool.ended():
        case = task.args[1]
        if not isinstance(answer, Death):
            if isinstance(answer.error, UserError):
                raise answer.error
            said = f"{type(answer.error).__name__}: {answer.error}"
            fault = Failure("harness", "the harness itself", "no error", said[:2_000])
            yield answer.value or case.result(Outcome.CRASH, failed=1, failures=(fault,))
        elif answer.fate is Fate.NEVER_STARTED:
            raise unusable(spec, answer)
        else:
            outcome, oracle = FATES[answer.fate]
            phase = answer.note.steps[-1] if answer.note and answer.note.steps else "the worker"
            failure = Failure(oracle, phase, "an answer", answer.said, call=case.call)
            yield case.result(outcome, samples=1, failed=1, failures=(failure,))


def run(
    target: str,
    job: Job,
    cases: Sequence[Measurable],
    limits: Limits,
    *,
    jobs: int = 1,
    expected: Sequence[Expectation] = (),
    found: Callable[[Result], None] = lambda result: None,
) -> Run:
    """Measure the cases on `target`; at a stop, those that there are. `found` is told each result as the expectations
    declare it. Raises TargetError for a target that cannot be loaded or has no values."""
    begin = time.monotonic()
    made = Run(target, started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    try:
        with LocalPool(target, limits, jobs, job.modules) as pool:
            try:
                made.environment, held = pool.ask(job.described, target)
            except WorkerDied as died:
                raise unusable(target, died.death) from None
            left = [case for case in cases if held is None or case.dtype in held]
            if len(left) < len(cases):
                made.notes.append(
                    f"{len(cases) - len(left)} cases of dtypes that the target does not hold were left out."
                )
            for result in measured(pool, target, job, left):
                (declared,) = expectations.apply([result], expected)
                made.results.append(declared)
                found(declared)
    except KeyboardInterrupt:
        made.complete, made.interrupted = False, stop.signal_number()
    made.seconds = time.monotonic() - begin
    return made


def recorded(made: Run, name: str, words: Sequence[str], file: Path, options: argparse.Namespace) -> bool:
    """Write the run of `conformance NAME WORDS`, and with `--update-expectations` first declare in `file` what fails.
    False, with nothing written, where it was stopped before anything was measured."""
    made.command = shlex.join(["conformance", name, *words])
    if not made.complete and not made.results:
        print(f"conformance {name}: interrupted before anything was measured; no report is written.", file=sys.stderr)
        return False
    if options.update_expectations and made.complete:
        print("\n".join(map(escape_control_characters, expectations.declare(made, file))))
        made.results = expectations.accept(made.results, expectations.load(file))
    made.expectations = str(file) if file.exists() else ""
    summary = report.write(made, options.reports, None)
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8", errors="backslashreplace") as out:
            out.write(summary)
    return True
