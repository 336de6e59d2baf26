"""Generate the issues of docs/upstream/NAME/ from docs/findings/ and docs/backends/: one for each unreported bug.

    python -m scripts.packets                     write the issues, lists, and their part of docs/findings.md
    python -m scripts.packets --measure [NAME]    run the scripts under other backends and in float64, then write
    python -m scripts.packets --check             exit code 1 when a file is stale

A finding of PyTorch becomes an issue if the newest release shows it, and a finding of a package if its file names no
issue; `backend_packets.py` makes those of published backends. `conformance/report/pytorch_issue.py` has the form and
the checks. docs/upstream/pytorch/measured.json and docs/backends/measured.json keep what the scripts print, since
Inductor compiles for a minute. The table `searched` of a file records a search for earlier reports. A person files an
issue, and adds its number to the finding. The README of each folder says how many pass the checks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.report import pytorch_issue as packets
from conformance.report.pytorch_issue import ABLATION, COMPILED, FLOAT64, MEASURED, Packet
from conformance.run.script_process import Forks, run_alone
from scripts import backend_packets, findings
from scripts.findings import Finding
from scripts.pages import ROOT, PageError, Part, csv_text, write

FOLDER = Path("docs/upstream")
PYTORCH = "pytorch"
PART = Part("docs/findings.md", "packets")
BACKENDS = Part("docs/backends.md", "packets")
README = "README.md"
UNSEARCHED = {"no earlier report was searched for": "a search for earlier reports"}
"""What no script can add to an issue, in the words of the page."""
LONGEST = 300.0
"""Time limit of a script in seconds. With a cold cache, Inductor compiles for a minute."""

RUN = """import json
import torch
CODE, COMPILED, FLOAT64 = {code!r}, {compiled!r}, {float64!r}
if not COMPILED:
    torch.compile = lambda model=None, **options: model if model is not None else (lambda function: function)
if FLOAT64:
    torch.set_default_dtype(torch.float64)
from conformance.standalone.repro import output_of
text, error = output_of(CODE, COMPILED, {{}}, "cpu")
print(json.dumps(text.strip() + ("\\n" + error if error else "")))
"""
"""A script that runs the script of a finding with another backend, with none, or in float64."""


def folder_of(finding: Finding) -> str:
    """Return the folder of a finding's issue: that of PyTorch, or of a package."""
    return folder_of_layer(finding.layer) if finding.layer in findings.PACKAGES else PYTORCH


def folder_of_layer(layer: str) -> str:
    """Return the folder of a package."""
    return re.sub(r"\W+", "-", layer.lower())


