"""A run in the terminal: the features that the probe found, and after the findings its facts, changes and totals.

Defines `probed`, `missing` and `end`. They are the same for every source of subjects, which prints its own findings.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.declare.probed import Answer, Probe
from conformance.record.measurements import Rise
from conformance.record.missing_ops import DECLARED, MissingOperator, removed
from conformance.record.result import NOT_RUN, WITHOUT_BACKEND, Run, summary_line
from conformance.report import compare, machine, summary
from conformance.report.escape import escape_control_characters

LISTED = 25
"""Maximum number of rows in the terminal. A report has all rows."""


def missing(console: Console, rows: Sequence[MissingOperator]) -> None:
    """Print the table of operators that the target's profile declares lacking, most missed first."""
    if not rows:
        return
    table = Table(title="Lacking, and so not run", title_justify="left", box=box.SIMPLE)
    table.add_column("operator", no_wrap=True)
    for head in ("removes", "used by"):
        table.add_column(head)
    for row in rows[:LISTED]:
        table.add_row(*map(Text, (escape_control_characters(row.operator), removed([row]), row.used)))
    console.print(table)
    rest = rows[LISTED:]
    if rest:
        console.print(f"and {len(rest)} more operators, which remove {removed(rest)}")


def probed(console: Console, target: str, probe: Probe, declared: Collection[str] | None = None) -> None:
    """Print a line with the features that work, a row for each other feature, the dtypes, and the consequences. If
    there is a profile, `declared` has the operators that it declares lacking. Print nothing if the probe made no
    trial."""
    if probe.unmade:
        return
    table = Table(title=f"What {target} has", title_justify="left", box=box.SIMPLE, show_header=False)
    there = [row.name for row in probe.rows if row.answer is Answer.YES]
    table.add_row("yes", Text(", ".join(there)))
    for row in probe.rows:
        if row.answer is not Answer.YES:
            table.add_row(str(row.answer), Text(f"{row.name}: {escape_control_characters(row.detail)}"))
    table.add_row("dtypes", Text(", ".join(probe.dtypes)))
    for sentence in probe.consequences(declared):
        table.add_row("so", Text(sentence))
    console.print(table)


def end(console: Console, run: Run, changes: compare.Diff | None, page: Path) -> None:
    """Print the end of a run. `page` is the page that shows it."""

    def say(text: str, soft_wrap: bool = True) -> None:
        console.print(escape_control_characters(text), markup=False, highlight=False, soft_wrap=soft_wrap)

    missing(console, run.lacking)
    for one in run.results:
        if one.variant == DECLARED:
            say(f"XPASS {one.op}: {one.reason}")
    notes = run.notes if run.complete or run.interrupted else []  # else a later sentence says why it ended
    for fact in [*summary.known(run), *summary.masked(run), *summary.facts(run), *notes]:
        say(fact)
    for one in run.unexpected:
        if one.finding is None and one.script_mark and not one.alone.startswith(NOT_RUN):
            say(f"{one.id}: {one.remark}")
    excused = [case for case in run.cases if case.layer]
    if excused:
        console.rule(WITHOUT_BACKEND)
        for one in excused:
            say(f"{one.outcome} {one.id} ({', '.join(one.oracles)}): {one.layer}")
        console.rule()
    for measure in run.measures:
        parts = Counter(run.measured.parts.get(measure.name, {})).most_common()
        if parts and measure.rise is Rise.REGRESSION:
            say(f"{measure.unit}: {', '.join(f'{name} ({count})' for name, count in parts)}")
    if changes is not None:
        # In a log, a case and its outcome stay on one line, so that a search for FAIL also finds the name.
        say(f"since the baseline:\n{compare.text(changes)}", soft_wrap=not console.is_terminal)
    for line in machine.error_lines(run) if os.environ.get("GITHUB_ACTIONS") else ():
        print(line)
    say(f"report: {page}")
    print(summary_line(run), file=console.file, flush=True)
