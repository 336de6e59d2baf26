"""Whether another rounding explains a difference between torch CPU and a target.

Where two sides differ by rounding alone, torch CPU is not right by definition. Torch CPU in float64 decides, in one of
four ways:

- `arbitrate`: the target is at least as near to float64 as torch CPU, or its answer lies in the range that the answer
  in float64 covers when intermediate results move by one unit in the last place;
- `as_good`: each element is about as near as torch CPU's worst element, where large values dominate the rounding;
- `small_faults`: values below the absolute tolerance, such as gradients of a mean, are compared relative to the
  largest one;
- `relative_error`: the norm of a whole tensor's error, for runs of many calls that part slowly.

`Float64Reference` is torch CPU in float64 as a target. It widens storages, not tensors, so it keeps aliasing and runs a
call or a program unchanged. `Moved` and `Swayed` also move the values, to measure how far rounding can carry an answer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch

from conformance.engine.executor import Execution
from conformance.engine.target import Target
from conformance.standalone.moving import rebuild
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import Mismatch, Tolerance, compare, differing, tolerance_of
from conformance.standalone.torch_compat import TorchDispatchMode

ARBITRATED = frozenset({"value", "grad", "storage"})
"""The oracles whose differences may be rounding errors."""

COMPARABLE = 4.0
"""Factor between the errors of two sides that rounding may explain if both are beyond the tolerance."""

AS_GOOD = 4.0
"""Factor on torch CPU's largest error from float64 that a target's error may reach if rounding dominates the result, as
in the accuracy of any operator."""

OF_CPU = 8.0
"""Factor between the errors of the device and of torch CPU that rounding may explain in a small result."""

OF_INPUTS = 64.0
"""Factor between the device's error in a small result and the change that roundings of the inputs cause. A sum of n
terms one by one has an error that is up to the square root of n larger than this change."""

MOVES = 2
"""Number of runs with moved inputs that judge a small result."""

UP, DOWN = "up", "down"
"""Directions in which all elements move. A number is the seed of a random direction for each element."""


def widened(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for a floating dtype and complex128 for a complex one; other dtypes unchanged."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


class CannotWiden(TypeError):
    """The inputs have no values in float64: two dtypes share a storage, or a view is a lazy conjugate."""


class Float64Reference(Target):
    """Torch CPU on inputs with widened floating and complex storages; layout and aliasing are unchanged. Raises
    CannotWiden for inputs that it cannot widen."""

    name = "wide"

    def send(self, tree: Any) -> Any:
        return rebuild(tree, self.upload, _view_of)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [flat.to(widened(flat.dtype), copy=True) for flat in flats]


def _view_of(flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
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


def draw_signs(like: torch.Tensor, sway: str | int | torch.Generator) -> torch.Tensor:
    """Return 1 or -1 for each element, in the dtype of `like`: all UP, all DOWN, or at random, from a seed or a
    generator."""
    if isinstance(sway, str):
        return torch.full_like(like.detach(), -1.0 if sway == DOWN else 1.0)
    drawn = sway if isinstance(sway, torch.Generator) else torch.Generator().manual_seed(sway)
    return torch.randint(0, 2, like.shape, generator=drawn).to(like.dtype) * 2 - 1


class Moved(Float64Reference):
    """Torch CPU in float64 on inputs whose elements are moved by one unit in the last place of their own dtype, up or
    down at random."""

    name = "moved"

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.drawn = torch.Generator().manual_seed(seed)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the widened storages, moved."""
        return [self.moved(wide, flat.dtype) for flat, wide in zip(flats, super().upload(flats), strict=True)]

    def moved(self, value: torch.Tensor, narrow: torch.dtype) -> torch.Tensor:
        """Return a tensor in float64 with each element moved; a tensor of integers unchanged."""
        if not (value.is_floating_point() or value.is_complex()):
            return value
        return move_by_units(value, narrow, draw_signs(value, self.drawn))


class Swayed(Moved):
    """Torch CPU in float64, with each input and each rounded result moved by at most `units` in the last place of
    `narrow`; negative `units` move the other way.

    The moves are random. The spread of some runs is the error that rounding in `narrow` explains: it is large where
    terms cancel and small where none do. A result that `narrow` represents is not rounded, so it stays."""

    name = "swayed"

    def __init__(self, narrow: torch.dtype, seed: int, units: float) -> None:
        super().__init__(seed)
        self.narrow, self.units = narrow, units

    def moved(self, value: torch.Tensor, narrow: torch.dtype) -> torch.Tensor:
        """Return a real tensor with each element moved; other tensors unchanged."""
        if not value.is_floating_point():
            return value
        units = self.units * (2 * torch.rand(value.shape, dtype=value.dtype, generator=self.drawn) - 1)
        return move_by_units(value, self.narrow, units)

    def rounded(self, value: Any) -> Any:
        """Return a result with each element moved that `narrow` does not represent."""
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64:
            return value
        return value.where(represented(value, self.narrow), self.moved(value, self.narrow))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call, in which results move."""
        with _Moving(self):
            yield


class _Moving(TorchDispatchMode):
    """Moves the results of operators that compute; views and inputs keep their values."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing Dynamo in the first call, which takes seconds. Nothing compiles in this mode."""
        return False

    def __init__(self, target: Swayed) -> None:
        super().__init__()
        self.target = target

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(result.alias_info is not None and not result.alias_info.is_write for result in returns):
            return result
        if any(result.alias_info is not None for result in returns):
            for output in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(output, torch.Tensor):
                    output.copy_(self.target.rounded(output))
            return result
        if isinstance(result, (tuple, list)):
            return type(result)(map(self.target.rounded, result))
        return self.target.rounded(result)


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


