"""The command `python -m conformance.fuzz`: draw programs, run them on a target and on torch CPU, show what differs.

It only reads options, shows progress and chooses the exit code: 0 when all agreed, 1 when something differs, 2 for bad
usage, 130 at Ctrl-C and 143 at SIGTERM, when the report shows what was found by then. The campaign itself is
`conformance.fuzzing.campaign`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.core.errors import ReportError, TargetError
from conformance.core.loading import describe_target
from conformance.core.result import write_atomic
from conformance.fuzzing.campaign import Campaign, Plan
from conformance.fuzzing.drawing import DTYPES, STEPS, Drawing, DrawingError
from conformance.fuzzing.isolation import SHARD, Workers
from conformance.fuzzing.kernel_baseline import BASELINE, read_baseline, write_baseline
from conformance.fuzzing.worker import INVALID, Finding, Shard
from conformance.programs.model import ProgramError, dump, read_program
from conformance.programs.script import script, without_carried
from conformance.programs.steps.table import FAMILIES
from conformance.programs.unsupported import unsupported_steps
from conformance.report.campaign import counted, from_json
from conformance.report.html import render_campaign
from conformance.run import stop

TARGET = "tiny"
"""What is under test where nothing else is named."""

MOST_SCRIPTS = 5
"""So many scripts are printed; the rest are named."""

MINIMIZE_TRIALS = 1000
"""How many smaller programs `--minimize` tries."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = arguments_parser()
    given = parser.parse_args(arguments)
    try:
        if given.families:
            print("\n".join(FAMILIES))
            return 0
        with stop.deferred():
            if given.replay and given.replay.is_dir():
                return replay_folder(given.replay, given)
            if given.replay or given.minimize:
                return replay(given.replay or given.minimize, given)
        given.target = given.target or TARGET
        with stop.deferred():
            return campaign(plan_of(given), (given.kernels or BASELINE) if given.record_kernels else None)
    except (TargetError, DrawingError, ProgramError, ReportError) as error:
        print(f"conformance.fuzz: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # a campaign answers it itself, with what it has found
        print("interrupted: the saved programs are as they were", file=sys.stderr)
        return stop.exit_code()
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
    )


def kernels_of(given: argparse.Namespace) -> str:
    """The file of kernels to compare with, or the empty string. Raises ProgramError when it cannot be read."""
    file = given.kernels or (BASELINE if BASELINE.exists() else None)
    if file is None or given.record_kernels:
        return ""
    read_baseline(file, given.target)
    return str(file)


def corpus_of(folder: Path | None) -> tuple[str, ...]:
    """The files of programs in a folder. Raises ProgramError when there is none, or one cannot be read."""
    if folder is None:
        return ()
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ProgramError(f"{folder}: there is no program (*.json) in this folder")
    for path in paths:
        read_program(path)
    return tuple(str(path) for path in paths)


