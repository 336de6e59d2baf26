"""The measure of prose: what counts as prose, what as a marker, and that a folder above its limit fails."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("prose", ROOT / "scripts" / "prose.py")
assert spec is not None and spec.loader is not None
prose = importlib.util.module_from_spec(spec)
sys.modules["prose"] = prose
spec.loader.exec_module(prose)

PLAIN = "Return the smallest program that still fails on the target."


def rate(text: str) -> float:
    count = prose.Count()
    count.add("here", text)
    return count.rate


class TestMarkers:
    @pytest.mark.parametrize(
        "sentence",
        [
            "What was made of it is written down.",
            "The step after which the answer differs is shown.",
            "A worker that dies is told to the driver.",
            "Whoever reads this page wants a script.",
            "A module has tests of its own, and so is done.",
        ],
    )
    def test_hard_sentences_have_markers(self, sentence: str) -> None:
        assert rate(sentence) > 0

    def test_plain_sentences_have_none(self) -> None:
        assert rate(PLAIN) == 0

    def test_short_sentences_do_not_count(self) -> None:
        assert rate("Who knows.") == 0


class TestProse:
    def test_code_is_no_prose(self) -> None:
        text = 'x = "what is told of which"  # noqa: E501\n\n\ndef f():\n    """Return one."""\n    return 1  # one\n'
        assert [part for _, part in prose.of_python(text)] == ["Return one.", "one"]

    def test_code_blocks_and_tables_are_no_prose(self) -> None:
        text = "One.\n\n```sh\nwho is told\n```\n\n| who | is told |\n|---|---|\n\nTwo `who`.\n"
        assert [part.strip() for _, part in prose.of_markdown(text) if part.strip()] == ["One.", "Two X."]


class TestCommand:
    def test_the_repository_is_within_its_limits(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert prose.main([]) == 0
        assert "too many" not in capsys.readouterr().out

    def test_a_folder_above_its_limit_fails(self, tmp_path, monkeypatch, capsys) -> None:
        (tmp_path / "pyproject.toml").write_text("[tool.conformance.prose]\ndocs = 3.0\n")
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "a.md").write_text("What was made of it is told to nobody at once.\n")
        monkeypatch.setattr(prose, "ROOT", tmp_path)
        assert prose.main([]) == 1
        assert "too many" in capsys.readouterr().out
        assert prose.main(["--worst", "1"]) == 1
        assert "docs/a.md:1: What was made" in capsys.readouterr().out

    def test_an_unknown_folder(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert prose.main(["nowhere"]) == 2
        assert capsys.readouterr().err == "scripts/prose.py: there is no nowhere in this repository\n"

    def test_a_reader_that_ends_first(self) -> None:
        """Output that nothing reads ends the script quietly. Regression test: `| head` ended it with a traceback."""
        reading, writing = os.pipe()
        os.close(reading)
        words = [sys.executable, ROOT / "scripts" / "prose.py", "scripts"]
        done = subprocess.run(words, check=False, stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