def distance(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the absolute difference of each element in float64: 0 where both are equal or both are nan, and nan or
    infinite where one of them is not finite. Integers are compared without rounding."""
    kind = widened(tensor.dtype) if tensor.is_floating_point() or tensor.is_complex() else torch.int64
    tensor, other = tensor.detach().to(kind), other.detach().to(kind)
    same = (tensor == other) | (tensor.isnan() & other.isnan())
    return (tensor - other).abs().double().where(~same, 0.0)


def _error(right: torch.Tensor, got: torch.Tensor, rtol: float, atol: float) -> float:
    """Return the largest error of an element, in multiples of the tolerance for that element."""
    off = distance(right, got)
    ratio = (off / (atol + rtol * right.to(widened(right.dtype)).abs())).where(off != 0, 0.0)
    return ratio.nan_to_num(nan=inf, posinf=inf).max().item() if ratio.numel() else 0.0


def as_good(want: torch.Tensor, got: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the elements of `got` whose error is within torch CPU's own largest error in the whole result, which
    bounds each element: sums of very large numbers may cancel or overflow on the way. `right` is the answer in
    float64."""
    right = right.to(want.dtype)
    bound = AS_GOOD * distance(want, right).max().nan_to_num(nan=inf)
    return (distance(got, right) <= bound) & bool(bound.isfinite())


def relative_error(tensor: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    """Return the norm of the difference, and the same relative to the norm of the right tensor. Elements that are
    equal, or nan on both sides, differ by 0."""
    kind = torch.complex128 if right.is_complex() else torch.float64
    off = float(distance(tensor.to(kind), right.to(kind)).norm())
    scale = float(right.detach().to(kind).nan_to_num(0.0, 0.0, 0.0).norm())
    return off, off / scale if scale else (0.0 if not off else inf)


Widened = Callable[[Float64Reference], Execution | None]
"""Returns torch CPU's answer to a call, on the inputs that the reference sends; None if it has none."""


def small_faults(widened_by: Widened, want: Observation, got: Observation) -> list[Mismatch]:
    """Return the value mismatches of tensors whose largest value is below one, relative to that value.

    torch.testing's tolerances are for values near one: two float32 numbers below 1e-5 are always close. A difference
    found here is rounding in two cases: torch CPU's own error against float64 is of the same size, or one rounding of
    every input changes the float64 answer by as much."""
    faults, exact = list[Mismatch](), functools.cache(lambda: widened_by(Float64Reference()))
    moved = functools.cache(lambda seed: widened_by(Moved(seed)))
    for name, seen in want.tensors.items():
        expected, there = seen.value, got.tensors.get(name)
        if there is None or there.value.shape != expected.shape or there.value.dtype != expected.dtype:
            continue
        largest = _largest(expected)
        if not 0 < largest < 1:
            continue
        rtol, atol = tolerance_of(expected.dtype)
        tolerance = {str(expected.dtype).removeprefix("torch."): (rtol, atol * largest)}
        sides = (replace(side, tensors={name: side.tensors[name]}, storages={}, others={}) for side in (want, got))
        mismatches = compare(*sides, oracles={"value"}, tolerance=tolerance)
        if mismatches and not _is_rounding(
            _value(exact(), name), (_value(moved(seed), name) for seed in range(MOVES)), expected, there.value, largest
        ):
            faults += mismatches
    return faults


def _is_rounding(
    right: torch.Tensor | None,
    moved: Iterable[torch.Tensor | None],
    expected: torch.Tensor,
    got: torch.Tensor,
    largest: float,
) -> bool:
    """Whether rounding explains the device's error against the answer `right` in float64, or float64 cannot decide.
    `moved` are the answers on moved inputs."""
    if right is None or right.shape != got.shape:
        return True
    error, of_cpu = (_largest(distance(right, side)) for side in (got, expected))
    if error <= OF_CPU * max(of_cpu, torch.finfo(expected.dtype).eps * largest):
        return True
    changes = [
        _largest(distance(right, tensor)) for tensor in moved if tensor is not None and tensor.shape == right.shape
    ]
    return error <= OF_INPUTS * max(changes, default=0.0)


def _value(run: Execution | None, name: str) -> torch.Tensor | None:
    seen = run.last.tensors.get(name) if run is not None and run.last.error is None else None
    return None if seen is None or seen.value.dtype != widened(seen.value.dtype) else seen.value


def _largest(values: torch.Tensor) -> float:
    """Return the largest finite magnitude; 0 for other dtypes than floating and complex ones, and without elements."""
    if not (values.is_floating_point() or values.is_complex()) or values.element_size() == 1 or not values.numel():
        return 0.0
    return float(values.resolve_conj().resolve_neg().abs().nan_to_num(0.0, 0.0, 0.0).max())
