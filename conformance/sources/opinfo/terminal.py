"""Summary of an OpInfo run in the terminal, which ends in one line of counts. This module runs and judges no op."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.record.causes import causes_of
from conformance.record.measurements import Rise
from conformance.record.missing_ops import DECLARED
from conformance.record.result import NOT_RUN, UNEXPECTED, WITHOUT_BACKEND, Outcome, Run, summary_line
from conformance.report import compare, machine, missing_ops
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


MOST_CAUSES = 20
"""Limit on causes listed in the terminal; the page lists all."""


def _show_causes(console: Console, made: Run) -> None:
    """Print the causes of the failures, the worst first, each with its smallest example."""
    causes = causes_of(result for result in made.results if result.outcome in UNEXPECTED and not result.layer)
    if not causes:
        return
    table = Table("cause", "cases", "operators", "smallest example", title="Failures by cause")
    for cause in causes[:MOST_CAUSES]:
        mark = cause.results[0].script_mark
        example = cause.results[0].id + (f" ({mark})" if mark else "")
        texts = cause.pattern, str(len(cause.results)), cause.named, example
        table.add_row(*(Text(escape_control_characters(text)) for text in texts))
    console.print(table)
    if causes[MOST_CAUSES:]:
        console.print(f"and {len(causes) - MOST_CAUSES} more causes, on the page", highlight=False)


def summarize(console: Console, made: Run, changes: compare.Diff | None, folder: Path) -> None:
    """Print the findings of a run, with the count of cases on the last line."""
    counts = made.counts()
    table = Table("outcome", "cases")
    for word in sorted(counts, key=lambda word: list(Outcome).index(Outcome(word)), reverse=True):
        table.add_row(Text(word, _STYLE[word]), str(counts[word]))
    console.print(table)
    console.print(
        f"{escape_control_characters(made.title)}: {made.compared} samples in {made.seconds:.0f} s", highlight=False
    )
    _show_causes(console, made)
    missing_ops.show(console, made.lacking)
    for declared in (result for result in made.results if result.variant == DECLARED):
        console.print(escape_control_characters(f"XPASS {declared.op}: {declared.reason}"), highlight=False)
    for fact in [*facts(made), *(made.notes if made.complete else ())]:
        console.print(escape_control_characters(fact), highlight=False)
    for result in made.unexpected:
        if result.script_mark and not result.alone.startswith(NOT_RUN):
            console.print(escape_control_characters(f"{result.id}: {result.remark}"), highlight=False, soft_wrap=True)
    excused = [result for result in made.cases if result.layer]
    if excused:
        console.rule(WITHOUT_BACKEND)
        for result in excused:
            said = f"{result.outcome} {result.id} ({', '.join(result.oracles)}): {result.layer}"
            console.print(escape_control_characters(said), highlight=False, soft_wrap=True)
        console.rule()
    for measure in (one for one in made.measures if one.rise is Rise.REGRESSION):
        parts = Counter(made.measured.parts.get(measure.name, {})).most_common()
        if parts:
            names = ", ".join(f"{name} ({count})" for name, count in parts)
            console.print(f"{measure.unit}: {escape_control_characters(names)}", highlight=False)
    if changes is not None:
        # In a log, a case and its outcome stay on one line, so that a search for FAIL also finds the name.
        text = f"since the baseline:\n{escape_control_characters(compare.text(changes))}"
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)
    if os.environ.get("GITHUB_ACTIONS"):
        print("\n".join(machine.error_lines(made)))
    console.print(f"report: {escape_control_characters(str(folder / 'conformance.html'))}", highlight=False)
    print(summary_line(made), flush=True)
