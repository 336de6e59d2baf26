"""The command `python -m conformance.fuzz`: draw programs, run them on a target and on torch CPU, show what differs.

It only reads options, shows progress and writes the report; the exit code is that of `conformance.core.result`. What
was found before an interruption is on disk. The campaign itself is `conformance.fuzzing.campaign`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.core import expectations, known_findings
from conformance.core import result as model
from conformance.core.errors import TargetError, UserError
from conformance.core.files import write_atomic
from conformance.core.loading import describe_target
from conformance.fuzzing.campaign import Campaign, Plan
from conformance.fuzzing.drawing import DTYPES, STEPS, Drawing
from conformance.fuzzing.isolation import SHARD
from conformance.fuzzing.kernel_baseline import BASELINE, write_baseline
from conformance.fuzzing.replay import corpus_of, expectations_file, kernels_of, replay
from conformance.fuzzing.results import run_of
from conformance.fuzzing.terminal import summarize
from conformance.program.steps.table import FAMILIES
from conformance.program.unsupported import unsupported_steps
from conformance.report import __main__ as report
from conformance.report import compare
from conformance.report.escape import escape_control_characters
from conformance.run import stop
from conformance.run.messages import COMPILE_LIMIT

TARGET = "tiny"
"""What is under test where nothing else is named."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = arguments_parser()
    given = parser.parse_args(arguments)
    try:
        if given.families:
            print("\n".join(FAMILIES))
            return 0
        with stop.deferred():
            if given.replay or given.minimize:
                return replay(given, TARGET)
            given.target = given.target or TARGET
            record = (given.kernels or BASELINE) if given.record_kernels else None
            return campaign(plan_of(given), record, given.baseline, expectations_file(given), given.update_expectations)
    except UserError as error:
        print(f"conformance.fuzz: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # a campaign answers it itself, with what it has found
        print("interrupted: the saved programs are as they were", file=sys.stderr)
        return 128 + stop.signal_number()
    except OSError as error:
        print(
            f"conformance.fuzz: {error.filename or given.reports} cannot be written or read ({error.strerror}); "
            "make room or choose another --reports",
            file=sys.stderr,
        )
        return 2


def arguments_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser("python -m conformance.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=natural, default=0, help="the same seed gives the same programs (default: 0)")
    parser.add_argument("--programs", type=natural, metavar="K", help="how many programs (default: 200)")
    parser.add_argument(
        "--minutes",
        type=positive,
        metavar="M",
        help="end after so many minutes, shrinking included, with the target loaded",
    )
    parser.add_argument(
        "--shard",
        type=shard,
        default=(1, 1),
        metavar="i/n",
        help=f"only the i-th of every n blocks of {SHARD} programs",
    )
    parser.add_argument(
        "--target",
        help="what is under test: tiny, tiny:RENDERER, cpu, meta, fake, "
        "functionalize, aot_eager, inductor, device:NAME[,import=MODULE], tinygrad-upstream:PATH, "
        f"mutant:FAULT, class:MODULE.CLASS (default: {TARGET}; of a saved finding the "
        "target that it was found on)",
    )
    parser.add_argument("-n", "--jobs", type=natural, default=1, help="worker processes (default: 1)")
    parser.add_argument(
        "--steps",
        type=steps_range,
        default=STEPS,
        metavar="MIN..MAX",
        help=f"steps of a program (default: {STEPS[0]}..{STEPS[1]})",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="FAMILY", help="only these families, beside views"
    )
    parser.add_argument("--without", action="append", default=[], metavar="FAMILY", help="not these families")
    parser.add_argument("--dtype", type=dtypes, default=DTYPES, metavar="D[,D]", help="only these dtypes")
    parser.add_argument(
        "--limit",
        "--timeout",
        type=positive,
        default=60.0,
        metavar="SECONDS",
        help="that a program may take (default: 60)",
    )
    parser.add_argument(
        "--compile-limit",
        type=positive,
        default=COMPILE_LIMIT,
        metavar="SECONDS",
        help="that building kernels may take within a program, not counted in --limit: in the first run of an op on "
        f"its dtypes, and always on a compiler or a lazy device (default: {COMPILE_LIMIT:g})",
    )
    parser.add_argument(
        "--memory",
        type=positive,
        default=8.0,
        metavar="GIB",
        help="that a worker may take; more is a finding (default: 8; Linux only)",
    )
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="run the programs of this folder first")
    parser.add_argument(
        "--resume", action="store_true", help="go on where the campaign in --reports stopped, with the same options"
    )
    parser.add_argument("--stop-at-first-failure", action="store_true", help="end with the first program that fails")
    parser.add_argument("--reports", default="reports", metavar="DIR", help="where results go (default: reports)")
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="run the program in a JSON file, or all in a folder, again"
    )
    parser.add_argument("--minimize", type=Path, metavar="FILE", help="make the failing program in a JSON file smaller")
    parser.add_argument(
        "--kernels",
        type=Path,
        metavar="FILE",
        help=f"the kernels that programs took before: more is a finding (default: {BASELINE}, where it is there)",
    )
    parser.add_argument(
        "--record-kernels",
        action="store_true",
        help="write the kernels of this run's programs to the file of --kernels, and compare with none",
    )
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="a fuzz.json to compare with")
    parser.add_argument(
        "--expectations", type=Path, metavar="FILE", help="what is known to fail: reports/expectations/<target>.toml"
    )
    parser.add_argument(
        "--update-expectations", action="store_true", help="declare the findings of this run in that file, knowingly"
    )
    parser.add_argument("--families", action="store_true", help="list the step families")
    return parser


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative: give 0 or more")
    return number


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def steps_range(text: str) -> tuple[int, int]:
    """`MIN..MAX`."""
    low, dots, high = text.partition("..")
    if not (dots and low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range: write MIN..MAX, for example 1..8")
    if int(high) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a program without steps shows nothing, so let MAX be 1 or more")
    return int(low), int(high)


def shard(text: str) -> tuple[int, int]:
    """`2/4` as (2, 4)."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not i/n with 1 <= i <= n: write for example 2/4")
    return int(index), int(count)


def dtypes(text: str) -> tuple[str, ...]:
    """Names of dtypes, joined by commas."""
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in DTYPES]
    if unknown:
        known = ", ".join(dict.fromkeys(DTYPES))
        raise argparse.ArgumentTypeError(f"unknown dtype {unknown[0]!r}: choose from {known}")
    return names


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan that the options describe."""
    programs = given.programs if given.programs is not None or given.minutes is not None else 200
    declared = unsupported_steps(describe_target(given.target))
    for family in given.only:
        if family in (*given.without, *declared):
            by = "--without" if family in given.without else f"target {given.target}"
            raise TargetError(f"--only asks for the family {family!r}, which {by} leaves out, so none of it would run")
    without = (*given.without, *declared)
    drawing = Drawing(given.steps, tuple(given.only), without, given.dtype)
    if given.jobs < 1:
        raise TargetError("-n 0 is no worker at all: give 1 or more")
    return Plan(
        given.target,
        given.seed,
        programs,
        given.minutes,
        drawing,
        given.jobs,
        Path(given.reports),
        given.limit,
        given.stop_at_first_failure,
        memory=given.memory,
        corpus=corpus_of(given.corpus)[given.shard[0] - 1 :: given.shard[1]],
        resume=given.resume,
        kernels=kernels_of(given),
        record=given.record_kernels,
        part=given.shard,
        compile_limit=given.compile_limit,
    )


def campaign(plan: Plan, record: Path | None, baseline_file: Path | None, expected: Path, update: bool) -> int:
    """Run a campaign, write its report, and its kernels to `record`, and print its findings; `update` declares them in
    the file `expected`. Raises ReportError for files that are damaged, before anything is run."""
    baseline = model.load(baseline_file) if baseline_file else None
    known = expectations.findings(expected)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    running, interrupted = Campaign(plan), 0
    try:
        if console.is_terminal:
            show_bar(running, console)
        else:
            running.tell = plain_lines(console)
            running.run()
    except KeyboardInterrupt:
        interrupted = stop.signal_number()
    made = run_of(running, interrupted, plan.part)
    if update and not interrupted:
        known, done = known_findings.update(known, made)
        write_atomic(expected, expectations.dumps(expectations.load(expected), plan.target, known))
        console.print("\n".join(map(escape_control_characters, done)))
    made = known_findings.apply(made, known, expected)
    report.write(made, plan.reports, baseline)
    if record is not None and not interrupted:
        write_baseline(record, plan.target, running.result.counts)
    changes = compare.diff(baseline, made) if baseline else None
    summarize(running, made, changes, console, line(running))
    code = made.exit_code(changes.regressions if changes else 0)
    if interrupted:
        print(f"interrupted: what was found is in {plan.failures}", file=sys.stderr)
    elif code == 2:
        print("conformance.fuzz: no program was run that the target supports, so nothing was compared", file=sys.stderr)
    return code


def line(running: Campaign) -> str:
    """Where the campaign is, in one line."""
    done, wanted = running.result.done, running.plan.wanted
    rate = done / max(running.running_seconds, 1e-9)
    failing = sum(len(group.numbers) for group in running.groups.values())
    return (
        f"seed {running.plan.seed}: {done}{f'/{wanted}' if wanted is not None else ''} programs, "
        f"{rate:.1f} programs/s, {failing} failing, {len(running.groups)} distinct"
    )


def plain_lines(console: Console) -> Callable[[Campaign], None]:
    """Says where the campaign is, at most every five seconds."""
    last = [0.0]

    def tell(running: Campaign) -> None:
        if time.monotonic() - last[0] >= 5:
            last[0] = time.monotonic()
            console.print(line(running))

    return tell


def show_bar(running: Campaign, console: Console) -> None:
    """Run the campaign under a progress bar."""
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=running.plan.wanted)
        running.tell = lambda at: progress.update(task, completed=at.result.done, description=line(at))
        running.run()


if __name__ == "__main__":
    sys.exit(main())
