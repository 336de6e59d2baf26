"""Issues about tinygrad for its own tracker, from docs/upstream/, which has one file for each bug.

    python -m scripts.upstream                      write the list, docs/upstream/index.csv
    python -m scripts.upstream NAME                 print the text of an issue
    python -m scripts.upstream --newest CHECKOUT    run all reproducers in a checkout of tinygrad, and note the results
    python -m scripts.upstream --check              exit code 1 when the list is stale

A file has a title, a severity, a rank, the patches of the device that correct the bug, a text, and a reproducer of at
most ten lines with its output and the right one. `tests/test_upstream.py` runs every reproducer.
docs/upstream-not-filed.toml has the other patches, with reasons.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripts.pages import ROOT, write

FOLDER = Path("docs/upstream")
NOT_FILED = Path("docs/upstream-not-filed.toml")
SEVERITIES = ("wrong value", "crash", "special value")
"""From the worst on; a special value is a nan, an infinity, a zero's sign, or a rounding."""
SECONDS = 120


class UpstreamError(Exception):
    """A file that is no issue, or a checkout that cannot be used; the text is one sentence."""


@dataclass(frozen=True)
class Bug:
    """One bug of tinygrad: `prints` is the output of `code` with the bug, `expected` without it; `exit` is its exit
    code, negative for a signal. `newest` names a later commit, its date, and whether it shows the bug."""

    name: str
    title: str
    severity: str
    rank: int
    device: str
    patches: Sequence[str]
    text: str
    code: str
    prints: str
    expected: str
    newest: Mapping[str, Any]
    exit: int = 0

    @property
    def issue(self) -> str:
        """The issue in Markdown; its first line is the title."""
        code = f"```python\n{self.code.strip()}\n```"
        ended = f"ends with signal {-self.exit}" if self.exit else f"prints\n\n```text\n{self.prints.strip()}\n```"
        run = f"With tinygrad {version('tinygrad')} and `DEV={self.device}` this {ended}"
        later = f"Commit {self.newest['commit'][:12]} of {self.newest['date']} shows it too."
        expected = f"Expected:\n\n```text\n{self.expected.strip()}\n```"
        parts = [self.title, self.text.strip(), code, run, expected, *([later] if self.newest["shows"] else [])]
        return "\n\n".join(parts) + "\n"

    def shows(self, code: int, output: str) -> bool:
        """Whether an exit code and an output are the bug's."""
        return code == self.exit and output.strip() == self.prints.strip()


def read(path: Path) -> Bug:
    """Return the bug of a file. Raises UpstreamError."""
    try:
        bug = Bug(path.stem, **tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise UpstreamError(f"{path.name} is no issue: {error}") from None
    if bug.severity not in SEVERITIES:
        raise UpstreamError(f"{path.name} has the severity {bug.severity!r}; choose one of {', '.join(SEVERITIES)}")
    return bug


def read_all(folder: Path) -> list[Bug]:
    """Return the bugs of a folder by rank. Raises UpstreamError if ranks do not follow the severities."""
    bugs = sorted((read(path) for path in folder.glob("*.toml")), key=lambda bug: bug.rank)
    severities = [SEVERITIES.index(bug.severity) for bug in bugs]
    if [bug.rank for bug in bugs] != [*range(1, len(bugs) + 1)] or severities != sorted(severities):
        raise UpstreamError(f"ranks in {folder} must be 1, 2, ..., in the order {', '.join(SEVERITIES)}")
    return bugs


def covers(entry: str, site: str, fault: str, test: str) -> bool:
    """Whether an entry names a patch: `SITE`, the beginning of its site; `SITE|WORDS`, words of its fault or test too;
    or the name of its test, which has `::`."""
    if "::" in entry:
        return entry in test
    beginning, _, words = entry.partition("|")
    return site.startswith(beginning) and words in f"{fault} {test}"


def run(bug: Bug, checkout: Path | None = None) -> tuple[int, str]:
    """Run the reproducer with the installed tinygrad or a checkout, without patches. Return exit code and output."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "reproducer.py")
        script.write_text(bug.code.lstrip())
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {"DEV": bug.device, "CACHEDB": str(Path(folder, "cache.db"))}
        if checkout is not None:
            environment["PYTHONPATH"] = str(checkout)
        ran = subprocess.run(
            [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False,
            timeout=SECONDS,
        )  # fmt: skip
    return ran.returncode, ran.stdout


def table(bugs: Sequence[Bug]) -> str:
    """The list of bugs as CSV; the last column says whether a later tinygrad still needs the patches."""
    csv_file = io.StringIO()
    lines = csv.writer(csv_file, lineterminator="\n")
    lines.writerow(["rank", "severity", "title", "file", "patches", "newest tinygrad", "date", "still shows it"])
    for bug in bugs:
        seen = [bug.newest["commit"][:12], bug.newest["date"], "yes" if bug.newest["shows"] else "no"]
        lines.writerow([bug.rank, bug.severity, bug.title, f"{bug.name}.toml", len(bug.patches), *seen])
    return csv_file.getvalue()


def note(path: Path, commit: str, date: str, shows: bool) -> None:
    """Write the result of a later tinygrad into the file of a bug."""
    line = f'newest = {{ commit = "{commit}", date = "{date}", shows = {str(shows).lower()} }}'
    write(path, re.sub(r"^newest = .*$", line, path.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE))


def commit_of(checkout: Path) -> tuple[str, str]:
    """The commit and its date of a checkout with its repository. Raises UpstreamError."""
    if not (checkout / "tinygrad" / "tensor.py").is_file():
        raise UpstreamError(f"{checkout} is no checkout of tinygrad: it has no tinygrad/tensor.py")
    log = subprocess.run(
        ["git", "-C", str(checkout), "log", "-1", "--format=%H %cs"], capture_output=True, text=True, check=False
    )
    commit, _, date = log.stdout.strip().partition(" ")
    if not date:
        raise UpstreamError(f"{checkout} has no commit; clone tinygrad instead of unpacking an archive")
    return commit, date


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the list, print an issue, or run the reproducers. Returns 1 for a stale list, 2 for an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="print the issue of this name")
    parser.add_argument("--check", action="store_true", help="report a stale list, and write nothing")
    parser.add_argument("--newest", type=Path, metavar="CHECKOUT", help="run the reproducers in this checkout")
    options = parser.parse_args(arguments)
    try:
        bugs = read_all(root / FOLDER)
        if options.name:
            named = [bug for bug in bugs if bug.name == options.name]
            if not named:
                raise UpstreamError(f"no issue is named {options.name!r}; {FOLDER}/index.csv lists them")
            print(named[0].issue, end="")
            return 0
        if options.newest:
            from conformance.targets.tinygrad_upstream import choose_compiler

            choose_compiler()
            checkout = options.newest.resolve()
            commit, date = commit_of(checkout)
            for bug in bugs:
                result = run(bug, checkout)
                note(root / FOLDER / f"{bug.name}.toml", commit, date, bug.shows(*result))
                print(bug.name, "shows it" if bug.shows(*result) else f"prints {result[1].strip()!r}", flush=True)
            bugs = read_all(root / FOLDER)
        path, wanted = root / FOLDER / "index.csv", table(bugs)
        if options.check:
            if path.is_file() and path.read_text(encoding="utf-8") == wanted:
                return 0
            print(f"{FOLDER}/index.csv is stale; run python -m scripts.upstream", file=sys.stderr)
            return 1
        write(path, wanted)
    except (OSError, UpstreamError) as error:
        print(f"upstream: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
