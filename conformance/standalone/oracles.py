"""The comparison of two tables of facts, oracle by oracle: `differences`; and of two observations: `compare`.

Each property of a tensor is a separate fact under (oracle, name), since each can be wrong while the others are right:
value, dtype, shape, strides, offset, contiguity, aliasing, the storage outside the view. This module builds the table
from an observation, a script builds it from tensors, and the same rules judge both.

Tolerances are torch.testing's for the dtype, or the caller's (OpInfo's own); this module invents none. "Not
implemented" never equals anything. This module does not depend on programs, OpInfo or reports.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.standalone.observation import Foreign, Observation, Raised
from conformance.standalone.torch_compat import default_tolerances

Tolerance = Mapping[str, tuple[float, float]]
"""OpInfo's (rtol, atol) by the name of a dtype. Other dtypes have torch.testing's."""

Facts = dict[tuple[str, str], Any]
"""Observed facts by oracle and name: a `Raised`, a tensor, or any value with an equality."""

MAX_SHOWN = 64
"""A mismatch shows the values of a tensor whole up to this many elements."""

BITS = "bits"
"""The word in a mismatch's detail for the rule that values must agree to the bit, used for pure data movement."""

WHOLE = "the whole run"
DETAIL = {
    "alias": "the first tensor seen with the same storage",
    "version": "in-place writes counted",
    "grad": "requires_grad",
}
PLAIN = (bool, int, str, tuple, torch.dtype)


@dataclass(frozen=True)
class Mismatch:
    """One difference: the oracle, the name of the tensor or value (`out[0]`, `grad of a`), both answers, details."""

    oracle: str
    where: str
    expected: str
    actual: str
    detail: str = ""

    @property
    def by_bits(self) -> bool:
        """Whether the values had to agree to the bit."""
        return f"({BITS})" in self.detail

    @property
    def first(self) -> str:
        """The index of the first element that differs, as text; empty if the mismatch is not about elements."""
        return self.detail.partition(", first at (")[2].partition("):")[0].removesuffix(",")

    def __str__(self) -> str:
        text = f"{self.oracle} of {self.where}: expected {self.expected}, got {self.actual}"
        return f"{text} ({self.detail})" if self.detail else text


def compare(
    expected: Observation,
    actual: Observation,
    *,
    oracles: Collection[str] = ORACLES,
    exact: Collection[str] | bool = (),
    tolerance: Tolerance | None = None,
) -> list[Mismatch]:
    """Return the differences between CPU's observation and the target's, in the form of `differences`."""
    return differences(facts_of(expected), facts_of(actual), oracles=oracles, exact=exact, tolerance=tolerance)


def facts_of(seen: Observation) -> Facts:
    """Return the facts of an observation."""
    facts: Facts = {} if seen.error is None else {("error", WHOLE): seen.error}
    for name, tensor in seen.tensors.items():
        facts["structure", name] = "Tensor"
        facts |= {(oracle, name): fact for oracle, fact in tensor.metadata.items()}
        facts["alias", name], facts["version", name] = tensor.alias, tensor.version
        facts["value", name], facts["grad", name] = tensor.value, tensor.requires_grad
    for name, answer in seen.others.items():
        facts |= plain_facts(name, answer)
    facts |= {("storage", name): storage for name, storage in seen.storages.items()}
    return facts | {("grad", f"grad of {name}"): seen.grads[name] for name in sorted(seen.grads)}


def plain_facts(name: str, answer: Any) -> Facts:
    """Return the facts of an answer that is not a tensor."""
    if isinstance(answer, Raised):
        return {("error", name): answer}
    kind = answer.kind if isinstance(answer, Foreign) else type(answer).__name__
    return {("structure", name): kind, ("value", name): answer}


