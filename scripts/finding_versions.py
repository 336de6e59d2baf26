"""Run the scripts of docs/findings/ under other releases of torch, and note in the files which releases show them.

    python -m scripts.finding_versions PYTHON [PYTHON ...] [--finding NAME ...]

Each argument is a Python with torch. A release is added to the `versions` of a finding if every script prints exactly
the stated lines there, and removed if one does not. The outputs that differ are printed. Read them: `mended` in the
file names the first release with right answers, `partly` the first with some of them. docs/findings.md lists both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts import findings
from scripts.pages import ROOT, write

LONGEST = 300.0
"""Time limit of a script in seconds. With a cold cache, Inductor compiles for a minute."""


class VersionsError(Exception):
    """An interpreter that cannot run a script; the text is one sentence."""


def output(python: str, code: str) -> str:
    """Return what a script prints in a fresh process, with the reason if it fails or runs too long. Raises
    VersionsError if the process cannot be started."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(code, encoding="utf-8")
        python = os.path.abspath(python) if os.sep in python else python  # the script runs in another folder
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            ran = subprocess.run(
                [python, "-W", "ignore", str(script)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it runs longer than {LONGEST:g} seconds"
        except OSError as error:
            raise VersionsError(f"{python} cannot be started: {error}; give a Python with torch") from None
    last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
    return ran.stdout if ran.returncode == 0 else f"{ran.stdout}exit code {ran.returncode}: {last}"


def release(python: str) -> str:
    """Return the torch release of an interpreter, such as `torch 2.15.0`. Raises VersionsError."""
    printed = output(python, "import torch; print(torch.__version__.partition('+')[0])").strip()
    if not re.fullmatch(r"\d+\.\d+\.\d+", printed):
        raise VersionsError(f"{python} does not import a release of torch ({printed}); give a Python with torch")
    return f"torch {printed}"


def order(version: str) -> tuple[bool, str, list[int]]:
    """Sort key of a version: torch after the packages, old releases first."""
    name, _, number = version.rpartition(" ")
    return name == "torch", name, [int(part) for part in re.findall(r"\d+", number)]


def renewed(text: str, versions: Sequence[str]) -> str:
    """Return the file of a finding with other versions."""
    line = f"versions = {json.dumps([*versions])}"
    return re.sub(r"^versions = \[.*\]$", line, text, count=1, flags=re.MULTILINE)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the scripts of PyTorch's findings, and update their files. Returns 2 for an interpreter without torch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+", help="a Python with torch")
    parser.add_argument("--finding", action="append", default=[], metavar="NAME", help="only this file; repeatable")
    options = parser.parse_args(arguments)
    try:
        releases = {python: release(python) for python in options.python}
        every = findings.read_all(root / findings.FOLDER)
        unknown = {*options.finding} - {finding.name for finding in every}
        if unknown:
            raise VersionsError(f"there is no finding {min(unknown)!r}; see {findings.FOLDER}")
        for finding in every:
            runnable = [script for script in finding.scripts if not script.needs]
            chosen = not options.finding or finding.name in options.finding
            if not (chosen and runnable and findings.status(finding)):
                continue
            versions = {*finding.versions}
            for python, version in releases.items():
                printed = [(output(python, script.code), script.prints) for script in runnable]
                differing = [here for here, stated in printed if here.splitlines() != stated.splitlines()]
                versions = versions - {version} if differing else versions | {version}
                for here in differing:
                    print(f"{finding.name} on {version}:\n{here.rstrip()}", flush=True)
            path = root / findings.FOLDER / f"{finding.name}.toml"
            write(path, renewed(path.read_text(encoding="utf-8"), sorted(versions, key=order)))
    except (VersionsError, findings.FindingsError) as error:
        print(f"finding_versions: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
