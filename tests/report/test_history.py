"""The history of runs: no row is lost or half written, and trends cover runs of one kind only."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.record.errors import ReportError
from conformance.record.measurements import FALLBACK, KERNELS, Measurements
from conformance.record.result import Outcome, Result, Run
from conformance.report import __main__ as command
from conformance.report import history
from tests.patience import stretched

WRITER = """
import sys
from pathlib import Path
from conformance.report import history
from conformance.record.result import Run
for _ in range(int(sys.argv[2])):
    history.append(Path(sys.argv[1]), Run("tiny", environment={"selection": "s"}))
    print("wrote", flush=True)
"""


def run(passed: int = 1, selection: str = "all", kernels: int | None = None) -> Run:
    measured = Measurements({} if kernels is None else {"kernels": kernels})
    results = [
        Result(f"op{i}", "float32", "forward", "as_sampled", Outcome.PASS, samples=1, measurements=measured)
        for i in range(passed)
    ]
    more = {"started": "2026-01-01T00:00:00+00:00", "measures": (KERNELS, FALLBACK)}
    return Run("tiny", results, {"selection": selection}, seconds=2, **more)


def writer(path: Path, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(count)], stdout=subprocess.PIPE, text=True)


def rows(path: Path) -> int:
    history.check(path)
    file = sqlite3.connect(path)
    try:
        return int(file.execute("SELECT count(*) FROM runs").fetchone()[0])
    finally:
        file.close()


class TestAppend:
    """Each run adds one row."""

    def test_two_writers(self, tmp_path: Path) -> None:
        """Two processes that write simultaneously into a new file lose no row."""
        path = tmp_path / "history.sqlite"
        writers = [writer(path, 25) for _ in range(2)]
        for each in writers:
            each.communicate(timeout=stretched(100))
        assert [each.returncode for each in writers] == [0, 0]
        assert rows(path) == 50

    def test_killed_writer(self, tmp_path: Path) -> None:
        """After kill -9 during writes, the file is intact, with every acknowledged row and at most one more."""
        path = tmp_path / "history.sqlite"
        victim = writer(path, 100_000)
        assert victim.stdout is not None
        acknowledged = sum(bool(victim.stdout.readline()) for _ in range(20))
        os.kill(victim.pid, signal.SIGKILL)
        acknowledged += len(victim.stdout.read().splitlines())
        victim.wait(timeout=stretched(60))
        assert rows(path) in (acknowledged, acknowledged + 1)
        history.append(path, run())
        assert rows(path) in (acknowledged + 1, acknowledged + 2)

    def test_damaged_file_is_left(self, tmp_path: Path) -> None:
        """A file that is no database gives one sentence and keeps its bytes."""
        path = tmp_path / "history.sqlite"
        path.write_bytes(b"no database " * 100)
        for act in (lambda: history.check(path), lambda: history.append(path, run())):
            with pytest.raises(ReportError, match=r"history\.sqlite is no usable history .*move it away"):
                act()
        assert path.read_bytes() == b"no database " * 100

    def test_newer_schema_is_left(self, tmp_path: Path) -> None:
        """A history with a newer schema is rejected."""
        path = tmp_path / "history.sqlite"
        history.append(path, run())
        file = sqlite3.connect(path)
        file.execute("PRAGMA user_version = 9")
        file.close()
        with pytest.raises(ReportError, match="schema 9 and this version writes 1"):
            history.check(path)


class TestTrends:
    """Trend lines over the runs."""

    def test_only_runs_of_one_kind(self, tmp_path: Path) -> None:
        """Runs with other cases or another target are not on the line."""
        path = tmp_path / "history.sqlite"
        for each in (run(3), run(9, "few ops"), run(5)):
            history.append(path, each)
        assert {t.label: t.values for t in history.trends(path, run())}["passed"] == (3, 5)
        assert history.trends(path, run(selection="few ops")) == []

    def test_direction(self, tmp_path: Path) -> None:
        """More passes are better, and more kernels are worse; counts that were not recorded have no line."""
        path = tmp_path / "history.sqlite"
        for each in (run(1, kernels=4), run(2, kernels=4)):
            history.append(path, each)
        better = {trend.label: trend.better for trend in history.trends(path, run())}
        assert (better["passed"], better["kernels"], better["failed"]) == (1, -1, 0)
        assert "CPU fallbacks" not in better

    def test_points(self) -> None:
        """The line spans the picture from left to right; equal values are level."""
        assert history.Trend("x", (0, 2, 1), 0).points(100, 24) == "0.0,22.0 50.0,2.0 100.0,12.0"
        assert history.Trend("x", (3, 3), 0).points(100, 24) == "0.0,22.0 100.0,22.0"


class TestReport:
    """The history in the report."""

    def test_drawn_from_the_second_run(self, tmp_path: Path) -> None:
        """A trend line needs two runs; the page of the first has none."""
        command.write(run(1), tmp_path, None)
        assert "<polyline" not in (tmp_path / "conformance.html").read_text()
        command.write(run(2), tmp_path, None)
        assert "<polyline" in (tmp_path / "conformance.html").read_text()

    def test_interrupted_runs_are_not_counted(self, tmp_path: Path) -> None:
        """An interrupted run would show a false decrease, so it adds no row."""
        interrupted = run(1)
        interrupted.complete = False
        command.write(interrupted, tmp_path, None)
        assert not (tmp_path / "history.sqlite").exists()

    def test_damage_does_not_lose_the_run(self, tmp_path: Path) -> None:
        """A history that became damaged during the run is a note on the page."""
        (tmp_path / "history.sqlite").write_bytes(b"x" * 4096)
        command.write(run(1), tmp_path, None)
        assert "Without history" in (tmp_path / "conformance.html").read_text()
