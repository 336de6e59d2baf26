"""PyTorch's own test files on tiny, and the verdicts on their results.

Defines `run` and `Outcome`; `python tests/clients/pytorch_tests_run.py FOLDER FILE ...` prints the counts of the files,
and with --write puts them into docs/pytorch_tests.csv.

The files are not in torch's wheel, and none is in this repository. FOLDER has copies for the torch that is installed,
either PyTorch's own or copies that were adapted for another out-of-tree device (`--adapted-for npu`). The result of a
file is the number of passing tests among those that can be judged. `pytorch_tests.toml` lists the others with reasons;
an entry that no failing test needs any more is also a failure. Its table `part` has pytest's -k expression for each
file that tests much besides devices.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOT_JUDGED = Path(__file__).with_name("pytorch_tests.toml")
TABLE = ROOT / "docs" / "pytorch_tests.csv"
HEADER = ["file", "slices run", "passed", "judged", "not judged", "skipped by the file"]

TEST_S = 300  # limit of a test in processor time, which a loaded machine does not change
FILE_S, HANGING_S = 7200, 1800  # limits of a slice and of a test in elapsed time

CONFTEST = '''"""Registers tiny before the test files ask for the devices, and selects one slice of the tests."""
import os, signal
import pytest
import conformance.backend
from torch.testing._internal import common_methods_invocations as methods

if not hasattr(methods, "binary_ufuncs_and_refs"):  # its name in other versions of torch
    methods.binary_ufuncs_and_refs = methods.binary_ufuncs

def pytest_collection_modifyitems(items):
    part, parts = map(int, os.environ["PYTORCH_TESTS_SLICE"].split("/"))
    items[:] = items[part::parts]

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


@dataclass
class Outcome:
    """The tests of one file, or of `part` of it, by outcome."""

    file: str
    part: str = "all"  # or such as "2 of 8", if the first 2 of 8 slices ran
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # name to message
    skipped: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)  # failures that pytorch_tests.toml excepts
    unneeded: list[str] = field(default_factory=list)  # entries of pytorch_tests.toml that match no failure

    @property
    def judged(self) -> int:
        return len(self.passed) + len(self.failed)

    @property
    def row(self) -> list[str]:
        """The file's row of the table."""
        counts = len(self.passed), self.judged, len(self.not_judged), len(self.skipped)
        return [self.file, self.part, *map(str, counts)]

    def __str__(self) -> str:
        share = 100 * len(self.passed) / self.judged if self.judged else 0.0
        part = "" if self.part == "all" else f" (slices {self.part})"
        return (
            f"{self.file:26}{len(self.passed):6} of {self.judged:5} judged passed ({share:.1f} %), "
            f"{len(self.not_judged)} not judged, {len(self.skipped)} skipped by the file{part}"
        )


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


def run(
    folder: Path, file: str, device: str = "", only: str = "", slices: int = 1, take: int = 0, keep: Path | None = None
) -> Outcome:
    """Run a test file; `device` is the one for which the copies were adapted, if any.

    Each of the `slices` has every n-th test and a process of its own; `take` runs only the first of them. `keep` is a
    folder for the slices' results and logs; a slice with a result there is not run again. Raises RuntimeError if a
    slice ended before its last test, and subprocess.TimeoutExpired.
    """
    table = tomllib.loads(NOT_JUDGED.read_text())
    entries = [e for e in table["not_judged"] if e["test"].startswith(f"{file}::")]
    only = only or table["part"].get(file, "")
    left_out = [e["test"] for e in entries if not e.get("run", True)]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        results = [(keep or place) / f"{file}-{number}-{slices}.xml" for number in range(take or slices)]
        for path in (Path(f"{file}.py"), *helpers(folder, (folder / f"{file}.py").read_text())):
            (place / path).parent.mkdir(exist_ok=True)
            source = (folder / path).read_text()
            (place / path).write_text(adapted(source, device) if device else source)
        (place / "conftest.py").write_text(CONFTEST)
        (place / "pytest.ini").write_text("[pytest]\n")
        words = [
            *("-c", "pytest.ini", "-p", "no:cacheprovider", "-v", "--tb=native", "--junitxml", "results.xml"),
            *(f"--timeout={HANGING_S}", "--timeout-method=signal", f"{file}.py", *(("-k", only) if only else ())),
            *(word for test in left_out for word in ("--deselect", test.rstrip("*").replace("::", ".py::", 1))),
        ]
        path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        for number, result in enumerate(results):
            if result.exists():
                continue
            limits = {"PYTORCH_TESTS_SLICE": f"{number}/{slices}", "PYTORCH_TESTS_SECONDS": str(TEST_S)}
            log = result.with_suffix(".log")
            with log.open("w") as output:
                done = subprocess.run(
                    [sys.executable, "-m", "pytest", *words], cwd=place, stdout=output, stderr=output, check=False,
                    env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **limits}, timeout=FILE_S,
                )  # fmt: skip
            if done.returncode not in (0, 1):
                said = log.read_text().strip()[-3000:]
                raise RuntimeError(f"{file} ended with {done.returncode} before its last test:\n{said}")
            shutil.move(place / "results.xml", result)
        outcome = judged(file, results, entries)
    if take and take < slices:  # the failures of other slices may need the other entries
        outcome.part, outcome.unneeded = f"{take} of {slices}", []
    return outcome


