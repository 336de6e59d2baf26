"""The table of operator usage in real programs is current, and is keyed by operator, not by overload."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from conformance.record.usage import DATA, plain_name, usage_of

SCRIPT = Path(__file__).parent.parent / "scripts" / "operator_usage.py"
spec = importlib.util.spec_from_file_location("operator_usage", SCRIPT)
assert spec is not None and spec.loader is not None
operator_usage = importlib.util.module_from_spec(spec)
spec.loader.exec_module(operator_usage)


def test_the_data_is_fresh(tmp_path: Path) -> None:
    """The check measures the smallest program again, and reports a changed count or another list of programs."""
    assert operator_usage.main(["--check"]) == 0
    data = json.loads(DATA.read_text())
    data["programs"]["mlp, training"]["aten::addmm"] += 1
    assert operator_usage.stale(data) == "mlp, training makes other calls"
    del data["programs"]["mlp, training"]
    assert operator_usage.stale(data) == "it measures other programs"


def test_an_operator_is_counted_with_its_other_forms() -> None:
    """A missing add.out counts the calls of add.Tensor and add_.Tensor."""
    assert plain_name("aten::add.out") == plain_name("aten::add_.Tensor") == "add"
    programs, measured, share = usage_of("aten::add.out")
    assert 15 < programs <= measured == 24 and 0.01 < share < 1
    assert usage_of("aten::special_airy_ai.out") == (0, 24, 0.0)
