"""The tables of samples that can be written as programs are current."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "sample_programs.py"
spec = importlib.util.spec_from_file_location("sample_programs", SCRIPT)
assert spec is not None and spec.loader is not None
sample_programs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sample_programs)


def test_the_tables_are_fresh() -> None:
    """The counts by variant and the reasons of calls that cannot be written agree with this torch version."""
    assert sample_programs.main(["--check"]) == 0
