"""Run of cases in workers with limits: shared code of `conformance accuracy` and `conformance sizes`.

Defines the command's `options`, `command`, `limits_of`, `chosen` and `summarize`, and `Job`, `measured`, `run` and
`recorded`. A crash of the device, or of the harness, is the result of only one case. A `Job` defines the code that runs
in a worker.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.declare.declared import refuse
from conformance.declare.expectations import Expectation
from conformance.record import versions
from conformance.record.accuracy import ACCURACY
from conformance.record.errors import UsageError, UserError
from conformance.record.footprint import SHORT
from conformance.record.result import Failure, Outcome, Result, Run, summary_line
from conformance.report import __main__ as report
from conformance.report.escape import escape_control_characters
from conformance.report.pipe import reader_gone
from conformance.report.summary import known_cases
from conformance.run import signals
from conformance.run.execution_place import LOCAL, Place, told
from conformance.run.messages import COMPILE_LIMIT, Death, ExitReason, Limits, Pool, Task, WorkerDied, unusable
from conformance.run.worker_log import log_file
from conformance.sources.accuracy.table import DIRECTIONS
from conformance.sources.accuracy.worker import TARGET
from conformance.sources.opinfo.isolation import OUTCOMES


@dataclass(frozen=True)
class Job:
    """Code that runs in workers, by the target's spec: `run` returns the result of a case, and `described` the target's
    environment and the dtypes that it holds (None: all). `modules` are imported beforehand.
    """

    described: Callable[[str], tuple[dict[str, str], tuple[str, ...] | None]]
    run: Callable[[str, Any], Result]
    modules: Sequence[str]


class Measurable(Protocol):
    """A case with an id, a dtype, a call, and a method that creates its result."""

    @property
    def id(self) -> str:
        """Id, unique in a run."""

    @property
    def dtype(self) -> str:
        """Dtype that a target must hold."""

    @property
    def call(self) -> str:
        """The call, as Python source."""

    def result(self, outcome: Outcome, **rest: Any) -> Result:
        """Return a result of this case."""


def options(name: str, does: str, findings: str, usual: Limits, subjects: str) -> argparse.ArgumentParser:
    """Return the parser of `conformance NAME`, whose table has `subjects`, and whose default limits are `usual`."""
    made = argparse.ArgumentParser(
        f"conformance {name}",
        description=does,
        epilog=f"Exit code: 0 all as expected; 1 {findings}, or a crash, if not declared; 2 nothing measured, or bad "
        "usage; 130 Ctrl-C, 143 SIGTERM.",
    )
    add = made.add_argument
    add("--target", help="what is under test: device:NAME[,import=MODULE], compile:NAME, FILE.toml (default: "
                         "conformance.toml, else tiny)")  # fmt: skip
    add("--op", action="append", default=[], metavar="GLOB", help=f"only these {subjects}; may be repeated")
    add("--timeout", "--limit", type=float, metavar="S", help=f"seconds for one case (default: {usual.unit:g})")
    add("--compile-limit", type=float, metavar="S", help="seconds for building kernels within a case, beside --timeout")
    add("--memory", type=float, metavar="GIB", help=f"memory of a worker (default: {usual.memory:g}, or the profile's)")
    add("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where to write (reports)")
    add("--expectations", type=Path, metavar="FILE", help=f"default: {expectations_file(name, '<target>')}")
    add("--update-expectations", action="store_true", help="declare what fails in that file, knowingly")
    return made


def expectations_file(name: str, target: str) -> Path:
    """Return the file of a target's known findings; it is separate from op_db's file, which is about other cases."""
    return expectations.FOLDER / name / f"{target if target == '<target>' else profiles.file_name(target)}.toml"


def declared(name: str, file: Path, ops: Iterable[str]) -> list[Expectation]:
    """Return the known findings in a file, none if it does not exist. Raises ReportError for a name without a row."""
    oracles = (*expectations.WORDS["oracle"], ACCURACY)
    words = expectations.WORDS | {"variant": DIRECTIONS, "layout": (name,), "oracle": oracles}
    entries = expectations.load(file)
    refuse(expectations.check(entries, ops, file, words))
    return entries


def command(
    name: str,
    parser: argparse.ArgumentParser,
    run_command: Callable[[argparse.Namespace, list[str]], int],
    arguments: Sequence[str] | None,
) -> int:
    """Run `conformance NAME`: parse the options and pass them to `run_command`, with the words of the command line.
    Returns the exit code.
    """
    args = parser.parse_args(arguments)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        versions.check()
        with signals.deferred(), log_file(args.reports / f"{name}-workers.log") as file:
            args.place = Place(worker_log=file, tell=told)
            return run_command(args, words)
    except BrokenPipeError:
        return reader_gone()
    except UserError as error:
        print(f"conformance {name}: {escape_control_characters(str(error))}", file=sys.stderr)
        return 2


def limits_of(spec: str, args: argparse.Namespace, usual: Limits) -> Limits:
    """Return the limits of a worker: from the options, or the target's profile, or `usual`. Raises UsageError."""
    limits = replace(
        usual,
        unit=profiles.limit(spec, "seconds", args.timeout, usual.unit),
        compiling=profiles.limit(spec, "compiling", args.compile_limit, COMPILE_LIMIT),
        memory=profiles.limit(spec, "memory", args.memory, usual.memory or 8.0),
    )
    for option, value in (("timeout", limits.unit), ("compile-limit", limits.compiling)):
        if not value > 0:
            raise UsageError(f"--{option} must be above 0, and is {value}")
    return limits


def chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    """Return the words of a comma-separated list, or all known ones for `all`. Raises UsageError for an unknown word,
    and for an empty list.
    """
    words = list(known) if text == "all" else [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise UsageError(f"unknown {what} {word!r}: choose several of {', '.join(known)}, or all")
    if not words:
        raise UsageError(f"no {what} given; choose several of {', '.join(known)}, or all")
    return words


def summarize(console: Console, made: Run, name: str, worst: Iterable[str], folder: Path) -> None:
    """Print the worst cases, one line each, the cases that were not measured, and the count of cases on the
    last line.
    """
    for line in worst:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for result in made.results:
        if result.outcome is Outcome.SKIP:
            console.print(escape_control_characters(f"not measured: {result.id}: {result.reason}"), highlight=False)
    for note in [*known_cases(made), *made.notes]:
        console.print(escape_control_characters(note), highlight=False, markup=False)
    console.print(f"report: {folder / report.PAGES[name]}", highlight=False, markup=False)
    if made.exit_code() == 2:
        print(f"conformance {name}: nothing was measured in {len(made.results)} cases.", file=sys.stderr)
    print(summary_line(made), flush=True)


def measured(pool: Pool, spec: str, job: Job, cases: Sequence[Measurable]) -> Iterator[Result]:
    """Yield the result of each case as it ends. Raises TargetError if no worker can be started, and Stopped."""
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
        elif answer.reason is ExitReason.NEVER_STARTED:
            raise unusable(spec, answer)
        elif reason := _too_small(answer):
            yield case.result(Outcome.SKIP, skipped=1, reason=reason)
        else:
            outcome, oracle = OUTCOMES[answer.reason]
            phase = answer.note.steps[-1] if answer.note and answer.note.steps else "the worker"
            failure = Failure(oracle, phase, "an answer", answer.said, call=case.call)
            yield case.result(outcome, samples=1, failed=1, failures=(failure,))


def _too_small(death: Death) -> str:
    """Return the reason if the worker died at its memory limit before the target ran, or with less memory than the call
    may take; "" for any other death.
    """
    steps = death.note.steps if death.note is not None and death.reason is ExitReason.MEMORY else ()
    noted = next((text for text in steps if text.startswith(SHORT)), "")
    return noted or (f"{SHORT} before the target runs" if steps and TARGET not in steps else "")


def run(
    target: str,
    job: Job,
    cases: Sequence[Measurable],
    limits: Limits,
    *,
    jobs: int = 1,
    place: Place = LOCAL,
    expected: Sequence[Expectation] = (),
    found: Callable[[Result], None] = lambda result: None,
) -> Run:
    """Measure the cases on `target` and return the run; at a stop, with the results so far.

    `found` receives each result after the expectations are applied. Raises TargetError for a target that cannot be
    loaded or has no values.
    """
    begin = time.monotonic()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = Run(target, started=started, identity=profiles.identity(target))
    try:
        with place.pool(target, limits, jobs, job.modules) as pool:
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
        made.complete, made.interrupted = False, signals.signal_number()
    small = sum(result.outcome is Outcome.SKIP and result.reason.startswith(SHORT) for result in made.results)
    if small:
        made.notes.append(f"{small} cases were not measured, since each {SHORT} {limits.memory:g} GiB.")
    made.seconds = time.monotonic() - begin
    return made


def recorded(made: Run, name: str, words: Sequence[str], file: Path, options: argparse.Namespace) -> bool:
    """Write the run of `conformance NAME WORDS`. With `--update-expectations`, first declare its failures in `file`.

    Returns False, without writing, if the run was stopped before it measured anything.
    """
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
