"""Packs of kernels: export from one cache file, import into another."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from tinygrad.helpers import VERSION

from conformance.backend.kernels.cache import main
from conformance.backend.runtime import cache_packs, disk_cache
from tests.backend.runtime.test_program_cache import PROGRAM
from tests.run_script import Standalone

SCHEDULED = """
from conformance.backend.runtime.counters import COUNTERS
print(COUNTERS.scheduled)
"""


def test_a_machine_that_takes_a_pack_in_compiles_nothing(tmp_path: Path, standalone: Standalone) -> None:
    """After the import of a pack, an empty cache file needs neither code generation nor scheduling."""

    def ran(folder: str, *words: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        environment = {"CACHEDB": str(tmp_path / folder / "cache.db")}
        done = (
            standalone(*words, environment=environment)
            if words
            else standalone(PROGRAM + SCHEDULED, environment=environment)
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = "import sys; from conformance.backend.kernels.cache import main; sys.exit(main({!r}))"
    pack = str(tmp_path / "pack")
    generated, scheduled = map(int, ran("first").split())
    assert generated > 0
    assert scheduled > 0
    assert "2 rows" in ran("first", command.format(["export", pack]))
    assert "new 2 rows" in ran("second", command.format(["import", pack]))
    assert ran("second").split() == ["0", "0"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache file with one usable row and one row of another version of the code."""
    path = tmp_path / "cache.db"
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        for table in cache_packs.TABLES:
            file.execute(f"CREATE TABLE '{table}_{VERSION}' (key text, val blob, PRIMARY KEY (key))")
        rows = [(disk_cache.place("a"), b"here"), ("0" * 80, b"elsewhere")]
        file.executemany(f"INSERT INTO '{cache_packs.TABLES[0]}_{VERSION}' VALUES (?, ?)", rows)
        file.execute("CREATE TABLE other (key text)")
    monkeypatch.setattr(cache_packs, "CACHEDB", str(path))
    return path


def keys(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as file:
        return {key for (key,) in file.execute(f"SELECT key FROM '{cache_packs.TABLES[0]}_{VERSION}'")}


class TestRows:
    def test_held(self, cache: Path) -> None:
        (programs, schedules) = cache_packs.held()
        assert (programs.usable, programs.other) == ((1, 4), (1, 9))
        assert (schedules.usable, schedules.other) == ((0, 0), (0, 0))

    def test_a_pack_has_what_is_found_here(self, cache: Path, tmp_path: Path, monkeypatch) -> None:
        assert cache_packs.export(tmp_path / "pack") == (1, 4)
        new = tmp_path / "new" / "cache.db"
        monkeypatch.setattr(cache_packs, "CACHEDB", str(new))
        assert cache_packs.take_in(tmp_path / "pack") == (1, 4)
        assert keys(new) == {disk_cache.place("a")}
        assert cache_packs.take_in(tmp_path / "pack") == (0, 0)  # no row is new

    def test_prune(self, cache: Path) -> None:
        assert cache_packs.prune() == (1, 9)
        assert keys(cache) == {disk_cache.place("a")}

    def test_no_file(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(cache_packs, "CACHEDB", str(tmp_path / "none.db"))
        assert cache_packs.held() == []
        assert not (tmp_path / "none.db").exists()


class TestRefused:
    """A refusal is one sentence with exit code 2, and leaves no file."""

    def refused(self, capsys: pytest.CaptureFixture[str], *words: object) -> str:
        assert main([str(word) for word in words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("conformance cache: ")
        assert said.count("\n") == 1
        return said

    def test_of_another_version_or_processor(self, cache: Path, tmp_path: Path, capsys, monkeypatch) -> None:
        cache_packs.export(tmp_path / "pack")
        monkeypatch.setattr(disk_cache, "made_by", lambda: "f" * 16)
        before = keys(cache)
        assert "another processor" in self.refused(capsys, "import", tmp_path / "pack")
        assert keys(cache) == before

    def test_no_pack(self, cache: Path, tmp_path: Path, capsys) -> None:
        (tmp_path / "text").write_text("hello")
        assert "not a database" in self.refused(capsys, "import", tmp_path / "text")
        assert "is no pack" in self.refused(capsys, "import", cache)
        assert "unable to open" in self.refused(capsys, "import", tmp_path / "missing")

    def test_nothing_to_export(self, tmp_path: Path, capsys, monkeypatch) -> None:
        monkeypatch.setattr(cache_packs, "CACHEDB", str(tmp_path / "none.db"))
        (tmp_path / "pack").write_text("an older one")
        assert "run something on tiny first" in self.refused(capsys, "export", tmp_path / "pack")
        assert {p.name for p in tmp_path.iterdir()} == {"pack"}
        assert (tmp_path / "pack").read_text() == "an older one"

    def test_a_folder_that_is_not_there(self, cache: Path, tmp_path: Path, capsys) -> None:
        assert "No such file" in self.refused(capsys, "export", tmp_path / "none" / "pack")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "arguments are required: JOB"),
            (["inf"], "choose from 'info', 'export', 'import', 'prune'"),
            (["info", "--all"], "unrecognized arguments: --all"),
        ],
    )
    def test_bad_usage(self, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
        """The message was formerly preceded by a usage text."""
        with pytest.raises(SystemExit, match=r"^2$"):
            main(words)
        error = capsys.readouterr().err
        assert said in error
        assert error.startswith("conformance cache: ")
        assert error.count("\n") == 1


class TestDamaged:
    """A damaged or locked cache file is reported in one sentence. It was formerly a traceback of sqlite3."""

    @pytest.mark.parametrize("job", ["info", "export", "import", "prune"])
    def test_it_is_named(self, job: str, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pack = tmp_path / "pack"
        cache_packs.export(pack)
        cache.write_bytes(b"no database" * 100)
        assert main([job, *[str(pack)] * (job in ("export", "import"))]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"conformance cache: {cache} is damaged")
        assert said.count("\n") == 1
        assert sqlite3.connect(pack).execute("SELECT count(*) FROM rows").fetchone() == (1,)

    def test_in_use(self, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache_packs, "_WAIT_S", 0.01)
        with contextlib.closing(sqlite3.connect(cache, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert main(["prune"]) == 2
        assert "cannot be used now" in capsys.readouterr().err
        assert len(keys(cache)) == 2


class TestProcessor:
    """Machines that share a cache file use only kernels compiled for their processor."""

    def test_is_in_the_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = disk_cache.place("a")
        disk_cache.made_by.cache_clear()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(disk_cache, "_processor", lambda: "sse2")
                there = disk_cache.place("a")
        finally:
            disk_cache.made_by.cache_clear()
        assert there[:16] != here[:16]
        assert there[16:] == here[16:]
        assert disk_cache.place("a") == here
