"""One distinct finding of drawn programs: its cause, its signatures, and the properties that can be wrong.

Defines `Finding`, `property_of` and `severity_of`. The symptom of a failure (the oracle, the layout, the text of an
error) differs from program to program. Its *cause*, the op and the property that is wrong first, does not. A finding is
therefore named by its cause and lists the signatures of its symptoms. This module must not import torch.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from conformance.record.names import MEASURED, METADATA

FAIL, FLAKY, INVALID, HARNESS = "FAIL", "FLAKY", "INVALID", "HARNESS"
CRASH, TIMEOUT, MEMORY = "CRASH", "TIMEOUT", "MEMORY"
KINDS = (FAIL, FLAKY, CRASH, TIMEOUT, MEMORY, INVALID)
"""The kinds of failure. The first word of a signature gives the kind."""

ALSO = " (also without the backend)"
"""Suffix of the title of a finding that PyTorch also shows without the backend. The backend's own finding is a
different one."""

MOVE = "the move of the inputs"
"""The failing step of a program that fails before its first step."""

NO_PROGRAM = STARTING, DRAWING = "starting", "drawing, in torch CPU"
"""The phases in which a worker has no program yet. No script can repeat them."""

ON_CPU, ON_TARGET = "torch CPU, not the target", "the target"
"""The two sides of a comparison: a call may end the process on either."""

TOGETHER = "several calls together"
"""The phase of several calls in one function. If the process ends in this phase, no single call is to blame."""

SEVERITY = (
    ("crash", "timeout", "memory", "device"),
    ("aliasing",),
    ("value",),
    ("metadata",),
    ("error", "not implemented"),
    ("missing error",),
    ("wording",),
)
"""The properties that can be wrong, the worst first. `memory` means running out of memory. `aliasing` includes a write
outside the region that the step should write. `error` is an error where torch CPU raises none. Properties in no row
come last."""

PROPERTIES = (*(name for row in SEVERITY for name in row), *MEASURED)

_OF_ORACLE = {
    **dict.fromkeys(("alias", "storage", "version"), "aliasing"),
    **dict.fromkeys(("structure", *METADATA), "metadata"),
    "grad": "value",
    "message": "wording",
}


def property_of(oracle: str, expected: str, actual: str, detail: str = "") -> str:
    """Return the property that is wrong: one of `PROPERTIES`, or the oracle's own name. The arguments describe the
    mismatch."""
    if oracle == "grad" and detail == "requires_grad":
        return "metadata"
    if oracle != "error":
        return _OF_ORACLE.get(oracle, oracle)
    if detail.startswith("not implemented"):
        return "not implemented"
    if expected == "no error":
        return "error"
    return "missing error" if actual == "no error" else "wording"


def shown_by(value: Any) -> str:
    """Return the property that a mismatch, or its failure in a result, shows to be wrong."""
    return property_of(value.oracle, value.expected, value.actual, value.detail)


def severity_of(wrong: str) -> int:
    """Return the rank of a property, 0 the worst. A fault of the harness itself also has rank 0."""
    return 0 if wrong == "harness" else next((rank for rank, row in enumerate(SEVERITY) if wrong in row), len(SEVERITY))


@dataclass(frozen=True)
class Signature:
    """Key of failures that are probably one bug: the oracle at the first bad step, its op, and its layout class.

    For an error, the key is the oracle with the error's type and text, without numbers and names: these identify the
    cause better than the step, except for a recorded call, whose operator is the cause. If the failure shows only
    without observations between steps, the key has the family of the step, which is the last write."""

    oracle: str
    op: str = ""
    layout: str = ""
    error: str = ""
    relation: str = ""

    def __str__(self) -> str:
        parts = (self.oracle, self.op, self.layout, self.error, self.relation)
        return " / ".join(part for part in parts if part)

    @classmethod
    def read(cls, text: str, kind: str) -> Signature:
        """Return the signature with this text, of a finding of this kind. A relation is not read, since nothing in the
        text tells it from a layout."""
        head, _, rest = text.partition(" / ")
        if kind == INVALID:
            return cls("harness", error=rest)
        oracle, *words = (rest if head == "flaky" else text).split(" / ")
        if oracle == "error":
            return cls(oracle, words[0] if len(words) > 1 else "", error="".join(words[-1:]))
        return cls(oracle, *words[:2])


@dataclass(frozen=True)
class Finding:
    """One distinct finding of drawn programs: its cause, its signatures, and the programs that showed it.

    In a running campaign it also holds its smallest program (`run/failing_program.py`); these are the fields that a
    result file keeps. Findings with equal titles are one finding.

    The cause is `property` and `op`, from the first wrong step of the smallest program. Both are empty if the cause is
    unknown. `signature` is the signature of the smallest program; `signatures` belong to the other programs. `count` is
    the number of programs that showed the finding: 0 for a declared finding that did not show, and for a part of the
    target that is not as its profile says. `first` is the smallest number of a drawn program, and `saved` are the names
    of saved programs. `number` is that of the smallest program and `steps` its length. `elsewhere` gives the outcome on
    each sibling target, which tells whose bug it is.
    `layer` is the target without the backend under test that fails in the same way on each of the programs; empty if
    there is none. `pattern` is the form that the finding shares with findings of other operators (`patterns.py`).
    `shrunk` is false while the program is not minimized. `masked` counts the programs in which this difference hides
    later steps from the judge. `culprit` is the operator of a device, or the layer and part of a compiler, without
    which the smallest program is right. `upstream` names the reported bugs of PyTorch that the finding is, or says that
    the index has none (`upstream.py`); empty for a target that is not PyTorch. `seconds` is the time from the begin of
    the campaign to the first program that showed it; None if no campaign found it.
    """

    signature: str
    kind: str = FAIL
    number: int | None = None
    property: str = ""
    op: str = ""
    count: int = 1
    first: int | None = None
    saved: tuple[str, ...] = ()
    steps: int | None = None
    first_wrong_step: str = ""
    signatures: tuple[str, ...] = ()
    pattern: str = ""
    shrunk: bool = True
    masked: int = 0
    layer: str = ""
    culprit: str = ""
    upstream: str = ""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = field(default=None, compare=False)
    WRITTEN: ClassVar = ("kind", "count")

    @functools.cached_property
    def parts(self) -> Signature:
        """The parts of the signature."""
        return Signature.read(self.signature, self.kind)

    def cause(self) -> str:
        """Return the cause, with `ALSO` appended for a finding without the backend; "" if it is unknown."""
        cause = cause_text(self.kind, self.property, self.op)
        return cause + ALSO * bool(self.layer and cause)

    def title(self) -> str:
        """Return the cause if known, else the signature."""
        return self.cause() or self.signature + ALSO * bool(self.layer)

    def origin(self) -> str:
        """Return the culprit, the reported bugs and the time to the first program as one line; empty if none is
        known."""
        after = "" if self.seconds is None else f"found after {self.seconds:.0f} s"
        names = f"culprit: {self.culprit}" * bool(self.culprit), f"upstream: {self.upstream}" * bool(self.upstream)
        return "; ".join(filter(None, (*names, after)))

    def seen_as(self) -> Iterator[Finding]:
        """Yield this finding with each of its signatures, its own first."""
        yield self
        for signature in self.signatures:
            yield dataclasses.replace(self, signature=signature)


def gist(text: str) -> str:
    """Return the first nine words of an error's text without quoted parts and numbers. Operators keep their names."""
    text = re.sub(r"not implemented is never a pass: ", " ", text)
    text = re.sub(r"'\w+::(\w+)[.\w]*'", r" \1 ", text)
    words = re.sub(r"'[^']*'|‘[^’]*’|\"[^\"]*\"|[^A-Za-z_ ]", " ", text).split()
    return " ".join(words[:9])


