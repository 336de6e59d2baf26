"""Generate the list of docs/findings.md, and its table of counts, from the files of docs/findings/, one per finding.

    python -m scripts.findings            write both
    python -m scripts.findings --check    exit code 1 when one of them is stale

A file has a title, the versions that show the finding, its layer, its kind, the operators in it, both answers, and its
scripts with the lines that they print. `tests/test_findings.py` runs every script. To add a finding, copy a file, and
run this script.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.pages import ROOT, PageError, Part, csv_text, write

PART = Part("docs/findings.md", "findings")
FOLDER = Path("docs/findings")
COUNTS = FOLDER / "by_layer.csv"
"""Number of findings by layer and kind."""
MENDED = FOLDER / "mended.csv"
"""Findings of PyTorch that a later release does not show, or shows in part."""
LAYERS = (
    "torch.compile",
    "Inductor",
    "functionalize",
    "vmap",
    "export",
    "meta and fake tensors",
    "decompositions",
    "torch CPU",
    "tinygrad",
    "tinygrad's PyTorch backend",
)
PACKAGES = {
    "torchvision": "pytorch/vision",
    "torchaudio": "pytorch/audio",
    "bitsandbytes": "bitsandbytes-foundation/bitsandbytes",
    "Liger Kernel": "linkedin/Liger-Kernel",
    "flash-linear-attention": "fla-org/flash-linear-attention",
}
"""GitHub repository of each package with operators. `scripts.packages` lists the findings of these layers."""

KINDS = ("crash", "hang", "value", "aliasing", "metadata", "missing error", "error")
TRACKERS = {"pytorch": "pytorch/pytorch", "pytorch/functorch": "pytorch/functorch"}
TRACKERS |= {repository: repository for repository in PACKAGES.values()}
"""GitHub repository of each prefix of an issue, such as `pytorch#133512`."""
SEARCHED = ("words", "date", "found")
"""What a file says about a search for earlier reports."""


class FindingsError(Exception):
    """A file that is no finding; the text is one sentence."""


@dataclass(frozen=True)
class Script:
    """Program that shows a finding: its lines of output, and its needs if torch or tinygrad alone cannot run it. If a
    kernel of some CPUs is at fault, `elsewhere` has the lines of all others."""

    code: str
    prints: str
    elsewhere: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Finding:
    """One bug, with both answers in Markdown; `note`, `found_by`, `searched` and `reference` are in its file only.
    `mended` is the first release of torch that gives the right answers, and `partly` the first that gives some of them.
    `searched` has the words, the date and the result of a search for earlier reports. `reference` is a script that
    computes the right answer in float64 with torch alone, where the finding's own needs a package."""

    name: str
    title: str
    versions: Sequence[str]
    layer: str
    kind: str
    operators: Sequence[str]
    summary: str = ""
    expected: str = ""
    got: str = ""
    note: str = ""
    issues: Sequence[str] = ()
    found_by: Sequence[str] = ()
    searched: Mapping[str, str] = field(default_factory=dict)
    mended: str = ""
    partly: str = ""
    scripts: Sequence[Script] = field(default_factory=list)
    reference: Script | None = None

    @property
    def anchor(self) -> str:
        """Anchor of the heading, which GitHub and Sphinx both derive from the title."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


def read(path: Path) -> Finding:
    """Return the finding of a file. Raises FindingsError if a key or a value is unknown or missing."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        scripts = [Script(**script) for script in data.pop("scripts", ())]
        reference = Script(**data.pop("reference")) if "reference" in data else None
        finding = Finding(path.stem, **data, scripts=scripts, reference=reference)
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise FindingsError(f"{path.name} is no finding: {error}") from None
    if finding.layer not in (*LAYERS, *PACKAGES):
        layers = ", ".join((*LAYERS, *PACKAGES))
        raise FindingsError(f"{path.name} has the layer {finding.layer!r}; choose one of {layers}")
    if finding.kind not in KINDS:
        raise FindingsError(f"{path.name} has the kind {finding.kind!r}; choose one of {', '.join(KINDS)}")
    if [issue for issue in finding.issues if issue.partition("#")[0] not in TRACKERS]:
        raise FindingsError(f"{path.name} has the issues {finding.issues}; an issue is pytorch#NUMBER")
    if finding.searched and {*finding.searched} != {*SEARCHED}:
        raise FindingsError(f"{path.name} has a search with {', '.join(finding.searched)}; give {', '.join(SEARCHED)}")
    return finding


