"""The command `python -m conformance.fuzz`: draw programs, run them on a target and on torch CPU, show what differs.

It only reads options, shows progress and writes the report; the exit code is that of `conformance.core.result`. What
was found before an interruption is on disk. The campaign itself is `conformance.fuzzing.campaign`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.core import expectations, known_findings
from conformance.core import result as model
from conformance.core.errors import ReportError, TargetError
from conformance.core.loading import describe_target
from conformance.core.result import Outcome, write_atomic
from conformance.fuzzing.campaign import Campaign, Plan
from conformance.fuzzing.drawing import DTYPES, STEPS, Drawing, DrawingError
from conformance.fuzzing.isolation import Workers
from conformance.fuzzing.kernel_baseline import BASELINE, read_baseline, write_baseline
from conformance.fuzzing.results import replayed, result_of, run_of
from conformance.fuzzing.terminal import summarize
from conformance.fuzzing.worker import INVALID, Finding, Shard
from conformance.programs.model import ProgramError, dump, read_program
from conformance.programs.script import script, without_carried
from conformance.programs.steps.table import FAMILIES
from conformance.programs.unsupported import unsupported_steps
from conformance.report import __main__ as report
from conformance.report import compare
from conformance.report import summary as sentences
from conformance.report.escape import escape_control_characters

TARGET = "tiny"
"""What is under test where nothing else is named."""

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
        if given.replay and given.replay.is_dir():
            return replay_folder(given.replay, given)
        if given.replay or given.minimize:
            return replay(given.replay or given.minimize, given)
        given.target = given.target or TARGET
        record = (given.kernels or BASELINE) if given.record_kernels else None
        return campaign(plan_of(given), record, given.baseline, expectations_file(given), given.update_expectations)
    except (TargetError, DrawingError, ProgramError, ReportError) as error:
        print(f"conformance.fuzz: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # a campaign answers it itself, with what it has found
        print("interrupted: the saved programs are as they were", file=sys.stderr)
        return 130
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
    parser.add_argument("--minutes", type=positive, metavar="M", help="stop drawing after so many minutes")
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
        "--limit", type=positive, default=60.0, metavar="SECONDS", help="that a program may take (default: 60)"
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
        corpus=corpus_of(given.corpus),
        resume=given.resume,
        kernels=kernels_of(given),
        record=given.record_kernels,
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


def expectations_file(given: argparse.Namespace) -> Path:
    """The file of what is known to fail."""
    return given.expectations or expectations.path_for(given.target)


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
        interrupted = signal.SIGINT
    made = run_of(running, interrupted)
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
    done, wanted = running.result.done, running.plan.programs
    wanted = None if wanted is None else wanted + len(running.plan.corpus)
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
        task = progress.add_task("starting", total=running.plan.programs)
        running.tell = lambda at: progress.update(task, completed=at.result.done, description=line(at))
        running.run()


@contextmanager
def replaying(given: argparse.Namespace) -> Iterator[tuple[Workers, Callable[[Path], tuple[Finding | None, str]]]]:
    """A worker, and a function that runs a saved program in it as a campaign would: what was found, and what the target
    had declared that it leaves out. The function raises ProgramError, naming the file, where the program has no meaning
    on torch CPU."""
    spec, kernels = given.target, kernels_of(given)
    with TemporaryDirectory(prefix="conformance-") as notes, Workers(spec, given.limit, given.memory) as workers:
        workers.load()

        def rerun(path: Path) -> tuple[Finding | None, str]:
            result = workers.run(Shard(spec, Drawing(), 0, -1, 1, notes, given.limit, (str(path),), kernels))
            finding = result.findings[0] if result.findings else None
            if finding is not None and finding.kind == INVALID:
                raise ProgramError(f"{path}: {finding.group.removeprefix('invalid / ')}")
            return finding, "".join(+result.unsupported)

        yield workers, rerun


def replay_folder(folder: Path, given: argparse.Namespace) -> int:
    """Run every saved program of a folder, for example the corpus; one line each, and what is declared is known."""
    given.target = given.target or TARGET
    paths, found, skipped = [Path(path) for path in corpus_of(folder)], [], 0
    file = expectations_file(given)
    known = expectations.findings(file)
    with replaying(given) as (_, rerun):
        for path in paths:
            finding, lacks = rerun(path)
            skipped += bool(lacks)
            if finding is None:
                print(f"SKIP {path.stem}: {given.target} leaves out {lacks}" if lacks else f"ok   {path.stem}")
                continue
            found.append((finding, path.stem))
            seen = result_of(finding, saved=(path.stem,)).finding
            declared = next((entry.reason for entry in known if seen and entry.covers(seen)), "")
            about = finding.mismatches[0] if finding.mismatches else finding.group
            print(f"{'XFAIL' if declared else finding.kind} {path.stem}\n     {declared or about}")
    run = replayed(given.target, found, [path.stem for path in paths], skipped)
    run = known_findings.apply(run, known, file)
    for result in run.findings:
        if result.outcome is Outcome.XPASS:
            print(f"XPASS {result.reason}")
    print(
        f"{len(paths) - len(found) - skipped} of {len(paths)} programs agree with torch CPU"
        + (f", {skipped} were not run" if skipped else "")
        + "".join(f", {text}" for text in sentences.known(run))
    )
    if skipped == len(paths):
        raise ProgramError(f"{folder}: {given.target} leaves out every program, so there is nothing to compare")
    return run.exit_code()


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
