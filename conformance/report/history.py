"""History of runs: one row per run in an SQLite file, and the trend lines drawn from them.

Defines `check`, `append` and `trends`. The key insight: only runs of one target with the same selection of cases are
comparable. So each row stores its selection, and a trend covers rows with the same one. SQLite's transactions make
concurrent writers wait for each other, and a killed writer leaves no partial row. This module must not import torch.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.record.errors import ReportError
from conformance.record.measurements import Rise
from conformance.record.result import Outcome, Run

SCHEMA = 1
PATIENCE = 30.0
"""Maximum wait for another writer, in seconds."""
LONGEST = 60
"""Maximum number of runs in a trend."""
_COUNTS = ("samples", "seconds")
_OUTCOMES = tuple(str(outcome) for outcome in Outcome)
_TABLE = f"""CREATE TABLE runs (
    id INTEGER PRIMARY KEY, target TEXT NOT NULL, selection TEXT NOT NULL, started TEXT NOT NULL, version TEXT NOT NULL,
    {", ".join(f'"{word}" INTEGER NOT NULL' for word in _OUTCOMES)},
    {", ".join(f'"{word}" REAL' for word in _COUNTS)}
)"""
"""The table of a new history. Each measure adds a column when a run first has it."""
# Trend lines: label, columns to add up, and 1, -1 or 0 if a larger value is better, worse, or neither. The lines of
# measures come before the last one.
LINES = (
    ("passed", ("PASS",), 1),
    ("failed", ("CRASH", "TIMEOUT", "FAIL", "XPASS", "FLAKY"), -1),
    ("seconds", ("seconds",), -1),
)


@dataclass(frozen=True)
class Trend:
    """One number over the runs, oldest first. `better` is 1, -1 or 0: whether the last change improved it."""

    label: str
    values: tuple[float, ...]
    better: int

    @property
    def last(self) -> str:
        """The newest value in digits; a count has no fraction."""
        value = self.values[-1]
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.1f}"

    def points(self, width: int = 160, height: int = 28) -> str:
        """The points of an SVG polyline, the largest value at the top. A constant line is level."""
        low, high = min(self.values), max(self.values)
        step = width / max(len(self.values) - 1, 1)
        scale = (height - 4) / ((high - low) or 1)
        return " ".join(f"{i * step:.1f},{height - 2 - (v - low) * scale:.1f}" for i, v in enumerate(self.values))


def check(path: Path) -> None:
    """Raise ReportError unless `path` is a history of this schema or does not exist. A check before the run avoids the
    loss of its results."""
    if path.exists():
        with _opened(path):
            pass


def append(path: Path, run: Run) -> None:
    """Add a run's row. On an error, raises ReportError and leaves the file as it was."""
    row = _row(run)
    names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
    with _opened(path) as file, _transaction(file):
        known = {column["name"] for column in file.execute("PRAGMA table_info(runs)")}
        for name in row.keys() - known:
            file.execute(f'ALTER TABLE runs ADD COLUMN "{name}" REAL')
        file.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", tuple(row.values()))


def trends(path: Path, run: Run) -> list[Trend]:
    """The lines over the latest runs with the target and selection of `run`; none if there are fewer than two."""
    if not path.exists():
        return []
    with _opened(path) as file:
        cursor = file.execute(
            "SELECT * FROM runs WHERE target = ? AND selection = ? ORDER BY id DESC LIMIT ?",
            (run.title, run.environment.get("selection", ""), LONGEST),
        ).fetchall()[::-1]
    result = []
    watched = [(measure.unit, (measure.name,), -1) for measure in run.measures if measure.rise is Rise.REGRESSION]
    rows = [dict(zip(row.keys(), row, strict=True)) for row in cursor]
    for label, columns, good in (*LINES[:-1], *watched, *LINES[-1:]):
        values = tuple(sum(row[c] for c in columns) for row in rows if all(row.get(c) is not None for c in columns))
        if len(values) > 1:
            change = values[-1] - values[-2]
            result.append(Trend(label, values, 0 if not change else good if change > 0 else -good))
    return result


def _row(run: Run) -> dict[str, Any]:
    counts = run.counts()
    row: dict[str, Any] = {"target": run.title, "selection": run.environment.get("selection", "")}
    row |= {"started": run.started, "version": run.environment.get("commit", "")}
    row |= {word: counts[word] for word in _OUTCOMES}
    return row | {"samples": run.compared, "seconds": run.seconds} | dict(run.measured.counts)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as file:
            file.row_factory = sqlite3.Row
            with _transaction(file):
                version = file.execute("PRAGMA user_version").fetchone()[0]
                fresh = not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if version == 0 and fresh:
                    file.execute(_TABLE)
                    file.execute(f"PRAGMA user_version = {SCHEMA}")
                elif version != SCHEMA:
                    raise ReportError(
                        f"{path} has history schema {version} and this version writes {SCHEMA}; move it away to begin "
                        "a new one."
                    )
            file.execute("PRAGMA journal_mode = WAL")
            yield file
    except (sqlite3.Error, OSError) as error:
        raise ReportError(f"{path} is no usable history ({error}); move it away to begin a new one.") from None


@contextlib.contextmanager
def _transaction(file: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE waits for another writer at the start, where waiting is possible, and not at the first write.
    file.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        file.execute("ROLLBACK")
        raise
    file.execute("COMMIT")
