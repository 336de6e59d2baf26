"""The index of bugs of PyTorch that are reported upstream, and the rule by which a finding is one of them.

Defines `Bug`, `Evidence`, `bugs` and `known_as`. The data is `upstream.toml`. The rule is strict, since a wrong match
hides a new bug: the property and the layer must agree, and then either the part of the compiler without which both are
right, or the operators, the relation of the accesses and the dtypes. docs/notes/known-bugs.md states it for readers.
This module must not import torch.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from conformance.record.patterns import SETTING, base_operator

DATA = Path(__file__).with_name("upstream.toml")

UNKNOWN = "not in the index"
"""Text for a finding of PyTorch that no entry of the index matches."""

DECISIVE = ("pass", "decomposition")
"""Kinds of a compiler's parts, if a part has one bug. Several bugs disappear without a lowering or a setting."""

RELATIONS = (
    "same",
    "shifted",
    "transposed",
    "broadcast",
    "dtype view",
    "partial overlap",
    "apart",
    "inputs",
    "outside",
)
"""Relations of two accesses to one storage, one of them a write (`program/accesses.py`)."""


@dataclass(frozen=True)
class Evidence:
    """The facts of a finding that decide whether it is a reported bug.

    `layer` and `part` are the culprit (`finding.layer_and_part`), or the target's only layer. `operators` are the base
    names of all operators in the minimized program, `relations` are of `RELATIONS`, and `dtypes` are those of all
    tensors."""

    property: str
    layer: str
    part: str = ""
    operators: Collection[str] = ()
    relations: Collection[str] = ()
    dtypes: Collection[str] = ()
    symptom: str = ""
    """The property of the first difference, if the cause has another one: a view that is a copy shows as a value."""


@dataclass(frozen=True)
class Bug:
    """A reported bug. `targets` can show it; `versions` are torch versions seen to show it.

    `operators` and `dtypes` must all be there, and the `layer` and the `relation`, each as one of the alternatives
    between slashes. `parts` are the parts of the compiler without which the repro is right. `repro` is the code that
    `selftest/repros.py` runs; empty for a bug that is only recognized. `later` is the version of the drawing after
    which the report was collected, so that nothing was drawn for it; 0 for a report that was known before."""

    number: int
    title: str
    layer: str
    property: str
    operators: Sequence[str]
    targets: Sequence[str] = ()
    versions: Sequence[str] = ()
    relation: str = ""
    dtypes: Sequence[str] = ()
    parts: Sequence[str] = ()
    repro: str = ""
    control: str = ""
    later: int = 0

    @functools.cached_property
    def name(self) -> str:
        """The bug as reports name it."""
        return f"pytorch#{self.number}"

    def matches(self, evidence: Evidence) -> str:
        """Return why a finding is this bug, or "".

        A finding's pass or decomposition must be among the parts of a bug that has parts, with the same relation and
        one of the operators: another is another bug. Without a lowering or a setting, many bugs disappear. So all
        operators decide there, and a setting must be the same one. If the same setting and the relation agree too, the
        property may differ, since one wrong view shows as a value, a stride or an error."""
        if evidence.layer not in self.layer.split("/"):
            return ""
        kinds = [part.partition(" ")[0] for part in self.parts]
        kind, same = evidence.part.partition(" ")[0], evidence.part in self.parts
        related = not self.relation or all(_each_in([self.relation], evidence.relations))
        set_alike = same and kind == SETTING.strip() and bool(self.relation)
        if not (self.property in (evidence.property, evidence.symptom) or set_alike):
            return ""
        if kind in DECISIVE and kinds:
            agree = same and related and any(_each_in(self.operators, evidence.operators, base_operator))
            return f"right without the {evidence.part}" if agree else ""
        if kind == SETTING.strip() and not same and (kind in kinds or self.repro):
            return ""  # this setting does not mend the repro
        agree = related and all(_each_in(self.operators, evidence.operators, base_operator))
        agree = agree and all(_each_in(self.dtypes, evidence.dtypes))
        return ", ".join(filter(None, (" ".join(self.operators), self.relation, *self.dtypes))) if agree else ""

    def may_be(self, wrong: str, operators: Collection[str]) -> bool:
        """Return whether the minimized form of a program may be this bug, by its wrong property and its operators. A
        smaller program has fewer operators; the property may differ if a setting decides."""
        has = _each_in(self.operators, operators, base_operator)
        decisive = any(part.partition(" ")[0] in DECISIVE for part in self.parts)
        alike = wrong == self.property or any(part.startswith(SETTING.strip()) for part in self.parts)
        return alike and (any(has) if decisive else all(has))


def _each_in(wanted: Iterable[str], names: Iterable[str], base: Callable[[str], str] = str) -> list[bool]:
    """Whether each of the wanted names, in one of its alternatives between slashes, is among the names."""
    known = {*map(base, names)}
    return [any(base(alternative) in known for alternative in alternatives.split("/")) for alternatives in wanted]


@functools.cache
def bugs() -> tuple[Bug, ...]:
    """Return the bugs of the index, by number."""
    data: Mapping[str, Any] = tomllib.loads(DATA.read_text(encoding="utf-8"))
    known = {field.name for field in fields(Bug)}
    entries = []
    for number, entry in data.items():
        if unknown := entry.keys() - known:
            raise ValueError(f"{DATA.name}: bug {number} has the unknown keys {', '.join(sorted(unknown))}")
        entries.append(Bug(int(number), **entry))
    return tuple(sorted(entries, key=lambda bug: bug.number))


def known_as(evidence: Evidence) -> str:
    """Return the bugs that a finding is, such as `known: pytorch#198101`, or `UNKNOWN`."""
    names = ", ".join(bug.name for bug in bugs() if bug.matches(evidence))
    return f"known: {names}" if names else UNKNOWN
