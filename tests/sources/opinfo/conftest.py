"""Shared fixtures of the OpInfo tests: targets, and the command in this process or in a new one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.sources.opinfo import runner
from tests.patience import stretched

ROOT = Path(__file__).parents[3]
PLANTED = ROOT / "tests" / "planted"


class Command:
    """The command in an empty folder with access to the planted targets. A call runs it in this process, so that all
    its pools share one fork server that has imported torch."""

    planted = PLANTED

    def __init__(self, folder: Path) -> None:
        self.folder, self.reports = folder, folder / "reports"

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = runner.main(self.narrow(arguments))
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(PLANTED), str(ROOT), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "PYTHONPATH": path, "COLUMNS": "120"}

    @staticmethod
    def words(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "conformance.opinfo_runner", *Command.narrow(arguments)]

    @staticmethod
    def narrow(arguments: tuple[str, ...]) -> list[str]:
        """Add `--dtype float32` to arguments without a dtype, since most tests need no other."""
        return [*arguments, *([] if {"--dtype", "--suite", "--replay"} & {*arguments} else ["--dtype", "float32"])]

    def as_process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m conformance.opinfo_runner` as a new process."""
        return subprocess.run(
            self.words(*arguments),
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
            timeout=stretched(280),
            check=False,
        )


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(PLANTED))
    return Command(tmp_path)


@pytest.fixture(scope="package")
def cpu() -> Any:
    from conformance.engine.loading import load_target

    return load_target("cpu")


@pytest.fixture(scope="package")
def planted() -> Iterator[Any]:
    sys.path.insert(0, str(PLANTED))
    try:
        from conformance.engine.loading import load_target

        yield load_target("planted")
    finally:
        sys.path.remove(str(PLANTED))
