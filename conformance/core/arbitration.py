"""Which side rounds more: differences between CPU and target, judged by a run in float64.

Defines `arbitrate`. The key insight: where the two disagree by rounding alone, torch CPU is not right by definition; a
run in wider dtypes says which side is nearer. It can only acquit a target that agrees with float64 by the very same
tolerance and is no further from it than CPU. How the float64 run is made is the subject's business.
"""

from __future__ import annotations

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
) -> list[Mismatch]:
    """The differences that are left of `found` once a run in wider floating dtypes, `truth`, has said who is right.

    None is left when all of `found` are floating values, gradients or storages in which the target agrees with the
    truth by the very rule and tolerances of `compare`, and CPU is no nearer to it in its worst element. Otherwise all
    are left, with both errors beside them. The truth is first rounded to the dtype that was asked for, so that a value
    which overflows there must overflow, and one that overflows only on the way must not.
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
        agrees = not bool(differing(right, got, False, rtol, atol).any())
        note = "from the answer in float64 CPU is off by {:.2g} and the target by {:.2g} tolerances".format(*errors)
        judged.append(
            (
                agrees and errors[1] <= errors[0],
                replace(mismatch, detail="; ".join(filter(None, (mismatch.detail, note)))),
            )
        )
    return [] if all(right for right, _ in judged) else [mismatch for _, mismatch in judged]


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


def _error(right: torch.Tensor, got: torch.Tensor, rtol: float, atol: float) -> float:
    """How far the worst element is from the right one, in multiples of what the tolerances allow there."""
    right, got = right.to(widened(right.dtype)), got.to(widened(got.dtype))
    same = (right == got) | right.isnan() & got.isnan()
    ratio = ((got - right).abs() / (atol + rtol * right.abs())).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return ratio.where(~same, 0).max().item() if ratio.numel() else 0.0
