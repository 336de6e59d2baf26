"""A finding as an issue that is ready to be filed, in Markdown: `python -m conformance.report issue FINDING`.

The key insight: an issue holds what a maintainer needs to answer it and no more: the script's own part, which runs
alone, both answers as they were observed, and the versions. Whatever comes from outside stands in code, in which
Markdown means nothing, and no path of the user's home is told. The environment is asked of torch in a process of its
own, since this one only reads files.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.core import plain
from conformance.core import result as model
from conformance.core.errors import ReportError
from conformance.core.files import read
from conformance.core.finding import cause_text
from conformance.core.names import nearest
from conformance.core.result import Failure
from conformance.core.script import own_part
from conformance.report.rendering import rendered

RUN = Path("reports/opinfo.json")
"""Where a case's id is looked up."""

ESSENTIALS = (
    *("PyTorch version", "CUDA used", "ROCM used", "OS", "GCC version", "Clang version", "Libc version"),
    *("Python version", "Python platform", "Is CUDA available", "CUDA runtime", "GPU models", "Is XPU available"),
)
"""The lines of `torch.utils.collect_env` that an issue repeats; the list of packages follows them."""

LONGEST = 1_500
"""Characters of an answer that an issue shows."""


@dataclass(frozen=True)
class Finding:
    """What an issue is made of: its title, the target, the script that shows it, and what was observed."""

    title: str
    target: str
    script: str
    answers: Sequence[Failure]


def issue(finding: str, run: Path = RUN) -> str:
    """The Markdown of a finding: a JSON file that the fuzzer saved, or a case's id in the file `run`. Raises
    ReportError."""
    found = of_program(Path(finding)) if finding.endswith(".json") else of_case(finding, run)
    own, said = own_part(found.script), environment()
    text = rendered("issue.md.j2", **vars(found), own_part=own, environment=said, longest=LONGEST)
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def of_program(path: Path) -> Finding:
    """A finding of the fuzzer, with the script that lies beside it. Raises ReportError."""
    data = read(path)
    try:
        answers: list[Failure] = [plain.load(Failure, mismatch) for mismatch in data["mismatches"]]
        target, steps = str(data.get("target") or ""), data["program"]["steps"]
        named = cause_text(data["kind"], data.get("property", ""), data.get("op", "")) or data["signature"]
        title, died = f"{target or 'a device'}: {named}", f"a program of {len(steps)} steps"
        answers = answers or [Failure("error", "the whole run", "an answer", data["kind"], died)]
    except (KeyError, TypeError, AttributeError):
        raise ReportError(f"{path} is no finding; give a file that conformance.fuzz wrote under failures/.") from None
    script = path.with_suffix(".py")
    try:
        text = script.read_text(encoding="utf-8") if script.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{script} cannot be read ({error}).") from None
    return Finding(title, target or "target", text, answers)


def of_case(name: str, path: Path) -> Finding:
    """A failure of op_db in a run's result file. Raises ReportError, for an unknown id with the nearest ones."""
    name = name.partition("#")[0] if "::" in name else name
    run = model.load(path)
    failed = {result.id: result for result in run.results if result.failures}
    if name not in failed:
        raise ReportError(f"{path} has no failure of a case {name!r}{nearest(name, failed) or '.'}")
    failures = failed[name].failures
    title = f"{run.target}: {', '.join(failed[name].oracles)} of {failures[0].call or name} ({name})"
    return Finding(title, run.target, next((one.script for one in failures if one.script), ""), failures)


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
