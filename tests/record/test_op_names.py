"""The record of op_db's names in each version of torch, and the script that writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.record import op_names, versions
from scripts import op_names as script


class TestRecord:
    """The tracked file."""

    @pytest.mark.parametrize("bound", [versions.OLDEST, versions.NEWEST, versions.minor()])
    def test_it_has_the_tested_versions(self, bound: str) -> None:
        """The oldest, the newest and the installed version have entries, `add` among them."""
        assert "add" in op_names.recorded(bound)

    def test_an_op_that_a_version_removed(self) -> None:
        """torch 2.15 has no `qr`; earlier versions have it."""
        assert "2.13" in op_names.versions_of()["qr"]
        assert "qr" not in op_names.recorded("2.15")

    def test_it_is_current(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The names of the installed op_db are those of the record."""
        assert script.main(["--check"]) == 0, capsys.readouterr().out


class TestScript:
    """`python -m scripts.op_names`."""

    @pytest.fixture
    def record(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
        """A record of versions 2.9 and of the installed one, each with a name that op_db lacks."""
        path = tmp_path / "op_names.json"
        path.write_text(json.dumps({"add": "2.9", "former": f"2.9 {versions.minor()}", "typo": versions.minor()}))
        monkeypatch.setattr(op_names, "DATA", path)
        op_names.versions_of.cache_clear()
        yield path
        op_names.versions_of.cache_clear()

    def test_a_stale_record_is_an_error(self, record: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The check names the entries that differ."""
        assert script.main(["--check"]) == 1
        assert {"former,", "typo,"} <= {*capsys.readouterr().out.split()}

    def test_other_versions_stay(self, record: Path) -> None:
        """A new record of the installed version keeps the versions of others and drops names without a version."""
        assert script.main([]) == 0
        names = json.loads(record.read_text())
        assert (names["add"], names["former"], "typo" in names) == (f"2.9 {versions.minor()}", "2.9", False)
