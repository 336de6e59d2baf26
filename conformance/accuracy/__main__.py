"""The command `conformance accuracy --target ...`: the errors of a target and of torch CPU, side by side.

The key insight: this process plans, collects and writes only. Each case is measured in a worker with limits, so that a
crash of the device is one finding; and results, expectations, exit code and reports are those of every other command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conformance.accuracy import running, table, worker
from conformance.accuracy.running import Job
from conformance.accuracy.table import DIRECTIONS, DTYPES
from conformance.core import expectations, versions
from conformance.core import profile as profiles
from conformance.core.accuracy import shown
from conformance.core.errors import UsageError, UserError
from conformance.core.result import Outcome, Run, file_name, summary_line
from conformance.opinfo import terminal
from conformance.report import __main__ as report
from conformance.report.escape import escape_control_characters
from conformance.report.pipe import reader_gone
from conformance.run import stop
from conformance.run.messages import COMPILE_LIMIT, Limits
from conformance.run.probe import resolve

LIMITS = Limits(unit=120.0, memory=8.0)
LISTED = 10
"""Cases that the terminal shows, the worst."""


def expectations_file(target: str) -> Path:
    """Where the known inaccuracies of a target are declared; apart from those of op_db, which are about other cases."""
    return expectations.FOLDER / "accuracy" / f"{file_name(target)}.toml"


JOB = Job(worker.described, worker.run, worker.MODULES)


def arguments_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        "conformance accuracy",
        description="Measure the errors of a target and of torch CPU against float64 or mpmath, in ulp.",
        epilog="Exit code: 0 all as expected; 1 an error of more than 4 times torch CPU's that is not declared, or a "
        "crash; 2 nothing measured, or bad usage; 130 Ctrl-C, 143 SIGTERM.",
    )
    add = parser.add_argument
    add("--target", help="what is under test: device:NAME[,import=MODULE], compile:NAME, FILE.toml (default: "
                         "conformance.toml, else tiny)")  # fmt: skip
    add("--op", action="append", default=[], metavar="GLOB", help="only these ops of the table; may be repeated")
    add("--dtype", default="float32", metavar="A,B", help=f"float32 (default), several of {', '.join(DTYPES)}, or all")
    add("--variant", default="all", metavar="A,B", help=f"several of {', '.join(DIRECTIONS)}, or all (default)")
    add("-n", "--jobs", type=int, default=1, help="worker processes (default: 1)")
    add("--timeout", "--limit", type=float, metavar="S", help=f"seconds for one case (default: {LIMITS.unit:g})")
    add("--compile-limit", type=float, metavar="S", help="seconds for building kernels within a case, beside --timeout")
    add("--memory", type=float, metavar="GIB", help="memory of a worker (default: 8, or the profile's)")
    add("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where to write (reports)")
    add("--expectations", type=Path, metavar="FILE", help="default: reports/expectations/accuracy/<target>.toml")
    add("--update-expectations", action="store_true", help="declare what fails in that file, knowingly")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    options = arguments_parser().parse_args(arguments)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        versions.check()
        with stop.deferred():
            return _run_command(options, words)
    except BrokenPipeError:
        return reader_gone()
    except UserError as error:
        print(f"conformance accuracy: {escape_control_characters(str(error))}", file=sys.stderr)
        return 2


def _run_command(options: argparse.Namespace, words: list[str]) -> int:
    spec = profiles.usual(options.target, "tiny")
    limits = Limits(
        unit=profiles.limit(spec, "seconds", options.timeout, LIMITS.unit),
        compiling=profiles.limit(spec, "compiling", options.compile_limit, COMPILE_LIMIT),
        memory=profiles.limit(spec, "memory", options.memory, LIMITS.memory or 8.0),
    )
    for name, value in (("jobs", options.jobs), ("timeout", limits.unit), ("compile-limit", limits.compiling)):
        if not value > 0:
            raise UsageError(f"--{name} must be above 0, and is {value}")
    dtypes, variants = _chosen(options.dtype, DTYPES, "dtype"), _chosen(options.variant, DIRECTIONS, "variant")
    cases = table.select(options.op, dtypes, variants)
    profile = profiles.of(spec)
    lacking = set(profile.opinfos) if profile else set()
    asked, cases = len(cases), [case for case in cases if case.row.name.partition(" ")[0] not in lacking]
    file = options.expectations or expectations_file(spec)
    expected = expectations.load(file)
    target, seen = resolve(spec, limits)
    console = Console()

    with terminal.progress(console) as progress:
        progress.start(Run(spec), len(cases))
        made = running.run(target, JOB, cases, limits, jobs=options.jobs, expected=expected, found=progress.add)
    if len(cases) < asked:
        made.notes.append(f"{asked - len(cases)} cases of ops that the profile declares lacking were left out.")
    made.environment |= seen.described() if seen is not None else {}
    made.environment["selection"] = "; ".join(["accuracy", ",".join(options.op or ["all ops"]), *dtypes, *variants])
    if running.recorded(made, "accuracy", words, file, options):
        _summarize(console, made, options.reports)
    return made.exit_code()


def _chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    words = list(known) if text == "all" else [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise UsageError(f"unknown {what} {word!r}: choose several of {', '.join(known)}, or all")
    if not words:
        raise UsageError(f"no {what} given; choose several of {', '.join(known)}, or all")
    return words


def _summarize(console: Console, made: Run, folder: Path) -> None:
    """The worst cases, and the count of tests alone on the last line."""
    for result in made.measured[:LISTED]:
        of = result.accuracy
        assert of is not None
        line = (
            f"{shown(of.times):>8} x torch CPU: {result.name} {result.dtype} {result.variant}, {of.of}: "
            f"{shown(of.target)} ulp (mean {shown(of.target_rms)}), torch CPU {shown(of.cpu)} ({shown(of.cpu_rms)})"
        )
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for result in made.results:
        if result.outcome is Outcome.SKIP:
            console.print(escape_control_characters(f"not measured: {result.id}: {result.reason}"), highlight=False)
    for note in made.notes:
        console.print(escape_control_characters(note), highlight=False, markup=False)
    console.print(f"report: {folder / report.PAGES['accuracy']}", highlight=False, markup=False)
    if made.exit_code() == 2:
        print(f"conformance accuracy: nothing was measured in {len(made.results)} cases.", file=sys.stderr)
    print(summary_line(made), flush=True)


if __name__ == "__main__":
    sys.exit(main())
