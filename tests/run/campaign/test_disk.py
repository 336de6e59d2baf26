"""Full disks and unreadable files: one sentence, exit code 2, no lost findings, and program files of another schema."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.program.model import SCHEMA
from conformance.sources.fuzzing.command import main
from tests.run.campaign.saved import fuzz_result

ROOT = Path(__file__).parents[3]
OPTIONS = ("--target", "mutant:every third write is lost", "--programs", "60", "--without", "op_db")
SMALL_DISK = ("unshare", "--user", "--map-root-user", "--mount")


def can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    trial = ["sh", "-c", f"mount -t tmpfs -o size=64k tmpfs {folder}"]
    return subprocess.run([*SMALL_DISK, *trial], capture_output=True, check=False).returncode == 0


def failing(reports: Path) -> tuple[int, set[int]]:
    saved = [json.loads(path.read_text()) for path in (reports / "failures").glob("*.json")]
    return fuzz_result(reports)["programs"], {n for finding in saved for n in finding["numbers"]}


class TestFullDisk:
    @pytest.mark.slow
    def test_a_small_disk(self, tmp_path):
        """A disk of 48 kB gives exit code 2 and one sentence. With more room, `--resume` completes with every
        finding."""
        disk, kept, log = tmp_path / "disk", tmp_path / "kept", tmp_path / "log"
        disk.mkdir()
        if not can_mount(disk):
            pytest.skip("this system lets nobody mount a small disk")
        fuzz = f"{sys.executable} -W ignore -m conformance.fuzz {' '.join(map(repr, OPTIONS))} --reports {disk}"
        script = (
            f"mount -t tmpfs -o size=48k tmpfs {disk} && {fuzz} > /dev/null 2> {log}; echo $? && "
            f"mount -o remount,size=16m {disk} && {fuzz} --resume > /dev/null; echo $? && cp -r {disk} {kept}"
        )
        done = subprocess.run([*SMALL_DISK, "sh", "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.stdout.split() == ["2", "1"], done.stderr
        said = log.read_text()
        assert "No space left on device" in said
        assert "make room" in said
        assert said.count("\n") == 1
        assert main([*OPTIONS, "--reports", str(tmp_path / "undisturbed")]) == 1
        assert failing(kept) == failing(tmp_path / "undisturbed")

    @pytest.mark.parametrize("writes", [0, 2, 4])
    def test_a_write_that_finds_no_room(self, writes, tmp_path, monkeypatch, capsys):
        """Any of the campaign's writes can hit a full disk; files written before stay readable."""
        left = [writes]
        fsync = os.fsync

        def full(descriptor: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(descriptor)

        monkeypatch.setattr("conformance.record.files.os.fsync", full)
        assert main([*OPTIONS, "--reports", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "No space left on device" in said
        assert said.count("\n") == 1
        for path in tmp_path.rglob("*.json"):
            json.loads(path.read_text())
        assert not list(tmp_path.rglob(".*"))


class TestOtherVersions:
    @pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1, "1", None])
    def test_a_program_of_another_schema(self, schema, tmp_path, capsys):
        """`--replay`, `--minimize` and `--corpus` reject another schema in one sentence with exit code 2, and leave the
        file unchanged."""
        path = tmp_path / "old" / "program.json"
        path.parent.mkdir()
        text = json.dumps({"schema": schema, "storages": [], "inputs": [], "steps": []})
        path.write_text(text)
        for words in (["--replay", path], ["--replay", path.parent], ["--minimize", path], ["--corpus", path.parent]):
            assert main(["--target", "cpu", *map(str, words), "--reports", str(tmp_path / "reports")]) == 2
            said = capsys.readouterr().err
            assert str(path) in said
            assert f"this version reads schema {SCHEMA}" in said
            assert said.count("\n") == 1
        assert path.read_text() == text

    @pytest.mark.parametrize(
        ("module", "message"),
        [
            ("raise ImportError('libgpu.so: cannot open shared object file')", "libgpu.so"),
            ("1 / 0", "ZeroDivisionError"),
            ("", "no attribute"),
        ],
    )
    def test_a_target_that_fails_to_import(self, module, message, tmp_path, monkeypatch, capsys):
        """Any exception from the target's module becomes one sentence and exit code 2."""
        (tmp_path / "broken_target.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "broken_target", raising=False)
        for spec in ("class:broken_target.Mine", "device:mine,import=broken_target"):
            if module or spec.startswith("class"):
                assert main(["--target", spec, "--programs", "1", "--reports", str(tmp_path)]) == 2
                said = capsys.readouterr().err
                assert message in said
                assert said.count("\n") == 1
                assert "Traceback" not in said
