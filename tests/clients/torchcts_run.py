"""TorchCTS's hand-written suites on a device, and the verdicts on their results.

Defines `install`, `run` and `Outcome`; `python tests/clients/torchcts_run.py SUITE ...` prints the counts.

The result of a suite is the number of passing tests among those tests which can be judged. Exceptions are therefore
data with a reason for each entry (torchcts.toml), and an entry that is no longer needed is also a failure.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for use as a script
from tests.clients import packages

ROOT = Path(__file__).parents[2]
NOT_JUDGED = Path(__file__).with_name("torchcts.toml")

SUITES = (
    "strides", "device_api", "memory", "autograd", "training", "workloads", "rng", "errors", "compiler", "dtypes",
    "stress", "operators",
)  # fmt: skip
LIMIT_S = 3000


@dataclass
class Outcome:
    """The tests of one suite by outcome."""

    suite: str
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # name to message
    skipped: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)  # failures that torchcts.toml excepts
    unneeded: list[str] = field(default_factory=list)  # entries of torchcts.toml that match no failure

    @property
    def judged(self) -> int:
        return len(self.passed) + len(self.failed)

    def __str__(self) -> str:
        share = 100 * len(self.passed) / self.judged if self.judged else 0.0
        return (
            f"{self.suite:12}{len(self.passed):6} of {self.judged:5} judged passed ({share:.1f} %), "
            f"{len(self.not_judged)} not judged, {len(self.skipped)} skipped by the suite"
        )


def install() -> Path:
    """Return the folder with the package, installed at the first call. Raises packages.NotHad if it cannot be
    installed."""
    return packages.install("torchcts.txt")


def run(suite: str, device: str = "tiny") -> Outcome:
    """Run a suite in a separate process.

    Raises packages.NotHad, and RuntimeError if the suite ended before its last test.
    """
    package = install()
    declared = tomllib.loads(NOT_JUDGED.read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = [*options(package, suite, device, folder), "--junitxml", str(folder / "results.xml")]
        path = os.pathsep.join((str(package), str(ROOT), os.environ.get("PYTHONPATH", "")))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=folder, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True,
            check=False, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            said = (done.stdout + done.stderr).strip()[-3000:]
            raise RuntimeError(f"TorchCTS's suite {suite} ended with {done.returncode} before its last test:\n{said}")
        return _judged(suite, folder / "results.xml", declared["not_judged"] if device == "tiny" else [])


def options(package: Path, suite: str, device: str, folder: Path) -> list[str]:
    """Return the arguments of pytest for a suite on a device. Write the manifest into the folder in which pytest
    runs."""
    declared = tomllib.loads(NOT_JUDGED.read_text())
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "manifest.py").write_text(_manifest(package, device, declared["lacks"]))
    left_out = [e["test"] for e in declared["not_judged"] if not e.get("run", True)]
    return [
        *("-c", str(folder / "pytest.ini"), "--rootdir", str(package), "-p", "no:cacheprovider", "-q"),
        *("--device", device, "--level", "8", "--tb=line", str(package / "torchcts" / suite)),
        *(word for test in left_out for word in ("--deselect", f"torchcts/{test}")),
    ]


def _manifest(package: Path, device: str, lacks: dict[str, str]) -> str:
    text = (package / "torchcts" / "templates" / "manifest.complete.py").read_text()
    lines = [f"manifest['device_name'] = {device!r}"]
    if device == "tiny":
        lines.append("manifest['backend_import'] = 'conformance.backend'")
    lines += [f"manifest['capabilities'][{name!r}] = False" for name in lacks]
    return "\n".join([text, *lines, ""])


def _judged(suite: str, results: Path, entries: list[dict[str, Any]]) -> Outcome:
    outcome = Outcome(suite)
    ours = [e for e in entries if e["test"].startswith(f"{suite}/")]
    held: set[str] = set()
    for case in ET.parse(results).getroot().iter("testcase"):
        file = case.get("classname", "").removeprefix("torchcts.").replace(".", "/")
        name = f"{file}.py::{case.get('name')}"
        kinds = {child.tag: child for child in case}
        bad = kinds.get("failure", kinds.get("error"))
        entry = next((e for e in ours if fnmatch.fnmatchcase(name, _glob(e["test"]))), None)
        if "skipped" in kinds:
            outcome.skipped.append(name)
        elif entry is not None and bad is not None:
            held.add(entry["test"])
            outcome.not_judged.append(name)
        elif bad is not None:
            outcome.failed[name] = (bad.get("message") or "").split("\n")[0][:200]
        else:
            outcome.passed.append(name)
    outcome.unneeded = [
        e["test"] for e in ours if e["test"] not in held and not e.get("sometimes") and e.get("run", True)
    ]
    return outcome


def _glob(pattern: str) -> str:
    """Return a glob pattern that matches brackets literally, because names of tests have brackets."""
    return pattern.replace("[", "[[]")


def main() -> int:
    """Print the counts of each suite and every failure. Return 1 if there is a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", nargs="*", default=list(SUITES), help="default: all of them")
    parser.add_argument("--device", default="tiny", help="tiny, or cpu to see what torch itself fails")
    args = parser.parse_args()
    passed = judged = 0
    for suite in args.suite:
        try:
            outcome = run(suite, args.device)
        except (packages.NotHad, RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{suite:12}{error}", flush=True)
            judged += 1
            continue
        passed, judged = passed + len(outcome.passed), judged + outcome.judged
        print(outcome, flush=True)
        for name, message in outcome.failed.items():
            print(f"  {name}: {message}")
        for entry in outcome.unneeded:
            print(f"  no failure any more: {entry}")
    print(f"{'all':12}{passed:6} of {judged:5} judged passed")
    return int(passed < judged)


if __name__ == "__main__":
    sys.exit(main())
