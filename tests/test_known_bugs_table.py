"""docs/notes/known-bugs.csv is generated from runs of `conformance known-bugs`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from conformance.selftest.known_bugs import FOUND, MISSED, NOT_RUN, BugRow
from scripts.known_bugs_table import main

ROWS = (
    BugRow(7, "seven", "inductor", FOUND, 12, 0.5, 2, "value / mul"),
    BugRow(5, "five", "inductor", MISSED),
    BugRow(9, "nine", "vmap", NOT_RUN),
)


def written(folder: Path, *rows: BugRow) -> list[str]:
    """Return the lines of the table after a run with these rows."""
    (folder / "known-bugs.json").write_text(json.dumps({"bugs": [*map(asdict, rows)]}))
    assert main([str(folder / "known-bugs.json")], folder / "table.csv") == 0
    return (folder / "table.csv").read_text().splitlines()


def test_rows(tmp_path):
    """A bug that a run did not measure has no row, and a later run replaces only the rows of its bugs."""
    head = "bug,title,target,program,steps,finding"
    seven = "#7,seven,inductor,12,2,value / mul"
    assert written(tmp_path, *ROWS) == [head, "#5,five,inductor,not found,,", seven]
    five = BugRow(5, "five", "inductor", FOUND, 3, 0.1, 1, "stride / neg")
    assert written(tmp_path, five) == [head, "#5,five,inductor,3,1,stride / neg", seven]
    other = "#5,five,aot_eager,3,1,stride / neg"
    assert written(tmp_path, replace(five, target="aot_eager"))[1] == other


def test_kept(tmp_path: Path) -> None:
    """With --keep, a bug that the last run does not find keeps its row, and one that it finds gets a new one."""
    file, table = tmp_path / "known-bugs.json", tmp_path / "table.csv"
    written(tmp_path, *ROWS)
    later = (BugRow(5, "five", "inductor", FOUND, 3, 0.1, 1, "stride / neg"), BugRow(7, "seven", "inductor", MISSED))
    file.write_text(json.dumps({"bugs": [*map(asdict, later)]}))
    assert main(["--keep", str(file)], table) == 0
    assert table.read_text().splitlines()[1:] == [
        "#5,five,inductor,3,1,stride / neg",
        "#7,seven,inductor,12,2,value / mul",
    ]


def test_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of another kind is named in one sentence, and no table is written."""
    (tmp_path / "other.json").write_text("{}")
    assert main([str(tmp_path / "other.json")], tmp_path / "table.csv") == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"scripts.known_bugs_table: {tmp_path / 'other.json'} is no result of conformance known-bugs"
    )
    assert not (tmp_path / "table.csv").exists()
