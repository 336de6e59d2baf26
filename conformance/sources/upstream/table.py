"""The tests of PyTorch's files as cases: `test_torch.TestTorchDeviceType.test_add` in float32.

Defines `TestFile`, `DeviceTest` and `files_of`. The names are PyTorch's without the device, so that a declaration and a
comparison of two devices need not know which one ran. This module must not import torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.record.errors import UsageError
from conformance.record.names import UPSTREAM
from conformance.record.result import Named

MAKES_TESTS = "instantiate_device_type_tests("
"""The call by which a file makes tests for devices."""

TESTS = "test"
"""The variant of a case that is a test."""
LOADING = "loading"
"""The variant of a case that is the loading of a file."""


@dataclass(frozen=True)
class TestFile:
    """A file of tests."""

    path: str
    __test__ = False  # pytest takes the name for a class of tests

    @property
    def name(self) -> str:
        """The file's name, with which the names of its tests begin."""
        return Path(self.path).stem

    @property
    def makes_tests(self) -> bool:
        """Whether the file makes tests for devices, under the usual name or under another."""
        return MAKES_TESTS[:-1] in Path(self.path).read_text(errors="replace")

    @property
    def digest(self) -> str:
        """A hash of the file's content."""
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()[:12]


@dataclass(frozen=True)
class DeviceTest(Named):
    """One test of a file, or with the variant `LOADING` the file itself.

    Its name on a device is `before`, the device's name, and `after`: `test_add`, `tiny`, `_float32`. Its class is
    `group` and the device's name in capitals."""

    path: str
    group: str = ""
    before: str = ""
    after: str = ""
    variant: str = TESTS
    overload: str = ""
    layout: str = UPSTREAM

    @property
    def family(self) -> str:
        """The name of the file."""
        return Path(self.path).stem

    @property
    def op(self) -> str:  # type: ignore[override]
        """The test's name without its device and dtype."""
        return ".".join(filter(None, (self.family, self.group, self.before)))

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """The dtype in its name; "" if it has none, and several, joined by _, if it has several."""
        return self.after.removeprefix("_")

    @property
    def call(self) -> str:  # type: ignore[override]
        """The test as pytest names it."""
        return f"{self.family}.py::{self.group}*::{self.before}_*{self.after}"

    def on(self, kind: str) -> tuple[str, str]:
        """Return its class and its name on a kind of device."""
        return f"{self.group}{kind.upper()}", f"{self.before}_{kind}{self.after}"


def test_of(path: str, kind: str, group: str, test: str) -> DeviceTest:
    """Return the case of a test that a file has made for a kind of device."""
    before, found, after = test.rpartition(f"_{kind}")
    if not found:  # not named as PyTorch names tests, for example by a device's own `instantiate_test`
        before, after = test, ""
    return DeviceTest(path, group.removesuffix(kind.upper()), before, after)


test_of.__test__ = False  # type: ignore[attr-defined]


def files_of(paths: Sequence[Path]) -> list[TestFile]:
    """Return the files of tests: those named, and of a folder those that make device-type tests. A checkout's folder
    stands for its folder `test`. Raises UsageError."""
    if not paths:
        raise UsageError("no tests are named: give --tests with a file or a folder of PyTorch's tests")
    found: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"--tests {path}: there is no such file or folder")
        for file in [path] if path.is_file() else _of_folder(path):
            other = found.setdefault(file.stem, file)
            if other.resolve() != file.resolve():
                raise UsageError(f"--tests: {other} and {file} have the same name, with which their tests begin: "
                                 "run them one after the other")  # fmt: skip
    return [TestFile(str(file.resolve())) for file in found.values()]


def _of_folder(folder: Path) -> Iterable[Path]:
    inner = folder / "test"
    place = inner if inner.is_dir() else folder
    files = [file for file in sorted(place.glob("test_*.py")) if MAKES_TESTS in file.read_text(errors="replace")]
    if not files:
        raise UsageError(f"--tests {folder}: no file test_*.py there calls {MAKES_TESTS[:-1]}")
    return files
