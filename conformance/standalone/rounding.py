"""Whether another rounding explains a difference between a reference and an answer: `arbitrate`.

Where two sides differ by rounding alone, the reference is not right by definition. Its answer in float64 decides: the
other side is right if it is at least as near to float64, or if it lies in the range that the answer in float64 covers
when intermediate results move by some units in the last place. `Widened` and `Swayed` are the conditions of these
calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from conformance.standalone.conditions import Conditions
from conformance.standalone.moving import rebuild
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import Mismatch, Tolerance, differing, tolerance_of
from conformance.standalone.torch_compat import TorchDispatchMode

ARBITRATED = frozenset({"value", "grad", "storage"})
"""The oracles whose differences may be rounding errors."""


COMPARABLE = 4.0
"""Factor between the errors of two sides that rounding may explain if both are beyond the tolerance."""


def widened(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for a floating dtype and complex128 for a complex one; other dtypes unchanged."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


class CannotWiden(TypeError):
    """The inputs have no values in float64: two dtypes share a storage, or a view is a lazy conjugate."""


def view_of_widened(flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
    """Return the view of widened memory with the geometry of a tensor. Raises CannotWiden."""
    if flat.dtype != widened(like.dtype) or like.is_conj() or like.is_neg():
        raise CannotWiden("two dtypes in one storage cannot be widened together")
    view = torch.empty(0, dtype=flat.dtype)
    return view.set_(flat.untyped_storage(), like.storage_offset(), like.size(), like.stride())


def move_by_units(value: torch.Tensor, narrow: torch.dtype, units: torch.Tensor) -> torch.Tensor:
    """Return a floating or complex tensor in float64 with each element moved by `units`, a tensor of numbers, in the
    last place of `narrow`. Gradients pass as if nothing had moved."""
    size = value.detach() if value.is_complex() else value.detach().abs()
    return value + units * size * torch.finfo(narrow).eps


def represented(value: torch.Tensor, narrow: torch.dtype) -> torch.Tensor:
    """Return a bool tensor: the elements in float64 that `narrow` holds without rounding, or that are not finite."""
    value = value.detach()
    return (value.to(narrow).to(value.dtype) == value) | ~value.isfinite()


class Widened(Conditions):
    """Inputs with widened floating and complex storages; layout and aliasing are unchanged. Raises CannotWiden for
    inputs that it cannot widen."""

    def send(self, tree: Any) -> Any:
        """Return widened copies of the inputs."""
        return rebuild(tree, self.upload, view_of_widened)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return widened copies of 1-d tensors."""
        return [flat.to(widened(flat.dtype), copy=True) for flat in flats]


class Swayed(Widened):
    """Widened inputs, with each input and each rounded result moved by at most `units` in the last place of `narrow`;
    negative `units` move the other way.

    The moves are random. The spread of some runs is the error that rounding in `narrow` explains: it is large where
    terms cancel and small where none do. A result that `narrow` represents is not rounded, so it stays. With `inputs`
    False, the inputs stay, too."""

    def __init__(self, narrow: torch.dtype, seed: int, units: float, inputs: bool = True) -> None:
        self.narrow, self.units, self.inputs = narrow, units, inputs
        self.drawn = torch.Generator().manual_seed(seed)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the widened storages, moved unless `inputs` is False."""
        return [self.moved(wide) if self.inputs else wide for wide in super().upload(flats)]

    def moved(self, value: torch.Tensor) -> torch.Tensor:
        """Return a real tensor with each element moved; other tensors unchanged."""
        if not value.is_floating_point():
            return value
        units = self.units * (2 * torch.rand(value.shape, dtype=value.dtype, generator=self.drawn) - 1)
        return move_by_units(value, self.narrow, units)

    def rounded(self, value: Any) -> Any:
        """Return a result with each element moved that `narrow` does not represent."""
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64:
            return value
        return value.where(represented(value, self.narrow), self.moved(value))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call, in which results move."""
        with MovingResults(self):
            yield


class MovingResults(TorchDispatchMode):
    """Moves the results of operators that compute; views and inputs keep their values."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing Dynamo in the first call, which takes seconds. Nothing compiles in this mode."""
        return False

    def __init__(self, swayed: Swayed) -> None:
        super().__init__()
        self.swayed = swayed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(result.alias_info is not None and not result.alias_info.is_write for result in returns):
            return result
        if any(result.alias_info is not None for result in returns):
            for output in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(output, torch.Tensor):
                    output.copy_(self.swayed.rounded(output))
            return result
        if isinstance(result, (tuple, list)):
            return type(result)(map(self.swayed.rounded, result))
        return self.swayed.rounded(result)


