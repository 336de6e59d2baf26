"""Terminal output of an OpInfo run: progress, and a short summary that ends in one line of counts.

If the output is not a terminal, lines replace the progress bar: one for each failure, and one for every tenth of the
cases. This module runs and judges no op.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from conformance.record.missing_ops import DECLARED
from conformance.record.result import SHOWS, UNEXPECTED, WITHOUT_BACKEND, Outcome, Result, Run, summary_line
from conformance.record.sentences import headline
from conformance.report import compare, machine, missing_ops
from conformance.report.causes import causes_of
from conformance.report.escape import escape_control_characters
from conformance.report.summary import facts

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


class Watched:
    """Progress as a bar with failures above it. Without a terminal, progress is a line for each failure and for every
    tenth of the cases.
    """

    def __init__(self, console: Console) -> None:
        self.console, self.planned, self.done, self.bad = console, 0, 0, 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("[red]{task.fields[bad]} failed"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.bar.add_task("starting workers", total=None, bad=0)

    def start(self, run: Run, planned: int) -> None:
        """Show the target and the number of cases."""
        self.planned = planned
        self.bar.update(self.task, description=escape(run.title), total=planned)
        self._line(f"{planned} cases on {run.title}")

    def add(self, result: Result) -> None:
        """Count a result, and show it if it is unexpected."""
        self.done += 1
        if result.outcome in UNEXPECTED:
            self.bad += 1
            oracles = f" ({', '.join(result.oracles)})" if result.oracles else ""
            why = headline(result) if result.failures else result.reason
            said = escape_control_characters(f"{result.outcome} {result.id}{oracles}: {why}")
            if self.console.is_terminal:
                self.console.print(f"[red]{escape(said)}", highlight=False)
            self._line(said)
        self.bar.update(self.task, advance=1, bad=self.bad)
        if self.done % max(self.planned // 10, 1) == 0:
            self._line(f"{self.done}/{self.planned} cases, {self.bad} failed")

    def _line(self, text: str) -> None:
        if not self.console.is_terminal:
            print(text, flush=True)


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Watched]:
    """Context that shows the progress of the run."""
    watched = Watched(console)
    with watched.bar:
        yield watched


MOST_CAUSES = 20
"""Limit on causes listed in the terminal; the page lists all."""


def _show_causes(console: Console, made: Run) -> None:
    """Print the causes of the failures, the worst first, each with its smallest example."""
    causes = causes_of(result for result in made.results if result.outcome in UNEXPECTED and not result.layer)
    if not causes:
        return
    table = Table("cause", "cases", "operators", "smallest example", title="Failures by cause")
    for cause in causes[:MOST_CAUSES]:
        texts = cause.pattern, str(len(cause.results)), cause.named, cause.results[0].id
        table.add_row(*(escape(escape_control_characters(text)) for text in texts))
    console.print(table)
    if causes[MOST_CAUSES:]:
        console.print(f"and {len(causes) - MOST_CAUSES} more causes, on the page", highlight=False)


def summarize(console: Console, made: Run, changes: compare.Diff | None, folder: Path) -> None:
    """Print the findings of a run, with the count of cases on the last line; problems of the run itself go
    to stderr.
    """
    counts = made.counts()
    table = Table("outcome", "cases")
    for word in sorted(counts, key=lambda word: list(Outcome).index(Outcome(word)), reverse=True):
        table.add_row(f"[{_STYLE[word]}]{word}", str(counts[word]))
    console.print(table)
    console.print(f"{escape(made.title)}: {made.compared} samples in {made.seconds:.0f} s", highlight=False)
    _show_causes(console, made)
    missing_ops.show(console, made.lacking)
    for declared in (result for result in made.results if result.variant == DECLARED):
        console.print(escape(f"XPASS {declared.op}: {declared.reason}"), highlight=False)
    for fact in [*facts(made), *(made.notes if made.complete else ())]:
        console.print(escape(fact), highlight=False)
    for result in made.unexpected:
        if result.alone not in ("", SHOWS):
            console.print(escape(f"{result.id}: {result.remark}"), highlight=False, soft_wrap=True)
    excused = [result for result in made.cases if result.layer]
    if excused:
        console.rule(WITHOUT_BACKEND)
        for result in excused:
            said = f"{result.outcome} {result.id} ({', '.join(result.oracles)}): {result.layer}"
            console.print(escape(said), highlight=False, soft_wrap=True)
        console.rule()
    fallen = made.fallbacks()
    if fallen:
        names = ", ".join(f"{name} ({count})" for name, count in fallen.most_common())
        console.print(f"fell back to the CPU: {escape(names)}", highlight=False)
    if changes is not None:
        # In a log, a case and its outcome stay on one line, so that a search for FAIL also finds the name.
        text = f"since the baseline:\n{escape(compare.text(changes))}"
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)
    if os.environ.get("GITHUB_ACTIONS"):
        print("\n".join(machine.error_lines(made)))
    console.print(f"report: {escape(str(folder / 'conformance.html'))}", highlight=False)
    if made.exit_code() == 2:
        print(f"opinfo_runner: nothing was compared in {len(made.results)} cases, so nothing passed.", file=sys.stderr)
    if not made.complete:
        why = "; ".join(made.notes) or "interrupted"
        more = "; the same command with --resume goes on from there" if made.interrupted else ""
        print(f"opinfo_runner: {why}; the results so far are in the report{more}.", file=sys.stderr)
    print(summary_line(made), flush=True)
