"""The judge: compares a subject's run with the reference and removes the differences that PyTorch allows.

Defines `Terms`, `Judged` and `judge`. A program and a call of a trace are judged in the same way, on the terms
that each of them states: tolerances, answers without a meaning, rules for special values, an answer in float64. Only
this module applies the terms. They can remove or add mismatches; `oracles` alone defines "equal".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch

from conformance.declare.tolerances import covering
from conformance.engine import rules
from conformance.engine.decompositions import without_free_choices
from conformance.engine.executor import Execution, Executor, Subject
from conformance.engine.loading import load_target, reference
from conformance.engine.rules import Arguments
from conformance.engine.target import Target
from conformance.record.measurements import Measurements
from conformance.record.names import MEASURED
from conformance.standalone.observation import Observation, observe, out_of_memory
from conformance.standalone.oracles import WHOLE, Mismatch, Tolerance, compare, headline, tolerance_of
from conformance.standalone.rounding import ARBITRATED, arbitrate

_PROCESSED = "processed"


class Judgement(NamedTuple):
    """The mismatches, and why there are none, if there would be some:

    - `arbitrated`: the target agrees with the float64 answer, and torch CPU is no nearer to it.
    - `tolerated`: the target's profile declares a tolerance.
    """

    mismatches: list[Mismatch]
    arbitrated: bool = False
    tolerated: bool = False


@dataclass(frozen=True)
class Terms:
    """The terms of a comparison: PyTorch's statements about the answers of one subject.

    - `tolerance`: (rtol, atol) by dtype, where PyTorch's own tests allow more than usual.
    - `exact`: names of tensors that must agree to the bit.
    - `rules`: names of `engine.rules` that hold for the subject.
    - `undefined`: beginnings of mismatches of tensors without a meaning, such as `value of result`.
    - `oracles`: the only oracles that may judge the subject; None for all of the target's.
    - `process`: conversion of a result whose sign or phase is free; it runs on the CPU.
    - `message`: pattern of the text of an error.
    - `symmetric`: neither side is the reference, so float64 judges both.
    """

    tolerance: Tolerance = field(default_factory=dict)
    exact: Collection[str] = ()
    rules: Collection[str] = ()
    undefined: tuple[str, ...] = ()
    oracles: frozenset[str] | None = None
    process: Callable[[Any], Any] | None = None
    message: str = ""
    symmetric: bool = False


class Judged(Subject, Protocol):
    """A subject with terms, and with answers to the questions of the judge."""

    @property
    def terms(self) -> Terms:
        """The terms of the subject."""

    @property
    def draws(self) -> bool:
        """Whether the subject draws random numbers."""

    @property
    def on_host(self) -> bool:
        """Whether a result may lie on the CPU, since the subject names the CPU or gives the device no tensor."""

    def names_of_inputs(self) -> Collection[str]:
        """Return the root names of the inputs in an observation."""

    def arguments(self) -> Arguments:
        """Return the arguments of the call to which the rules apply."""

    def operators(self) -> Collection[str]:
        """Return the names of the operators that the subject calls."""

    def in_float64(self, mismatches: Sequence[Mismatch], expected: Observation) -> Execution | None:
        """Return torch CPU's answer in float64 if it can decide about these mismatches, else None."""

    def swayed(
        self, mismatches: Sequence[Mismatch], expected: Observation, actual: Observation
    ) -> Sequence[Observation]:
        """Return torch CPU's float64 answers with every intermediate rounded result moved by one unit in the last
        place."""


def judge(
    subject: Judged, expected: Execution, actual: Execution, target: Target, oracles: Collection[str]
) -> Judgement:
    """Return the mismatches between the reference and the target, errors and running out of memory first. The latter is
    the oracle "memory". The target's declared tolerances come after everything that PyTorch itself allows."""
    terms = subject.terms
    judgement = _judge(subject, terms, expected, actual, target, oracles)
    declared = covering(target.facts.tolerances, subject.operators()) if judgement.mismatches else {}
    if not declared:
        return judgement
    wider = _judge(subject, _widen(terms, declared), expected, actual, target, oracles)
    return wider._replace(arbitrated=False, tolerated=not wider.mismatches)