def answers(differences: Iterable[Any]) -> frozenset[tuple[Any, ...]]:
    """Return the answers of mismatches or of a case's failures: oracle, tensor, sample, expected, actual, and detail.
    For an error, the detail is reduced to its gist, since the text may differ from run to run."""
    return frozenset(
        (
            *(
                difference.oracle,
                difference.where,
                getattr(difference, "sample", 0),
                difference.expected,
                difference.actual,
            ),
            gist(difference.detail) if difference.oracle == "error" else difference.detail,
        )
        for difference in differences
    )


def cause_text(kind: str, wrong: str, op: str) -> str:
    """Return the cause as text, such as `aliasing / as_strided`, or "" if `wrong` is empty. A failure that did not
    recur gets the prefix `flaky / `."""
    return " / ".join(filter(None, ("flaky" if kind == FLAKY else "", wrong, op))) if wrong else ""


def in_layer(layer: str, part: str) -> str:
    """Return the culprit of a compiler: `Inductor: pass remove_noop_ops`, or the layer alone."""
    return ": ".join(filter(None, (layer, part)))


def layer_and_part(culprit: str) -> tuple[str, str]:
    """Return the layer of a compiler's culprit, and the part; "" for the part if only the layer is known."""
    layer, _, part = culprit.partition(": ")
    return layer, part


def with_signal_number(answer: str) -> str:
    """Add its number to each signal named in a text about a process's end: `SIGSEGV (signal 11)`."""

    def numbered(match: re.Match[str]) -> str:
        number = getattr(signal, match[0], None)
        return match[0] if number is None else f"{match[0]} (signal {int(number)})"

    return re.sub(r"\bSIG[A-Z0-9]+\b(?! \(signal)", numbered, answer)


def from_title(text: str) -> Finding:
    """Parse a title into a finding. The title is a signature, or a cause as `cause_text` writes it."""
    text = text.removesuffix(ALSO)
    head, words = text.partition(" / ")[0].upper(), text.removeprefix("flaky / ").split(" / ")
    finding = Finding(text, head if head in KINDS else FAIL)
    is_cause = len(words) == 2 and words[0] in PROPERTIES
    return dataclasses.replace(finding, property=words[0], op=words[1]) if is_cause else finding
