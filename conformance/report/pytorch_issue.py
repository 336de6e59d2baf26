"""A finding as an issue in PyTorch's own form, and what its maintainers ask for, checked mechanically.

    conformance report --form pytorch-issue docs/findings/zeta-large.toml
    conformance report --form pytorch-issue reports/failures/0123abcd.json

Reports of fuzzers are closed if they ignore the form: a short script, default tolerances, a float64 reference, no
indices of a maximum or minimum (ties are free), `fallback_random` where random numbers occur, an ablation of the
compiler, the versions, and a search for earlier reports. `find_faults` names what a packet lacks. Runs no op.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.record.errors import ReportError
from conformance.record.files import read
from conformance.record.repro import KINDS, UNRANKED
from conformance.report import issue
from conformance.report.rendering import fenced, rendered
from conformance.standalone.script import own_part

FORM = "pytorch-issue"
MOST_LINES = 25
"""Lines of a script that a maintainer reads without scrolling."""

COMPILED = ("torch.compile", "Inductor")
"""Layers whose reports go into the form for torch.compile, which asks for an ablation."""
ABLATION = ("eager", "aot_eager", "inductor")
"""What runs in an ablation: no compiler, and torch's backends, each with all that the one before it does."""
FLOAT64 = "eager in float64"

MEASURED = Path("docs/upstream/pytorch/measured.json")
"""What the scripts of docs/findings/ of a checkout print under other backends and in float64 (`scripts/packets.py`)."""

WORDS = {
    "value": "wrong result",
    "aliasing": "aliasing",
    "missing error": "no error",
    "crash": "segmentation fault",
    "hang": "hangs",
    "metadata": "stride",
    "error": "error",
}
"""Words that reports of each kind of bug have, for a search."""

MOST_ERROR_WORDS = 8
"""Words of an error's text in a search: a longer one has names and numbers that no other report has."""

SEARCHED = "Searched on {date} in stored public issue threads, which GitHub's own search may exceed. Found: {found}."
"""A search for earlier reports, as a finding's file records it."""

SAME_SCRIPT = "Without a compiler and in float64 (`torch.set_default_dtype(torch.float64)`), the same script prints"
"""What a float64 reference is, if a file has no lines of its own for it."""

RANDOM = re.compile(r"\brand(n|int|perm)?(_like)?\(|dropout|bernoulli|multinomial|\.(uniform|normal|exponential)_")
INDICES = re.compile(r"\barg(max|min|sort)\b|\b(max|min|median|mode|topk|sort)\([^)]*\)(\.indices|\[1\])")
TOLERANCES = re.compile(r"\b(allclose|assert_close|isclose)\([^\n]*\b[ra]tol\s*=")


@dataclass(frozen=True)
class Packet:
    """An issue with all that the form asks for.

    `prints` is what the script prints where the bug shows. `ablation` holds what it prints by what runs in place of the
    backend, and `reference` what the lines that `reference_by` names print in float64. `known` says what a search with
    `words` found. `environment` is the output of `torch.utils.collect_env`."""

    title: str
    kind: str
    layer: str
    code: str
    prints: str = ""
    text: str = ""
    expected: str = ""
    got: str = ""
    ablation: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    versions: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    known: str = ""
    environment: str = ""
    reference_by: str = SAME_SCRIPT

    @property
    def compiled(self) -> bool:
        """Whether the report goes into the form for torch.compile."""
        return self.layer in COMPILED

    @property
    def rank(self) -> int:
        """The position of its kind of bug, 0 the worst."""
        return KINDS.index(self.kind) if self.kind in KINDS else UNRANKED


def find_faults(packet: Packet) -> list[str]:
    """Return what a maintainer would ask for or refuse, empty for a packet that can be filed."""
    lines, code = len(packet.code.strip().splitlines()), packet.code
    random, compiles = RANDOM.search(code), "torch.compile" in code
    # Other backends do not know Inductor's option. A finding of a compiler also runs with Inductor, for the ablation.
    inductor = compiles and (packet.compiled or "backend=" not in code)
    claim = f"{packet.title} {packet.text} {code}"
    missing = [name for name in ABLATION if packet.compiled and not packet.ablation.get(name)]
    asked = {
        "there is no script": not code.strip(),
        f"the script has {lines} lines; at most {MOST_LINES}": lines > MOST_LINES,
        "the script has tolerances of its own": bool(TOLERANCES.search(code)),
        "no float64 reference is printed": packet.kind == "value" and not packet.reference,
        # Ties decide no dtype and no stride.
        "the claim is about indices of a maximum or minimum": packet.kind != "metadata" and bool(INDICES.search(claim)),
        "random numbers without fallback_random": bool(random and inductor and "fallback_random" not in code),
        f"the ablation lacks {', '.join(missing)}": bool(missing),
        "no version shows it": not packet.versions,
        "no earlier report was searched for": not (packet.words and packet.known),
        "the answers of both sides are not stated": not (packet.expected or packet.prints),
    }
    return [fault for fault, holds in asked.items() if holds]


