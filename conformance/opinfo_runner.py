"""PyTorch's op_db against a target: `python -m conformance.opinfo_runner`, and `run` for use as a library.

The key insight: this process only plans, collects and writes. It imports neither torch nor the target, so nothing that
an op does can take the results along: each is on disk as soon as it is known, and the page is written from what there
is, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from conformance import expectations
from conformance.opinfo import plan
from conformance.opinfo.isolation import Pool, PoolError
from conformance.opinfo.plan import Case, UsageError
from conformance.report import __main__ as report
from conformance.report import compare, history, machine, model
from conformance.report.model import UNEXPECTED, Outcome, ReportError, Result, Run, summary_line

INTERRUPTED = 130
BASELINES = Path("reports/baseline")
_STYLE = {
    "PASS": "green",
    "FAIL": "red",
    "CRASH": "bold red",
    "TIMEOUT": "bold red",
    "XPASS": "magenta",
    "XFAIL": "yellow",
    "FLAKY": "yellow",
    "SKIP": "dim",
}


def run(
    target: str,
    *,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = ("float32",),
    variants: Sequence[str] = ("forward",),
    layouts: Sequence[str] = ("as_sampled",),
    samples: int | None = 20,
    jobs: int = 1,
    timeout: float = 120.0,
    memory: int = 8 << 30,
    shard: tuple[int, int] = (1, 1),
    reruns: int = 0,
    expected: Sequence[expectations.Expectation] = (),
    started: Callable[[Run, int], None] = lambda run, planned: None,
    found: Callable[[Result], None] = lambda result: None,
) -> Run:
    """Run the chosen cases on `target` and return their results; on KeyboardInterrupt, those that there are.

    `samples` is the most samples of one case, None for all; `timeout` is in seconds for one case; `memory` in bytes for
    one worker. `started` is told the run and the number of its cases, `found` each result. Raises UsageError for names
    that nothing has and PoolError for a target that cannot be loaded.
    """
    begin = time.monotonic()
    made = Run(target, started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    try:
        with Pool(target, jobs, timeout, memory) as pool:
            catalog, made.environment = pool.catalog()
            chosen = plan.select(catalog, ops=ops, dtypes=dtypes, variants=variants, layouts=layouts, shard=shard)
            started(made, len(chosen))
            again: list[Case] = []
            for result in pool.run(chosen, samples):
                (declared,) = expectations.apply([result], expected)
                if reruns and declared.outcome in UNEXPECTED - {Outcome.XPASS}:
                    again.append(_case_of(result))
                made.results.append(declared)
                found(declared)
            for _ in range(reruns):
                flaky = {result.id for result in pool.run(again, samples) if result.outcome is Outcome.PASS}
                made.results = [_flaky(result) if result.id in flaky else result for result in made.results]
                again = [case for case in again if case.id not in flaky]
    except KeyboardInterrupt:
        made.complete = False
    except PoolError as error:
        if not made.results:
            raise
        made.complete = False
        made.notes.append(str(error))
    made.seconds = time.monotonic() - begin
    return made


def _case_of(result: Result) -> Case:
    return Case(result.op, result.overload, result.family, result.dtype, result.variant, result.layout)


def _flaky(result: Result) -> Result:
    return result.replace(outcome=Outcome.FLAKY, reason=f"{result.outcome} at first, PASS when run again")


# The command


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m conformance.opinfo_runner",
        description="Run PyTorch's op_db on a target and on torch CPU, compare all that can be seen, write a report.",
        epilog="Exit code: 0 nothing unexpected, 1 undeclared failures or nothing compared, 2 bad usage, 130 Ctrl-C.",
    )
    made.add_argument("--target", default="tiny", help="what is under test: tiny, cpu, device:NAME[,import=MODULE]")
    made.add_argument("--op", action="append", default=[], metavar="NAME|GLOB", help="only these ops; may be repeated")
    made.add_argument("--dtype", action="append", metavar="D,...", help="float32 (default), several, or all")
    made.add_argument(
        "--variant", action="append", metavar="V,...", help=f"forward (default), of {', '.join(plan.VARIANTS)}"
    )
    made.add_argument(
        "--layout", action="append", metavar="L,...", help=f"as_sampled (default), of {', '.join(plan.LAYOUTS)}"
    )
    made.add_argument("--samples", default="20", metavar="N|all", help="samples an op (default: 20)")
    made.add_argument("-n", "--jobs", type=int, default=1, help="worker processes (default: 1)")
    made.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds for one case (default: 120)")
    made.add_argument("--memory", type=float, default=8.0, metavar="GIB", help="memory of a worker (default: 8)")
    made.add_argument("--shard", default="1/1", metavar="i/n", help="only the i-th of n parts")
    made.add_argument("--rerun-failures", type=int, default=0, metavar="N", help="run a failure again, up to N times")
    made.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where to write (reports)")
    made.add_argument("--expectations", type=Path, metavar="FILE", help="default: reports/expectations/<target>.toml")
    made.add_argument("--baseline", type=Path, metavar="FILE", help="default: reports/baseline/<target>.json.gz")
    made.add_argument("--update-baseline", action="store_true", help="accept this run as the baseline, knowingly")
    made.add_argument("--fail-on-regression", action="store_true", help="also fail when kernels or fallbacks went up")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return _run_command(options, list(arguments if arguments is not None else sys.argv[1:]))
    except (UsageError, PoolError, ReportError) as error:
        print(f"opinfo_runner: {error}", file=sys.stderr)
        return 2


def _run_command(options: argparse.Namespace, arguments: list[str]) -> int:
    chosen = _choices(options)
    expected_file = options.expectations or expectations.path_for(options.target)
    baseline_file = options.baseline or BASELINES / f"{model.file_name(options.target)}.json.gz"
    expected = expectations.load(expected_file)
    baseline = model.load(baseline_file) if options.baseline or baseline_file.exists() else None
    history.check(options.reports / report.HISTORY)
    console = Console()
    with _interrupted_once(), _Journal(options.reports) as journal, _progress(console) as progress:
        made = run(
            options.target,
            **chosen,
            expected=expected,
            started=progress.start,
            found=_each(journal.add, progress.add),
        )
        made.command = shlex.join(["python", "-m", "conformance.opinfo_runner", *arguments])
        made.environment |= {**_environment(chosen), "selection": _selection(chosen)}
        if not made.complete and not made.results:
            print("opinfo_runner: interrupted before anything was compared; no report is written.", file=sys.stderr)
            return INTERRUPTED
        changes = compare.diff(baseline, made) if baseline else None
        _write(made, options.reports, baseline)
        journal.done()
    if options.update_baseline and made.complete:
        model.save(model.slim(_over(baseline, made)), baseline_file)
    _print(console, made, changes, options)
    if not made.complete:
        return 1 if made.notes else INTERRUPTED
    regressed = options.fail_on_regression and changes is not None and changes.regressions
    return max(made.exit_code(), int(bool(regressed)))


def _each(*takers: Callable[[Result], None]) -> Callable[[Result], None]:
    def take(result: Result) -> None:
        for taker in takers:
            taker(result)

    return take


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    def listed(values: list[str] | None, default: str) -> str:
        return ",".join(values) if values else default

    samples = options.samples
    if samples != "all" and not (samples.isdigit() and int(samples) > 0):
        raise UsageError(f"--samples {samples!r} is neither a number above 0 nor 'all'")
    for name, value, least in (
        ("-n", options.jobs, 1),
        ("--timeout", options.timeout, 0.001),
        ("--memory", options.memory, 0.25),
        ("--rerun-failures", options.rerun_failures, 0),
    ):
        if not value >= least:
            raise UsageError(f"{name} must be at least {least}, and is {value}")
    return {
        "ops": options.op,
        "dtypes": plan.chosen(listed(options.dtype, "float32"), plan.DTYPES, "dtype"),
        "variants": plan.chosen(listed(options.variant, "forward"), plan.VARIANTS, "variant"),
        "layouts": plan.chosen(listed(options.layout, "as_sampled"), plan.LAYOUTS, "layout"),
        "samples": None if samples == "all" else int(samples),
        "jobs": options.jobs,
        "timeout": options.timeout,
        "memory": int(options.memory * 2**30),
        "shard": plan.parse_shard(options.shard),
        "reruns": options.rerun_failures,
    }


def _environment(chosen: dict[str, Any]) -> dict[str, str]:
    """What the run was made with, beyond what the target says of itself."""
    made = {
        "python": sys.version.split()[0],
        "machine": f"{os.uname().sysname} {os.uname().machine}, {os.cpu_count()} cores",
    }
    made["samples"] = "all" if chosen["samples"] is None else str(chosen["samples"])
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
        made["commit"] = commit.stdout.strip()
    return made


def _selection(chosen: dict[str, Any]) -> str:
    """What was asked for, in words: runs with the same words can be compared over time."""
    names = (chosen["ops"] or ["all ops"], chosen["dtypes"], chosen["variants"], chosen["layouts"])
    words = [",".join(each) for each in names]
    words.append("all samples" if chosen["samples"] is None else f"{chosen['samples']} samples")
    index, count = chosen["shard"]
    return "; ".join([*words, *([f"shard {index}/{count}"] if count > 1 else [])])


def _over(baseline: Run | None, made: Run) -> Run:
    """The new run, with the baseline's results for cases that it did not run."""
    new = {result.id for result in made.results}
    rest = [result for result in baseline.results if result.id not in new] if baseline else []
    return dataclasses.replace(made, results=[*made.results, *rest])