def differences(
    want: Facts,
    got: Facts,
    *,
    oracles: Collection[str] = ORACLES,
    exact: Collection[str] | bool = (),
    tolerance: Tolerance | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> list[Mismatch]:
    """Return the mismatches between CPU's facts and the target's, in the order of `ORACLES`.

    `exact` names the tensors whose bits must agree (pure data movement), or is True for all. NaNs agree whatever their
    payload. `tolerance` replaces torch.testing's tolerances for some dtypes. `weights` are factors by which values are
    multiplied before they are compared, by name. If one side raised, its missing results are not differences.
    """
    if want.keys() != got.keys():
        want, got = _same_owners(want, got), _same_owners(got, want)
    raised = {name for oracle, name in (*want, *got) if oracle == "error"}
    mismatches = []
    for oracle, name in dict.fromkeys((*want, *got)):
        expected: Any = want.get((oracle, name))
        actual: Any = got.get((oracle, name))
        if expected.__class__ in PLAIN and not isinstance(actual, torch.Tensor) and expected == actual:
            continue
        both = (oracle, name) in want and (oracle, name) in got
        both &= oracle != "version" or None not in (expected, actual)  # a device may not count writes
        strided = oracle == "stride" and SIGNIFICANT_STRIDE in oracles
        if (oracle not in oracles and not strided) or (name in raised and oracle in ("structure", "value")):
            continue
        if oracle == "error":
            if name == WHOLE or WHOLE not in raised or (_came_to(want, name) and _came_to(got, name)):
                mismatches += _error(name, expected, actual)
        elif oracle == "structure":
            if expected != actual and (both or WHOLE not in raised):
                mismatches.append(Mismatch(oracle, name, str(expected or "nothing"), str(actual or "nothing")))
        elif not both or (strided and _significant(want, name) == _significant(got, name)):
            continue
        elif oracle == "storage_offset" and SIGNIFICANT_STRIDE in oracles and 0 in want["shape", name]:
            continue  # the start of an empty narrow depends on a stride without meaning
        elif isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
            bits = oracle != "grad" and (exact if isinstance(exact, bool) else name in exact)
            if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
                left, right = (f"{side.dtype} {tuple(side.shape)}" for side in (expected, actual))
                # Of a value, dtype and shape are separate facts.
                mismatches += [Mismatch(oracle, name, left, right)] if oracle != "value" else []
            elif oracle != "grad" or "value" in oracles:
                weight = (weights or {}).get(name) if oracle == "value" else None
                mismatches += _values(oracle, name, expected, actual, bits, tolerance, weight)
        elif oracle == "value":
            if want["structure", name] == got["structure", name] and not _same_plain(expected, actual):
                mismatches.append(Mismatch(oracle, name, repr(expected), repr(actual)))
        elif oracle == "grad" and (expected is None or actual is None):
            if expected is not actual:
                mismatches.append(
                    Mismatch(oracle, name, *("none" if grad is None else show(grad) for grad in (expected, actual)))
                )
        # Without values nothing is computed, and whether a result requires grad depends on its decomposition.
        elif expected != actual and (oracle != "grad" or "value" in oracles):
            mismatches.append(Mismatch(oracle, name, str(expected), str(actual), DETAIL.get(oracle, "")))
    return sorted(mismatches, key=lambda mismatch: ORACLES.index(mismatch.oracle))


def _same_owners(facts: Facts, other: Facts) -> Facts:
    """Rename storages: each gets the name of its first tensor that exists on both sides. Otherwise a result that only
    one side has would give one storage two names."""
    first: dict[str, str] = {}
    for (oracle, name), owner in facts.items():
        if oracle == "alias" and (oracle, name) in other:
            first.setdefault(owner, name)
    return {
        (oracle, first.get(name, name) if oracle == "storage" else name): first.get(fact, fact)
        if oracle == "alias"
        else fact
        for (oracle, name), fact in facts.items()
    }


def _came_to(facts: Facts, name: str) -> bool:
    """Whether the side has an answer of this name. A side that raised earlier has none: no error is missing there."""
    return ("error", name) in facts or ("structure", name) in facts


def _error(name: str, want: Raised | None, got: Raised | None) -> list[Mismatch]:
    expected, actual = (raised.kind if raised else "no error" for raised in (want, got))
    if got is not None and got.not_implemented and not (want is not None and all(map(_without_kernel, (want, got)))):
        return [Mismatch("error", name, expected, actual, f"not implemented is never a pass: {headline(got.text)}")]
    text = " | ".join(headline(raised.text) for raised in (want, got) if raised)
    return [] if expected == actual else [Mismatch("error", name, expected, actual, text)]


def _without_kernel(raised: Raised) -> bool:
    """Whether the operator exists and has no kernel for the dtype, which torch CPU may say as well."""
    return raised.not_implemented and any(
        text in raised.text for text in (" not implemented for '", " not supported for ")
    )


def headline(text: str) -> str:
    """Return the first line of an error's text, at most 300 characters. If the text contains the output of a C++
    compiler, the compiler's first error follows: the first line alone would be equal for all of them."""
    first = text.strip().partition("\n")[0]
    diagnosed = re.search(r"^\S+:\d+:(?:\d+:)? (?:fatal )?error: (.+)$", text, re.MULTILINE)
    return (f"{first}: {diagnosed[1]}" if diagnosed else first)[:300]


def _significant(facts: Facts, name: str) -> tuple[int, ...]:
    """The strides that affect where an element lies."""
    shape = facts["shape", name]
    return tuple(st for n, st in zip(shape, facts["stride", name]) if n != 1) if 0 not in shape else ()


def _same_plain(want: Any, got: Any) -> bool:
    if isinstance(want, (float, complex)):
        expected, actual = (torch.tensor(number, dtype=torch.complex128) for number in (want, got))
        return not differing(expected, actual, False, {"complex128": default_tolerances(torch.float32)}).any()
    return bool(want == got)


def differing(want: torch.Tensor, got: torch.Tensor, bits: bool, tolerance: Tolerance | None = None) -> torch.Tensor:
    """Return a bool tensor, true where two CPU tensors of one shape and dtype disagree under the rules of
    `differences`."""
    if not (want.dtype.is_floating_point or want.dtype.is_complex):
        return want != got
    rtol, atol = tolerance_of(want.dtype, tolerance)
    if want.element_size() == 1 or want.dtype == torch.complex32:
        wide = torch.complex64 if want.dtype.is_complex else torch.float32
        want, got = want.to(wide), got.to(wide)
    if bits:
        return ~((want == got) & same_sign(want, got) | want.isnan() & got.isnan())
    if want.dtype.is_complex:
        # An infinite part makes the distance of two complex numbers undefined, even if the other parts are close.
        parts = [torch.view_as_real(side.resolve_conj()) for side in (got, want)]
        close = torch.isclose(parts[0], parts[1], rtol=rtol, atol=atol, equal_nan=True).all(-1)
        return ~(torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True) | close)
    return ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)


