"""Differences as sentences: one sentence for each oracle, and explanations of the names of steps and layout classes.

Defines `sentence`, `headline` and `legend`. Terminals, pages, scripts and issues take their headlines from one
function, in words for newcomers. The record of a difference, such as `alias of c: expected a, got c`, stays with its
oracle; the full comparison of a script prints it. This module must not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from conformance.record.finding import ON_CPU, ON_TARGET, with_signal_number
from conformance.record.names import MEASURED, with_article
from conformance.record.result import Result


class MismatchLike(Protocol):
    """A `Mismatch` of the oracles, or its `Failure` in a result."""

    @property
    def oracle(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def expected(self) -> str: ...
    @property
    def actual(self) -> str: ...
    @property
    def detail(self) -> str: ...


LONGEST = 80
"""Maximum length of a value or of an error's text in a sentence, in characters."""

ELEMENTS = re.compile(
    r"(\d+) of (\d+) elements differ \(\w+\), first "
    r"(?:at \(([^)]*)\): expected (\S+), got ([^\s;]+)|of a 0-dim tensor)(?:; (.*))?$"
)
"""Regular expression for the detail of a difference in tensor elements."""


GEOMETRY = re.compile(r"(torch\.\w+) (\([\d, ]*\))")
"""Regular expression for a side of a difference in the dtype or shape of a gradient or of the memory of a tensor."""


def sentence(diff: MismatchLike) -> str:
    """Return the sentence with the expected and the actual fact, without a full stop."""
    if not (diff.expected or diff.actual):
        return f"the {diff.oracle} of {_named(diff)} is wrong"
    return _SENTENCES.get(diff.oracle, _other)(diff)


def headline(result: Result) -> str:
    """Return the sentence for a result's first failure; without a failure, its outcome and reason."""
    return sentence(result.failures[0]) if result.failures else f"{result.outcome}: {result.reason}"


def _named(diff: MismatchLike) -> str:
    """The subject of a sentence."""
    return diff.where.replace("the whole run", "the run").replace("grad of ", "the gradient of ")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 4]} ..."


def _is(diff: MismatchLike, what: str = "") -> str:
    """`c should be 7 and is 8`."""
    return f"{_named(diff)} should {what or 'be'} {_short(diff.expected)} and {_PRESENT[what]} {_short(diff.actual)}"


_PRESENT = {"": "is", "have dtype": "has", "have shape": "has", "have strides": "has"}


def _other(diff: MismatchLike) -> str:
    if ELEMENTS.match(diff.detail):
        return _value(diff)
    return f"the {diff.oracle} of {_named(diff)} should be {_short(diff.expected)} and is {_short(diff.actual)}"


def _value(diff: MismatchLike) -> str:
    noun = f"the memory that {diff.where} lies in" if diff.oracle == "storage" else _named(diff)
    match = ELEMENTS.match(diff.detail)
    if match is None:
        want, got = GEOMETRY.fullmatch(diff.expected), GEOMETRY.fullmatch(diff.actual)
        if want and got:
            what = ("dtype", "shape")
            differing = [index for index in (0, 1) if want.groups()[index] != got.groups()[index]]
            right, wrong = (
                " and ".join(f"{what[index]} {side.groups()[index]}" for index in differing) for side in (want, got)
            )
            return f"{noun} should have {right} and has {wrong}"
        return f"{_named(diff)}: {diff.detail}" if "zeros have" in diff.detail else _is(diff)
    count, total, index, expected, actual, more = match.groups()
    if index is None:
        text = f"{noun} should be {diff.expected} and is {diff.actual}"
    else:
        index = index.removesuffix(",")
        element = f"{noun}[{index}]" if noun == diff.where else f"element {index}"
        text = f"{element} should be {expected} and is {actual}"
        if total != "1" or noun != diff.where:
            text = f"{count} of {total} elements of {noun} {'is' if count == '1' else 'are'} wrong: {text}"
    return f"{text}; {more}" if more else text


