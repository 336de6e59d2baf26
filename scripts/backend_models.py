"""Write the tables of docs/backends.md about recorded models: docs/backends/models.csv and operators.csv.

    nox -s backends -- NAME
    python -m scripts.backend_models NAME[=RUN/models.json] ...

Without a file, the run of NAME is that of the session. Rows of other backends stay as they are.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from conformance.record import result as model
from conformance.record.errors import UserError
from conformance.record.models import ModelRow
from conformance.record.result import Run
from scripts.pages import ROOT, csv_text, write

FOLDER = ROOT / "docs" / "backends"
HEAD = ("backend", "operator", "outcome", "properties", "models")
ALL = "all, distinct calls compared"
"""Name of the first row of models.csv."""


def cell(row: ModelRow) -> str:
    """Return the outcome of a model, and the number of its calls that were compared unless it runs."""
    parts = [f"stopped by {len(row.stopped)}"] if row.stopped else []
    parts += [f"wrong in {len(row.wrong)}"] if row.wrong else []
    said = "; ".join(parts) or ("no difference" if row.compared else "not run")
    return "runs" if row.runs else f"{said} ({row.compared}/{row.calls})"


def column(run: Run) -> dict[str, str]:
    """Return the cells of a backend in models.csv, by model."""
    assert run.drawn is not None
    return {ALL: f"{run.drawn.compared:,}", **{row.name: cell(row) for row in run.models}}


def operators(name: str, run: Run) -> list[list[str]]:
    """Return the rows of a backend in operators.csv: the operators that stop most models first, then those that are
    wrong. An operator that the profile declares lacking has no property."""
    properties = defaultdict[str, set[str]](set)
    for one in (result.finding for result in run.results if result.finding):
        overload = one.op.partition(":")[2].removesuffix(".default")
        properties[f"aten::{overload}"].add(one.property)
    rows = []
    for outcome, of in (("stops", "stopped"), ("wrong", "wrong")):
        counts = Counter(operator for row in run.models for operator in getattr(row, of))
        rows += [
            [name, operator, outcome, ", ".join(sorted(properties[operator])), f"{models}"]
            for operator, models in counts.most_common()
        ]
    return rows


def old(file: Path) -> list[dict[str, str]]:
    """Return the rows of a table as it is."""
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def main(arguments: Sequence[str], folder: Path = FOLDER) -> int:
    """Write both tables. Returns the exit code."""
    if not arguments:
        print("usage: python -m scripts.backend_models NAME[=RUN/models.json] ...", file=sys.stderr)
        return 2
    runs = dict[str, Run]()
    for argument in arguments:
        name, _, file = argument.partition("=")
        try:
            runs[name] = model.load(Path(file or ROOT / "reports" / "backends" / name / "models.json"))
        except UserError as error:
            print(f"scripts.backend_models: {error}", file=sys.stderr)
            return 2
    table = {row.pop("model"): row for row in old(folder / "models.csv")}
    kept = [row for row in old(folder / "operators.csv") if row["backend"] not in runs]
    backends = list(dict.fromkeys([*next(iter(table.values()), {}), *runs]))
    for name, run in runs.items():
        for of, said in column(run).items():
            table.setdefault(of, {})[name] = said
    rows = [[of, *(cells.get(name, "") for name in backends)] for of, cells in table.items()]
    write(folder / "models.csv", csv_text([["model", *backends], *rows]))
    new = [row for name, run in runs.items() for row in operators(name, run)]
    write(folder / "operators.csv", csv_text([HEAD, *([row[key] for key in HEAD] for row in kept), *new]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