def render(packet: Packet) -> str:
    """Return the issue in Markdown, in the order of the form's fields, and below it what is for the person who files
    it."""
    return rendered("pytorch_issue.md.j2", packet=packet, faults=find_faults(packet), float64=FLOAT64)


def of_finding(path: Path, measured: Mapping[str, Any]) -> Packet:
    """Return the packet of a file of docs/findings/. `measured` holds the ablation and the reference by its name.
    Raises ReportError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        script = data.get("scripts", ({"code": "", "prints": ""},))[0]
        kind, operators = data["kind"], data.get("operators", ())
        facts: Mapping[str, Any] = measured.get(path.stem, {})
        ablation = {name: facts[name] for name in ABLATION if name in facts}
        note, _, known = data.get("note", "").replace("\n", " ").partition("Known: ")
        layer = data["layer"].replace("torch CPU", "").strip()
        words = (*operators[:2], *filter(None, [layer]), WORDS.get(kind, ""))
        if searched := data.get("searched"):
            words, known = (searched["words"],), SEARCHED.format(**searched)
        text = "\n\n".join(filter(None, (data.get("summary", ""), note.strip())))
        answers = (data.get("expected", ""), data.get("got", ""))
        reference, by = facts.get(FLOAT64, ""), SAME_SCRIPT
        if own := data.get("reference"):
            by = f"In float64 and with torch alone,\n\n{fenced(own['code'].strip(), 'python')}\n\nprints"
            reference = own["prints"].strip()
        return Packet(
            data["title"], kind, data["layer"], script["code"].strip(), script["prints"].strip(), text, *answers,
            ablation, reference, tuple(data["versions"]), words, known.strip(), reference_by=by,
        )  # fmt: skip
    except FileNotFoundError:
        raise ReportError(f"{path} does not exist; give a file of docs/findings/.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, IndexError) as error:
        raise ReportError(f"{path} is no finding ({error}); give a file of docs/findings/.") from None


def search_words(source: issue.Issue, layer: str) -> tuple[str, ...]:
    """Return the words to search earlier reports of a finding of a run with: its operator, a compiler's layer, and the
    text of its error or the words for what is wrong."""
    if source.wrong in ("error", "not implemented"):
        lines = source.answers[0].target.splitlines() if source.answers else []
        said = " ".join("".join(lines[:1]).split()[:MOST_ERROR_WORDS])
    else:
        said = WORDS.get({"timeout": "hang"}.get(source.wrong, source.wrong), source.wrong)
    compiler = layer if layer in COMPILED else ""
    return tuple(filter(None, (source.operator.removeprefix("aten::"), compiler, said)))


def of_result(finding: str, run: Path) -> Packet:
    """Return the packet of a finding of a run: a JSON file that the fuzzer saved, or the id of a case in `run`. Raises
    ReportError."""
    saved = finding.endswith(".json")
    source = issue.of_program(Path(finding)) if saved else issue.of_case(finding, run)
    data = read(Path(finding)) if saved else {}
    elsewhere = data.get("elsewhere", {}) if isinstance(data, dict) else {}
    first = source.answers[0] if source.answers else issue.Answer("", "", "")
    code = own_part(source.script)
    environment = issue.environment()
    version = re.search(r"PyTorch version: (\S+)", environment)
    layer = "torch.compile" if "torch.compile" in code else source.target
    return Packet(
        source.title,
        "value" if "value" in source.title else "",
        layer,
        code,
        f"torch CPU: {first.cpu}\n{source.target}: {first.target}",
        first.said,
        first.cpu,
        first.target,
        {name: str(elsewhere[name]) for name in ABLATION if name in elsewhere},
        versions=(f"torch {version[1]}",) if version else (),
        words=search_words(source, layer),
        environment=environment,
    )


def fill_form(finding: str, run: Path = issue.RUN) -> tuple[str, list[str]]:
    """Return the issue of a finding in Markdown, and what it lacks. Raises ReportError."""
    if finding.endswith(".toml"):
        beside = Path(finding).resolve().parent.parent / MEASURED.relative_to("docs")  # of the finding's checkout
        packet = of_finding(Path(finding), read(beside) if beside.exists() else {})
    else:
        packet = of_result(finding, run)
    text, home = render(packet), str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text, find_faults(packet)
