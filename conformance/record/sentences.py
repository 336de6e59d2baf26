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
from conformance.record.names import MEASURED
from conformance.record.result import Result


class Difference(Protocol):
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


def sentence(one: Difference) -> str:
    """Return the sentence with the expected and the actual fact, without a full stop."""
    if not (one.expected or one.actual):
        return f"the {one.oracle} of {_named(one)} is wrong"
    return _SENTENCES.get(one.oracle, _other)(one)


def headline(result: Result) -> str:
    """Return the sentence for a result's first failure; without a failure, its outcome and reason."""
    return sentence(result.failures[0]) if result.failures else f"{result.outcome}: {result.reason}"


def _named(one: Difference) -> str:
    """The subject of a sentence."""
    return one.where.replace("the whole run", "the run").replace("grad of ", "the gradient of ")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 4]} ..."


def _is(one: Difference, what: str = "") -> str:
    """`c should be 7 and is 8`."""
    return f"{_named(one)} should {what or 'be'} {_short(one.expected)} and {_PRESENT[what]} {_short(one.actual)}"


_PRESENT = {"": "is", "have dtype": "has", "have shape": "has", "have strides": "has"}


def _other(one: Difference) -> str:
    if ELEMENTS.match(one.detail):
        return _value(one)
    return f"the {one.oracle} of {_named(one)} should be {_short(one.expected)} and is {_short(one.actual)}"


def _value(one: Difference) -> str:
    match = ELEMENTS.match(one.detail)
    if match is None:
        return f"{_named(one)}: {one.detail}" if "zeros have" in one.detail else _is(one)
    count, total, index, expected, actual, more = match.groups()
    noun = f"the memory that {one.where} lies in" if one.oracle == "storage" else _named(one)
    if index is None:
        text = f"{noun} should be {one.expected} and is {one.actual}"
    else:
        index = index.removesuffix(",")
        element = f"{noun}[{index}]" if noun == one.where else f"element {index}"
        text = f"{element} should be {expected} and is {actual}"
        if total != "1" or noun != one.where:
            text = f"{count} of {total} elements of {noun} {'is' if count == '1' else 'are'} wrong: {text}"
    return f"{text}; {more}" if more else text


def _alias(one: Difference) -> str:
    if one.expected == one.where:
        return f"{one.where} should have memory of its own; on the target it shares memory with {one.actual}"
    instead = "it does not" if one.actual == one.where else f"it shares memory with {one.actual} instead"
    return f"{one.where} should share memory with {one.expected}; on the target {instead}"


def _contiguity(one: Difference) -> str:
    want, got = (side.replace(" ", ", ").replace("strided", "not contiguous") for side in (one.expected, one.actual))
    return f"{one.where} should be {want} and is {got}"


def _offset(one: Difference) -> str:
    return f"{one.where} should begin at element {one.expected} of its memory and begins at element {one.actual}"


def _structure(one: Difference) -> str:
    if one.actual == "nothing":
        return f"{one.where} should be a {one.expected}, and the target gives nothing"
    if one.expected == "nothing":
        return f"the target gives {one.where}, a {one.actual}, and torch CPU gives nothing"
    return f"{one.where} should be a {one.expected} and is a {one.actual}"


def _grad(one: Difference) -> str:
    if one.detail == "requires_grad":
        has = {"True": "require grad", "False": "not require grad"}.get(one.expected, "")
        return f"{one.where} should {has}; on the target it {'does' if one.actual == 'True' else 'does not'}"
    if "none" in (one.expected, one.actual):
        leaf = one.where.removeprefix("grad of ")
        should, has = ("no", "one") if one.expected == "none" else ("a", "none")
        return f"{leaf} should have {should} gradient; on the target it has {has}"
    return _value(one)


def _version(one: Difference) -> str:
    return f"{one.where}._version should grow by {one.expected} and grows by {one.actual}"


def _error(one: Difference) -> str:
    place, (want, _, got) = _named(one), one.detail.partition(" | ")
    if one.detail.startswith("not implemented"):
        text = one.detail.partition(": ")[2]
        return f"{place} is not implemented on the target: {one.actual}: {_short(text)}"
    if one.expected == "no error":
        return f"{place} should raise no error; on the target it raises {one.actual}: {_short(one.detail)}"
    if one.actual == "no error":
        return f"{place} should raise {one.expected}; on the target it raises no error"
    text = f": {_short(got or want)}" if one.detail else ""
    return f"{place} should raise {one.expected}; on the target it raises {one.actual}{text}"


def _measured(one: Difference) -> str:
    return f"{_named(one)} should take {one.expected} {one.oracle} and takes {one.actual}: {one.detail}"


def _device(one: Difference) -> str:
    return f"{one.where} should be on the device {one.expected!r} and is on {one.actual!r}"


def _memory(one: Difference) -> str:
    if one.expected == "an answer":
        return _death(one)
    if one.expected.startswith("at most"):
        return f"the memory of {_named(one)} should be {one.expected} and is {one.actual}"
    return f"{_named(one)} runs out of memory: {one.actual}: {_short(one.detail)}"


def _death(one: Difference) -> str:
    """The sentence about a death, whose text is a predicate, such as `killed its process with SIGSEGV`."""
    if one.where in (ON_TARGET, ON_CPU):
        return f"{one.where} {with_signal_number(one.actual)}"
    return f"the target {with_signal_number(one.actual)} at {_named(one)}"


def _accuracy(one: Difference) -> str:
    return f"the error of {one.where} should be {one.expected} and is {one.actual} ({one.detail})"


_SENTENCES: Mapping[str, Callable[[Difference], str]] = {
    "structure": _structure,
    "dtype": lambda one: _is(one, "have dtype"),
    "shape": lambda one: _is(one, "have shape"),
    "stride": lambda one: _is(one, "have strides"),
    "storage_offset": _offset,
    "contiguity": _contiguity,
    "alias": _alias,
    "value": _value,
    "storage": _value,
    "error": _error,
    "grad": _grad,
    "version": _version,
    **dict.fromkeys(MEASURED, _measured),
    "device": _device,
    "message": lambda one: f"{one.where} should say what torch CPU says, and says: {_short(one.actual)}",
    "memory": _memory,
    "crash": _death,
    "timeout": _death,
    "accuracy": _accuracy,
    "not compared": lambda one: f"{_named(one)} could not be compared: {one.detail or one.actual}",
    "harness": lambda one: f"conformance itself failed, not the target: {_short(one.actual)}",
    "power": lambda one: f"{_named(one)} should be found within {_short(one.expected)} and is not",
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