def _alias(diff: MismatchLike) -> str:
    if diff.expected == diff.where:
        return f"{diff.where} should have memory of its own; on the target it shares memory with {diff.actual}"
    instead = "it does not" if diff.actual == diff.where else f"it shares memory with {diff.actual} instead"
    return f"{diff.where} should share memory with {diff.expected}; on the target {instead}"


def _contiguity(diff: MismatchLike) -> str:
    want, got = (side.replace(" ", ", ").replace("strided", "not contiguous") for side in (diff.expected, diff.actual))
    return f"{diff.where} should be {want} and is {got}"


def _offset(diff: MismatchLike) -> str:
    return f"{diff.where} should begin at element {diff.expected} of its memory and begins at element {diff.actual}"


def _structure(diff: MismatchLike) -> str:
    if diff.actual == "nothing":
        return f"{diff.where} should be {with_article(diff.expected)}, and the target gives nothing"
    if diff.expected == "nothing":
        return f"the target gives {diff.where}, {with_article(diff.actual)}, and torch CPU gives nothing"
    return f"{diff.where} should be {with_article(diff.expected)} and is {with_article(diff.actual)}"


def _grad(diff: MismatchLike) -> str:
    if diff.detail == "requires_grad":
        has = {"True": "require grad", "False": "not require grad"}.get(diff.expected, "")
        return f"{diff.where} should {has}; on the target it {'does' if diff.actual == 'True' else 'does not'}"
    if "none" in (diff.expected, diff.actual):
        leaf = diff.where.removeprefix("grad of ")
        should, has = ("no", "one") if diff.expected == "none" else ("a", "none")
        return f"{leaf} should have {should} gradient; on the target it has {has}"
    return _value(diff)


def _version(diff: MismatchLike) -> str:
    return f"{diff.where}._version should grow by {diff.expected} and grows by {diff.actual}"


def _error(diff: MismatchLike) -> str:
    place, (want, _, got) = _named(diff), diff.detail.partition(" | ")
    if diff.detail.startswith("not implemented"):
        text = diff.detail.partition(": ")[2]
        return f"{place} is not implemented on the target: {diff.actual}: {_short(text)}"
    if diff.expected == "no error":
        return f"{place} should raise no error; on the target it raises {diff.actual}: {_short(diff.detail)}"
    if diff.actual == "no error":
        return f"{place} should raise {diff.expected}; on the target it raises no error"
    text = f": {_short(got or want)}" if diff.detail else ""
    return f"{place} should raise {diff.expected}; on the target it raises {diff.actual}{text}"


def _measured(diff: MismatchLike) -> str:
    return f"{_named(diff)} should take {diff.expected} {diff.oracle} and takes {diff.actual}: {diff.detail}"


def _device(diff: MismatchLike) -> str:
    return f"{diff.where} should be on the device {diff.expected!r} and is on {diff.actual!r}"


def _memory(diff: MismatchLike) -> str:
    if diff.expected == "an answer":
        return _death(diff)
    if diff.expected.startswith("at most"):
        return f"the memory of {_named(diff)} should be {diff.expected} and is {diff.actual}"
    return f"{_named(diff)} runs out of memory: {diff.actual}: {_short(diff.detail)}"


def _death(diff: MismatchLike) -> str:
    """The sentence about a death, whose text is a predicate, such as `killed its process with SIGSEGV`."""
    if diff.where in (ON_TARGET, ON_CPU):
        return f"{diff.where} {with_signal_number(diff.actual)}"
    return f"the target {with_signal_number(diff.actual)} at {_named(diff)}"


def _repro(diff: MismatchLike) -> str:
    return f"{_named(diff)} shows ({diff.detail}): should give {_short(diff.expected)} and gives {_short(diff.actual)}"


def _accuracy(diff: MismatchLike) -> str:
    return f"the error of {diff.where} should be {diff.expected} and is {diff.actual} ({diff.detail})"