def arbitrate(
    mismatches: list[Mismatch],
    expected: Observation,
    actual: Observation,
    truth: Observation,
    *,
    tolerance: Tolerance | None = None,
    swayed: Sequence[Observation] = (),
    symmetric: bool = False,
    names: tuple[str, str] = ("torch CPU", "the target"),
) -> list[Mismatch]:
    """Return the mismatches that remain after comparison with `truth`, a run in wider floating dtypes.

    Only floating values, gradients and storages can be arbitrated; with any other mismatch, all remain. A
    mismatch is acquitted in one of two cases. First, each element of the target agrees with the truth or with CPU, by
    the rule and tolerances of `compare`, and its largest error does not exceed CPU's. Second, each element lies, within
    the tolerances, between the truth and the runs in `swayed`, whose intermediate rounded results were moved. The
    others remain, and their details state both errors if CPU's is not 0. `names` are the sides' names in a detail.

    If `symmetric`, neither side is the reference. Then a mismatch is acquitted if each side agrees with the truth or
    with the runs in `swayed`, or if both are about as far from the truth.

    The truth is first rounded to the requested dtype. A value that overflows in that dtype must overflow; a value that
    overflows only in an intermediate result must not.
    """
    remaining = []
    for mismatch in mismatches:
        sides = [subject(mismatch, observation) for observation in (expected, actual, truth)]
        if mismatch.oracle not in ARBITRATED or any(side is None for side in sides):
            return mismatches
        want, got, wide = (side.resolve_conj().resolve_neg() for side in sides if side is not None)
        alike = (want.dtype, want.shape) == (got.dtype, got.shape) and want.shape == wide.shape
        if not alike or wide.dtype != widened(want.dtype) or wide.dtype == want.dtype:
            return mismatches
        right = wide.to(want.dtype)
        errors = [error_in_tolerances(right, side, *tolerance_of(want.dtype, tolerance)) for side in (want, got)]
        if symmetric:
            as_far = max(errors) <= max(1.0, COMPARABLE * min(errors)) < math.inf
            acquitted = as_far or all(lies_between(right, side, mismatch, swayed, tolerance) for side in (want, got))
        else:
            neither = differing(right, got, False, tolerance) & differing(want, got, False, tolerance)
            no_farther = not bool(neither.any()) and errors[1] <= errors[0]
            acquitted = no_farther or lies_between(right, got, mismatch, swayed, tolerance)
        if acquitted:
            continue
        note = ""
        if errors[0] or symmetric:
            first, second = ("the other answer", "this one") if symmetric else names
            cpu, target = map(in_tolerances, errors)
            note = f"against the answer in float64, {first} is off by {cpu} and {second} by {target}"
        remaining.append(dataclasses.replace(mismatch, detail="; ".join(filter(None, (mismatch.detail, note)))))
    return remaining


def lies_between(
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
    between &= here.isinf() | low.isfinite() | high.isfinite()  # 1 / 0.0 and 1 / -0.0 have no number between them
    return bool((between | ~differing(right, got, False, tolerance)).all())


def subject(mismatch: Mismatch, observation: Observation) -> torch.Tensor | None:
    """Return the tensor that the mismatch is about; None for a plain value or a missing gradient."""
    if mismatch.oracle == "grad":
        return observation.grads.get(mismatch.where.removeprefix("grad of "))
    if mismatch.oracle == "storage":
        return observation.storages.get(mismatch.where)
    seen = observation.tensors.get(mismatch.where)
    return seen.value if seen is not None else None


def in_tolerances(error: float) -> str:
    """Format a multiple of the tolerance. It is infinite if a finite number should be nan or infinite, or the
    reverse."""
    return "an infinite amount" if error == math.inf else f"{error:.2g} times the tolerance"


def distance(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the absolute difference of each element in float64: 0 where both are equal or both are nan, and nan or
    infinite where one of them is not finite. Integers are compared without rounding."""
    kind = widened(tensor.dtype) if tensor.is_floating_point() or tensor.is_complex() else torch.int64
    tensor, other = tensor.detach().to(kind), other.detach().to(kind)
    same = (tensor == other) | (tensor.isnan() & other.isnan())
    return (tensor - other).abs().double().where(~same, 0.0)


def error_in_tolerances(right: torch.Tensor, got: torch.Tensor, rtol: float, atol: float) -> float:
    """Return the largest error of an element, in multiples of the tolerance for that element."""
    off = distance(right, got)
    ratio = (off / (atol + rtol * right.to(widened(right.dtype)).abs())).where(off != 0, 0.0)
    return ratio.nan_to_num(nan=math.inf, posinf=math.inf).max().item() if ratio.numel() else 0.0
