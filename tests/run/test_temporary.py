"""Temporary folders: of a killed process, of a living one, and of others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.run import temporary
from conformance.run.temporary import LOCK, OwnedFolder

OWNER = """
import sys
from conformance.run.temporary import OwnedFolder
folder = OwnedFolder()
print(folder.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this process and of the owners that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with an owned folder."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def later() -> None:
    """Do what the first owned folder of a later process does."""
    temporary._remove_abandoned.cache_clear()
    with OwnedFolder():
        pass


class TestOwnedFolder:
    def test_it_is_removed(self, folder: Path) -> None:
        with OwnedFolder() as name:
            assert [path.name for path in Path(name).iterdir()] == [LOCK]
        assert not [*folder.iterdir()]

    def test_the_folder_of_a_killed_process(self) -> None:
        """A later process removes it, with its files. Regression test: it stayed for ever."""
        with owner() as (process, path):
            (path / "1.note").write_text("a")
            process.kill()
            process.wait()
            assert path.exists()
            later()
            assert not path.exists()

    def test_the_folder_of_a_living_process(self) -> None:
        """It stays, and the owner removes it when it ends."""
        with owner() as (process, path):
            later()
            assert (path / LOCK).exists()
            process.communicate("")
            assert not path.exists()

    @pytest.mark.parametrize("name", ["owner", "owner.another-machine", "script.py"])
    def test_a_folder_without_this_machines_lock(self, name: str, folder: Path) -> None:
        """A folder that a process creates at this moment, or that another machine or version owns, stays."""
        (folder / "conformance-a").mkdir()
        (folder / "conformance-a" / name).touch()
        later()
        assert (folder / "conformance-a" / name).exists()

    def test_a_link_is_not_followed(self, folder: Path) -> None:
        (folder / "mine").mkdir()
        (folder / "mine" / LOCK).touch()
        (folder / "conformance-a").symlink_to(folder / "mine")
        later()
        assert (folder / "mine" / LOCK).exists()

    def test_the_folder_of_another_user(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "conformance-a").mkdir()
        (folder / "conformance-a" / LOCK).touch()
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        later()
        assert (folder / "conformance-a" / LOCK).exists()

    def test_without_locks(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a file system without locks the folder works, and is never taken for an abandoned one."""

        def refuse(*args: object) -> None:
            raise OSError("no locks")

        with monkeypatch.context() as patched:
            patched.setattr(temporary.fcntl, "flock", refuse)
            kept = OwnedFolder()
        later()
        assert Path(kept.name).exists()
        kept.cleanup()
