"""Write docs/notes/known-bugs.csv, the table of docs/notes/known-bugs.md, from runs of `conformance known-bugs`.

    conformance known-bugs --target inductor --programs 1000 -n 2
    python -m scripts.known_bugs_table [--keep] [RUN/known-bugs.json ...]

Without a file, the run is that in reports/. A run replaces the rows of the bugs that it measured on its target; with
`--keep`, only those of the bugs that it found and of those that no run found.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.selftest.known_bugs import FOUND, MISSED, STEM
from scripts.pages import ROOT, csv_text, write

TABLE = ROOT / "docs" / "notes" / f"{STEM}.csv"
HEAD = ("bug", "title", "target", "program", "steps", "finding")


def row(bug: Mapping[str, Any]) -> list[str]:
    """Return the cells of a bug that was measured."""
    measured = (f"{bug['programs']}", f"{bug['steps']}", bug["finding"]) if bug["status"] == FOUND else (MISSED, "", "")
    return [f"#{bug['number']}", bug["title"], bug["target"], *measured]


def main(arguments: Sequence[str], table: Path = TABLE) -> int:
    """Write the table. Returns the exit code."""
    rows, keep = {}, "--keep" in arguments
    arguments = [word for word in arguments if word != "--keep"]
    if table.exists():
        with table.open(encoding="utf-8", newline="") as text:
            rows = {(cells[0], cells[2]): cells for cells in [*csv.reader(text)][1:]}
    for file in arguments or [str(ROOT / "reports" / f"{STEM}.json")]:
        try:
            bugs = json.loads(Path(file).read_text(encoding="utf-8"))["bugs"]
            new = [row(bug) for bug in bugs if bug["status"] in (FOUND, MISSED)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"scripts.known_bugs_table: {file} is no result of conformance {STEM}: {error}", file=sys.stderr)
            return 2
        named = {(cells[0], cells[2]): cells for cells in new}
        rows |= {name: cells for name, cells in named.items() if not keep or cells[3] != MISSED or name not in rows}
    write(table, csv_text([HEAD, *(rows[name] for name in sorted(rows))]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
