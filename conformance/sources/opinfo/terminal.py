"""The outcomes of an OpInfo run in the terminal, and the causes of its failures. This module runs and judges no op."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.record.causes import causes_of
from conformance.record.result import UNEXPECTED, Outcome, Run
from conformance.report.escape import escape_control_characters

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


def _show_causes(console: Console, run: Run) -> None:
    """Print the causes of the failures, the worst first, each with its smallest example."""
    causes = causes_of(result for result in run.results if result.outcome in UNEXPECTED and not result.layer)
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
        console.print(f"and {len(causes) - MOST_CAUSES} more causes, on the page")


def summarize(console: Console, run: Run) -> None:
    """Print the number of cases by outcome, and the causes of the failures."""
    counts = run.counts()
    table = Table("outcome", "cases")
    for word in sorted(counts, key=lambda word: list(Outcome).index(Outcome(word)), reverse=True):
        table.add_row(Text(word, _STYLE[word]), str(counts[word]))
    console.print(table)
    console.print(f"{escape_control_characters(run.title)}: {run.compared} samples in {run.seconds:.0f} s")
    _show_causes(console, run)
