"""Kernel counts, the place and reason of each schedule, and budgets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from conformance import backend
from conformance.backend import kernels
from conformance.backend.kernels.__main__ import main
from tests.run_script import Standalone


def test_counts_what_the_device_counts() -> None:
    """Kernels, copies and bytes equal the device's own counters. The line that read a value is named."""
    x = torch.randn(8, 8)
    backend.reset_stats()
    with kernels.count() as k:
        total = (x.to("tiny") @ x.to("tiny")).sum()
        total.item()  # the boundary
    stats = backend.stats()
    assert (k.kernels, k.copies_in, k.copies_out) == (stats["kernels"], stats["copies_in"], stats["copies_out"])
    assert (k.bytes_in, k.bytes_out) == (stats["bytes_in"], stats["bytes_out"]) == (512, 4)
    (line,) = {place.code for place, event in k.boundaries if isinstance(event, kernels.trace.Schedule)}
    assert line == "total.item()  # the boundary"


def test_says_why_a_schedule_ran() -> None:
    """Three reasons are distinguished: a value was read, a tensor was realized on demand, an index was checked."""
    x = torch.arange(6.0).to("tiny")
    with kernels.count() as k:
        (x + 1).sum().item()
        backend.realize([x * 3])
        x.gather(0, (x * 0.5).long())
    whys = [event.why for _, event in k.boundaries if isinstance(event, kernels.trace.Schedule)]
    assert whys == ["observed", "realize", "index check"]


def test_nothing_is_counted_after_the_block() -> None:
    """Blocks nest, and counting ends with the block."""
    x = torch.ones(3).to("tiny")
    with kernels.count() as outer:
        with kernels.count() as inner:
            (x + 1).tolist()
        (x + 2).tolist()
    (x + 3).tolist()
    assert (inner.kernels, outer.kernels) == (1, 2)


def test_a_workload_over_its_budget_fails(tmp_path: Path) -> None:
    """One kernel above the budget is an error that names both numbers. An unknown workload is also an error."""
    file = tmp_path / "kernels.json"
    file.write_text(json.dumps({"sum": {"kernels": 0, "copies_in": 1, "copies_out": 1}}))
    with pytest.raises(kernels.OverBudget, match="sum: kernels 1, allowed 0"), kernels.budget("sum", file):
        torch.ones(4).to("tiny").sum().item()
    with kernels.budget("sum", file):
        torch.ones(4).to("tiny").tolist()
    with pytest.raises(ValueError, match="no budget for 'other'"), kernels.budget("other", file):
        pass


@pytest.mark.parametrize(("code", "exit_code"), [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1)])
def test_the_command_explains_a_script(tmp_path: Path, code: str, exit_code: int, standalone: Standalone) -> None:
    """The command prints the kernels line by line, and exits with the script's own exit code."""
    script = tmp_path / "script.py"
    script.write_text("import torch, conformance.backend\n(torch.ones(3).to('tiny') + 1).sum().item()\n" + code)
    run = "import runpy; runpy.run_module('conformance.backend.kernels', run_name='__main__')"
    done = standalone(run, words=[str(script)])
    assert done.returncode == exit_code, done.stderr
    assert "script.py:2" in done.stdout and "1 reduction" in done.stdout
    assert ("ZeroDivisionError" in done.stderr) == (exit_code == 1)


def test_a_missing_script_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A missing script gives exit code 2 and a message with its path."""
    assert main(["nowhere.py"]) == 2
    assert capsys.readouterr().err == "nowhere.py: there is no such file; give the path of a Python script.\n"
