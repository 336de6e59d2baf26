"""The tables of samples that can be written as programs are current."""

from __future__ import annotations

import pytest

from scripts import sample_programs


@pytest.mark.slow
def test_the_tables_are_fresh() -> None:
    """The counts by variant and the reasons of calls that cannot be written agree with this torch version."""
    assert sample_programs.main(["--check"]) == 0
