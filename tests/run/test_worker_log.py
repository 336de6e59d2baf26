"""Workers' output goes to a named file, not to the terminal: 12 programs printed 545 lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.record.errors import ReportError
from conformance.run import execution_place
from conformance.run.messages import Limits, WorkerDied
from conformance.run.pool import LocalPool
from conformance.run.worker_log import log_file
from conformance.sources.fuzzing.command import main as fuzz
from conformance.sources.init.__main__ import main as init
from conformance.sources.opinfo.runner import main as opinfo
from tests.run.process_tree import tasks

SAVED = str(Path("conformance/program/corpus/copy-onto-itself-expanded.json").absolute())
PRINTS = "device:cpu,import=odd_devices,call=prints_all_the_time"


def test_the_last_words_of_one_that_dies(
    importable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python and C buffer output to a file, and a crash does not flush these buffers. The log has it nevertheless, and
    an abandoned spare worker prints nothing on the terminal."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    path = tmp_path / "workers.log"
    with (
        log_file(path) as file,
        LocalPool("cpu", Limits(), 1, ["tasks"], worker_log=file) as pool,
        pytest.raises(WorkerDied, match="SIGABRT"),
    ):
        pool.ask(tasks.prints_and_dies)
    assert path.read_text().splitlines() == ["its Python's last words", "its C's last words"]
    assert capfd.readouterr() == ("", f"what the workers printed is in {path}: 2 lines\n")


def test_one_that_prints_without_end(importable: None, tmp_path: Path) -> None:
    """The log of endless output is limited and keeps its last line. Regression test: endless output filled the disk."""
    path = tmp_path / "workers.log"
    with log_file(path) as file, LocalPool("cpu", Limits(), 1, ["tasks"], worker_log=file) as pool:
        pool.ask(tasks.prints_much)
    first, *_, last = path.read_text().splitlines()
    assert (first[:16], last) == ("more than 64 MiB", "its last words")
    assert path.stat().st_size < 2**20


def interrupted(path: Path, afresh: bool) -> None:
    with log_file(path, afresh) as file:
        with file.open("a") as appended:
            appended.write("one\ntwo")
        raise KeyboardInterrupt


class TestKept:
    def test_an_empty_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """An empty log is removed silently, with its folder if the folder was new."""
        with log_file(tmp_path / "reports" / "workers.log") as file:
            assert file.exists()
        assert not list(tmp_path.iterdir()) and capsys.readouterr().err == ""

    def test_it_is_named_whatever_ends_the_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A last line without a newline counts, and `--resume` appends to the file."""
        path = tmp_path / "workers.log"
        for afresh in (True, False, True):
            with pytest.raises(KeyboardInterrupt):
                interrupted(path, afresh)
        said = [f"what the workers printed is in {path}: {count} lines" for count in (2, 3, 2)]
        assert capsys.readouterr().err.splitlines() == said

    def test_no_room(self, tmp_path: Path) -> None:
        """A log that cannot be written gives one sentence."""
        (tmp_path / "file").write_text("")
        with pytest.raises(ReportError, match=r"workers\.log cannot be written \(.*\); choose another with --re"):
            log_file(tmp_path / "file" / "workers.log").__enter__()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (fuzz, ()),
        pytest.param(fuzz, ("--replay", SAVED), marks=pytest.mark.slow),
        (opinfo, ("--op", "abs")),
        pytest.param(init, (), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "target",
    ["device:cpu,import=odd_devices,call=hangs", pytest.param("class:odd_devices.HangsTarget", marks=pytest.mark.slow)],
)
def test_a_device_that_hangs_at_its_import(
    target: str,
    command: Callable[[list[str]], int],
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command announces the loading once and respects `--starting`. Regression test: it printed nothing for three
    minutes, and only `init` had an option to shorten that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execution_place, "PATIENCE", 0.5)
    assert command(["--target", target, *words, "--starting", "3"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"loading {target}, at most 3 s"] and "did not load in " in err


@pytest.mark.parametrize(
    ("command", "words", "file"),
    [
        (fuzz, ("--programs", "3"), "reports/fuzz-workers.log"),
        (opinfo, ("--op", "abs", "--samples", "1"), "reports/opinfo-workers.log"),
        (init, ("--minutes", "0.01"), "conformance.log"),
    ],
)
def test_a_device_that_prints_all_the_time(
    command: Callable[[list[str]], int],
    words: tuple[str, ...],
    file: str,
    importable: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One sentence counts the lines."""
    monkeypatch.chdir(tmp_path)
    assert command(["--target", PRINTS, *words]) == 0
    out, err = capfd.readouterr()
    lines = Path(file).read_text().splitlines()
    assert len(lines) > 1 and {*lines} == {"what a device prints"}
    assert "what a device prints" not in out
    assert err == f"what the workers printed is in {file}: {len(lines):,} lines\n"
