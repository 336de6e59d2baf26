"""The command `conformance sizes --target ...`: calls of large sizes, their values and their memory beside torch CPU's.

The key insight: this process plans, collects and writes only. Each case has a worker to itself, since memory that an
earlier case left behind would hide what the next one takes; results, expectations, exit code and reports are those of
every other command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conformance.accuracy import running
from conformance.accuracy.running import Job
from conformance.core import expectations, versions
from conformance.core import profile as profiles
from conformance.core.errors import UsageError, UserError
from conformance.core.footprint import SIZES, mebibytes
from conformance.core.result import Outcome, Run, file_name, summary_line
from conformance.opinfo import terminal
from conformance.report import __main__ as report
from conformance.report.escape import escape_control_characters
from conformance.report.pipe import reader_gone
from conformance.run import stop
from conformance.run.messages import COMPILE_LIMIT, Limits
from conformance.run.probe import resolve
from conformance.sizes import table, worker
from conformance.sizes.table import DIRECTIONS, SCALES

LIMITS = Limits(unit=300.0, memory=10.0)
LISTED = 10
"""Cases that the terminal shows, those with the most of the memory that is allowed."""

JOB = Job(worker.described, worker.run, worker.MODULES)


def expectations_file(target: str) -> Path:
    """Where the known findings of a target are declared; apart from those of op_db, which are about other cases."""
    return expectations.FOLDER / SIZES / f"{file_name(target)}.toml"


def arguments_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        "conformance sizes",
        description="Run calls at the sizes of real work on a target and on torch CPU, and compare values and memory.",
        epilog="Exit code: 0 all as expected; 1 a wrong value, an inexact one, a peak of more than 3 times the bytes "
        "that are held and more than torch CPU's, or a crash, if not declared; 2 nothing measured, or bad usage; "
        "130 Ctrl-C, 143 SIGTERM.",
    )
    add = parser.add_argument
    add("--target", help="what is under test: device:NAME[,import=MODULE], compile:NAME, FILE.toml (default: "
                         "conformance.toml, else tiny)")  # fmt: skip
    add("--op", action="append", default=[], metavar="GLOB", help="only these rows of the table; may be repeated")
    add("--class", dest="families", default="", metavar="A,B", help=f"only these: {', '.join(table.families())}")
    add("--dtype", default="", metavar="A,B", help="only rows that compute in these dtypes")
    add("--variant", default="all", metavar="A,B", help=f"several of {', '.join(DIRECTIONS)}, or all (default)")
    add("--scale", default="large", help=f"what sizes stand for: {', '.join(SCALES)} (default: large)")
    add("--timeout", "--limit", type=float, metavar="S", help=f"seconds for one case (default: {LIMITS.unit:g})")
    add("--compile-limit", type=float, metavar="S", help="seconds for the call on a target that builds kernels in it")
    add("--memory", type=float, metavar="GIB", help="memory of a worker (default: 10, or the profile's)")
    add("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where to write (reports)")
    add("--expectations", type=Path, metavar="FILE", help="default: reports/expectations/sizes/<target>.toml")
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
        print(f"conformance sizes: {escape_control_characters(str(error))}", file=sys.stderr)
        return 2


def _run_command(options: argparse.Namespace, words: list[str]) -> int:
    spec = profiles.usual(options.target, "tiny")
    limits = Limits(
        unit=profiles.limit(spec, "seconds", options.timeout, LIMITS.unit),
        compiling=profiles.limit(spec, "compiling", options.compile_limit, COMPILE_LIMIT),
        memory=profiles.limit(spec, "memory", options.memory, LIMITS.memory or 10.0),
        recycle=1,
    )
    for name, value in (("timeout", limits.unit), ("compile-limit", limits.compiling)):
        if not value > 0:
            raise UsageError(f"--{name} must be above 0, and is {value}")
    if options.scale not in SCALES:
        raise UsageError(f"unknown scale {options.scale!r}: choose one of {', '.join(SCALES)}")
    families, dtypes = _words(options.families), _words(options.dtype)
    variants = list(DIRECTIONS) if options.variant == "all" else _words(options.variant)
    for word in variants:
        if word not in DIRECTIONS:
            raise UsageError(f"unknown variant {word!r}: choose several of {', '.join(DIRECTIONS)}, or all")
    cases = table.select(options.op, families, dtypes, variants, options.scale)
    file = options.expectations or expectations_file(spec)
    expected = expectations.load(file)
    target, seen = resolve(spec, limits)
    console = Console()

    with terminal.progress(console) as progress:
        progress.start(Run(spec), len(cases))
        made = running.run(target, JOB, cases, limits, expected=expected, found=progress.add)
    made.environment |= seen.described() if seen is not None else {}
    made.environment["selection"] = "; ".join(
        [SIZES, ",".join(options.op or ["all rows"]), *families, *dtypes, *variants, options.scale]
    )
    if running.recorded(made, "sizes", words, file, options):
        _summarize(console, made, options.reports)
    return made.exit_code()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _summarize(console: Console, made: Run, folder: Path) -> None:
    """The largest peaks, and the count of tests alone on the last line."""
    for result in made.footprints[:LISTED]:
        of = result.footprint
        assert of is not None
        line = (
            f"{of.excess:>5.0%} of what is allowed: {result.name} {result.dtype} {result.variant}: peak "
            f"{mebibytes(of.target)}, torch CPU {mebibytes(of.cpu)}, held {mebibytes(of.held)}; "
            f"{of.target_seconds:.1f} s, torch CPU {of.cpu_seconds:.1f} s"
        )
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for result in made.results:
        if result.outcome is Outcome.SKIP:
            console.print(escape_control_characters(f"not measured: {result.id}: {result.reason}"), highlight=False)
    for note in made.notes:
        console.print(escape_control_characters(note), highlight=False, markup=False)
    console.print(f"report: {folder / report.PAGES[SIZES]}", highlight=False, markup=False)
    if made.exit_code() == 2:
        print(f"conformance sizes: nothing was measured in {len(made.results)} cases.", file=sys.stderr)
    print(summary_line(made), flush=True)


if __name__ == "__main__":
    sys.exit(main())
