"""PyTorch's own test files on the CPU, without and with an import of the device's package.

Defines `compared` and `Comparison`; `python tests/clients/pytorch_tests_on_cpu.py FOLDER FILE ...` compares the
outcomes test by test, and with --write puts the counts into docs/pytorch_tests_cpu.csv.

`import conformance.backend` replaces names of torch (`conformance/backend/torch_api/replacements.py`), and code for the
CPU must behave the same afterwards. The files are not in torch's wheel,
and none is in this repository: FOLDER has copies for the torch that is installed, PyTorch's own or copies that were
adapted for another out-of-tree device (`--adapted-for npu`).

`conformance upstream` runs such files on a device. These are mostly tests that no device has: of the classes and
functions of torch itself.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "pytorch_tests_cpu.csv"
HEADER = ["file", "tests", "passed", "failed", "skipped", "other outcome after the import"]

PARTS = {
    "test_dataloader": "pin or generator or seed or collate",
    "test_nn": "module or apply or state_dict or pickle or deepcopy or share or parameter or parallel or to_",
    "test_torch": "storage or pickle or generator or seed or rng or stream or event or pin or share or deepcopy or "
    "print or repr or default_tensor_type or serializ or resize or from_file or byteswap or type",
}
"""Of large files: the tests of areas in which names are replaced, as pytest's -k expression."""

TEST_S = 300  # limit of a test in processor time, which a loaded machine does not change
FILE_S, HANGING_S = 7200, 1800  # limits of a slice and of a test in elapsed time

CONFTEST = '''"""Registers tiny before the test files ask for the devices, and limits each test."""
import os, signal
import pytest
import conformance.backend
from torch.testing._internal import common_methods_invocations as methods

if not hasattr(methods, "binary_ufuncs_and_refs"):  # its name in other versions of torch
    methods.binary_ufuncs_and_refs = methods.binary_ufuncs

def expired(*_):
    pytest.fail("longer than the limit in processor time")

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, float(os.environ["PYTORCH_TESTS_SECONDS"]))
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
'''

NEEDS_ACCELERATOR = {
    "test_torch::TestTorch::test_pin_memory": "the adapted copy pins memory also without any accelerator",
    **dict.fromkeys(
        (
            "test_dataloader::TestCustomPinFn::test_custom_batch_pin",
            "test_dataloader::TestCustomPinFn::test_custom_batch_pin_worker",
            "test_dataloader::TestDataLoader::test_sequential_pin_memory",
            "test_dataloader::TestDataLoader::test_shuffle_pin_memory",
            "test_dataloader::TestDataLoaderPersistentWorkers::test_sequential_pin_memory",
            "test_dataloader::TestDataLoaderPersistentWorkers::test_shuffle_pin_memory",
            "test_dataloader::TestDictDataLoader::test_pin_memory_device",
            "test_dataloader::TestStringDataLoader::test_shuffle_pin_memory",
        ),
        "PyTorch's own file skips it without an accelerator, and the adapted copy runs it",
    ),
}
"""Tests that fail without the import and may pass after it, because the device is an accelerator; with the reason."""


@dataclass
class Comparison:
    """The outcomes of a file's tests on the CPU by name: without and with the import."""

    file: str
    without: dict[str, str]
    imported: dict[str, str]

    @property
    def differences(self) -> list[str]:
        """One line for each test whose outcomes differ."""
        pairs = {
            name: (self.without.get(name, "absent"), self.imported.get(name, "absent"))
            for name in sorted(self.without.keys() | self.imported.keys())
        }
        return [
            f"{name}: {a}, after the import {b}"
            for name, (a, b) in pairs.items()
            if a != b and not (name in NEEDS_ACCELERATOR and (a, b) == ("failed", "passed"))
        ]

    @property
    def row(self) -> list[str]:
        """The file's row of the table."""
        counts = [list(self.without.values()).count(kind) for kind in ("passed", "failed", "skipped")]
        return [self.file, *map(str, (len(self.without), *counts, len(self.differences)))]

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in zip(HEADER, self.row, strict=True))


def adapted(source: str, device: str, to: str = "tiny") -> str:
    """Return a test file that was adapted for `device` of a package `torch_<device>`, adapted for tiny or the CPU."""
    package = "conformance.backend" if to == "tiny" else "torch"
    source = re.sub(rf"^(\s*)import torch_{device}\b.*$", rf"\1import {package}", source, flags=re.MULTILINE)
    of_device = r'raise SkipTest\(\s*f?"[^"]* implementation is not yet supporting uint8"\s*\)'
    source = re.sub(of_device, "pass", source)
    settings = rf"^torch(_{device})?\.{device}\.(config\.|set_compile_mode\().*\n"  # that only this device has
    source = re.sub(settings, "", source, flags=re.MULTILINE)
    source = source.replace(f"torch_{device}.{device}", f"torch.{to}").replace(f"torch_{device}", "torch")
    source = re.sub(rf"(?<![A-Za-z0-9]){device}(?![A-Za-z0-9])", to, source)
    return source.replace(f".is_{device}", f".is_{to}")


