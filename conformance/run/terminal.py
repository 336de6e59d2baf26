"""Terminal view of a run: a progress bar, with each finding above it as soon as it is confirmed.

Defines `View` and `shown`. Without a terminal, progress is printed as lines: one for each finding, one for every tenth
of a known number of subjects, and otherwise one every few seconds. This module runs nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from conformance.record.result import UNEXPECTED, Result, Run, counted
from conformance.record.sentences import headline
from conformance.report.escape import escape_control_characters

SECONDS = 5.0
"""Interval between two lines of progress without a terminal."""


class View:
    """Progress of one run. Each call of `advance` counts subjects; `finding` shows a result."""

    def __init__(self, console: Console) -> None:
        self.console, self.planned, self.done, self.failed = console, 0, 0, 0
        self.noun = "case"
        self.last = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("[red]{task.fields[failed]} failed"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.bar.add_task("starting workers", total=None, failed=0)

    def start(self, run: Run, planned: int) -> None:
        """Show the target and the number of cases."""
        self.planned = planned
        self.bar.update(self.task, description=escape(run.title), total=planned)
        self._line(f"{counted(planned, self.noun)} on {run.title}")

    def add(self, result: Result) -> None:
        """Count a result of one case, and show it if it is unexpected."""
        self.done += 1
        if result.outcome in UNEXPECTED:
            self.failed += 1
            oracles = f" ({', '.join(result.oracles)})" if result.oracles else ""
            why = headline(result) if result.failures else result.reason
            self.finding(f"{result.outcome} {result.id}{oracles}: {why}")
        self.bar.update(self.task, advance=1, failed=self.failed)
        if self.done % max(self.planned // 10, 1) == 0:
            self._line(f"{self.done}/{counted(self.planned, self.noun)}, {self.failed} failed")

    def at(self, done: int, planned: int | None, failed: int, text: str) -> None:
        """Show the progress of drawn programs, with `text` as a line every few seconds."""
        self.bar.update(self.task, completed=done, total=planned, description=escape(text), failed=failed)
        if not self.console.is_terminal and time.monotonic() - self.last >= SECONDS:
            self.last = time.monotonic()
            self._line(text)

    def finding(self, text: str) -> None:
        """Show one finding, above the bar."""
        text = escape_control_characters(text)
        if self.console.is_terminal:
            self.console.print(text, style="red", highlight=False, markup=False)
        self._line(text)

    def _line(self, text: str) -> None:
        if not self.console.is_terminal:
            print(text, flush=True)


@contextlib.contextmanager
def shown(console: Console) -> Iterator[View]:
    """Context that shows the progress of a run."""
    view = View(console)
    with view.bar:
        yield view
