"""A known bug of PyTorch as a row of a report: what it is, where it is reported, and whether a target shows it.

Defines `Repro`. The rows come from the index of reported bugs and from docs/findings/; `conformance repros` runs their
code. This module must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

KINDS = ("value", "aliasing", "missing error", "crash", "hang", "metadata", "error")
"""What a bug does, the worst first: a wrong value that nobody notices, before a crash that everybody notices."""

UNRANKED = len(KINDS)

VERDICTS = {"XFAIL": "shown as declared", "PASS": "not shown", "SKIP": "cannot run"}
"""What an outcome says about a bug; any other one says that it is shown."""
SHOWN = "shown"


@dataclass(frozen=True)
class Repro:
    """A bug whose repro ran. `versions` are the releases that are known to show it, `mended` the first one that does
    not, if any, and `issues` are its reports, such as `pytorch#198101`."""

    title: str
    kind: str
    layer: str
    issues: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    mended: str = ""
    WRITTEN: ClassVar = ("title", "kind", "layer")

    @property
    def rank(self) -> int:
        """The position of the bug's kind in `KINDS`, 0 the worst."""
        return KINDS.index(self.kind) if self.kind in KINDS else UNRANKED

    @property
    def known(self) -> str:
        """What is known about the bug, in words."""
        shown = f"shown by {', '.join(self.versions)}" if self.versions else ""
        mended = f"mended in {self.mended}" if self.mended else ""
        return "; ".join(filter(None, (", ".join(self.issues) or "no issue", shown, mended)))
