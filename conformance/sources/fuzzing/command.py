"""The command `python -m conformance.fuzz`: draw programs, run them on a target and on torch CPU, show what differs.

This module reads options, shows progress and writes the report; `campaign.py` runs the campaign. The exit code follows
the rule of `conformance.record.result`. Findings before an interruption are on disk.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.declare import expectations, known_findings
from conformance.declare import profile as profiles
from conformance.declare.declared import refuse
from conformance.declare.probed import Probe
from conformance.engine.loading import describe_target
from conformance.program.steps.table import FAMILIES, FAMILY_OF
from conformance.program.unsupported import held, unsupported_steps
from conformance.record import result as model
from conformance.record.errors import TargetError, UserError
from conformance.record.files import write_atomic
from conformance.record.result import Result
from conformance.report import __main__ as report
from conformance.report import compare, probe
from conformance.report.escape import escape_control_characters
from conformance.run import scripts, signals
from conformance.run.execution_place import LOCAL, Place, add_options, place_of
from conformance.run.messages import COMPILE_LIMIT, Limits
from conformance.run.probe import resolve
from conformance.run.profile_trials import BUDGET
from conformance.run.worker_log import log_file
from conformance.sources.fuzzing import trial
from conformance.sources.fuzzing.campaign import Campaign
from conformance.sources.fuzzing.drawing import DTYPES, STEPS, Drawing
from conformance.sources.fuzzing.kernel_baseline import BASELINE, write_baseline
from conformance.sources.fuzzing.plan import SHARD, Plan
from conformance.sources.fuzzing.replay import corpus_of, expectations_file, kernels_of, replay
from conformance.sources.fuzzing.results import parts, run_of, with_counts
from conformance.sources.fuzzing.terminal import summarize

WORDS = "fuzz-workers.log"
"""File in --reports with the output of workers."""

NONE_SUPPORTED = "no program was run that the target supports"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = arguments_parser()
    args = parser.parse_args(arguments)
    try:
        if args.families:
            print("\n".join(FAMILIES))
            return 0
        with signals.deferred():
            if not (args.replay or args.minimize):
                args.target = profiles.usual(args.target)
            args.limit = profiles.limit(args.target or "", "seconds", args.limit, 60.0)
            args.memory = profiles.limit(args.target or "", "memory", args.memory, 8.0)
            building = profiles.limit(args.target or "", "compiling", args.compile_limit, COMPILE_LIMIT)
            args.compile_limit = building
            if args.replay or args.minimize:
                return replay(args)
            limits = Limits(compiling=args.compile_limit, memory=args.memory)
            corpus = sorted(args.corpus.glob("*.json")) if args.corpus else []
            place = place_of(args, args.kernels or BASELINE, *corpus)
            with log_file(Path(args.reports) / WORDS, not args.resume) as file:
                return _campaign_on(args, limits, replace(place, worker_log=file))
    except UserError as error:
        print(f"conformance.fuzz: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # a campaign handles it itself and reports its findings
        print("interrupted: the saved programs are as they were", file=sys.stderr)
        return 128 + signals.signal_number()
    except OSError as error:
        said = f"{error.filename or args.reports} cannot be written or read ({error.strerror})"
        print(f"conformance.fuzz: {said}; make room or choose another --reports", file=sys.stderr)
        return 2


def _campaign_on(args: argparse.Namespace, limits: Limits, place: Place) -> int:
    """Probe the target, and run the campaign that the options describe."""
    seconds = math.inf if args.minutes is None else 60 * args.minutes
    expected = expectations_file(args)
    args.target, seen = resolve(args.target, limits, place, strict=min(BUDGET, seconds / 10), seconds=seconds)
    record = (args.kernels or BASELINE) if args.record_kernels else None
    usual = min(scripts.BUDGET, seconds / 10)
    checking = usual if args.check_scripts is None else args.check_scripts
    return campaign(plan_of(args), record, args.baseline, expected, args.update_expectations, seen, place, checking)


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser("python -m conformance.fuzz", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--seed", type=natural, default=0, help="the same seed gives the same programs (default: 0)")
    add("--programs", type=natural, metavar="K", help="how many programs (default: 200)")
    minutes = "end after so many minutes, shrinking included, with the target loaded"
    add("--minutes", type=positive, metavar="M", help=minutes)
    blocks = f"only the i-th of every n blocks of {SHARD} programs"
    add("--shard", type=shard, default=(1, 1), metavar="i/n", help=blocks)
    add(
        "--target",
        help="what is under test: tiny, tiny:RENDERER, cpu, meta, fake, functionalize, aot_eager, inductor, "
        "compile:NAME, device:NAME[,import=MODULE], tinygrad-upstream:PATH, mutant:FAULT, class:MODULE.CLASS, a "
        f"profile FILE.toml (default: {profiles.NAME} in the current folder, else {profiles.TINY}; of a saved finding "
        "the target that it was found on)",
    )
    add("-n", "--jobs", type=natural, default=1, help="worker processes (default: 1)")
    add_options(add)
    many = "steps of a program (default: {}..{})".format(*STEPS)
    add("--steps", type=steps_range, default=STEPS, metavar="MIN..MAX", help=many)
    add("--only", action="append", default=[], metavar="FAMILY", help="only these families, beside views")
    add("--without", action="append", default=[], metavar="FAMILY", help="not these families")
    add("--dtype", type=dtypes, default=DTYPES, metavar="D[,D]", help="only these dtypes")
    limit = "that a program may take (default: what the target's profile says, else 60)"
    add("--limit", "--timeout", type=positive, metavar="SECONDS", help=limit)
    building = (
        "that building kernels may take within a program, not counted in --limit: in the first run of an op on its "
        f"dtypes, and always on a compiler or a lazy device (default: what the profile says, else {COMPILE_LIMIT:g})"
    )
    add("--compile-limit", type=positive, metavar="SECONDS", help=building)
    memory = "that a worker may take; more is a finding (default: what the profile says, else 8)"
    add("--memory", type=positive, metavar="GIB", help=memory)
    add("--corpus", type=Path, metavar="DIR", help="run the programs of this folder first")
    resume = "go on where the campaign in --reports stopped, with the same options"
    add("--resume", action="store_true", help=resume)
    add("--stop-at-first-failure", action="store_true", help="end with the first program that fails")
    add("--reports", default="reports", metavar="DIR", help="where results go (default: reports)")
    add("--replay", type=Path, metavar="FILE", help="run the program in a JSON file, or all in a folder, again")
    add("--minimize", type=Path, metavar="FILE", help="make the failing program in a JSON file smaller")
    before = f"the kernels that programs took before: more is a finding (default: {BASELINE}, where it is there)"
    add("--kernels", type=Path, metavar="FILE", help=before)
    record = "write the kernels of this run's programs to the file of --kernels, and compare with none"
    add("--record-kernels", action="store_true", help=record)
    add("--baseline", type=Path, metavar="FILE", help="a fuzz.json to compare with")
    known = "what is known to fail: reports/expectations/<target>.toml"
    add("--expectations", type=Path, metavar="FILE", help=known)
    update = "declare the findings of this run in that file, knowingly"
    add("--update-expectations", action="store_true", help=update)
    torchs = "fail also for what fails in the same way on compile:eager or compile:aot_eager, without the backend"
    add("--fail-on-torch-bugs", action="store_true", help=torchs)
    alone = f"in which scripts are run before they are listed, 0 for none (default: {scripts.BUDGET:g})"
    add("--check-scripts", type=seconds, metavar="SECONDS", help=alone)
    add("--families", action="store_true", help="list the step families")
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


def seconds(text: str) -> float:
    """A number, 0 or more."""
    return 0.0 if text == "0" else positive(text)


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
    """`MIN..MAX` as a pair of numbers."""
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
    """Names of dtypes, separated by commas."""
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in DTYPES]
    if unknown:
        known = ", ".join(dict.fromkeys(DTYPES))
        raise argparse.ArgumentTypeError(f"unknown dtype {unknown[0]!r}: choose from {known}")
    return names


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan that the options describe. Raises TargetError for options that contradict each other."""
    target = describe_target(args.target)
    declared = unsupported_steps(target)
    for family in args.only:
        if family in (*args.without, *declared):
            by = "--without" if family in args.without else f"target {args.target}"
            raise TargetError(f"--only asks for the family {family!r}, which {by} leaves out, so none of it would run")
    if args.jobs < 1:
        raise TargetError("-n 0 is no worker at all: give 1 or more")
    return Plan(
        args.target,
        args.seed,
        args.programs if args.programs is not None or args.minutes is not None else 200,
        args.minutes,
        Drawing(
            args.steps,
            tuple(args.only),
            (*args.without, *declared),
            held(args.dtype, target),
            lacking=tuple(entry.operator for entry in target.profile.lacking) if target.profile else (),
        ),
        args.jobs,
        Path(args.reports),
        args.limit,
        args.stop_at_first_failure,
        memory=args.memory,
        corpus=corpus_of(args.corpus)[args.shard[0] - 1 :: args.shard[1]],
        resume=args.resume,
        kernels=kernels_of(args),
        record=args.record_kernels,
        part=args.shard,
        compile_limit=args.compile_limit,
        fail_on_torch_bugs=args.fail_on_torch_bugs,
    )


