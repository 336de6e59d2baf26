"""What a probe found, as a short table in the terminal: what the device lacks first, then what follows from it."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.core.probed import Answer, Probe
from conformance.report.escape import escape_control_characters


def show(console: Console, target: str, made: Probe, declared: Collection[str] | None = None) -> None:
    """Print it: a row for each thing that is not there or not right, the others in one line, and what follows, from
    what the profile has `declared` lacking, if there is one. Nothing where no trial was made."""
    if made.unmade:
        return
    table = Table(title=f"What {target} has", title_justify="left", box=box.SIMPLE, show_header=False)
    there = [row.name for row in made.rows if row.answer is Answer.YES]
    table.add_row("yes", Text(", ".join(there)))
    for row in made.rows:
        if row.answer is not Answer.YES:
            table.add_row(str(row.answer), Text(f"{row.name}: {escape_control_characters(row.detail)}"))
    table.add_row("dtypes", Text(", ".join(made.dtypes)))
    for sentence in made.consequences(declared):
        table.add_row("so", Text(sentence))
    console.print(table)
