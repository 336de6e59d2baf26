"""A finding as a GitHub issue in Markdown, ready to file: `python -m conformance.report issue FINDING`.

An issue holds the facts that a maintainer needs: the script's own part, which runs alone, both observed answers, and
the versions. Text from outside is formatted as code, where Markdown has no effect. The user's home folder is written as
`~`. A separate process asks torch for the environment, since this module only reads files.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from conformance.declare import profile as profiles
from conformance.record import result as model
from conformance.record import simple_values
from conformance.record.errors import ReportError, UserError
from conformance.record.files import read
from conformance.record.finding import Signature, cause_text, shown_by, with_signal_number
from conformance.record.names import nearest, without_features
from conformance.record.result import Failure
from conformance.record.sentences import sentence
from conformance.report.rendering import rendered
from conformance.standalone.script import own_part

RUN = Path("reports/opinfo.json")
"""Default result file for the search of a case's id."""

ESSENTIALS = (
    *("PyTorch version", "CUDA used", "ROCM used", "OS", "GCC version", "Clang version", "Libc version"),
    *("Python version", "Python platform", "Is CUDA available", "CUDA runtime", "GPU models", "Is XPU available"),
)
"""Lines of `torch.utils.collect_env` in an issue. The list of packages follows them."""

ENDED = {"CRASH": "ends the process", "TIMEOUT": "gives no answer in time", "MEMORY": "runs out of memory"}
"""Text about a death by its kind, if the finding does not say how the process ended."""

MODULE = re.compile(r",import=(\w+)|^class:(\w+)\.")
"""Regular expression for the top-level module in a target's spec."""

LONGEST = 1_500
"""Maximum length of an answer in an issue, in characters."""


@dataclass(frozen=True)
class Issue:
    """The content of an issue: title, the target as its user writes it, the script, the answers of both sides, the
    target's spec as loaded, the mark of the script (`result.mark_of`), the operator, and the property that is wrong
    (`finding.PROPERTIES`)."""

    title: str
    target: str
    script: str
    answers: Sequence[Answer]
    loaded: str
    mark: str
    operator: str = ""
    wrong: str = ""


class Answer(NamedTuple):
    """One difference as a sentence, and the answer of each side."""

    said: str
    cpu: str
    target: str


DEATHS = ("crash", "timeout", "memory", "device")
"""Oracles of a process that ended."""


def answer_of(failure: Failure) -> Answer:
    """A failure as an answer. For aliasing and for the end of a process, both answers become sentences, since the
    observed values are not."""
    text = sentence(failure)
    if failure.oracle == "alias":
        cpu, target = (_shared(failure.where, owner) for owner in (failure.expected, failure.actual))
        return Answer(text, cpu, target)
    if failure.oracle in DEATHS:
        return Answer(text, "runs to its end", with_signal_number(failure.actual))
    return Answer(text, failure.expected, failure.actual)


def _shared(name: str, owner: str) -> str:
    if name == owner:
        return f"{name} shares memory with no result or input before it"
    return f"{name} and {owner} share memory"


def issue(finding: str, run: Path = RUN) -> str:
    """The Markdown of a finding: a JSON file that the fuzzer saved, or the id of a case in the file `run`. Raises
    ReportError."""
    source = of_program(Path(finding)) if finding.endswith(".json") else of_case(finding, run)
    own, facts = own_part(source.script), with_backend(environment(), source.loaded)
    text = rendered("issue.md.j2", **vars(source), own_part=own, environment=facts, longest=LONGEST)
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def of_program(path: Path) -> Issue:
    """A finding of the fuzzer, with the script next to its file. Raises ReportError."""
    data = read(path)
    try:
        failures = [simple_values.load(Failure, mismatch) for mismatch in data["mismatches"]]
        answers = [answer_of(failure) for failure in failures]
        loaded, steps = str(data.get("target") or ""), data["program"]["steps"]
        target, kind = str(data.get("identity") or without_features(loaded)), str(data["kind"])
        named = cause_text(data["kind"], data.get("property", ""), data.get("op", "")) or data["signature"]
        headline = f"{answers[0].said} ({named})" if answers else named
        title, died = f"{target or 'a device'}: {headline}", f"a program of {model.counted(len(steps), 'step')}"
        operator = str(data.get("op") or Signature.read(data["signature"], kind).op)
        wrong = str(data.get("property") or (shown_by(failures[0]) if failures else kind.lower()))
        if not answers:
            ended = str(data.get("said") or "") or ENDED.get(kind, f"ends as {kind}")
            answers = [Answer(f"{kind.lower()} in {died}", "runs to its end", with_signal_number(ended))]
    except (KeyError, TypeError, AttributeError):
        raise ReportError(f"{path} is no finding; give a file that conformance.fuzz wrote under failures/.") from None
    script = path.with_suffix(".py")
    try:
        text = script.read_text(encoding="utf-8") if script.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{script} cannot be read ({error}).") from None
    mark = model.mark_of(str(data.get("alone") or ""))
    return Issue(title, target or "target", text, answers, loaded, mark, operator, wrong)


def of_case(name: str, path: Path) -> Issue:
    """A failure of op_db in a run's result file. Raises ReportError; for an unknown id it names similar ids."""
    name = name.partition("#")[0] if "::" in name else name
    run = model.load(path)
    failed = {result.id: result for result in run.results if result.failures}
    if name not in failed:
        raise ReportError(f"{path} has no failure of a case {name!r}{nearest(name, failed) or '.'}")
    failures = failed[name].failures
    target = run.title
    title = f"{target}: {failures[0].call or name}: {sentence(failures[0])} ({name})"
    scripted = failed[name].scripted
    text = scripted.script if scripted else ""
    answers, mark = [*map(answer_of, failures)], failed[name].script_mark
    return Issue(title, target, text, answers, run.target, mark, failed[name].op, shown_by(failures[0]))


def with_backend(facts: str, spec: str) -> str:
    """The versions, with the distributions of the target's module added if they are missing. A module in a plain folder
    has no distribution."""
    profile = None
    with contextlib.suppress(UserError):
        profile = profiles.of(spec)
    module = MODULE.search(profile.spec if profile else spec)
    names = importlib.metadata.packages_distributions().get(module[1] or module[2], ()) if module else ()
    lines = [f"{name}: {importlib.metadata.version(name)}" for name in dict.fromkeys(names)]
    return "\n".join([facts, *(line for line in lines if line.replace(": ", "==") not in facts)])


def environment() -> str:
    """The essential lines of `torch.utils.collect_env`, run in a separate process; if it fails, a sentence that says
    so."""
    words = [sys.executable, "-m", "torch.utils.collect_env"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"python -m torch.utils.collect_env says nothing here ({type(error).__name__})"
    lines = done.stdout.splitlines()
    kept = [line for line in lines if line.startswith(ESSENTIALS)]
    return "\n".join([*kept, *(line for line in lines if line.startswith(("[pip3]", "[conda]")))])