def _widen(terms: Terms, declared: Mapping[str, tuple[float, float]]) -> Terms:
    """Return the terms with at least the declared (rtol, atol) for each dtype."""
    tolerance = dict(terms.tolerance)
    for name, (rtol, atol) in declared.items():
        usual = tolerance_of(getattr(torch, name), terms.tolerance)
        tolerance[name] = max(usual[0], rtol), max(usual[1], atol)
    return replace(terms, tolerance=tolerance)


def _judge(
    subject: Judged, terms: Terms, expected: Execution, actual: Execution, target: Target, oracles: Collection[str]
) -> Judgement:
    want, got = expected.last, actual.last
    oracles = oracles if terms.oracles is None else terms.oracles
    mismatches = compare(want, got, oracles=oracles, exact=terms.exact, tolerance=terms.tolerance)
    if mismatches and rules.of_rounding(terms.rules, want, got):
        mismatches = []
    if mismatches and rules.CHOICE in terms.rules and want.error is None and got.error is None:
        mismatches = without_free_choices(subject, mismatches, want, got)
    mismatches = [mismatch for mismatch in mismatches if not _undefined(subject, terms, mismatch, want, got, target)]
    mismatches = _not_promised(subject, mismatches, want, got, target)
    mismatches, arbitrated = (
        _arbitrated(subject, terms, expected, actual, target, mismatches) if mismatches else (mismatches, False)
    )
    if got.error is None:
        if want.error is None:
            mismatches += _misplaced(subject, got, target)
        if not mismatches and rules.SIGNED_ZEROS in terms.rules and want.error is None:
            mismatches = rules.zeros_of_other_sign(subject, want, got)
    else:
        mismatches += _misworded(terms, want, got) if not mismatches else []
        if want.error is None and out_of_memory(f"{got.error.kind}: {got.error.text}"):
            mismatches.append(Mismatch("memory", "the whole run", "no error", got.error.kind, headline(got.error.text)))
    # A call that raised did not write its inputs: the error is the cause, and comes first.
    mismatches.sort(key=lambda mismatch: FIRST.get(mismatch.oracle, len(FIRST)))
    return Judgement(mismatches, arbitrated and not mismatches)


def bounded(measured: Measurements, most: int | None) -> Measurements:
    """Return the measurements, with `most` as the bound of each judged one; None means no bound."""
    judged = [name for name in MEASURED if name in measured.counts]
    return measured if most is None else replace(measured, most=dict.fromkeys(judged, most))


def exceeding(measured: Measurements, most: Mapping[str, int], bound: str) -> list[Mismatch]:
    """Return a mismatch for each measurement above its bound in `most`, which `bound` names."""
    counts = {name: count for name, count in measured.counts.items() if count > most.get(name, count)}
    return [
        Mismatch(name, WHOLE, f"at most {most[name]}", str(count), f"more {name} than {bound}")
        for name, count in counts.items()
    ]


FIRST = {"memory": 0, "error": 1}
"""Rank of the oracles whose mismatches come first."""


def _undefined(
    subject: Judged, terms: Terms, mismatch: Mismatch, want: Observation, got: Observation, target: Target
) -> bool:
    """Whether PyTorch leaves the answer undefined, so that the two sides may differ."""
    text = f"{mismatch.oracle} of {mismatch.where}"
    if terms.undefined and mismatch.where in want.tensors and text.startswith(terms.undefined):
        return True
    if mismatch.oracle not in ARBITRATED or "elements differ" not in mismatch.detail:
        return False
    if "random" in target.facts.lacks and subject.draws:
        return True
    return bool(terms.rules) and rules.decides_nothing(subject, mismatch, want, got, terms.tolerance)


LAYOUT = ("shape", "stride", "contiguity")