def helpers(folder: Path, source: str) -> list[Path]:
    """Return the modules of the folder, relative to it, that a test file imports: files, and packages as a whole."""
    names = sorted(set(re.findall(r"^\s*(?:from|import)\s+(\w+)", source, flags=re.MULTILINE)))
    paths = [path for name in names for path in (folder / f"{name}.py", *(folder / name).glob("*.py"))]
    return [path.relative_to(folder) for path in paths if path.is_file()]


def compared(folder: Path, file: str, device: str = "", only: str = "") -> Comparison:
    """Run a test file on the CPU without and with the import.

    `device` is the one for which the copies were adapted, if any. `only` selects tests; its default is in `PARTS`.
    Raises RuntimeError if a process ended before its last test, and subprocess.TimeoutExpired.
    """
    only = only or PARTS.get(file, "")
    plain = CONFTEST.replace("import conformance.backend\n", "")
    assert plain != CONFTEST
    return Comparison(file, *(_outcomes(folder, file, device, only, conftest) for conftest in (plain, CONFTEST)))


def for_cpu(source: str, device: str) -> str:
    """Return a test file that was adapted for `device` of a package `torch_<device>`, adapted for the CPU."""
    source = adapted(source, device, "cpu").replace("only_for='privateuse1'", "only_for='cpu'")
    source = source.replace("(['cpu'] if TEST_PRIVATEUSE1 else [])", "[]")  # the CPU is already in these lists
    return source.replace("torch.cpu.get_device_name(0)", "'cpu'")  # torch.cpu has no such function


def _outcomes(folder: Path, file: str, device: str, only: str, conftest: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for path in (Path(f"{file}.py"), *helpers(folder, (folder / f"{file}.py").read_text())):
            (place / path).parent.mkdir(exist_ok=True)
            source = (folder / path).read_text()
            (place / path).write_text(for_cpu(source, device) if device else source)
        (place / "conftest.py").write_text(conftest)
        (place / "pytest.ini").write_text("[pytest]\n")
        command = [
            *(sys.executable, "-m", "pytest", "-c", "pytest.ini", "-p", "no:cacheprovider", "-q", "--tb=native"),
            *("--junitxml", "results.xml", f"--timeout={HANGING_S}", "--timeout-method=signal", f"{file}.py"),
            *(("-k", only) if only else ()),
        ]
        settings = {
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))), "OMP_NUM_THREADS": "1",
            "PYTORCH_TESTS_SECONDS": str(TEST_S),
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu",  # torch's own setting
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=place, capture_output=True, check=False, text=True, timeout=FILE_S,
            env={**os.environ, **settings},
        )  # fmt: skip
        if done.returncode not in (0, 1):
            said = (done.stdout + done.stderr).strip()[-3000:]
            raise RuntimeError(f"{file} ended with {done.returncode} before its last test:\n{said}")
        return outcomes(place / "results.xml")


def outcomes(result: Path) -> dict[str, str]:
    """Return "passed", "failed" or "skipped" of each test in a result (JUnit's XML)."""
    outcome_by_test = {}
    for case in ET.parse(result).getroot().iter("testcase"):
        tags = {child.tag for child in case}
        kind = "skipped" if "skipped" in tags else "failed" if tags & {"failure", "error"} else "passed"
        outcome_by_test["::".join((*case.get("classname", "").split("."), str(case.get("name"))))] = kind
    return outcome_by_test


def write_row(path: Path, header: list[str], row: list[str]) -> None:
    """Put the row of a file, which its first cell names, into a table."""
    rows = list(csv.reader(path.read_text().splitlines()))[1:] if path.exists() else []
    rows = sorted([*[old for old in rows if old[0] != row[0]], row])
    with path.open("w", newline="") as table:
        csv.writer(table, lineterminator="\n").writerows([header, *rows])


def main() -> int:
    """Print the counts of each file and every difference. Return 1 if there is one, and 2 without such a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder with the test files")
    parser.add_argument("file", nargs="+", help="a file's name without .py, such as test_utils")
    parser.add_argument("--adapted-for", default="", metavar="NAME", help="the device that the copies were adapted for")
    parser.add_argument("-k", dest="only", default="", help="only the tests that pytest's -k selects")
    parser.add_argument("--write", action="store_true", help="put the counts into docs/pytorch_tests_cpu.csv")
    args = parser.parse_args()
    missing = [file for file in args.file if not (args.folder / f"{file}.py").is_file()]
    if missing:
        parser.error(f"{args.folder} has no {missing[0]}.py")
    if args.only and args.write:
        parser.error("--write needs the default selection of tests, so it cannot go with -k")
    bad = 0
    for file in args.file:
        try:
            comparison = compared(args.folder, file, args.adapted_for, args.only)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{file}: {error}", flush=True)
            bad += 1
            continue
        print(comparison, *comparison.differences, sep="\n  ", flush=True)
        bad += len(comparison.differences)
        if args.write:
            write_row(TABLE, HEADER, comparison.row)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
