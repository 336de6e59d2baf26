"""The known bugs as cases: the repros of `record/upstream.toml`, and the scripts of docs/findings/.

Defines `ReproCase`, `load` and `select`. A bug of the index is a program that both sides run. A finding has scripts
with the lines that they print where the bug shows; each script is a case. This module must not import torch.
"""

from __future__ import annotations

import fnmatch
import functools
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.record.errors import UsageError
from conformance.record.names import REPROS, nearest
from conformance.record.repro import KINDS, Repro
from conformance.record.result import Named, Result
from conformance.record.upstream import bugs

FOLDERS = (Path(__file__).parent / "findings", Path(__file__).parents[3] / "docs/findings")
"""Where the files of findings are: in an installed package, and in a checkout."""

MODULES = {
    "liger": "liger_kernel",
    "fla": "fla",
    "bitsandbytes": "bitsandbytes",
    "torchaudio": "torchaudio",
    "torchvision": "torchvision",
}
"""The module of each package that a script may need. Nothing can be done about other needs, such as a CPU."""

OF_PROPERTY = {"not implemented": "error"}
"""The kind of a bug of the index, if its property has another name."""


@dataclass(frozen=True)
class ReproCase(Named):
    """One repro: a bug of the index with the code of its program, or the script of a finding with the lines that it
    `prints` where the bug shows, and the `right` answer in words. `needs` says what a script needs beyond torch."""

    op: str
    repro: Repro
    code: str
    prints: str = ""
    right: str = ""
    needs: str = ""
    dtype: str = ""
    overload: str = ""
    layout: str = REPROS

    @property
    def variant(self) -> str:  # type: ignore[override]
        """The bug's kind."""
        return self.repro.kind

    @property
    def family(self) -> str:
        """The layer of PyTorch that the bug is in."""
        return self.repro.layer

    @property
    def call(self) -> str:  # type: ignore[override]
        """The bug's title."""
        return self.repro.title

    def result(self, outcome: Any, **rest: Any) -> Result:
        """Return a result of this case, which says what is known about the bug."""
        return super().result(outcome, repro=self.repro, **{"reason": self.repro.known, **rest})


@functools.cache
def load() -> tuple[ReproCase, ...]:
    """Return all cases, the worst kind of bug first."""
    found = [*_findings()]
    mended = {issue: case.repro.mended for case in found for issue in case.repro.issues if case.repro.mended}
    return tuple(sorted([*_reported(mended), *found], key=lambda case: (case.repro.rank, case.op)))


def _reported(mended: dict[str, str]) -> Iterator[ReproCase]:
    """Yield the bugs of the index that have a repro. A finding of the same issue may tell when it was mended."""
    for bug in bugs():
        if bug.repro:
            kind, versions = OF_PROPERTY.get(bug.property, bug.property), tuple(f"torch {v}" for v in bug.versions)
            about = Repro(bug.title, kind, bug.layer, (bug.name,), versions, mended.get(bug.name, ""))
            yield ReproCase(bug.name, about, bug.repro.strip())


def _findings() -> Iterator[ReproCase]:
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    for file in sorted(folder.glob("*.toml")):
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        mended = data.get("mended", "") or (f"{data['partly']} in part" if "partly" in data else "")
        issues, versions = (tuple(data.get(name, ())) for name in ("issues", "versions"))
        about = Repro(data["title"].replace("`", ""), data["kind"], data["layer"], issues, versions, mended)
        for number, script in enumerate(data.get("scripts", ()), 1):
            name = file.stem if number == 1 else f"{file.stem}:{number}"
            code, prints = (script[key].strip() for key in ("code", "prints"))
            yield ReproCase(name, about, code, prints, data.get("expected", ""), script.get("needs", ""))


def select(patterns: Iterable[str], kinds: Sequence[str]) -> list[ReproCase]:
    """Return the cases whose name matches a pattern, all without one, of these kinds. Raises UsageError for a pattern
    without a case."""
    patterns = [*patterns]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.op, pattern) for case in load()):
            known = nearest(pattern, {case.op for case in load()})
            raise UsageError(f"no known bug has the name {pattern!r}{known or '; docs/findings.md lists them'}")
    chosen = [case for case in load() if not patterns or any(fnmatch.fnmatchcase(case.op, name) for name in patterns)]
    chosen = [case for case in chosen if case.repro.kind in kinds]
    if not chosen:
        raise UsageError(f"no known bug among those is of the kinds {', '.join(kinds)}; choose from {', '.join(KINDS)}")
    return chosen
