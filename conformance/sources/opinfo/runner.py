"""Runner of PyTorch's op_db against a target: `python -m conformance.opinfo_runner`, and `run` as a library call.

This process only plans, collects and writes. It imports neither torch nor the target, so a crash of an op cannot lose
results. Each result is on disk as soon as it is available, and the report is written from the results so far, also
after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.declare.declared import refuse
from conformance.declare.profile import Profile
from conformance.record import result as model
from conformance.record import versions
from conformance.record.errors import ReportError, TargetError, UsageError, UserError
from conformance.record.result import RERUN, UNEXPECTED, Outcome, Result, Run
from conformance.report import __main__ as report
from conformance.report import budgets, compare, history, probe
from conformance.report.escape import escape_control_characters
from conformance.report.pipe import reader_gone
from conformance.run import scripts, signals
from conformance.run.execution_place import LOCAL, Place, add_options, place_of
from conformance.run.messages import COMPILE_LIMIT, Limits
from conformance.run.probe import resolve
from conformance.run.profile_trials import BUDGET
from conformance.run.worker_log import log_file
from conformance.sources.opinfo import plan, terminal, trial
from conformance.sources.opinfo.isolation import Cases
from conformance.sources.opinfo.journal import Journal
from conformance.sources.opinfo.plan import Case, Selection
from conformance.sources.opinfo.replay import replay

LIMITS = Limits(unit=120.0, memory=8.0)
"""Default limits of a case."""

WORDS = "opinfo-workers.log"
"""File in --reports for worker output."""


def run(
    target: str,
    *,
    selections: Sequence[Selection] = (Selection(),),
    jobs: int = 1,
    limits: Limits = LIMITS,
    shard: tuple[int, int] = (1, 1),
    variants: Collection[str] = (),
    reruns: int = 0,
    stop_at_first: bool = False,
    expected: Sequence[expectations.Expectation] = (),
    times: Mapping[str, float] = MappingProxyType({}),
    finished: Sequence[Result] = (),
    lacking: bool = False,
    fail_on_torch_bugs: bool = False,
    place: Place = LOCAL,
    listed: Callable[[Sequence[plan.Entry]], None] = lambda catalog: None,
    started: Callable[[Run, int], None] = lambda run, planned: None,
    ended: Callable[[Result], None] = lambda result: None,
    found: Callable[[Result], None] = lambda result: None,
) -> Run:
    """Run the chosen cases on `target` and return their results; on KeyboardInterrupt, the results so far.

    The target must be able to show `variants`, which the user named; other variants that it cannot show are excluded.
    `times` are seconds of cases in an earlier run, by id; the longest begin first. `finished` are results of an
    interrupted run, whose cases do not run again. Cases that the target's profile declares lacking run only with
    `lacking`.

    A case that fails in the same way on a target of `without_backend` is a bug of PyTorch, and fails the run only with
    `fail_on_torch_bugs`. `listed` receives the entries of op_db, and `started` the run and the number of its cases.
    `ended` receives each new result, and `found` each result after the expectations are applied. Raises UsageError for
    unknown names, and TargetError for a target that cannot be loaded.
    """
    begin = time.monotonic()
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = Run(target, started=at, identity=profiles.identity(target))
    try:
        with Cases(target, limits, jobs, place) as cases:
            catalog, made.environment = cases.catalog(variants, plan.asks_beside(selections))
            listed(catalog)
            profile = profiles.of(target) or Profile()
            profile.check("opinfos", [entry.name for entry in catalog])
            asked, left_out = plan.without(plan.select(catalog, selections, shard), () if lacking else profile.opinfos)
            made.lacking = profile.table(left_out)
            chosen = {case.id: case for case in asked}
            started(made, len(chosen))
            earlier = {result.id: result for result in finished if result.id in chosen}
            left = [case for case in chosen.values() if case.id not in earlier]
            again: list[Case] = []

            def take(result: Result) -> bool:
                (declared,) = expectations.apply([result], expected)
                made.results.append(declared)
                found(declared)
                if reruns and declared.outcome in RERUN:
                    again.append(chosen[result.id])
                return stop_at_first and declared.outcome in UNEXPECTED

            failed = any(list(map(take, earlier.values())))
            for result in () if failed else cases.run(plan.longest_first(left, times)):
                ended(result)
                failed = take(result)
                made.calibration = cases.calibration
                if failed:
                    break
            if failed:
                made.complete = len(made.results) == len(chosen)
                made.notes.append("stopped at the first failure")
            for _ in range(0 if failed else reruns):
                flaky = {result.id for result in cases.run(again) if result.outcome is Outcome.PASS}
                made.results = [result.flaky() if result.id in flaky else result for result in made.results]
                again = [case for case in again if case.id not in flaky]
        for layer in cases.without_backend:
            failing = [chosen[result.id] for result in made.results if result.outcome in RERUN and not result.layer]
            with (
                Cases(layer, limits, min(jobs, len(failing)), place) if failing else contextlib.nullcontext() as others
            ):
                there = {result.id: result for result in others.run(failing)} if others else {}
            made.results = [
                result.without_backend(layer, fail_on_torch_bugs)
                if result.id in there and result.fails_as(there[result.id])
                else result
                for result in made.results
            ]
    except KeyboardInterrupt:
        made.complete, made.interrupted = False, signals.signal_number()
    except TargetError as error:
        if not made.results:
            raise
        made.complete = False
        made.notes.append(str(error))
    finally:
        made.seconds = time.monotonic() - begin
    return made


# The command


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    made = argparse.ArgumentParser(
        prog="python -m conformance.opinfo_runner",
        description="Run PyTorch's op_db on a target and on torch CPU, compare all that can be seen, write a report.",
        epilog="Exit code: 0 all as expected; 1 undeclared failures, flaky ones included, or regressions since the "
        "baseline; 2 nothing compared, or bad usage; 130 Ctrl-C, 143 SIGTERM.",
    )
    target = "what is under test: cpu, device:NAME[,import=MODULE], FILE.toml (default: conformance.toml, else tiny)"
    made.add_argument("--target", help=target)
    plan.add_options(made.add_argument)
    made.add_argument("-n", "--jobs", type=int, default=1, help="worker processes (default: 1)")
    add_options(made.add_argument)
    seconds = f"seconds for one case (default: what the target's profile says, else {LIMITS.unit:g})"
    made.add_argument("--timeout", "--limit", type=float, metavar="S", help=seconds)
    building = (
        "seconds for building kernels within a case, not counted in --timeout: in the first run of an op on its "
        f"dtypes, and always on a compiler or a lazy device (default: what the profile says, else {COMPILE_LIMIT:g})"
    )
    made.add_argument("--compile-limit", type=float, metavar="S", help=building)
    made.add_argument("--memory", type=float, metavar="GIB", help="memory of a worker (default: 8, or the profile's)")
    made.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where to write (reports)")
    made.add_argument("--resume", action="store_true", help="go on where the same run in --reports stopped")
    made.add_argument("--stop-at-first-failure", action="store_true", help="end with the first undeclared failure")
    torchs = "fail also for what fails in the same way on compile:eager or compile:aot_eager, without the backend"
    made.add_argument("--fail-on-torch-bugs", action="store_true", help=torchs)
    alone = f"seconds in which scripts are run before they are listed, 0 for none (default: {scripts.BUDGET:g})"
    made.add_argument("--check-scripts", type=float, default=scripts.BUDGET, metavar="S", help=alone)
    made.add_argument("--expectations", type=Path, metavar="FILE", help="default: reports/expectations/<target>.toml")
    made.add_argument("--update-expectations", action="store_true", help="declare what fails in that file, knowingly")
    made.add_argument(
        "--baseline", type=Path, metavar="FILE", help="default: reports/baseline/torch-<minor>/<target>.json.gz"
    )
    made.add_argument("--update-baseline", action="store_true", help="accept this run as the baseline, knowingly")
    made.add_argument(
        "--replay",
        nargs="+",
        metavar=("[FILE] CASE", "CASE"),
        help="run one case again, or CASE#N for its sample N: "
        "an id such as add::float32::forward::as_sampled, or a result file, for its target, and an id in it",
    )
    made.add_argument("--kernels", type=Path, metavar="FILE", help="counts of whole workloads, to compare as well")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    try:
        versions.check()
        with signals.deferred():
            if options.replay:
                limits = _choices(options)["limits"]
                return replay(
                    options.replay,
                    options.target,
                    lambda target, these: run(target, selections=these, limits=limits, lacking=True),
                )
            options.target = profiles.usual(options.target)
            return _run_command(options, list(arguments if arguments is not None else sys.argv[1:]))
    except BrokenPipeError:
        return reader_gone()
    except UserError as error:
        print(f"opinfo_runner: {error}", file=sys.stderr)
        return 2


def _run_command(options: argparse.Namespace, arguments: list[str]) -> int:
    chosen = _choices(options)
    with log_file(options.reports / WORDS, not options.resume) as file:
        return _run_chosen(options, {**chosen, "place": replace(chosen["place"], worker_log=file)}, arguments)


def _run_chosen(options: argparse.Namespace, chosen: dict[str, Any], arguments: list[str]) -> int:
    begin = time.monotonic()
    expected_file = expectations.file_of(options, expectations.path_for(options.target))
    baseline_file = options.baseline or report.baseline_for(options.target)
    expected = expectations.expected(expected_file)
    wanted = options.baseline and not options.update_baseline  # a first baseline is created by accepting a run
    baseline = model.load(baseline_file) if wanted or baseline_file.exists() else None
    if options.kernels and not options.kernels.exists():
        raise ReportError(f"{options.kernels} does not exist; write it with benchmarks/kernel_counts.py --json.")
    counted = budgets.load(options.kernels) if options.kernels else {}
    if baseline and counted:
        baseline.budgets = budgets.load(baseline_file.parent / budgets.NAME)
    history.check(options.reports / report.HISTORY)
    console, profile = Console(), profiles.of(options.target)
    target, seen = resolve(options.target, chosen["limits"], chosen["place"], strict=BUDGET)
    if seen is not None:
        probe.show(console, profiles.identity(options.target), seen, profile.lacks if profile is not None else None)
    held = profile.dtypes if profile is not None else None
    chosen["selections"] = plan.asked(options, held if held is not None or seen is None else seen.dtypes)
    identity = {
        "target": options.target,
        "selection": list(map(str, chosen["selections"])),
        "shard": list(chosen["shard"]),
        "torch": str(versions.installed()),
    }
    with Journal(options.reports, identity, options.resume) as journal, terminal.progress(console) as progress:
        made = run(
            target,
            **chosen,
            expected=expected,
            times={result.id: result.seconds for result in baseline.results} if baseline else {},
            finished=journal.finished,
            listed=lambda catalog: check_names(expected_file, catalog),
            started=progress.start,
            ended=journal.add,
            found=progress.add,
        )
        if made.complete and profile is not None:
            there, notes = trial.contradictions(target, chosen["limits"], made.lacking, seen, chosen["place"])
            made.results, made.notes = [*made.results, *there], [*made.notes, *notes]
        made.seconds = journal.seconds + time.monotonic() - begin
        made.command = shlex.join(["python", "-m", "conformance.opinfo_runner", *arguments])
        made.environment |= seen.described() if seen is not None else {}
        made.environment |= {**_environment(), "selection": _selection(options.suite, chosen)}
        made.budgets = counted
        if not made.complete and not made.results:
            print("opinfo_runner: interrupted before anything was compared; no report is written.", file=sys.stderr)
            return made.exit_code()
        if options.update_expectations and made.complete:
            print("\n".join(map(escape_control_characters, expectations.declare(made, expected_file))))
            made.results = expectations.accept(made.results, expectations.expected(expected_file))
        made.expectations = str(expected_file) if expected_file.exists() else ""
        if made.complete:
            scripts.confirm(made, options.timeout, options.check_scripts, options.jobs)
        changes = compare.diff(baseline, made) if baseline else None
        _write(made, options.reports, baseline)
        journal.complete = made.complete
    if options.update_baseline and made.complete:
        model.save(model.slim(_over(baseline, made)), baseline_file)
        if counted:
            model.write_atomic(baseline_file.parent / budgets.NAME, budgets.dumps(counted))
    terminal.summarize(console, made, changes, options.reports)
    return made.exit_code(changes.regressions if changes and not options.update_baseline else 0)


def check_names(file: Path, catalog: Sequence[plan.Entry]) -> None:
    """Raise ReportError if the file names an unknown op. Entries outside op_db are checked only in runs that include
    them.
    """
    names = [entry.name for entry in catalog]
    there = plan.is_beside(*names)
    entries = [entry for entry in expectations.load(file) if there or not plan.is_beside(entry.op)]
    refuse(expectations.check(entries, names, file))


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    spec = options.target or ""
    options.timeout = profiles.limit(spec, "seconds", options.timeout, LIMITS.unit)
    options.memory = profiles.limit(spec, "memory", options.memory, LIMITS.memory or 8.0)
    options.compile_limit = profiles.limit(spec, "compiling", options.compile_limit, COMPILE_LIMIT)
    for name, value, least in (
        ("-n", options.jobs, 1),
        ("--timeout", options.timeout, 0.001),
        ("--compile-limit", options.compile_limit, 0.001),
        ("--memory", options.memory, 0.25),
        ("--rerun-failures", options.rerun_failures, 0),
        ("--check-scripts", options.check_scripts, 0),
    ):
        if not value >= least:
            raise UsageError(f"{name} must be at least {least}, and is {value}")
    return {
        "selections": plan.asked(options),
        "jobs": options.jobs,
        "limits": replace(LIMITS, unit=options.timeout, memory=options.memory, compiling=options.compile_limit),
        "stop_at_first": options.stop_at_first_failure,
        "shard": plan.parse_shard(options.shard),
        "variants": _by_name(options),
        "reruns": options.rerun_failures,
        "fail_on_torch_bugs": options.fail_on_torch_bugs,
        "place": place_of(options),
    }


def _by_name(options: argparse.Namespace) -> set[str]:
    """Return the variants that the user named. A suite or `all` takes every variant that the target can show."""
    return {name for words in options.variant or () for name in words.split(",")} - {"all"}


def _environment() -> dict[str, str]:
    """Return facts about the run that the target does not report: Python, machine and commit."""
    made = {
        "python": sys.version.split()[0],
        "machine": f"{os.uname().sysname} {os.uname().machine}, {os.cpu_count()} cores",
    }
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
        made["commit"] = commit.stdout.strip()
    return made


def _selection(suite: str | None, chosen: dict[str, Any]) -> str:
    """Return the user's selection in words; runs with the same words can be compared over time."""
    words = [" + ".join(map(str, chosen["selections"]))]
    if suite:
        narrowed = zip(chosen["selections"], plan.SUITES[suite], strict=True)
        changes = [_narrowed(mine, usual) for mine, usual in narrowed]
        words = [f"suite {suite}", *changes[0]]  # the same options narrow every part of a suite
    index, count = chosen["shard"]
    return "; ".join([*words, *([f"shard {index}/{count}"] if count > 1 else [])])


def _narrowed(mine: Selection, usual: Selection) -> list[str]:
    """Return the differences of a part of a suite from the suite's own definition."""
    ops = [",".join(mine.ops)] if mine.ops != usual.ops else []
    return ops + ([mine.most] if mine.samples != usual.samples else [])


def _over(baseline: Run | None, made: Run) -> Run:
    """Return the new run, completed with the baseline's results for cases that it did not run."""
    new = {result.id for result in made.results}
    rest = [result for result in baseline.results if result.id not in new] if baseline else []
    return replace(made, results=[*made.results, *rest])


def _write(made: Run, folder: Path, baseline: Run | None) -> None:
    summary = report.write(made, folder, baseline)
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(summary)


if __name__ == "__main__":
    sys.exit(main())