def _write(made: Run, folder: Path, baseline: Run | None) -> None:
    summary = report.write(made, folder, baseline)
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(summary)


@contextlib.contextmanager
def _interrupted_once() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM is a KeyboardInterrupt; later ones do not lose the report that it asked for."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def interrupt(*_: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.getsignal(each) for each in signals}
    for each in signals:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            # After an interrupt the process is about to end, with its own exit code.
            if signal.getsignal(each) is interrupt:
                signal.signal(each, handler)


class _Journal:
    """Results as they come, one JSON line each, until the report itself is written; it also tries the folder early."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"opinfo.{os.getpid()}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed in __exit__
        except OSError as error:
            raise ReportError(
                f"{folder} cannot be written ({error.strerror}); choose another with --reports."
            ) from None

    def __enter__(self) -> _Journal:
        return self

    def add(self, result: Result) -> None:
        self.file.write(json.dumps(model.result_to_json(result), ensure_ascii=False) + "\n")
        self.file.flush()

    def done(self) -> None:
        self.file.close()
        self.path.unlink(missing_ok=True)

    def __exit__(self, *exception: object) -> None:
        self.file.close()
        if self.path.exists() and self.path.stat().st_size == 0:
            self.path.unlink()


class _Lines:
    """Progress as plain lines: each failure, and every tenth of the way."""

    def __init__(self, console: Console) -> None:
        self.console, self.planned, self.done, self.bad = console, 0, 0, 0

    def start(self, run: Run, planned: int) -> None:
        self.planned = planned
        self.line(f"{planned} cases on {run.target}")

    def add(self, result: Result) -> None:
        self.done += 1
        if result.outcome in UNEXPECTED:
            self.bad += 1
            self.line(f"{result.outcome} {result.id} ({', '.join(result.oracles)})")
        if self.done % max(self.planned // 10, 1) == 0:
            self.line(f"{self.done}/{self.planned} cases, {self.bad} failed")

    def line(self, text: str) -> None:
        print(text, flush=True)


class _Bar(_Lines):
    """Progress as a bar, failures above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("[red]{task.fields[bad]} failed"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True)
        self.task = self.bar.add_task("starting workers", total=None, bad=0)

    def start(self, run: Run, planned: int) -> None:
        self.planned = planned
        self.bar.update(self.task, description=escape(run.target), total=planned)

    def add(self, result: Result) -> None:
        super().add(result)
        self.bar.update(self.task, advance=1, bad=self.bad)

    def line(self, text: str) -> None:
        if not text[:1].isdigit():
            self.bar.console.print(f"[red]{escape(text)}", highlight=False)


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[_Lines]:
    if not console.is_terminal:
        yield _Lines(console)
        return
    bar = _Bar(console)
    with bar.bar:
        yield bar


