"""What the tests of the OpInfo run share: targets, and the command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PLANTED = ROOT / "tests" / "planted"


class Command:
    """`python -m conformance.opinfo_runner` in an empty folder, where it can find the planted targets."""

    planted = PLANTED

    def __init__(self, folder: Path) -> None:
        self.folder, self.reports = folder, folder / "reports"

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(PLANTED), str(ROOT), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "PYTHONPATH": path, "PLANTED_MARK": str(self.folder / "flaky"), "COLUMNS": "120"}

    @staticmethod
    def words(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "conformance.opinfo_runner", *arguments]

    def __call__(self, *arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*arguments),
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
            timeout=timeout,
            check=False,
        )


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="package")
def cpu() -> Any:
    from conformance.core.loading import load_target

    return load_target("cpu")


@pytest.fixture(scope="package")
def planted() -> Iterator[Any]:
    sys.path.insert(0, str(PLANTED))
    try:
        from conformance.core.loading import load_target

        yield load_target("planted")
    finally:
        sys.path.remove(str(PLANTED))
