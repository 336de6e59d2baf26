"""Which side rounds more: differences between CPU and target, judged by a run in float64.

Defines `arbitrate`. The key insight: where the two disagree by rounding alone, torch CPU is not right by definition; a
run in wider dtypes says which side is nearer. It acquits a target of which each element agrees with CPU or with float64
by the very same tolerance, and that is no further from float64 than CPU; and one whose answer lies where float64's own
goes when rounded results on the way are moved by one unit in the last place. How float64 runs is not its business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from conformance.core.observation import Observation
from conformance.core.oracles import Mismatch, _defaults, differing


def arbitrate(
    found: list[Mismatch],
    expected: Observation,
    actual: Observation,
    truth: Observation,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    swayed: Sequence[Observation] = (),
) -> list[Mismatch]:
    """The differences that are left of `found` once a run in wider floating dtypes, `truth`, has said who is right.

    None is left when all of `found` are floating values, gradients or storages in which each element of the target
    agrees with the truth or with CPU by the very rule and tolerances of `compare`, and CPU is no nearer to the truth in
    its worst element. Nor is any left when each element lies, within the tolerances, between the
    truth and what runs say that moved what is rounded on the way, `swayed`. Otherwise all are left, and their details
    have both errors where CPU's is not 0. The truth is first rounded to the dtype that was asked for: a value that
    overflows there must overflow, and one that overflows only on the way must not.
    """
    judged = []
    for mismatch in found:
        if mismatch.oracle not in ARBITRATED:
            return found
        sides = [subject(mismatch, observation) for observation in (expected, actual, truth)]
        if any(side is None for side in sides):
            return found
        want, got, wide = (side.resolve_conj().resolve_neg() for side in sides if side is not None)
        if (
            (want.dtype, want.shape) != (got.dtype, got.shape)
            or want.shape != wide.shape
            or wide.dtype != widened(want.dtype)
            or wide.dtype == want.dtype
        ):
            return found
        right = wide.to(want.dtype)
        tolerances = zip((rtol, atol), _defaults(want.dtype), strict=True)
        allowed = [default if granted is None else granted for granted, default in tolerances]
        errors = [_error(right, side, *allowed) for side in (want, got)]
        neither = differing(right, got, False, rtol, atol) & differing(want, got, False, rtol, atol)
        agrees = not bool(neither.any())
        cpu, target = map(_in_tolerances, errors)
        note = (
            f"against the answer in float64, torch CPU is off by {cpu} and the target by {target}" if errors[0] else ""
        )
        judged.append(
            (
                (agrees and errors[1] <= errors[0]) or _between(right, got, mismatch, swayed, *allowed),
                replace(mismatch, detail="; ".join(filter(None, (mismatch.detail, note)))),
            )
        )
    return [] if all(right for right, _ in judged) else [mismatch for _, mismatch in judged]


def _between(
    right: torch.Tensor, got: torch.Tensor, mismatch: Mismatch, swayed: Sequence[Observation], rtol: float, atol: float
) -> bool:
    """Whether each element lies between the right one and those of the runs that moved what was rounded."""
    others = [subject(mismatch, observation) for observation in swayed]
    if not others or right.is_complex() or any(one is None or one.shape != right.shape for one in others):
        return False
    reached = torch.stack([right.double(), *(one.to(right.dtype).double() for one in others if one is not None)])
    low, high = reached.amin(0), reached.amax(0)  # nan where one of them is nan
    slack, here = atol + rtol * right.double().abs(), got.double()
    between = (low - slack <= here) & (here <= high + slack)
    return bool((between | ~differing(right, got, False, rtol, atol)).all())


ARBITRATED = frozenset({"value", "grad", "storage"})
"""The oracles whose differences may be a matter of rounding."""


def widened(dtype: torch.dtype) -> torch.dtype:
    """float64 for a floating dtype, complex128 for a complex one, any other as it is."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def subject(mismatch: Mismatch, observation: Observation) -> torch.Tensor | None:
    """The tensor that the mismatch is about; None for a plain value or a gradient that is not there."""
    if mismatch.oracle == "grad":
        return observation.grads.get(mismatch.where.removeprefix("grad of "))
    if mismatch.oracle == "storage":
        return observation.storages.get(mismatch.where)
    seen = observation.tensors.get(mismatch.where)
    return seen.value if seen is not None else None


def _in_tolerances(error: float) -> str:
    """A multiple of the tolerance in words; infinite where a finite number should be nan or infinite, or the other way
    round."""
    return "an infinite amount" if error == float("inf") else f"{error:.2g} times the tolerance"


def _error(right: torch.Tensor, got: torch.Tensor, rtol: float, atol: float) -> float:
    """How far the worst element is from the right one, in multiples of what the tolerances allow there."""
    right, got = right.to(widened(right.dtype)), got.to(widened(got.dtype))
    same = (right == got) | right.isnan() & got.isnan()
    ratio = ((got - right).abs() / (atol + rtol * right.abs())).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return ratio.where(~same, 0).max().item() if ratio.numel() else 0.0
