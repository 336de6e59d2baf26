"""The generated tables of docs/device.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from scripts import device_tables
from scripts.pages import ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with the page and its data."""
    for path in (device_tables.DATA, device_tables.REASONS, device_tables.PART.page, device_tables.TABLE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def result(op: str, **changed: Any) -> dict[str, Any]:
    """Return one case of a run."""
    usual = {
        "op": op, "dtype": "float32", "variant": "forward", "layout": "as_sampled", "outcome": "PASS", "samples": 2,
        "seconds": 0.5, "measurements": {"counts": {"native": 2, "decomposed": 0, "fallback": 0}},
    }  # fmt: skip
    return usual | changed


def fallen(op: str) -> dict[str, Any]:
    """Return measurements with one CPU fallback."""
    return {"counts": {"fallback": 1}, "parts": {"fallback": {op: 1}}}


def run(*results: dict[str, Any], target: str = "tiny") -> dict[str, Any]:
    """Return the JSON of a run."""
    return {"target": target, "command": "a command", "started": "today", "seconds": 4.0, "results": list(results)}


def test_the_rate_is_of_a_run_of_float32_forward_alone() -> None:
    """Samples per second come from the last run that compared float32 forward only, by that run's own clock."""
    both = run(result("add"), result("add", variant="out"))
    assert "samples a second" not in device_tables.page_part(device_tables.collect([both]))
    data = device_tables.collect([both, run(result("add", samples=20))])
    assert "`a command`, took 4 s: 5 samples a second" in device_tables.page_part(data)


def test_page_is_current() -> None:
    """docs/device.md shows the tracked data; if not, run python -m scripts.device_tables."""
    assert device_tables.main(["--check"]) == 0


def test_stale_page_is_found(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the data changes, the check fails until the command is run."""
    data = json.loads((copy / device_tables.DATA).read_text())
    data["samples"] += 1
    (copy / device_tables.DATA).write_text(json.dumps(data))
    assert device_tables.main(["--check"], copy) == 1
    assert "run python -m scripts.device_tables" in capsys.readouterr().err
    assert device_tables.main([], copy) == 0
    assert device_tables.main(["--check"], copy) == 0


def test_later_runs_replace_earlier_ones() -> None:
    """A case counts once, with its latest outcome. Its counters say whether it was native, decomposed or a fallback."""
    first = run(result("add", outcome="FAIL"), result("svd", measurements=fallen("aten._linalg_svd.U")))
    data = device_tables.collect([first, run(result("add", measurements={"counts": {"decomposed": 1}}))])
    assert data["outcomes"] == {"float32|forward": {"PASS": 2}}
    assert data["served"] == {"decomposed": 1, "fallback": 1}
    assert data["fallbacks"] == {"aten._linalg_svd.U": ["svd"]}


def test_lines_of_older_data_stay() -> None:
    """A new run replaces only the lines that it contains."""
    old = device_tables.collect([run(result("add"), result("add", dtype="int8", samples=1))])
    new = device_tables.collect([run(result("add", dtype="int8", samples=20, outcome="FAIL"))], old)
    assert new["outcomes"] == {"float32|forward": {"PASS": 1}, "int8|forward": {"FAIL": 1}}
    assert new["compared"] == {"float32|forward": 2, "int8|forward": 20}
    assert new["served"] == old["served"]
    assert [r["lines"] for r in new["runs"]] == [["float32|forward"], ["int8|forward"]]
    newest = device_tables.collect([run(result("add"))], new)
    assert [r["lines"] for r in newest["runs"]] == [["int8|forward"], ["float32|forward"]], "the first is gone"


def test_fallback_without_a_reason(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fallback operator that no pattern covers is an error which names the operator."""
    data = device_tables.collect([run(result("new", measurements=fallen("aten.brand_new.default")))])
    (copy / device_tables.DATA).write_text(json.dumps(data))
    assert device_tables.main([], copy) == 2
    assert "aten.brand_new.default falls back to the CPU without a reason" in capsys.readouterr().err


def test_other_targets_are_refused(tmp_path: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of a target other than tiny is refused."""
    (tmp_path / "run.json").write_text(json.dumps(run(result("add"), target="cpu")))
    assert device_tables.main(["collect", str(tmp_path / "run.json")], copy) == 2
    assert "the tables are of tiny" in capsys.readouterr().err
