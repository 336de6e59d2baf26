"""Programs that a function lists: they run in place of drawn ones, and bad functions are one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.record import result as model
from conformance.sources.fuzzing.command import main

LIST = """
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor

CELLS, INPUT = Storage("float32", 2, [1.0, -2.0]), Input("a", 0, "float32", (2,), (1,))


def programs():
    for name in ("neg", "abs", "mul"):
        yield Program((CELLS,), (INPUT,), (Step(name, (tensor("a"), *([3] if name == "mul" else [])), out=("b",)),))


def nothing():
    return []


def numbers():
    return [1, 2]


def fails():
    yield 1 / 0
"""
LIAR = "class:tests.planted.liars.ValueDevice"
"""A device whose `neg` and `mul` are wrong."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listing.py").write_text(LIST)
    return tmp_path


def fuzz(of: str, *words: str, target: str = LIAR) -> int:
    return main(["--target", target, "--programs-from", of, "--check-scripts", "0", "--reports", ".", *words])


def test_all_are_judged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each listed program runs once, findings are shrunk, and the command of the finding lists the same programs."""
    assert fuzz("listing:programs") == 1
    run = model.load(here / "fuzz.json")
    assert run.drawn is not None and (run.drawn.programs, run.drawn.failing) == (3, 2)
    [finding] = [result.finding for result in run.results]
    assert finding is not None and finding.op == "neg", "the plainest program for both"
    assert "--programs-from listing:programs" in run.command
    assert fuzz("listing:programs", "--programs", "1") == 1 and fuzz("listing:programs", target="cpu") == 0
    assert "3/3 programs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("listing", "listing names no function: write MODULE:FUNCTION"),
        ("listing:CELLS", "listing:CELLS names no function"),
        ("listing:lost", "listing:lost cannot be imported (AttributeError: module 'listing' has no attribute 'lost')"),
        ("lost:programs", "lost:programs cannot be imported (ModuleNotFoundError: No module named 'lost')"),
        ("listing:nothing", "listing:nothing lists nothing, and not conformance.program.model.Program objects"),
        ("listing:numbers", "listing:numbers lists int objects"),
        ("listing:fails", "listing:fails lists no programs: it raises ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_bad_function(of: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz(of) == 2
    assert said in capsys.readouterr().err
