"""A finding as an issue that is ready to be filed, in Markdown: `python -m conformance.report issue FINDING`.

The key insight: an issue holds what a maintainer needs to answer it and no more: the script's own part, which runs on
its own behind the marker's functions, both answers as they were observed, and the versions. The environment is asked of
torch in a process of its own, since this one only reads files.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.core import result as model
from conformance.core.errors import ReportError
from conformance.core.names import nearest
from conformance.core.result import Failure
from conformance.core.script import own_part
from conformance.report.escape import escape_control_characters

RUN = Path("reports/opinfo.json")
"""Where a case's id is looked up."""

ESSENTIALS = (
    *("PyTorch version", "CUDA used", "ROCM used", "OS", "GCC version", "Clang version", "Libc version"),
    *("Python version", "Python platform", "Is CUDA available", "CUDA runtime", "GPU models", "Is XPU available"),
)
"""The lines of `torch.utils.collect_env` that an issue repeats; the list of packages follows them."""

LONGEST = 1_500
"""Characters of an answer that an issue shows."""


def add_command(commands: Any) -> None:
    """The options of `issue`."""
    made = commands.add_parser("issue", help="a finding as an issue that is ready to be filed, in Markdown")
    made.add_argument("finding", metavar="FINDING", help="a finding's JSON under reports/failures/, or a case's id")
    made.add_argument("--run", type=Path, default=RUN, metavar="FILE", help=f"where the case failed (default: {RUN})")


def spelt_out(arguments: Sequence[str]) -> list[str]:
    """`--issue FINDING` as the command `issue FINDING`."""
    return ["issue" if number == 0 and word == "--issue" else word for number, word in enumerate(arguments)]


def command(options: argparse.Namespace) -> int:
    """Print the issue. Raises ReportError."""
    print(issue(options.finding, options.run), end="")
    return 0


@dataclass(frozen=True)
class Finding:
    """What an issue is made of: `answers` are (oracle, where, expected, actual, detail)."""

    title: str
    target: str
    script: str
    answers: Sequence[tuple[str, str, str, str, str]]


def issue(finding: str, run: Path = RUN) -> str:
    """The Markdown of a finding: a JSON file that the fuzzer saved, or a case's id in the file `run`. Raises
    ReportError."""
    found = of_program(Path(finding)) if finding.endswith(".json") else of_case(finding, run)
    parts = [f"# {_line(found.title)}", f"Target: `{_line(found.target)}`, compared with torch CPU."]
    if found.script:
        parts += ["## Reproduction", _fenced(own_part(found.script), "python")]
        whole = _fenced(found.script.rstrip(), "python")
        parts.append(f"<details><summary>The whole script, which runs alone</summary>\n\n{whole}\n\n</details>")
    parts.append("## Observed")
    for oracle, where, expected, actual, detail in found.answers:
        rows = f"torch CPU: {expected[:LONGEST]}\n{found.target}: {actual[:LONGEST]}"
        parts += [f"{_line(oracle)} of {_line(where)}{f': {_line(detail)}' if detail else ''}", _fenced(rows)]
    return "\n\n".join([*parts, "## Environment", _fenced(environment())]) + "\n"


def of_program(path: Path) -> Finding:
    """A finding of the fuzzer, with the script that lies beside it. Raises ReportError."""
    data = model.read(path)
    try:
        answers = [
            (one["oracle"], one["where"], one["expected"], one["actual"], one.get("detail", ""))
            for one in data["mismatches"]
        ]
        title = f"{data.get('target') or 'a device'}: {data['signature']}"
        kind, steps = data["kind"], data["program"]["steps"]
    except (KeyError, TypeError, AttributeError):
        raise ReportError(f"{path} is no finding; give a file that conformance.fuzz wrote under failures/.") from None
    if not answers:
        answers = [("error", "the whole run", "an answer", str(kind), f"a program of {len(steps)} steps")]
    script = path.with_suffix(".py")
    try:
        text = script.read_text(encoding="utf-8") if script.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{script} cannot be read ({error}).") from None
    return Finding(title, str(data.get("target") or "target"), text, answers)


def of_case(name: str, path: Path) -> Finding:
    """A failure of op_db in a run's result file. Raises ReportError, for an unknown id with the nearest ones."""
    name = name.partition("#")[0] if "::" in name else name
    run = model.load(path)
    failed = {result.id: result for result in run.results if result.failures}
    if name not in failed:
        raise ReportError(f"{path} has no failure of a case {name!r}{nearest(name, failed)}.")
    failures: Sequence[Failure] = failed[name].failures
    words = ", ".join(dict.fromkeys(failure.oracle for failure in failures))
    answers = [(one.oracle, one.where, one.expected, one.actual, one.detail) for one in failures]
    script = next((failure.script for failure in failures if failure.script), "")
    return Finding(f"{run.target}: {words} of {failures[0].call or name} ({name})", run.target, script, answers)


def environment() -> str:
    """The essential lines of `torch.utils.collect_env`, of a process of its own; a sentence where it says nothing."""
    words = [sys.executable, "-m", "torch.utils.collect_env"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"python -m torch.utils.collect_env says nothing here ({type(error).__name__})"
    lines = done.stdout.splitlines()
    kept = [line for line in lines if line.startswith(ESSENTIALS)]
    return "\n".join([*kept, *(line for line in lines if line.startswith(("[pip3]", "[conda]")))])


def _line(text: Any) -> str:
    """Text from anywhere in one line of Markdown, in which it starts nothing."""
    flat = " ".join(str(text).split())[:300]
    return escape_control_characters(flat).replace("<", "&lt;").replace("`", "'")


def _fenced(text: str, language: str = "") -> str:
    """Text in a fence that it cannot end."""
    fence = "```"
    while fence in text:
        fence += "`"
    shown = "\n".join(escape_control_characters(line) for line in text.splitlines())
    return f"{fence}{language}\n{shown}\n{fence}"
