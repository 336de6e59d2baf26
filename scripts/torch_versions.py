"""Check the package with another version of torch: run tests under its Python, and keep the results as a page.

The harness's own tests must pass, and no campaign or run of op_db may end in a fault of the harness. Failures of
torch's own targets (meta, fake, ...) are findings about torch, which differ from version to version. They are counted
and do not fail the check. On `tiny` and on torch's CPU nothing may fail.

Usage: ``python -m scripts.torch_versions check PYTHON`` runs the checks under an interpreter that has the package,
records the names of its op_db and adds the results to docs/versions.json. ``... check PYTHON --suite main`` runs a
whole suite of op_db on `tiny` instead, and keeps the other results of the version. ``... page`` writes the tables of
docs/contributing.md from that file. `nox -s versions` does both for each version. The file also has the names of the
failing tests, programs and cases.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.pages import ROOT, Part, write

RESULTS, PART = Path("docs/versions.json"), Part("docs/contributing.md", "torch_versions")
OLDEST_FOR_TINY = (2, 13)
TARGETS = ("cpu", "meta", "fake", "functionalize", "aot_eager")
TITLES = {
    "tests": "Tests", "fuzz": "Drawn programs, seed 0", "op_db": "op_db, the suite `quick`",
    "main": "op_db, the suite `main`",
}  # fmt: skip
"""Titles of the tables, by the kind of check."""
RIGHT = ("cpu", "tiny")
"""Targets without any allowed failure: the reference itself, and the device in this package."""


@dataclass(frozen=True)
class Check:
    """Command under the version's Python; `kind` is tests, fuzz, op_db or a suite, `subject` a part of the tests or a
    target.
    """

    kind: str
    subject: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the check on the page."""
        return f"{self.kind} {self.subject}"


@dataclass
class Outcome:
    """Counts of passed and failed tests, programs or cases of a check.

    `faults` are errors of the harness or the device: a failed test, a failure on a target that must have none, or a run
    that broke off.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    faults: int = 0
    seconds: float = 0.0
    said: str = ""
    date: str = ""


def checks(tiny: bool) -> Iterator[Check]:
    """Checks of a version; `tiny` says whether the device supports it."""
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "600")
    yield Check(
        "tests", "harness", (*pytest, *(f"tests/{room}" for room in ("record", "declare", "standalone", "engine")))
    )
    if tiny:
        parts = ("dispatch", "lazy", "torch_api/test_compile.py", "test_behaviours.py")
        yield Check("tests", "tiny", (*pytest, *(f"tests/backend/{part}" for part in parts)))
    for target in (*TARGETS, *(["tiny"] if tiny else [])):
        programs = "200" if target == "tiny" else "60"
        words = ("-m", "conformance.fuzz", "--target", target, "--seed", "0", "--programs", programs)
        yield Check("fuzz", target, words)
    for target in (*TARGETS, *(["tiny"] if tiny else [])):
        yield Check("op_db", target, ("-m", "conformance.opinfo_runner", "--target", target, "--suite", "quick"))


def of_suite(suite: str) -> Check:
    """Check of a whole suite of op_db on `tiny`, with the declared failures of the repository."""
    words = ("-m", "conformance.opinfo_runner", "--target", "tiny", "--suite", suite, "--expectations")
    return Check(suite, "tiny", (*words, str(ROOT / "reports" / "expectations" / "tiny.toml")))


def run(check: Check, python: str) -> Outcome:
    """Run a check and read its result: pytest's last line, or the result file of the command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        reports = [] if check.kind == "tests" else ["--reports", folder]
        done = subprocess.run(
            [python, *check.arguments, *reports],
            cwd=ROOT if check.kind == "tests" else folder, env=environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        outcome = of_tests(done) if check.kind == "tests" else of_run(check, done, Path(folder))
    outcome.seconds, outcome.date = round(time.monotonic() - began, 1), datetime.date.today().isoformat()
    if outcome.faults:
        print(done.stdout[-6000:], flush=True)
    return outcome


def of_tests(done: subprocess.CompletedProcess[str]) -> Outcome:
    """Outcome from pytest's last line: a failing test or a run without tests is a fault."""
    words = re.findall(r"(\d+) (passed|failed|skipped|errors?)", done.stdout.rpartition("\n=")[2] or done.stdout)
    counts = {word.rstrip("s") if word.startswith("error") else word: int(number) for number, word in words}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    broken = done.returncode not in (0, 1) or not counts.get("passed")
    said = "; ".join(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)[:5])
    return Outcome(counts.get("passed", 0), failed, counts.get("skipped", 0), failed or int(broken), said=said)


def of_run(check: Check, done: subprocess.CompletedProcess[str], reports: Path) -> Outcome:
    """Outcome from the result file, with the findings that are faults of the harness or the device."""
    try:
        data = json.loads((reports / f"{'fuzz' if check.kind == 'fuzz' else 'opinfo'}.json").read_text())
    except (OSError, ValueError):
        return Outcome(faults=1, said=last_line(done.stdout) or f"exit code {done.returncode}")
    *_, (passed, failed, skipped) = re.findall(r"(\d+) passed, (\d+) failed, (\d+) skipped", done.stdout) or [(0, 0, 0)]
    outcome = Outcome(int(passed), int(failed), int(skipped))
    broken = [
        result for result in data["results"] if result["outcome"] in ("CRASH", "TIMEOUT", "FAIL", "XPASS", "FLAKY")
    ]
    ours = [result for result in broken if check.subject in RIGHT or is_ours(result)]
    outcome.faults = len(ours) or int(done.returncode not in (0, 1) or not data["complete"])
    named = [f"{result.get('op', '')} ({', '.join(oracles(result)) or result['outcome']})" for result in ours or broken]
    outcome.said = "; ".join(dict.fromkeys(named))
    return outcome


