"""A session: what each of its runs states about itself and about its declarations."""

from __future__ import annotations

import datetime
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.record import result as model
from conformance.sources.accuracy.__main__ import main as accuracy
from conformance.sources.fuzzing.command import main as fuzz
from conformance.sources.opinfo.runner import main as opinfo

PLANTED = Path(__file__).parents[1] / "planted"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (opinfo, ["--op", "abs", "--samples", "1"]),
        (fuzz, ["--programs", "2", "--only", "arithmetic"]),
        (accuracy, ["--op", "abs", "--dtype", "float32", "--variant", "forward"]),
    ],
)
def test_its_files_state_its_time_and_its_command(
    tmp_path: Path, command: Callable[[list[str]], int], words: list[str]
) -> None:
    """JUnit and CTRF of every command state when the run began, and the result file its command, as a shell takes it.
    Regression test: fuzz.xml had an empty timestamp, and fuzz.ctrf.json started in 1970."""
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    assert command(["--target", "cpu", "--reports", str(tmp_path), *words]) == 0
    after = datetime.datetime.now(datetime.UTC)
    (junit,), (ctrf,) = tmp_path.glob("*.xml"), tmp_path.glob("*.ctrf.json")
    begun = datetime.datetime.fromisoformat(ElementTree.parse(junit).getroot()[0].attrib["timestamp"])
    assert before <= begun <= after
    times = json.loads(ctrf.read_text())["results"]["summary"]
    assert times["start"] == begun.timestamp() * 1000
    assert times["start"] < times["stop"] <= after.timestamp() * 1000
    name = junit.stem  # regression test: the stored command began with one quoted word, 'conformance opinfo'
    assert shlex.split(json.loads((tmp_path / f"{name}.json").read_text())["command"])[:2] in (
        ["conformance", name],
        ["python", "-m"],
    )


ALL = """[[declare]]
scope = {op = "*"}
property = "*"
reason = "later"
"""
"""A declaration that covers every failure of op_db's cases."""


def test_a_declaration_of_everything_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The terminal and the result file state how many failures the declaration hides. Regression test: a target whose
    every operator is wrong passed with this declaration, and nothing spoke of it."""
    monkeypatch.syspath_prepend(str(PLANTED))
    expected = tmp_path / "all.toml"
    expected.write_text(ALL)
    words = ["--target", "class:planted.PlantedTarget", "--op", "exp", "--samples", "2", "--check-scripts", "0"]
    assert opinfo([*words, "--reports", str(tmp_path), "--expectations", str(expected)]) == 0
    warning = (
        f"warning: {expected}, line 1 covers every failure, and hides 4 failures that no other entry declares: name in "
        "it the operators and the properties that may differ"
    )
    assert warning in capsys.readouterr().out
    assert model.load(tmp_path / "opinfo.json").notes == [warning]


def test_a_declaration_of_all_cases_covers_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A campaign with such a declaration fails, and says that an entry about findings needs `programs`."""
    expected = tmp_path / "all.toml"
    expected.write_text(ALL)
    words = ["--target", "class:tests.planted.liars.ValueDevice", "--programs", "20", "--stop-at-first-failure"]
    words += ["--check-scripts", "0", "--reports", str(tmp_path), "--expectations", str(expected)]
    assert fuzz(words) == 1
    warning = f"warning: {expected}, line 1 covers every failure of op_db's cases and no finding of a drawn program"
    assert warning in capsys.readouterr().out
    assert model.load(tmp_path / "fuzz.json").notes[0].startswith(warning)
