"""`conformance mutants`: planted faults are a source of the one run, with its page, limits and exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conformance.selftest.hunting import main

SOON, LATE = "slice drops the offset", "the mean of halves overflows in its sum"


def ended(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str, str]:
    code = main([*words, "--reports", str(folder)])
    output = capsys.readouterr()
    return code, output.out, output.err


class TestCommand:
    def test_each_fault_is_a_case(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """A found fault passes, a fault that no program finds fails the command, and both are on the page."""
        code, output, _ = ended(capsys, tmp_path, "--programs", "40", "--fault", SOON, "--fault", LATE)
        assert code == 1
        assert re.search(r"1 of 2 found; median \d+ programs", output)
        assert "1 passed, 1 failed, 0 skipped" in output
        results = {result["op"]: result for result in json.loads((tmp_path / "mutants.json").read_text())["results"]}
        assert results[SOON]["outcome"] == "PASS"
        (lost,) = results[LATE]["failures"]
        assert (lost["oracle"], lost["expected"]) == ("power", "40 programs")
        assert LATE in (tmp_path / "mutants.html").read_text()

    def test_without_programs_nothing_is_compared(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """A run without programs is exit code 2."""
        code, _, error = ended(capsys, tmp_path, "--programs", "0", "--fault", SOON)
        assert (code, error) == (2, "conformance mutants: nothing was measured in 1 cases\n")

    def test_an_unknown_fault_is_one_sentence(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """The sentence names similar faults."""
        code, _, error = ended(capsys, tmp_path, "--fault", "slice drops the ofset")
        assert code == 2
        assert error.startswith(
            "conformance mutants: there is no fault 'slice drops the ofset'; did you mean slice drops the offset"
        )
        assert error.count("\n") == 1

    def test_where_no_fault_can_be_planted_is_one_sentence(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """A compiled function has no separate calls for a fault."""
        code, _, error = ended(capsys, tmp_path, "--fault", SOON, "--target", "aot_eager")
        assert code == 2
        assert error == (
            "conformance mutants: a fault cannot be planted in 'aot_eager': only in a "
            "device that runs step by step and shows its storages\n"
        )
