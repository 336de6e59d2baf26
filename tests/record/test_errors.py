"""Any text of a target is survivable: in a terminal, in each result file, and in a saved script."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor
from conformance.record.error_text import text_of
from conformance.sources.fuzzing import command as fuzz
from conformance.sources.opinfo import runner

PLANTED = Path(__file__).parents[1] / "planted"
TARGET = "device:cpu,import=odd_texts,call=enable"


def test_text_of_an_error_can_be_written() -> None:
    """A lone surrogate is escaped, and an error without a text says so."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert text_of(RuntimeError("driver said \udcff, é")) == "driver said \\udcff, é"
    assert text_of(Unprintable()) == "(its text cannot be read: ValueError)"


@pytest.mark.parametrize(("op", "said"), [("neg", "driver said \\udcff"), ("abs", "its text cannot be read")])
@pytest.mark.parametrize("command", ["fuzz", "opinfo"])
def test_odd_text_is_a_finding(
    command: str,
    op: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run ends with exit code 1 and its files. Regression test: it ended with a traceback, without them."""
    monkeypatch.syspath_prepend(str(PLANTED))
    words = ["--target", TARGET, "--reports", str(tmp_path), "--check-scripts", "30"]
    if command == "fuzz":
        program = tmp_path / "program.json"
        inputs, storages = (Input("a", 0, "float32", (4,), (1,)),), (Storage("float32", 4, "arange"),)
        program.write_text(dump(Program(storages, inputs, (Step(op, (tensor("a"),), out=("b",)),))))
        code = fuzz.main([*words, "--replay", str(program)])
    else:
        code = runner.main([*words, "--op", op, "--dtype", "float32", "--samples", "1"])
    printed = capsys.readouterr().out
    assert code == 1
    assert said in printed
    for suffix in ("json", "html", "xml", "ctrf.json") if command == "opinfo" else ():  # a replay only prints
        assert [*tmp_path.glob(f"*{suffix}")], suffix