def _print(console: Console, made: Run, changes: compare.Diff | None, options: argparse.Namespace) -> None:
    counts = made.counts()
    table = Table("outcome", "cases")
    for word in sorted(counts, key=lambda word: list(Outcome).index(Outcome(word)), reverse=True):
        table.add_row(f"[{_STYLE[word]}]{word}", str(counts[word]))
    console.print(table)
    console.print(f"{escape(made.target)}: {made.compared} samples in {made.seconds:.0f} s", highlight=False)
    plain = made.passed_without_fallback()
    if plain is not None:
        console.print(f"{plain} of {counts['PASS']} passed without CPU fallback", highlight=False)
        fallen = made.fallbacks()
        if fallen:
            names = ", ".join(f"{name} ({count})" for name, count in fallen.most_common())
            console.print(f"fell back to the CPU: {escape(names)}", highlight=False)
    if changes is not None:
        console.print(f"since the baseline:\n{escape(compare.text(changes))}", highlight=False)
    if os.environ.get("GITHUB_ACTIONS"):
        print("\n".join(machine.error_lines(made)))
    console.print(f"report: {escape(str(options.reports / 'conformance.html'))}", highlight=False)
    if not made.compared:
        print(f"opinfo_runner: nothing was compared in {len(made.results)} cases, so nothing passed.", file=sys.stderr)
    if not made.complete:
        why = "; ".join(made.notes) or "interrupted"
        print(f"opinfo_runner: {why}; the results so far are in the report.", file=sys.stderr)
    print(summary_line(made), flush=True)


if __name__ == "__main__":
    sys.exit(main())