def _not_promised(
    subject: Judged, mismatches: list[Mismatch], want: Observation, got: Observation, target: Target
) -> list[Mismatch]:
    """Return the mismatches without those of layouts that a device has from PyTorch's own meta functions.

    By these functions torch.compile allocates on every device. Where torch CPU has another layout, such as that of the
    library that computes its convolutions, torch CPU has chosen it. In a storage that such a tensor fills, such as that
    of a resized `out=`, the same values then lie in another order."""
    of_layout = [mismatch for mismatch in mismatches if mismatch.oracle in LAYOUT and mismatch.where in got.tensors]
    if not of_layout or target.device.type in ("cpu", "meta") or target.facts.transforms_program:
        return mismatches
    promised = Executor(load_target("meta")).run(subject).last

    def is_promised(mismatch: Mismatch) -> bool:
        seen, there = promised.tensors.get(mismatch.where), got.tensors[mismatch.where]
        return seen is not None and all(seen.metadata[fact] == there.metadata[fact] for fact in LAYOUT)

    free = {mismatch.where for mismatch in of_layout if is_promised(mismatch)}
    free_facts = {(oracle, name) for name in free for oracle in LAYOUT}
    free_facts |= {("storage", name) for name in free if all(_fills_storage(side, name) for side in (want, got))}
    return [mismatch for mismatch in mismatches if (mismatch.oracle, mismatch.where) not in free_facts]


def _fills_storage(seen: Observation, name: str) -> bool:
    storage, tensor = seen.storages.get(name), seen.tensors.get(name)
    return storage is not None and tensor is not None and storage.numel() == tensor.value.numel()


def _arbitrated(
    subject: Judged, terms: Terms, expected: Execution, actual: Execution, target: Target, mismatches: list[Mismatch]
) -> tuple[list[Mismatch], bool]:
    """Return the mismatches that remain after the subject's own processing and the answer in float64, and whether
    float64 removed them all."""
    want, got = expected.last, actual.last
    inputs = subject.names_of_inputs() if terms.process is not None else ()
    free = [m for m in mismatches if m.oracle == "value" and m.where in want.tensors and _root(m.where) not in inputs]
    processed = terms.process is not None and bool(free)
    if processed:
        want, got = _processed(terms, expected, reference()), _processed(terms, actual, target)
        left = compare(want, got, oracles={"value", "structure"}, tolerance=terms.tolerance)
        mismatches = [m for m in mismatches if m not in free] + [m for m in left if m.where.startswith(_PROCESSED)]
    if not mismatches or any(mismatch.oracle not in ARBITRATED for mismatch in mismatches):
        return mismatches, False
    wide = subject.in_float64(mismatches, want)
    if wide is None:
        return mismatches, False
    truth = _processed(terms, wide, reference()) if processed else wide.last
    options: dict[str, Any] = {"tolerance": terms.tolerance, "symmetric": terms.symmetric}
    left = arbitrate(mismatches, want, got, truth, **options)
    if left and (swayed := subject.swayed(mismatches, want, got)):
        left = arbitrate(mismatches, want, got, truth, swayed=swayed, **options)
    return left, not left


def _processed(terms: Terms, run: Execution, target: Target) -> Observation:
    """Return the observation, extended by the processed outcome under separate names. The processing runs on the CPU,
    so that its ops are not under test."""
    assert terms.process is not None
    with target.entered():
        fetched = target.fetch(run.outcome)
    more, seen = observe({_PROCESSED: terms.process(fetched)}), run.last
    return replace(seen, tensors={**seen.tensors, **more.tensors}, others={**seen.others, **more.others})


def _misworded(terms: Terms, want: Observation, got: Observation) -> list[Mismatch]:
    """Return a mismatch for an error whose text matches OpInfo's pattern on the CPU but not on the target."""
    if not terms.message or want.error is None or got.error is None:
        return []
    if not re.search(terms.message, want.error.text) or re.search(terms.message, got.error.text):
        return []
    expected, actual = headline(want.error.text), headline(got.error.text)
    return [Mismatch("message", "the error", expected, actual, f"OpInfo's pattern is {terms.message!r}")]


def _misplaced(subject: Judged, got: Observation, target: Target) -> list[Mismatch]:
    """Return a mismatch for a result on the wrong device."""
    own = target.device.type
    if own == "cpu" or all(seen.device == own for seen in got.tensors.values()):
        return []
    inputs, allowed = subject.names_of_inputs(), {own, "cpu"} if subject.on_host else {own}
    odd = {name: seen.device for name, seen in got.tensors.items() if _root(name) not in inputs}
    return [Mismatch("device", name, own, there) for name, there in odd.items() if there not in allowed][:1]


def _root(name: str) -> str:
    return name.partition("[")[0]