def campaign(
    plan: Plan,
    record: Path | None,
    baseline_file: Path | None,
    expected: Path,
    update: bool,
    seen: Probe | None,
    place: Place = LOCAL,
    checking: float = scripts.BUDGET,
) -> int:
    """Run a campaign, write its report, print its findings, and return the exit code.

    The campaign writes its kernel counts to `record`. With `update` it declares its findings in the file `expected`.
    `seen` is the result of the device's probe. Scripts of findings run for at most `checking` seconds. Raises
    ReportError for damaged files, before any program runs."""
    baseline = model.load(baseline_file) if baseline_file else None
    known = expectations.findings(expected)
    refuse(known_findings.check(known, parts(), expected))
    console, begin = Console(highlight=False, markup=False, soft_wrap=True), time.monotonic()
    profile, spent = profiles.of(plan.target), seen.seconds if seen is not None else 0.0
    if seen is not None:
        probe.show(console, profiles.identity(plan.target), seen, profile.lacks if profile is not None else None)
    there: list[Result] = []
    notes: list[str] = []
    if profile is not None:
        seconds = min(BUDGET, 6 * (plan.minutes or 10.0))
        limits = Limits(unit=plan.limit, memory=plan.memory)
        there, notes = trial.contradictions(plan.target, limits, seconds, seen, place)
        spent += time.monotonic() - begin
    left = max(plan.minutes - (spent + checking) / 60, 0.0) if plan.minutes is not None else None
    running, interrupted = Campaign(replace(plan, minutes=left), place=place), 0
    try:
        run_shown(running, console)
    except KeyboardInterrupt:
        interrupted = signals.signal_number()
    running.plan = plan
    made = run_of(running, interrupted)
    made.environment |= seen.described() if seen is not None else {}
    if update and not interrupted:
        known, done = known_findings.update(known, made)
        write_atomic(expected, expectations.dumps(expectations.load(expected), made.title, known))
        console.print("\n".join(map(escape_control_characters, done)))
    made = with_counts(running, known_findings.apply(made, known, expected))
    made.results, made.notes = [*made.results, *there], [*made.notes, *notes]
    if not interrupted:
        scripts.confirm(made, plan.limit, checking, plan.jobs)
    probing = seen.seconds if seen is not None else 0.0
    made.seconds = round(running.earlier_seconds + probing + time.monotonic() - begin, 2)
    made.lacking = profile.table({}, FAMILY_OF, running.result.removed()) if profile else ()
    report.write(made, plan.reports, baseline)
    if record is not None and not interrupted:
        write_baseline(record, plan.target, running.result.counts)
    changes = compare.diff(baseline, made) if baseline else None
    summarize(running, made, changes, console, line(running))
    code = made.exit_code(changes.regressions if changes else 0)
    if interrupted:
        more = "the same command with --resume goes on from there"
        print(f"interrupted: what was found is in {plan.failures}; {more}", file=sys.stderr)
    elif code == 2:
        late = plan.minutes is not None and not running.result.done
        why = (
            f"the time of --minutes {plan.minutes:g} was over before the first programs had ended"
            if late
            else NONE_SUPPORTED
        )
        more = ": give it more" if late else ""
        print(f"conformance.fuzz: {why}, so nothing was compared{more}", file=sys.stderr)
    return code


def line(running: Campaign) -> str:
    """The progress of the campaign in one line."""
    done, wanted = running.result.done, running.plan.wanted
    rate = done / max(running.running_seconds, 1e-9)
    groups = running.distinct()
    failing = len({number for group in groups for number in group.numbers})
    return (
        f"seed {running.plan.seed}: {done}{f'/{wanted}' if wanted is not None else ''} programs, "
        f"{rate:.1f} programs/s, {failing} failing, {len(groups)} distinct"
    )


def run_shown(running: Campaign, console: Console) -> None:
    """Run the campaign under a progress bar. Without a terminal, print a line at most every five seconds."""
    columns, last = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()), time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=running.plan.wanted)

        def tell(at: Campaign) -> None:
            nonlocal last
            progress.update(task, completed=at.result.done, description=line(at))
            if not console.is_terminal and time.monotonic() - last >= 5:
                last = time.monotonic()
                console.print(line(at))

        running.tell = tell
        running.run()


if __name__ == "__main__":
    sys.exit(main())
