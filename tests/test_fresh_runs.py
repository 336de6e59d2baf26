"""`scripts/fresh_runs.py` runs commands in fresh clones, in several ways, and names what failed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import fresh_runs


@pytest.fixture
def run_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[fresh_runs.Row]]:
    """Runner of shell words in a way, in clones of an empty repository."""
    origin = tmp_path / "origin"
    subprocess.run(["git", "init", "--quiet", str(origin)], check=True)
    monkeypatch.setattr(fresh_runs, "ROOT", origin)
    monkeypatch.setattr(fresh_runs, "LOGS", tmp_path)

    def run(way: str, words: str) -> list[fresh_runs.Row]:
        monkeypatch.setattr(fresh_runs, "read_command", lambda session: words)
        return fresh_runs.run_in(way, "tests", 0)

    return run


def test_a_failed_test_and_a_rise_are_named(run_words) -> None:
    """The row has the exit code, the failed test of pytest and the kernel count that rose."""
    [row] = run_words("plain", "printf 'FAILED tests/a.py::test_b - why\\n  add::float32: 3 -> 4\\n'; exit 3")
    assert (row.code, row.failed) == (3, ("tests/a.py::test_b", "add::float32: 3 -> 4"))
    assert str(row).endswith("| tests/a.py::test_b, add::float32: 3 -> 4 |")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("plain", "! read line"),  # nothing to read
        ("sigint-ignored", "kill -INT $$"),
        ("no-stdin", "[ ! -e /dev/fd/0 ]"),
        ("locale", '[ "$TZ$LC_ALL" = Asia/KolkataC ]'),
        ("nohup", "kill -HUP $$"),
    ],
)
def test_way(way: str, words: str, run_words, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words fail unless they run in this way, in an own cache folder. The suite itself may run in any of the ways.
    Regression test: it failed in the locale of the last one."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    [row] = run_words(way, f'[ -d "$XDG_CACHE_HOME" ] && [ ! "$(ls "$XDG_CACHE_HOME")" ] && {words}')
    assert row.code == 0
    if way != "plain":
        assert run_words("plain", words)[0].code != 0


def test_a_second_copy_has_its_own_folders(run_words, tmp_path: Path) -> None:
    """Two copies run at the same time, in different clones."""
    rows = run_words("copy", f"pwd >> {tmp_path}/folders; exit 0")
    assert [row.code for row in rows] == [0, 0]
    assert len({*(tmp_path / "folders").read_text().split()}) == 2


def test_an_unknown_way_is_bad_usage(capsys, monkeypatch) -> None:
    """A typo starts nothing, and names the ways."""
    monkeypatch.setattr("sys.argv", ["fresh_runs", "plian"])
    with pytest.raises(SystemExit, match="2"):
        fresh_runs.main()
    assert "no way is called 'plian': choose from plain, busy" in capsys.readouterr().err