def read_all(folder: Path) -> list[Finding]:
    """Return the findings of a folder, by layer and kind. Raises FindingsError if two titles have one anchor."""
    every = [read(path) for path in sorted(folder.glob("*.toml"))]
    anchors: dict[str, str] = {}
    for finding in every:
        if (other := anchors.setdefault(finding.anchor, finding.name)) != finding.name:
            raise FindingsError(f"{finding.name}.toml has the title of {other}.toml; give it another one")
    order = [*LAYERS, *PACKAGES]
    return sorted(every, key=lambda finding: (order.index(finding.layer), KINDS.index(finding.kind), finding.name))


def links(finding: Finding) -> str:
    """Markdown links to the issues of a finding."""
    texts = []
    for issue in finding.issues:
        tracker, _, number = issue.partition("#")
        texts.append(f"[#{number}](https://github.com/{TRACKERS[tracker]}/issues/{number})")
    return ", ".join(texts)


def status(finding: Finding) -> str:
    """Return `known` for a finding with an issue upstream, `not in the index`, or "" for another project."""
    if not finding.layer.startswith("tinygrad") and finding.layer not in PACKAGES:
        return "known" if finding.issues else "not in the index"
    return ""


def entry(finding: Finding) -> str:
    """Paragraph of a finding: heading, summary, both answers, and links. The wrong answer links the data file.

    If a call raises, its answers are in the finding's file only: the title and the kind say what happens."""
    file = f"({FOLDER.name}/{finding.name}.toml)"
    shown = finding.expected and finding.kind not in ("crash", "error", "missing error")
    answers = f"Expected {finding.expected}, [got {finding.got}]{file}." if shown else ""
    script = "" if shown else f"[{'Script' if finding.scripts else 'Notes'}]{file}."
    issues = f"{links(finding)}." if finding.issues else ""
    parts = finding.summary, answers, script, issues
    return f"### {finding.title}\n\n" + " ".join(part for part in parts if part)


def section(layer: str, findings: Sequence[Finding]) -> str:
    """Section of a layer: its findings."""
    title = layer[0].upper() + layer[1:] if not layer.startswith("torch.") else layer
    return "\n\n".join([f"## {title}", *map(entry, findings)])


def by_layer(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """The findings of each layer of `LAYERS`. Another table has the findings of packages."""
    return {layer: [finding for finding in findings if finding.layer == layer] for layer in LAYERS}


def counted(findings: Sequence[Finding]) -> str:
    """CSV table with the number of findings by layer and kind."""
    rows, layers = [["layer", *KINDS, "all"]], by_layer(findings)
    for layer, of in [*layers.items(), ("all", [finding for each in layers.values() for finding in each])]:
        counts = [sum(finding.kind == kind for finding in of) for kind in KINDS]
        rows.append([layer, *(str(count or "") for count in counts), str(len(of))])
    return csv_text(rows)


def mended(findings: Sequence[Finding]) -> str:
    """CSV table of the findings that a later release mends, by release."""
    rows = [(finding.mended or finding.partly, bool(finding.partly), finding) for finding in findings]
    rows = sorted((row for row in rows if row[0]), key=lambda row: row[:2])
    cells = (
        [f"[{of.title}]({FOLDER.name}/{of.name}.toml)", links(of), release + " in part" * part]
        for release, part, of in rows
    )
    return csv_text([["finding", "issue", "right from"], *cells])


def newest(findings: Sequence[Finding]) -> str:
    """The newest release of torch that any finding names."""
    releases = {version for finding in findings for version in finding.versions if version.startswith("torch ")}
    return max(releases, key=lambda release: [int(part) for part in release.split()[1].split(".")])


def listed(findings: Sequence[Finding]) -> str:
    """Generated part of the page: a sentence about upstream, and a section for each layer."""
    findings = [finding for finding in findings if finding.layer in LAYERS]
    named = sum(status(finding) == "known" for finding in findings)
    new = [finding for finding in findings if status(finding) == "not in the index"]
    release = newest(findings)
    still = sum(release in finding.versions or bool(finding.partly) for finding in new)
    upstream = (
        f"{named} findings of PyTorch have an issue upstream. {len(new)} are not in the index of issues; {still} of "
        f"them show on {release} too."
    )
    return "\n\n".join([upstream, *(section(layer, of) for layer, of in by_layer(findings).items() if of)])


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the list. Returns 1 for a stale page, 2 for a file that is no finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="report a stale page, and write nothing")
    options = parser.parse_args(arguments)
    try:
        findings = read_all(root / FOLDER)
        for path, table in ((COUNTS, counted(findings)), (MENDED, mended(findings))):
            if not options.check:
                write(root / path, table)
            elif not (root / path).exists() or (root / path).read_text(encoding="utf-8") != table:
                print(f"{path} is stale; run python -m scripts.findings", file=sys.stderr)
                return 1
        return PART.renew(listed(findings), options.check, root)
    except (OSError, PageError, FindingsError) as error:
        print(f"findings: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
