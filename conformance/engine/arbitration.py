"""Arbitration by float64: whether torch CPU or the target has the larger rounding error.

Defines `arbitrate`. If the two sides differ by rounding alone, torch CPU is not right by definition; a run in wider
dtypes shows which side is nearer. A target is acquitted in two cases. First, each of its elements agrees with CPU or
with float64 within the tolerance, and its largest error against float64 does not exceed CPU's. Second, its answer lies
in the range that float64's own answer covers when intermediate rounded results move by one unit in the last place. The
caller runs float64; this module only compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import torch

from conformance.standalone.observation import Observation
from conformance.standalone.oracles import Mismatch, Tolerance, differing, tolerance_of


def arbitrate(
    mismatches: list[Mismatch],
    expected: Observation,
    actual: Observation,
    truth: Observation,
    *,
    tolerance: Tolerance | None = None,
    swayed: Sequence[Observation] = (),
    symmetric: bool = False,
) -> list[Mismatch]:
    """Return the mismatches that remain after comparison with `truth`, a run in wider floating dtypes.

    Only floating values, gradients and storages can be arbitrated; with any other mismatch, all remain. A
    mismatch is acquitted in one of two cases. First, each element of the target agrees with the truth or with CPU, by
    the rule and tolerances of `compare`, and its largest error does not exceed CPU's. Second, each element lies, within
    the tolerances, between the truth and the runs in `swayed`, whose intermediate rounded results were moved. If all
    are acquitted, none remain. Otherwise all remain, and their details state both errors if CPU's is not 0.

    If `symmetric`, neither side is the reference. Then a mismatch is acquitted if each side agrees with the truth or
    with the runs in `swayed`, or if both are about as far from the truth.

    The truth is first rounded to the requested dtype. A value that overflows in that dtype must overflow; a value that
    overflows only in an intermediate result must not.
    """
    judged = []
    for mismatch in mismatches:
        sides = [subject(mismatch, observation) for observation in (expected, actual, truth)]
        if mismatch.oracle not in ARBITRATED or any(side is None for side in sides):
            return mismatches
        want, got, wide = (side.resolve_conj().resolve_neg() for side in sides if side is not None)
        alike = (want.dtype, want.shape) == (got.dtype, got.shape) and want.shape == wide.shape
        if not alike or wide.dtype != widened(want.dtype) or wide.dtype == want.dtype:
            return mismatches
        right = wide.to(want.dtype)
        errors = [_error(right, side, *tolerance_of(want.dtype, tolerance)) for side in (want, got)]
        if symmetric:
            as_far = max(errors) <= max(1.0, COMPARABLE * min(errors)) < inf
            acquitted = as_far or all(_between(right, side, mismatch, swayed, tolerance) for side in (want, got))
        else:
            neither = differing(right, got, False, tolerance) & differing(want, got, False, tolerance)
            no_farther = not bool(neither.any()) and errors[1] <= errors[0]
            acquitted = no_farther or _between(right, got, mismatch, swayed, tolerance)
        note = ""
        if errors[0] or symmetric:
            names = ("the other answer", "this one") if symmetric else ("torch CPU", "the target")
            cpu, target = map(_in_tolerances, errors)
            note = f"against the answer in float64, {names[0]} is off by {cpu} and {names[1]} by {target}"
        judged.append((acquitted, replace(mismatch, detail="; ".join(filter(None, (mismatch.detail, note))))))
    return [] if all(right for right, _ in judged) else [mismatch for _, mismatch in judged]


def _between(
    right: torch.Tensor,
    got: torch.Tensor,
    mismatch: Mismatch,
    swayed: Sequence[Observation],
    tolerance: Tolerance | None,
) -> bool:
    """Whether each element lies between the truth and the runs with moved intermediate results, within the
    tolerances."""
    others = [subject(mismatch, observation) for observation in swayed]
    if not others or right.is_complex() or any(other is None or other.shape != right.shape for other in others):
        return False
    reached = torch.stack([right.double(), *(other.to(right.dtype).double() for other in others if other is not None)])
    low, high = reached.amin(0), reached.amax(0)  # nan if one of them is nan
    rtol, atol = tolerance_of(right.dtype, tolerance)
    slack, here = atol + rtol * right.double().abs(), got.double()
    between = (low - slack <= here) & (here <= high + slack)
    return bool((between | ~differing(right, got, False, tolerance)).all())


COMPARABLE = 4.0
"""Factor between the errors of two sides that rounding may explain if both are beyond the tolerance."""

ARBITRATED = frozenset({"value", "grad", "storage"})
"""The oracles whose differences may be rounding errors."""


def widened(dtype: torch.dtype) -> torch.dtype:
    """float64 for a floating dtype, complex128 for a complex one; other dtypes unchanged."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def subject(mismatch: Mismatch, observation: Observation) -> torch.Tensor | None:
    """Return the tensor that the mismatch is about; None for a plain value or a missing gradient."""
    if mismatch.oracle == "grad":
        return observation.grads.get(mismatch.where.removeprefix("grad of "))
    if mismatch.oracle == "storage":
        return observation.storages.get(mismatch.where)
    seen = observation.tensors.get(mismatch.where)
    return seen.value if seen is not None else None


def _in_tolerances(error: float) -> str:
    """Format a multiple of the tolerance. It is infinite if a finite number should be nan or infinite, or the
    reverse."""
    return "an infinite amount" if error == float("inf") else f"{error:.2g} times the tolerance"


def _error(right: torch.Tensor, got: torch.Tensor, rtol: float, atol: float) -> float:
    """Return the largest error of an element, in multiples of the tolerance for that element."""
    right, got = right.to(widened(right.dtype)), got.to(widened(got.dtype))
    same = (right == got) | right.isnan() & got.isnan()
    ratio = ((got - right).abs() / (atol + rtol * right.abs())).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return ratio.where(~same, 0).max().item() if ratio.numel() else 0.0