def is_ours(result: dict[str, Any]) -> bool:
    """Whether a finding is an exception in the harness itself."""
    return "harness" in oracles(result)


def oracles(result: dict[str, Any]) -> list[str]:
    """Oracles that a result failed, without repetitions."""
    return list(dict.fromkeys(failure["oracle"] for failure in result.get("failures", [])))


def last_line(text: str) -> str:
    """Last line that is not blank."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


ASK = """
import importlib.metadata as m, json, platform
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
print(json.dumps({"torch": version("torch"), "tinygrad": version("tinygrad"), "python": platform.python_version()}))
"""


def check_all(python: str, suite: str = "") -> int:
    """Run all checks under an interpreter, or one suite of op_db on `tiny`, and save the results; return 1 for a fault,
    2 if the version has no `tiny`.
    """
    answer = subprocess.run([python, "-c", ASK], check=True, capture_output=True, text=True, cwd=ROOT)
    has: dict[str, str] = json.loads(answer.stdout)
    torch = has["torch"].partition("+")[0]
    tiny = tuple(map(int, torch.split(".")[:2])) >= OLDEST_FOR_TINY and bool(has["tinygrad"])
    entry: dict[str, Any] = {**has, "torch": torch, "date": datetime.date.today().isoformat(), "checks": {}}
    if suite and not tiny:
        print(
            f"torch {torch}: the suites run on tiny, which needs torch {'.'.join(map(str, OLDEST_FOR_TINY))} or newer"
        )
        return 2
    if suite:
        entry |= next((one for one in read() if key_of(one) == key_of(entry)), {})
    else:
        record = [python, "-m", "scripts.op_names"]
        subprocess.run(record, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    outcomes: dict[str, Any] = {}
    kept = entry["checks"] = dict(entry["checks"])
    for check in [of_suite(suite)] if suite else checks(tiny):
        outcome = run(check, python)
        kept[check.name] = outcomes[check.name] = asdict(outcome)
        print(f"torch {torch}: {check.name}: {cell(outcomes[check.name])} in {outcome.seconds:.0f} s", flush=True)
        keep(entry)
    return int(any(one["faults"] for one in outcomes.values()))


def keep(entry: dict[str, Any]) -> None:
    """Replace a version's last results by the current ones, complete or not, and write the page again."""
    with locked((ROOT / RESULTS).parent):
        every = {key_of(one): one for one in (*read(), entry)}
        write(ROOT / RESULTS, json.dumps(sorted(every.values(), key=in_order), indent=1) + "\n")
        page()


def key_of(entry: dict[str, Any]) -> str:
    """The versions of torch and tinygrad of an entry."""
    return f"{entry['torch']} {entry['tinygrad']}"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder, because two versions may be checked at the same time."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def in_order(entry: dict[str, Any]) -> tuple[list[int], str]:
    """Sort key by version."""
    return [int(part) for part in re.findall(r"\d+", entry["torch"])], entry["tinygrad"]


def read() -> list[dict[str, Any]]:
    """Last results, oldest torch first."""
    results: list[dict[str, Any]] = json.loads((ROOT / RESULTS).read_text()) if (ROOT / RESULTS).exists() else []
    return results


def page() -> int:
    """Write the table of the last results into the page."""
    entries, parts = read(), []
    for kind, title in TITLES.items():
        subjects = list(
            dict.fromkeys(name for entry in entries for name in entry["checks"] if name.startswith(kind + " "))
        )
        if subjects:
            rows = entries if kind != "main" else [entry for entry in entries if subjects[0] in entry["checks"]]
            parts.append(f"{title}:\n\n" + "\n".join(table(rows, subjects)))
    return PART.renew("\n\n".join(parts), root=ROOT)


def table(entries: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Table of one kind of check, with a line for each version."""
    yield "|torch|tinygrad|date|" + "|".join(name.partition(" ")[2] for name in names) + "|"
    yield "|---" * (3 + len(names)) + "|"
    for entry in entries:
        cells = (cell(entry["checks"][name]) if name in entry["checks"] else "-" for name in names)
        date = next(
            (one["date"] for name in names if (one := entry["checks"].get(name, {})).get("date")), entry["date"]
        )
        yield f"|{entry['torch']}|{entry['tinygrad'] or '-'}|{date}|{'|'.join(cells)}|"


def cell(outcome: dict[str, Any]) -> str:
    """Counts of passed and failed, bold if there is a fault of the harness or the device."""
    text = f"{outcome['passed']}/{outcome['failed']}"
    return f"**{text}**" if outcome["faults"] else text


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    checker = commands.add_parser("check", help="run the checks under an interpreter")
    checker.add_argument("python")
    checker.add_argument("--suite", default="", help="only this suite of op_db, on tiny; the other results are kept")
    commands.add_parser("page", help="write the page from the last results")
    args = parser.parse_args()
    if args.command == "check":
        return check_all(args.python, args.suite)
    return page()


if __name__ == "__main__":
    sys.exit(main())