def unreported(every: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings that become issues."""
    release = findings.newest(every)
    for finding in every:
        new = findings.status(finding) == "not in the index" and (release in finding.versions or bool(finding.partly))
        if new or (finding.layer in findings.PACKAGES and not finding.issues):
            yield finding


def printed(code: str, compiled: str, float64: bool, forks: Forks) -> str:
    """Return what a script prints with a backend, or without a compiler if that is empty."""
    ended = run_alone(RUN.format(code=code, compiled=compiled, float64=float64), LONGEST, forks=forks)
    last = ended.last[-1] if ended.last else ""
    if ended.code == 0 and last.startswith('"'):
        return str(json.loads(last))
    return f"no answer in {LONGEST:g} s" if ended.code is None else f"the process ends with exit code {ended.code}"


def measure_finding(finding: Finding, forks: Forks) -> dict[str, str]:
    """Return what the script of a finding prints in an ablation, if it compiles, and in float64, if values are
    wrong."""
    code, result = finding.scripts[0].code, dict[str, str]()
    if finding.layer in COMPILED:
        result = {name: printed(code, "" if name == "eager" else name, False, forks) for name in ABLATION}
    if finding.kind == "value":
        result[FLOAT64] = printed(code, "", True, forks)
    return result


def in_order(every: Sequence[Finding], root: Path) -> dict[str, list[tuple[str, Packet]]]:
    """Return the issues of each folder with the names of their files, the worst kind of bug first."""
    measured = json.loads((root / MEASURED).read_text(encoding="utf-8")) if (root / MEASURED).exists() else {}
    result = dict[str, list[tuple[str, Packet]]]()
    for finding in unreported(every):
        packet = packets.of_finding(root / findings.FOLDER / f"{finding.name}.toml", measured)
        result.setdefault(folder_of(finding), []).append((f"{finding.name}.md", packet))
    for path in backend_files(root):
        for file, packet in backend_packets.packets_of(path):
            result.setdefault(backend_packets.folder_of(packet), []).append((file, packet))
    return {
        name: sorted(rows, key=lambda row: (row[1].rank, row[0].removesuffix(".md"))) for name, rows in result.items()
    }


def backend_files(root: Path) -> list[Path]:
    """Return the files with the claims about published backends."""
    return sorted((root / backend_packets.FOLDER).glob("*.toml"))


def issue_texts(folders: Mapping[str, Sequence[tuple[str, Packet]]]) -> dict[Path, str]:
    """Return the text of each issue, and of each folder's list and README, by its path."""
    result: dict[Path, str] = {}
    for folder, rows in folders.items():
        result |= {FOLDER / folder / file: packets.render(packet) for file, packet in rows}
        result[FOLDER / folder / "index.csv"] = csv_text(_table(rows))
        said = (
            f"`index.csv` lists the issues of this folder, the worst first. {passing([packet for _, packet in rows])}"
        )
        result[FOLDER / folder / README] = f"# {folder}\n\n{said} `python -m scripts.packets` writes the folder.\n"
    return result


def passing(chosen: Sequence[Packet]) -> str:
    """Return the sentence that says how many issues pass the checks of the form, and what the others lack."""
    lacking = [faults for packet in chosen if (faults := packets.find_faults(packet))]
    counts = Counter(UNSEARCHED.get(fault, fault) for faults in lacking for fault in faults)
    said = "".join(f"; {count} lack {what}" if what in UNSEARCHED.values() else f"; {count}: {what}"
                   for what, count in counts.most_common())  # fmt: skip
    number = len(chosen) - len(lacking)
    return f"{number} of {len(chosen)} {'passes' if number == 1 else 'pass'} the checker of the form{said}."


def page_texts(folders: Mapping[str, Sequence[tuple[str, Packet]]], root: Path) -> dict[Part, str]:
    """Return the generated parts of pages: the issues of PyTorch and of packages, and those of backends."""
    of_package, of_backend = list[Packet](), list[Packet]()
    for name, rows in folders.items():
        known = name in map(folder_of_layer, findings.PACKAGES)
        (of_package if known else of_backend).extend(packet for _, packet in rows if name != PYTORCH)
    searches = [search for path in backend_files(root) for search in backend_packets.searches_of(path).values()]
    reported = [", ".join(map(issue_link, search["issues"])) for search in searches if "issues" in search]
    torch = [packet for _, packet in folders.get(PYTORCH, ())]
    return {
        PART: f"`{FOLDER}/{PYTORCH}/` has {len(torch)} of the findings below, which no issue reports, in PyTorch's "
        f"form, the worst first (`index.csv`). {passing(torch)} The folders of packages have {len(of_package)} more: "
        f"{passing(of_package)}",
        BACKENDS: f"`{FOLDER}/NAME/` has {len(of_backend)} of the bugs as issues for the backend's own tracker, the "
        f"worst first (`index.csv`). {passing(of_backend)} {len(reported)} more are reported: {'; '.join(reported)}.",
    }


def issue_link(issue: str) -> str:
    """Return a Markdown link to `owner/name#number`."""
    return f"[{issue}](https://github.com/{issue.replace('#', '/issues/')})"


def _table(rows: Sequence[tuple[str, Packet]]) -> list[list[str]]:
    """Return the rows of a list of issues, the worst first."""
    table = [["rank", "kind", "layer", "title", "file", "lacks"]]
    for rank, (file, packet) in enumerate(rows, 1):
        faults = "; ".join(packets.find_faults(packet))
        table.append([str(rank), packet.kind, packet.layer, packet.title, file, faults])
    return table


def stale(wanted: Mapping[Path, str], root: Path) -> list[Path]:
    """Return the paths whose text differs, and files of issues that are not wanted any more."""
    differing = [path for path, text in wanted.items() if not (root / path).is_file() or
                 (root / path).read_text(encoding="utf-8") != text]  # fmt: skip
    there = {path.relative_to(root) for path in (root / FOLDER).glob("*/*.md")}
    return [*differing, *sorted(there - wanted.keys())]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the issues. Returns 1 for stale ones, 2 for a finding that cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="report stale files, and write nothing")
    parser.add_argument(
        "--measure", nargs="*", metavar="NAME", help="run the scripts of these findings or claims, or all"
    )
    options = parser.parse_args(arguments)
    try:
        every = findings.read_all(root / findings.FOLDER)
        if options.measure is not None:
            _measure_all([*unreported(every)], options.measure, root)
        folders = in_order(every, root)
        wanted, pages = issue_texts(folders), page_texts(folders, root)
        if options.check:
            for path in stale(wanted, root):
                print(f"{path} is stale; run python -m scripts.packets", file=sys.stderr)
            old = [part for part, said in pages.items() if part.renew(said, check=True, root=root)]
            return int(bool(old or stale(wanted, root)))
        for path in stale(wanted, root):
            if path in wanted:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                write(root / path, wanted[path])
            else:
                (root / path).unlink()
        for part, said in pages.items():
            part.renew(said, root=root)
    except (OSError, PageError, findings.FindingsError) as error:
        print(f"packets: {error}", file=sys.stderr)
        return 2
    return 0


def _measure_all(chosen: Sequence[Finding], names: Sequence[str], root: Path) -> None:
    """Run the scripts, and keep what they print after each one."""
    path = root / MEASURED
    path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not names:
        known = {name: facts for name, facts in known.items() if name in {finding.name for finding in chosen}}
    with contextlib.closing(Forks(("torch._dynamo",))) as forks:
        for finding in chosen:
            runnable = folder_of(finding) == PYTORCH and (not names or finding.name in names)
            if runnable and (facts := measure_finding(finding, forks)):
                known[finding.name] = facts
                write(path, json.dumps(dict(sorted(known.items())), indent=1) + "\n")
                print(finding.name, flush=True)
        references = dict[str, dict[str, str]]()
        kept = root / backend_packets.MEASURED
        if names and kept.exists():
            references = json.loads(kept.read_text(encoding="utf-8"))
        for file in backend_files(root):
            for issue, packet in backend_packets.packets_of(file):
                if packet.kind == "value" and (not names or issue.removesuffix(".md") in names):
                    said = printed(backend_packets.reference_script(packet.code), "", True, forks)
                    references.setdefault(file.stem, {})[issue.removesuffix(".md")] = said
        write(kept, json.dumps(references, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
