"""Whether another rounding explains a difference between torch CPU and a target.

Where two sides differ by rounding alone, torch CPU is not right by definition. Torch CPU in float64 decides, in one of
four ways:

- `arbitrate` of `standalone/rounding.py`, which scripts carry, compares both with the answer in float64;
- `as_good`: each element is about as near as torch CPU's worst element, where large values dominate the rounding;
- `small_faults`: values below the absolute tolerance, such as gradients of a mean, are compared relative to the
  largest one;
- `relative_error`: the norm of a whole tensor's error, for runs of many calls that part slowly.

`Float64Reference` is torch CPU in float64 as a target. It widens storages, not tensors, so it keeps aliasing and runs a
call or a program unchanged. `Moved` also moves the values, to measure how far rounding can carry an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf

import torch

from conformance.engine.executor import Execution
from conformance.engine.target import Target
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import Mismatch, compare, tolerance_of
from conformance.standalone.rounding import Widened, distance, move_by_units, widened

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


class Float64Reference(Widened, Target):
    """Torch CPU on widened inputs, as a target. Raises CannotWiden for inputs that it cannot widen."""

    name = "wide"


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


RunWidened = Callable[[Float64Reference], Execution | None]
"""Returns torch CPU's answer to a call, on the inputs that the reference sends; None if it has none."""


def small_faults(widened_by: RunWidened, want: Observation, got: Observation) -> list[Mismatch]:
    """Return the value mismatches of tensors whose largest value is below one, relative to that value.

    torch.testing's tolerances are for values near one: two float32 numbers below 1e-5 are always close. A difference
    found here is rounding in two cases: torch CPU's own error against float64 is of the same size, or one rounding of
    every input changes the float64 answer by as much."""
    found = list[tuple[str, float, list[Mismatch]]]()
    for name, seen in want.tensors.items():
        expected, there = seen.value, got.tensors.get(name)
        if there is None or there.value.shape != expected.shape or there.value.dtype != expected.dtype:
            continue
        if expected is there.value or torch.equal(expected, there.value):  # faster than to find the largest value
            continue
        largest = _largest(expected)
        if not 0 < largest < 1:
            continue
        rtol, atol = tolerance_of(expected.dtype)
        tolerance = {str(expected.dtype).removeprefix("torch."): (rtol, atol * largest)}
        sides = (replace(side, tensors={name: side.tensors[name]}, storages={}, others={}) for side in (want, got))
        if mismatches := compare(*sides, oracles={"value"}, tolerance=tolerance):
            found.append((name, largest, mismatches))
    if not found:
        return []
    exact, moved = widened_by(Float64Reference()), [widened_by(Moved(seed)) for seed in range(MOVES)]
    return [
        mismatch
        for name, largest, mismatches in found
        if not _is_rounding(
            _value(exact, name),
            [_value(run, name) for run in moved],
            want.tensors[name].value,
            got.tensors[name].value,
            largest,
        )
        for mismatch in mismatches
    ]


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
