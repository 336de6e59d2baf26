"""A session: what each of its runs states about itself."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.sources.accuracy.__main__ import main as accuracy
from conformance.sources.fuzzing.command import main as fuzz
from conformance.sources.opinfo.runner import main as opinfo


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (opinfo, ["--op", "abs", "--samples", "1"]),
        (fuzz, ["--programs", "2", "--only", "arithmetic"]),
        (accuracy, ["--op", "abs", "--dtype", "float32", "--variant", "forward"]),
    ],
)
def test_its_files_state_the_time_of_the_run(
    tmp_path: Path, command: Callable[[list[str]], int], words: list[str]
) -> None:
    """JUnit and CTRF of every command state when the run began. Regression test: fuzz.xml had an empty timestamp, and
    fuzz.ctrf.json started in 1970."""
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    assert command(["--target", "cpu", "--reports", str(tmp_path), *words]) == 0
    after = datetime.datetime.now(datetime.UTC)
    (junit,), (ctrf,) = tmp_path.glob("*.xml"), tmp_path.glob("*.ctrf.json")
    begun = datetime.datetime.fromisoformat(ElementTree.parse(junit).getroot()[0].attrib["timestamp"])
    assert before <= begun <= after
    times = json.loads(ctrf.read_text())["results"]["summary"]
    assert times["start"] == begun.timestamp() * 1000
    assert times["start"] < times["stop"] <= after.timestamp() * 1000
