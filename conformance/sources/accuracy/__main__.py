"""The command `conformance accuracy --target ...`: the errors of a target and of torch CPU, side by side.

This process only plans, collects and writes. A worker with limits measures each case, so a crash of the device is one
finding. Results, expectations, exit code and reports are the same as for every other command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.record.accuracy import ACCURACY, shown
from conformance.record.errors import UsageError
from conformance.record.result import Result, Run
from conformance.run.messages import Limits
from conformance.run.probe import resolve
from conformance.sources.accuracy import running, table, worker
from conformance.sources.accuracy.running import Job
from conformance.sources.accuracy.table import DIRECTIONS, DTYPES
from conformance.sources.opinfo import terminal

LIMITS = Limits(unit=120.0, memory=8.0)
LISTED = 10
"""Number of cases that the terminal shows, the worst first."""


JOB = Job(worker.described, worker.run, worker.MODULES)


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    does = "Measure the errors of a target and of torch CPU against float64 or mpmath, in ulp."
    findings = "an error of more than 4 times torch CPU's"
    made = running.options(ACCURACY, does, findings, LIMITS, "ops of the table")
    add = made.add_argument
    add("--dtype", default="float32", metavar="A,B", help=f"float32 (default), several of {', '.join(DTYPES)}, or all")
    add("--variant", default="all", metavar="A,B", help=f"several of {', '.join(DIRECTIONS)}, or all (default)")
    add("-n", "--jobs", type=int, default=1, help="worker processes (default: 1)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return running.command(ACCURACY, arguments_parser(), _run_command, arguments)


def _run_command(options: argparse.Namespace, words: list[str]) -> int:
    spec = profiles.usual(options.target)
    limits = running.limits_of(spec, options, LIMITS)
    if options.jobs < 1:
        raise UsageError(f"--jobs must be above 0, and is {options.jobs}")
    dtypes = running.chosen(options.dtype, DTYPES, "dtype")
    variants = running.chosen(options.variant, DIRECTIONS, "variant")
    cases = table.select(options.op, dtypes, variants)
    profile = profiles.of(spec)
    lacking = set(profile.unsupported("op")) if profile else set()
    asked, cases = len(cases), [case for case in cases if case.row.name.partition(" ")[0] not in lacking]
    file = expectations.file_of(options, running.expectations_file(ACCURACY, spec))
    expected = running.declared(ACCURACY, file, [row.name for row in table.load()[0]])
    target, seen = resolve(spec, limits, options.place)
    console = Console()

    with terminal.progress(console) as progress:
        progress.start(Run(profiles.identity(spec)), len(cases))
        made = running.run(
            target, JOB, cases, limits, jobs=options.jobs, place=options.place, expected=expected, found=progress.add
        )
    if len(cases) < asked:
        made.notes.append(f"{asked - len(cases)} cases of ops that the profile declares lacking were left out.")
    made.environment |= seen.described() if seen is not None else {}
    made.environment["selection"] = "; ".join([ACCURACY, ",".join(options.op or ["all ops"]), *dtypes, *variants])
    if running.recorded(made, ACCURACY, words, file, options):
        running.summarize(console, made, ACCURACY, map(_line, made.measured[:LISTED]), options.reports)
    return made.exit_code()


def _line(result: Result) -> str:
    of = result.accuracy
    assert of is not None
    return (
        f"{shown(of.times):>8} x torch CPU: {result.name} {result.dtype} {result.variant}, {of.of}: "
        f"{shown(of.target)} ulp (mean {shown(of.target_rms)}), torch CPU {shown(of.cpu)} ({shown(of.cpu_rms)})"
    )


if __name__ == "__main__":
    sys.exit(main())