def judged(file: str, results: Sequence[Path], entries: Sequence[dict[str, Any]]) -> Outcome:
    """Return the verdicts on the results of a file (JUnit's XML, one for each slice)."""
    outcome = Outcome(file)
    needed: set[str] = set()
    for case in (case for result in results for case in ET.parse(result).getroot().iter("testcase")):
        name = "::".join((*case.get("classname", "").split("."), str(case.get("name"))))
        kinds = {child.tag: child for child in case}
        bad = kinds.get("failure", kinds.get("error"))
        entry = next((e for e in entries if fnmatch.fnmatchcase(name, e["test"].replace("[", "[[]"))), None)
        if "skipped" in kinds:
            outcome.skipped.append(name)
        elif entry is not None and bad is not None:
            needed.add(entry["test"])
            outcome.not_judged.append(name)
        elif bad is not None:
            outcome.failed[name] = (bad.get("message") or "").split("\n")[0][:200]
        else:
            outcome.passed.append(name)
    outcome.unneeded = [e["test"] for e in entries if e["test"] not in needed and e.get("run", True)]
    return outcome


def write_row(path: Path, header: list[str], row: list[str]) -> None:
    """Put the row of a file, which its first cell names, into a table."""
    rows = list(csv.reader(path.read_text().splitlines()))[1:] if path.exists() else []
    rows = sorted([*[old for old in rows if old[0] != row[0]], row])
    with path.open("w", newline="") as table:
        csv.writer(table, lineterminator="\n").writerows([header, *rows])


def main() -> int:
    """Print the counts of each file and every failure. Return 1 if there is a failure, and 2 without such a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder with the test files")
    parser.add_argument("file", nargs="+", help="a file's name without .py, such as test_view_ops")
    parser.add_argument("--adapted-for", default="", metavar="NAME", help="the device that the copies were adapted for")
    parser.add_argument("-k", dest="only", default="", help="only the tests that pytest's -k selects")
    parser.add_argument("--slices", type=int, default=1, metavar="N", help="run each file in N processes, one by one")
    parser.add_argument("--take", type=int, default=0, metavar="M", help="run only the first M of the slices")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the slices' results and logs, and use those kept"
    )
    parser.add_argument("--write", action="store_true", help="put the counts into docs/pytorch_tests.csv")
    args = parser.parse_args()
    missing = [file for file in args.file if not (args.folder / f"{file}.py").is_file()]
    if missing:
        parser.error(f"{args.folder} has no {missing[0]}.py")
    if args.only and (args.write or args.keep):
        parser.error("--write and --keep need whole files, so they cannot go with -k")
    if args.slices < 1:
        parser.error("--slices must be at least 1")
    if not 0 <= args.take <= args.slices:
        parser.error(f"--take must be between 1 and --slices, which is {args.slices}")
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    bad = 0
    for file in args.file:
        try:
            outcome = run(args.folder, file, args.adapted_for, args.only, args.slices, args.take, args.keep)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{file:26}{error}", flush=True)
            bad += 1
            continue
        print(outcome, flush=True)
        for name, message in outcome.failed.items():
            print(f"  {name}: {message}")
        if not args.only:
            for entry in outcome.unneeded:
                print(f"  no failure any more: {entry}")
            bad += len(outcome.unneeded)
        bad += len(outcome.failed)
        if args.write:
            write_row(TABLE, HEADER, outcome.row)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
