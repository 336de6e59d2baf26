"""The terminal table of operators that a target's profile declares lacking, most missed first."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.record.missing_ops import Lacking, removed
from conformance.report.escape import escape_control_characters

LISTED = 25
"""Maximum number of rows in the terminal. A report has all rows."""


def show(console: Console, rows: Sequence[Lacking]) -> None:
    """Print the table, unless it is empty."""
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
