"""The command `conformance sizes --target ...`: values and memory of calls of large sizes, compared with torch CPU.

This process only plans, collects and writes. Each case gets a new worker, since memory left by an earlier case would
hide the allocations of the next one. Results, expectations, exit code and reports are the same as for every other
command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.record.errors import UsageError
from conformance.record.footprint import SIZES, mebibytes
from conformance.record.result import Result, Run
from conformance.run.messages import Limits
from conformance.run.probe import resolve
from conformance.sources.accuracy import running
from conformance.sources.accuracy.running import Job
from conformance.sources.accuracy.table import DIRECTIONS
from conformance.sources.opinfo import terminal
from conformance.sources.sizes import table, worker
from conformance.sources.sizes.table import SCALES

LIMITS = Limits(unit=300.0, memory=10.0, recycle=1)
LISTED = 10
"""Number of cases that the terminal shows, those that use the largest part of the allowed memory first."""

JOB = Job(worker.described, worker.run, worker.MODULES)


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    does = "Run calls at the sizes of real work on a target and on torch CPU, and compare values and memory."
    findings = (
        "a wrong value, an inexact one, a peak of more than 3 times the bytes that are held and more than torch CPU's"
    )
    made = running.options(SIZES, does, findings, LIMITS, "rows of the table")
    add = made.add_argument
    add("--class", dest="families", default="", metavar="A,B", help=f"only these: {', '.join(table.families())}")
    add("--dtype", default="", metavar="A,B", help="only rows that compute in these dtypes")
    add("--variant", default="all", metavar="A,B", help=f"several of {', '.join(DIRECTIONS)}, or all (default)")
    add("--scale", default="large", help=f"what sizes stand for: {', '.join(SCALES)} (default: large)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return running.command(SIZES, arguments_parser(), _run_command, arguments)


def _run_command(options: argparse.Namespace, words: list[str]) -> int:
    spec = profiles.usual(options.target)
    limits = running.limits_of(spec, options, LIMITS)
    if options.scale not in SCALES:
        raise UsageError(f"unknown scale {options.scale!r}: choose one of {', '.join(SCALES)}")
    families, dtypes = _words(options.families), _words(options.dtype)
    variants = running.chosen(options.variant, DIRECTIONS, "variant")
    cases = table.select(options.op, families, dtypes, variants, options.scale)
    file = expectations.file_of(options, running.expectations_file(SIZES, spec))
    expected = running.declared(SIZES, file, [row.name for row in table.load()])
    target, seen = resolve(spec, limits, options.place)
    console = Console()

    with terminal.progress(console) as progress:
        progress.start(Run(profiles.identity(spec)), len(cases))
        made = running.run(target, JOB, cases, limits, place=options.place, expected=expected, found=progress.add)
    made.environment |= seen.described() if seen is not None else {}
    made.environment["selection"] = "; ".join(
        [SIZES, ",".join(options.op or ["all rows"]), *families, *dtypes, *variants, options.scale]
    )
    # One script at a time: each may need as much memory as a worker may take.
    if running.recorded(made, SIZES, words, file, options, limits.unit):
        running.summarize(console, made, SIZES, map(_line, made.footprints[:LISTED]), options.reports)
    return made.exit_code()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _line(result: Result) -> str:
    of = result.footprint
    assert of is not None
    return (
        f"{of.excess:>5.0%} of what is allowed: {result.name} {result.dtype} {result.variant}: peak "
        f"{mebibytes(of.target)}, torch CPU {mebibytes(of.cpu)}, held {mebibytes(of.held)}; "
        f"{of.target_seconds:.1f} s, torch CPU {of.cpu_seconds:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
