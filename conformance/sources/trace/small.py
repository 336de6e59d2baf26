"""Small results: a wrong value can lie below the absolute tolerance.

Defines `small_faults`. torch.testing's tolerances are for values near one: two float32 numbers below 1e-5 are always
close. The gradients of a mean loss are that small, so here a tensor is compared relative to its largest value. A
difference found in this way is rounding in two cases: torch CPU's own error against float64 is of the same size, or one
rounding of every input changes the float64 answer by as much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from conformance.engine.arbitration import widened
from conformance.engine.executor import Execution
from conformance.engine.float64 import Float64Reference
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import Mismatch, compare, tolerance_of

Widened = Callable[[Float64Reference], Execution | None]
"""Returns torch CPU's answer to a call, on the inputs that the reference sends; None if it has none."""

OF_CPU = 8.0
"""Factor between the errors of the device and of torch CPU that rounding may explain."""

OF_INPUTS = 64.0
"""Factor between the device's error and the change that roundings of the inputs cause. A sum of n terms one by one has
an error that is up to the square root of n larger than this change."""

MOVES = 2
"""Number of runs with moved inputs."""


class Moved(Float64Reference):
    """Inputs in float64 whose elements are moved by one unit in the last place of their own dtype, up or down."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return moved copies of the storages."""
        return [self._moved(flat, wide) for flat, wide in zip(flats, super().upload(flats), strict=True)]

    def _moved(self, flat: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        if not (flat.is_floating_point() or flat.is_complex()):
            return wide
        signs = torch.randint(0, 2, flat.shape, generator=self.generator) * 2 - 1
        return wide * (1 + torch.finfo(flat.dtype).eps * signs)


def small_faults(widened_by: Widened, want: Observation, got: Observation) -> list[Mismatch]:
    """Return the value mismatches of tensors whose largest value is below one, relative to that value."""
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
        if mismatches and not _rounded(
            _value(exact(), name), (_value(moved(seed), name) for seed in range(MOVES)), expected, there.value, largest
        ):
            faults += mismatches
    return faults


def _rounded(
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
    error, of_cpu = (_largest(side.to(right.dtype) - right) for side in (got, expected))
    if error <= OF_CPU * max(of_cpu, torch.finfo(expected.dtype).eps * largest):
        return True
    changes = [_largest(tensor - right) for tensor in moved if tensor is not None and tensor.shape == right.shape]
    return error <= OF_INPUTS * max(changes, default=0.0)


def _value(run: Execution | None, name: str) -> torch.Tensor | None:
    seen = run.last.tensors.get(name) if run is not None and run.last.error is None else None
    return None if seen is None or seen.value.dtype != widened(seen.value.dtype) else seen.value


def _largest(values: torch.Tensor) -> float:
    """Return the largest finite magnitude; 0 for other dtypes than floating and complex ones, and without elements."""
    if not (values.is_floating_point() or values.is_complex()) or values.element_size() == 1 or not values.numel():
        return 0.0
    return float(values.resolve_conj().resolve_neg().abs().nan_to_num(0.0, 0.0, 0.0).max())