def tolerance_of(dtype: torch.dtype, tolerance: Tolerance | None = None) -> tuple[float, float]:
    """Return the (rtol, atol) for a floating or complex dtype: the given tolerance, else torch.testing's. One-byte
    floats have no tolerance of torch.testing's and must agree exactly."""
    default = (0.0, 0.0) if dtype.itemsize == 1 else default_tolerances(dtype)
    return tolerance.get(str(dtype).removeprefix("torch."), default) if tolerance else default


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)


def same_sign(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a bool tensor, true where the sign bits agree, so 0.0 and -0.0 differ; complex numbers part by part."""
    if want.is_complex():
        return same_sign(want.real, got.real) & same_sign(want.imag, got.imag)
    return want.signbit() == got.signbit()


def _values(
    oracle: str,
    name: str,
    want: torch.Tensor,
    got: torch.Tensor,
    bits: bool,
    tolerance: Tolerance | None,
    weight: torch.Tensor | None,
) -> list[Mismatch]:
    if want is got:
        return []
    want, got = (tensor.resolve_conj().resolve_neg() for tensor in (want, got))
    if not bits and want.dtype in _FLOATS and torch.equal(want, got):
        return []  # a hundred times faster than isclose when the values are equal
    sides = (want, got) if weight is None else (want * weight, got * weight)
    wrong = differing(*sides, bits, tolerance)
    count = int(wrong.sum())
    if not count:
        return []
    at = tuple(wrong.nonzero()[0].tolist())
    where = f"at {at}: expected {want[at].item()}, got {got[at].item()}" if at else "of a 0-dim tensor"
    rule = f"{count} of {wrong.numel()} elements differ ({BITS if bits else 'tolerance'}), first {where}"
    return [Mismatch(oracle, name, show(want), show(got), rule)]


def show(tensor: torch.Tensor) -> str:
    """Format the values as nested lists, or as a summary of more than `MAX_SHOWN` elements."""
    if tensor.numel() <= MAX_SHOWN:
        return str(tensor.tolist())
    return f"{tensor.numel()} elements, first {tensor.reshape(-1)[:8].tolist()}"
