"""The script that prints the coverage of changed arguments."""

from __future__ import annotations

import sys

import pytest

from scripts import argument_kinds


class TestScript:
    def test_the_table_of_one_op(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """`topk` has five arguments, and each has calls."""
        monkeypatch.setattr(sys, "argv", ["argument_kinds", "--op", "topk"])
        assert argument_kinds.main() == 0
        out = capsys.readouterr().out
        assert "| kind_numpy | 1 |" in out and "| all | 1 |" in out

    def test_the_list_of_one_op(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """The list has one line for each argument, with the number of calls of each variant."""
        monkeypatch.setattr(sys, "argv", ["argument_kinds", "--op", "topk", "--list"])
        assert argument_kinds.main() == 0
        assert "topk args[0]: kind_number 1, kind_bool 2" in capsys.readouterr().out
