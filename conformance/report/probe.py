"""The result of a probe as a short terminal table: first the device's gaps, then their consequences."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.declare.probed import Answer, Probe
from conformance.report.escape import escape_control_characters


def show(console: Console, target: str, made: Probe, declared: Collection[str] | None = None) -> None:
    """Print a line with the features that work, a row for each other feature, the dtypes, and the consequences. If
    there is a profile, `declared` has the operators that it declares lacking. Print nothing if the probe made no
    trial."""
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
