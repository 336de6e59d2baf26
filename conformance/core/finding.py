"""One distinct finding of drawn programs: its cause, the parts of its signature, and the names of what can be wrong.

Defines `Finding`, `property_of` and `severity_of`. The key insight: how a failure is *seen* (the oracle, the layout,
the words of an error) differs from program to program, while its *cause*, the op and the property that is wrong first,
does not; so a finding is named by its cause and lists what it was seen as. This module must not import torch.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

FAIL, FLAKY, INVALID, HARNESS = "FAIL", "FLAKY", "INVALID", "HARNESS"
CRASH, TIMEOUT, MEMORY = "CRASH", "TIMEOUT", "MEMORY"
KINDS = (FAIL, FLAKY, CRASH, TIMEOUT, MEMORY, INVALID)
"""The kinds that the first word of a signature tells."""

ALSO = " (also without the backend)"
"""The end of the title of a finding that PyTorch shows without the backend: the backend's own is another finding."""

MOVE = "the move of the inputs"
"""Where a program goes wrong that fails before its first step."""

SEVERITY = (
    ("crash", "timeout", "memory", "device"),
    ("aliasing",),
    ("value",),
    ("metadata",),
    ("error", "not implemented"),
    ("missing error",),
    ("wording",),
)
"""The properties that can be wrong, the worst first: `memory` is running out of it, `aliasing` also a write outside of
what was to be written, `error` one where none is due. What is in no row comes last."""

PROPERTIES = (*(name for row in SEVERITY for name in row), "kernels")

_OF_ORACLE = {
    **dict.fromkeys(("alias", "storage", "version"), "aliasing"),
    **dict.fromkeys(("structure", "dtype", "shape", "stride", "storage_offset", "contiguity"), "metadata"),
    "grad": "value",
    "message": "wording",
}


def property_of(oracle: str, expected: str, actual: str, detail: str = "") -> str:
    """The property that is wrong where an oracle saw this difference, one of `PROPERTIES` or the oracle's own name."""
    if oracle == "grad" and detail == "requires_grad":
        return "metadata"
    if oracle != "error":
        return _OF_ORACLE.get(oracle, oracle)
    if detail.startswith("not implemented"):
        return "not implemented"
    if expected == "no error":
        return "error"
    return "missing error" if actual == "no error" else "wording"


def severity_of(wrong: str) -> int:
    """The rank of a property, 0 the worst; a fault of the harness itself is looked at first, too."""
    return 0 if wrong == "harness" else next((rank for rank, row in enumerate(SEVERITY) if wrong in row), len(SEVERITY))


@dataclass(frozen=True)
class Finding:
    """One distinct finding of drawn programs: its cause, the parts of its signature, and the programs that showed it.

    The cause is `property` and `op`, of the first wrong step of its smallest program; both are empty where none is
    known. `signature` is what that program was seen as, `signatures` what others were.
    `count` is how many programs showed it, 0 for a declared finding that did not show; `first` the smallest number of a
    drawn one, `saved` the names of saved ones. `program` is the number and `steps` the length of its smallest program.
    `elsewhere` says what becomes of it on each related target, which tells whose bug it is. `layer` is the target
    without the backend under test that is wrong in the same way on each of the programs; empty if there is none.
    `pattern` is its common form with findings of other operators (`core/patterns.py`). `shrunk` is false while its
    program is as it was drawn. `masked` counts the programs with steps behind this difference that could not be judged.
    """

    signature: str
    kind: str = FAIL
    count: int = 1
    first: int | None = None
    program: int | None = None
    steps: int | None = None
    saved: tuple[str, ...] = ()
    oracle: str = ""
    step: str = ""
    layout: str = ""
    error: str = ""
    first_wrong_step: str = ""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    property: str = ""
    op: str = ""
    signatures: tuple[str, ...] = ()
    pattern: str = ""
    shrunk: bool = True
    masked: int = 0
    layer: str = ""
    WRITTEN: ClassVar = ("kind", "count")

    def title(self) -> str:
        """Its cause where one is known, else its signature; and whether it is one without the backend, too."""
        return (cause_text(self.kind, self.property, self.op) or self.signature) + ALSO * bool(self.layer)

    def seen_as(self) -> Iterator[Finding]:
        """It with the parts of each of its signatures, its own first."""
        yield self
        for signature in self.signatures:
            other = from_signature(signature, self.kind)
            parts = {name: getattr(other, name) for name in ("oracle", "step", "layout", "error")}
            yield dataclasses.replace(self, signature=signature, **parts)


def gist(text: str) -> str:
    """The first words of an error's text, without what differs from program to program; operators keep their names."""
    text = re.sub(r"not implemented is never a pass: ", " ", text)
    text = re.sub(r"'\w+::(\w+)[.\w]*'", r" \1 ", text)
    words = re.sub(r"'[^']*'|\"[^\"]*\"|[^A-Za-z_ ]+", " ", text).split()
    return " ".join(words[:9])


def answers(differences: Iterable[Any]) -> frozenset[tuple[Any, ...]]:
    """What mismatches, or failures of a case, say: the oracle, the tensor, the sample, and both answers. Of the text of
    an error only the gist counts, since it may name what differs from run to run."""
    return frozenset(
        (
            *(one.oracle, one.where, getattr(one, "sample", 0), one.expected, one.actual),
            gist(one.detail) if one.oracle == "error" else one.detail,
        )
        for one in differences
    )


def cause_text(kind: str, wrong: str, op: str) -> str:
    """`aliasing / as_strided`, with `flaky / ` before it for a failure that did not come again; nothing without one."""
    return " / ".join(filter(None, ("flaky" if kind == FLAKY else "", wrong, op))) if wrong else ""


def with_signal_number(said: str) -> str:
    """What is said of a process's end, with the number of the signal that it names: `SIGSEGV (signal 11)`."""

    def numbered(found: re.Match[str]) -> str:
        number = getattr(signal, found[0], None)
        return found[0] if number is None else f"{found[0]} (signal {int(number)})"

    return re.sub(r"\bSIG[A-Z0-9]+\b(?! \(signal)", numbered, said)


def from_signature(signature: str, kind: str = "") -> Finding:
    """A finding with the parts of its signature's text, as `verdict.Signature` writes it; without a kind, with the one
    that the text tells."""
    head, _, rest = signature.partition(" / ")
    kind = kind or (head.upper() if head.upper() in KINDS else FAIL)
    oracle, *words = (rest if head == "flaky" else signature).split(" / ")
    if kind == INVALID:
        return Finding(signature, kind, oracle="harness", error=rest)
    if oracle == "error":
        step = words[0] if len(words) > 1 else ""
        return Finding(signature, kind, oracle=oracle, step=step, error="".join(words[-1:]))
    step, layout = (*words, "", "")[:2]
    return Finding(signature, kind, oracle=oracle, step=step, layout=layout)


def from_title(text: str) -> Finding:
    """A finding of this title, which may be a signature, or a cause as `cause_text` writes it."""
    text = text.removesuffix(ALSO)
    made, words = from_signature(text), text.removeprefix("flaky / ").split(" / ")
    is_cause = len(words) == 2 and words[0] in PROPERTIES
    return dataclasses.replace(made, property=words[0], op=words[1]) if is_cause else made
