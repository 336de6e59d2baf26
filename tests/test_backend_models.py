"""docs/backends/models.csv and operators.csv are generated from runs of `conformance models`."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.record.finding import Finding
from conformance.record.models import ModelRow
from conformance.record.program_stats import ProgramStats
from conformance.record.result import Outcome, Result, Run, save
from scripts.backend_models import HEAD, main, old

ROWS = (
    ModelRow("one", 9, 9),
    ModelRow("two", 9, 5, {"aten::mm": 2, "dtype bfloat16": 1}, {"aten::neg": 1}),
    ModelRow("three", 9, 0),
    ModelRow("four", 9, 3),
    ModelRow("five", 9, 9, {"aten::mm": 1}),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tables of one backend, `old`."""
    (tmp_path / "models.csv").write_text('model,old\n"all, distinct calls compared",7\none,runs\n')
    (tmp_path / "operators.csv").write_text(f"{','.join(HEAD)}\nold,aten::exp,wrong,value,1\n")
    return tmp_path


def written(folder: Path, name: str) -> None:
    finding = Finding("value / aten:neg.default", property="value", op="aten:neg.default", count=1)
    failing = Result("neg", "", "program", "", Outcome.FAIL, finding=finding)
    run = Run("new", [failing], drawn=ProgramStats(programs=26), models=ROWS)
    save(run, folder / "run.json")
    assert main([f"{name}={folder / 'run.json'}"], folder) == 0


def test_models(folder):
    """A column says which models run, and how many calls of the others were compared. Other columns stay."""
    written(folder, "new")
    assert [tuple(row.values()) for row in old(folder / "models.csv")] == [
        ("all, distinct calls compared", "7", "26"), ("one", "runs", "runs"),
        ("two", "", "stopped by 2; wrong in 1 (5/9)"), ("three", "", "not run (0/9)"),
        ("four", "", "no difference (3/9)"), ("five", "", "stopped by 1 (9/9)"),
    ]  # fmt: skip


def test_operators(folder):
    """The operators that stop most models come first. One that is declared lacking has no property."""
    written(folder, "new")
    assert [tuple(row.values()) for row in old(folder / "operators.csv")] == [
        ("old", "aten::exp", "wrong", "value", "1"), ("new", "aten::mm", "stops", "", "2"),
        ("new", "dtype bfloat16", "stops", "", "1"), ("new", "aten::neg", "wrong", "value", "1"),
    ]  # fmt: skip


def test_a_new_run_replaces_an_old_one(folder):
    """Nothing of the old run of a backend is left."""
    written(folder, "old")
    rows = {row["model"]: row["old"] for row in old(folder / "models.csv")}
    assert rows["all, distinct calls compared"] == "26" and rows["two"].startswith("stopped")
    assert [row["operator"] for row in old(folder / "operators.csv")] == ["aten::mm", "dtype bfloat16", "aten::neg"]


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing result is one sentence, and no table is written."""
    assert main([f"vulkan={tmp_path / 'none.json'}"], tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())