_SENTENCES: Mapping[str, Callable[[MismatchLike], str]] = {
    "structure": _structure,
    "dtype": lambda diff: _is(diff, "have dtype"),
    "shape": lambda diff: _is(diff, "have shape"),
    "stride": lambda diff: _is(diff, "have strides"),
    "storage_offset": _offset,
    "contiguity": _contiguity,
    "alias": _alias,
    "value": _value,
    "storage": _value,
    "error": _error,
    "grad": _grad,
    "version": _version,
    "repro": _repro,
    "test": lambda diff: f"{diff.where} should pass, and fails: {_short(diff.actual)}",
    **dict.fromkeys(MEASURED, _measured),
    "device": _device,
    "message": lambda diff: f"{diff.where} should say what torch CPU says, and says: {_short(diff.actual)}",
    "memory": _memory,
    "crash": _death,
    "timeout": _death,
    "accuracy": _accuracy,
    "not compared": lambda diff: f"{_named(diff)} could not be compared: {diff.detail or diff.actual}",
    "harness": lambda diff: f"conformance itself failed, not the target: {_short(diff.actual)}",
    "baseline": lambda diff: f"{diff.where} since the baseline: {diff.expected} -> {diff.actual}",
    "power": lambda diff: f"{_named(diff)} should be found within {_short(diff.expected)} and is not",
}

LAYOUTS = {
    "window": "contiguous, in a part of a larger memory",
    "permuted": "without gaps, in another order of dimensions",
    "gaps": "memory between its elements belongs to none of them",
    "permuted gaps": "gaps, and another order of dimensions",
    "expanded": "a dimension of stride 0",
    "overlapping": "two of its elements share memory",
    "non-divisible": "a stride that is no multiple of the next smaller one",
    "0-d": "no dimension",
    "empty": "no elements",
}
"""Explanations of the layout classes, by name. `contiguous` needs none."""

FORMS = {
    "edge": "values at the edges: zeros of both signs, ties, infinities, nan",
    "state": "a global setting is changed meanwhile, such as the default dtype",
    "here": "a default device is set",
    "recorded": "within no_grad, inference mode or the like",
    "fused": "a part of an expression that may become one kernel",
    "out": "with out=",
    "grad": "in a graph that a backward pass follows",
    "error": "a call that must raise",
    "neutral": "with a number that changes nothing",
    "new": "which makes a tensor within the function",
    "twice": "with itself",
    "floor": "rounded down",
    "least": "the smallest elements",
    "counted": "with the count of each element",
    "range": "an index out of range, which must raise",
    "size": "sizes that do not match, which must raise",
    "count": "a wrong number of elements, which must raise",
    "number": "with a Python number as operand",
    "mixed": "operands of two dtypes",
    "dtypes": "operands of several dtypes",
    "dtype": "with another dtype",
    "dim": "with dim=",
    "dims": "with several dims",
    "mask": "with a bool mask",
    "index": "with a tensor of indices",
    "pairs": "with two tensors of indices",
    "repeated": "indices that repeat",
    "reduce": "with reduce=",
    "channels_last": "in channels_last",
    "ties": "among equal elements",
    "whole": "over all dimensions",
    "stable": "with stable=True",
    "certain": "with a chance of 0 or 1",
    "all": "that drops all or nothing",
    "many": "called as op_db does, with several results",
    "query": "called as op_db does, with an answer that is no tensor",
    "method": "called as op_db does, as a method",
    "inplace": "called as op_db does, in place",
    "attribute": "read as op_db does, as an attribute",
    "op_db": "called as op_db does",
}
"""Explanations of how a step calls its operator, by the last part of the step's name."""


def legend(*texts: str) -> str:
    """Return one line that explains each step name and layout class in these titles and signatures. The line is empty
    if no name needs an explanation."""
    parts = (part for text in texts for part in text.removeprefix("flaky / ").split(" / "))
    return "; ".join(dict.fromkeys(explanation for part in parts for explanation in _explained(part)))


def _explained(part: str) -> Iterator[str]:
    if part in LAYOUTS:
        yield f"layout {part!r}: {LAYOUTS[part]}"
        return
    kind, colon, operator = part.removeprefix("only together, up to ").partition(":")
    name, dot, form = kind.rpartition(".")
    if colon and (kind == "op_db" or name.startswith("op_db")):
        yield f"{part}: {operator} {FORMS.get(form, FORMS['op_db'])}"
    elif dot and form in FORMS:
        yield f"{kind}: {name}, {FORMS[form]}"