def campaign(plan: Plan, record: Path | None = None) -> int:
    """Run a campaign, write its result, and its kernels to `record`, and print its findings."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    running = Campaign(plan)
    interrupted = False
    try:
        if console.is_terminal:
            show_bar(running, console)
        else:
            running.tell = plain_lines(console)
            running.run()
    except KeyboardInterrupt:
        interrupted = True
    data = running.to_json(complete=not interrupted)
    write_atomic(plan.reports / "fuzz.json", json.dumps(data, indent=1))
    write_atomic(plan.reports / "fuzz.html", render_campaign(from_json(data, "fuzz.json")))
    if record is not None and not interrupted:
        write_baseline(record, plan.target, running.result.counts)
    summarize(running, console)
    console.print(f"report: {plan.reports / 'fuzz.html'}")
    if interrupted:
        print(f"interrupted: what was found is in {plan.failures}", file=sys.stderr)
        return stop.exit_code()
    if running.groups:
        return 1
    if running.result.done == running.result.unsupported.total():
        print("conformance.fuzz: no program was run that the target supports, so nothing was compared", file=sys.stderr)
        return 2
    return 0


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


def summarize(running: Campaign, console: Console) -> None:
    """Print the findings, the deaths and then the commonest first, and the totals."""
    groups = running.ranked()
    for at, group in enumerate(groups):
        finding = group.finding
        programs = counted(running.result.done, "program")
        console.rule(f"{finding.kind} in {len(group.numbers)} of {programs}: {finding.group}")
        if at < MOST_SCRIPTS:
            console.print(without_carried(running.script(group)))
        if group.elsewhere:
            console.print("elsewhere: " + "; ".join(f"{spec} {answer}" for spec, answer in group.elsewhere.items()))
        console.print(f"script: {running.path(group)}\nagain:  {running.again(group)}")
    tally, result = running.result.tally, running.result
    undefined = sum(count for reason, count in tally.avoided.items() if not reason.startswith("nothing fits"))
    kernels = (
        (
            f"kernels {result.kernels} (torch CPU's ops and transfers: {result.allowed}; programs compared with the "
            f"baseline: {result.compared}); "
        )
        if result.allowed
        else ""
    )
    console.print(
        f"{line(running)}; {tally.steps} steps, {len(tally.cells)} cells of family x layout x dtype; "
        f"{kernels}{undefined} undefined or rejected steps not run"
        + (
            f"; {result.arbitrated} programs differ from torch CPU and pass by its answer in float64"
            if result.arbitrated
            else ""
        )
        + (
            f"; {result.unsupported.total()} programs not run, since the target leaves out: "
            f"{', '.join(f'{name} ({count})' for name, count in result.unsupported.most_common())}"
            if result.unsupported
            else ""
        )
    )


@contextmanager
def replaying(given: argparse.Namespace) -> Iterator[tuple[Workers, Callable[[Path], tuple[Finding | None, str]]]]:
    """A worker, and a function that runs a saved program in it as a campaign would: what was found, and what the target
    had declared that it leaves out. The function raises ProgramError, naming the file, where the program has no meaning
    on torch CPU."""
    spec, kernels = given.target, kernels_of(given)
    with TemporaryDirectory(prefix="conformance-") as notes, Workers(spec, given.limit, given.memory) as workers:
        workers.load()

        def rerun(path: Path) -> tuple[Finding | None, str]:
            result = workers.run(Shard(spec, Drawing(), 0, -1, 1, notes, (str(path),), kernels))
            finding = result.findings[0] if result.findings else None
            if finding is not None and finding.kind == INVALID:
                raise ProgramError(f"{path}: {finding.group.removeprefix('invalid / ')}")
            return finding, "".join(+result.unsupported)

        yield workers, rerun


def replay_folder(folder: Path, given: argparse.Namespace) -> int:
    """Run every saved program of a folder, for example the corpus; one line each."""
    given.target = given.target or TARGET
    paths, failed, skipped = [Path(path) for path in corpus_of(folder)], 0, 0
    with replaying(given) as (_, rerun):
        for path in paths:
            finding, lacks = rerun(path)
            failed += finding is not None
            skipped += bool(lacks)
            if finding is not None:
                about = finding.mismatches[0] if finding.mismatches else finding.group
                print(f"{finding.kind} {path.stem}\n     {about}")
            else:
                print(f"SKIP {path.stem}: {given.target} leaves out {lacks}" if lacks else f"ok   {path.stem}")
    print(
        f"{len(paths) - failed - skipped} of {len(paths)} programs agree with torch CPU"
        + (f", {skipped} were not run" if skipped else "")
    )
    if skipped == len(paths):
        raise ProgramError(f"{folder}: {given.target} leaves out every program, so there is nothing to compare")
    return 1 if failed else 0


def replay(path: Path, given: argparse.Namespace) -> int:
    """Run one saved program again and show its script; for `--minimize` shrink it first and save that too."""
    program = read_program(path)
    given.target = given.target or target_of(path) or TARGET
    with replaying(given) as (workers, rerun):
        finding, lacks = rerun(path)
        if lacks:
            raise ProgramError(f"{path}: {given.target} leaves out {lacks}, so there is nothing to compare")
        if finding is None:
            print(f"{path}: {given.target} agrees with torch CPU on all {len(program.steps)} steps")
            return 0
        small = workers.shrink(finding, MINIMIZE_TRIALS) if given.minimize else finding
    saved = Path(given.reports) / "failures" / f"{path.stem}-minimal.json"
    again = [
        "python",
        "-m",
        "conformance.fuzz",
        "--target",
        given.target,
        "--replay",
        str(saved if given.minimize else path),
    ]
    text = script(
        small.program,
        describe_target(given.target),
        small.mismatches,
        [f"{small.kind}: {small.group}", f"Again: {shlex.join(again)}"],
        small.step,
    )
    print(dump(small.program))
    print(without_carried(text))
    for about in small.mismatches or [small.group]:
        print(f"# {about}")
    if given.minimize:  # after all is shown, since there may be no room to save it
        write_atomic(saved, json.dumps({**small.to_json(), "target": given.target}, indent=1))
        write_atomic(saved.with_suffix(".py"), text)
        print(f"# {len(program.steps)} steps became {len(small.program.steps)}; saved as {saved}, beside its script")
    return 1


def target_of(path: Path) -> str:
    """The target that a saved finding was found on; of a program alone, the empty string."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return str(data.get("target", "")) if isinstance(data, dict) else ""


if __name__ == "__main__":
    sys.exit(main())
