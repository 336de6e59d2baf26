"""The end of a run in the terminal: its facts, the changes since the baseline, and the totals on the last line.

Defines `show`. It is the same for every source of subjects; a source prints its findings before.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from rich.console import Console

from conformance.record.measurements import Rise
from conformance.record.missing_ops import DECLARED
from conformance.record.result import NOT_RUN, WITHOUT_BACKEND, Run, summary_line
from conformance.report import compare, machine, missing_ops, summary
from conformance.report.escape import escape_control_characters


def show(console: Console, made: Run, changes: compare.Diff | None, page: Path) -> None:
    """Print the end of a run. `page` is the page that shows it."""

    def say(text: str, soft_wrap: bool = True) -> None:
        console.print(escape_control_characters(text), markup=False, highlight=False, soft_wrap=soft_wrap)

    missing_ops.show(console, made.lacking)
    for one in made.results:
        if one.variant == DECLARED:
            say(f"XPASS {one.op}: {one.reason}")
    notes = made.notes if made.complete or made.interrupted else []  # else a later sentence says why it ended
    for fact in [*summary.known(made), *summary.masked(made), *summary.facts(made), *notes]:
        say(fact)
    for one in made.unexpected:
        if one.finding is None and one.script_mark and not one.alone.startswith(NOT_RUN):
            say(f"{one.id}: {one.remark}")
    excused = [one for one in made.cases if one.layer]
    if excused:
        console.rule(WITHOUT_BACKEND)
        for one in excused:
            say(f"{one.outcome} {one.id} ({', '.join(one.oracles)}): {one.layer}")
        console.rule()
    for measure in made.measures:
        parts = Counter(made.measured.parts.get(measure.name, {})).most_common()
        if parts and measure.rise is Rise.REGRESSION:
            say(f"{measure.unit}: {', '.join(f'{name} ({count})' for name, count in parts)}")
    if changes is not None:
        # In a log, a case and its outcome stay on one line, so that a search for FAIL also finds the name.
        say(f"since the baseline:\n{compare.text(changes)}", soft_wrap=not console.is_terminal)
    for line in machine.error_lines(made) if os.environ.get("GITHUB_ACTIONS") else ():
        print(line)
    say(f"report: {page}")
    print(summary_line(made), file=console.file, flush=True)
