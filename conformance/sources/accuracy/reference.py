"""Points at which an elementary function is measured, and its exact answers there, by mpmath.

Defines `points` and `exact`. An approximation is good where its author tested it. The arguments therefore come from all
exponents of the dtype, from the usual range in networks, and from next to the zeros, poles and ends of the function.
Each kind is judged separately, since torch CPU's errors in the worst kind would otherwise hide errors in the others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import torch

from conformance.sources.accuracy.table import AccuracyRow

POINTS = 600
"""Points of each kind, enough that one argument more or less does not change a finding. mpmath takes about 50
microseconds for one.
"""

DIGITS = 200
"""Precision of mpmath in bits: float64 has 53, and cancellation as in `x - tanh(x)` takes some."""

STEP = 90
"""Bits between the magnitudes of an argument and of the step of its difference. The nearest pole is 53 bits away."""

USUAL = 8.0
"""Magnitude of most numbers in networks."""


def points(row: AccuracyRow, dtype: torch.dtype, seed: int) -> dict[str, list[torch.Tensor]]:
    """Return, by kind of points, one tensor of this dtype for each argument, without subnormal numbers."""
    draw = random.Random(seed)
    info = torch.finfo(dtype)
    low, high = max(row.range[0], info.min), min(row.range[1], info.max)
    ends = [abs(end) for end in (low, high)]
    least = min(ends) if low * high > 0 else 0.0
    least, most = math.log2(max(info.tiny, least)), math.log2(max(ends))

    def everywhere() -> float:
        return draw.choice((-1.0, 1.0)) * 2 ** draw.uniform(least, most)

    def usual() -> float:
        return draw.uniform(max(low, -USUAL), min(high, USUAL)) if low < USUAL else draw.uniform(low, high)

    def approached() -> float:
        with mpmath.workprec(DIGITS):
            at = float(_evaluated(draw.choice(row.near), {}))
        return (at or 1.0) * draw.choice((-1, 1)) * 2.0 ** draw.uniform(math.log2(info.eps), -1) + at

    kinds: dict[str, Callable[[], float]] = {"all exponents": everywhere, "usual numbers": usual}
    if row.near:
        kinds[f"near {', '.join(row.near)}"] = approached
    return {kind: _drawn(make, len(row.arguments), (low, high), dtype) for kind, make in kinds.items()}


def _drawn(make: Callable[[], float], count: int, ends: tuple[float, float], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return up to POINTS numbers for each argument, rounded to the dtype, strictly between the ends and not
    subnormal.
    """
    columns, tiny = [], torch.finfo(dtype).tiny
    for _ in range(count):
        many = torch.tensor([make() for _ in range(8 * POINTS)], dtype=torch.float64).to(dtype)
        wide = many.double()
        kept = many[(wide > ends[0]) & (wide < ends[1]) & (wide.abs() >= tiny)]
        columns.append(kept[:POINTS])
    least = min(map(len, columns))
    return [x[:least].clone() for x in columns]


def exact(
    row: AccuracyRow, inputs: list[torch.Tensor], argument: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the exact answers as a sum of two float64 tensors; with `argument`, those of the derivative by this
    argument. nan stands where the function has no real answer, or mpmath finds none.
    """
    highs, lows = [], []
    code = compile(row.exact, row.name, "eval")
    with mpmath.workprec(DIGITS):
        for arguments in zip(*(x.tolist() for x in inputs), strict=True):
            try:
                answer = _answer(code, row.arguments, [*map(mpmath.mpf, arguments)], argument)
                high = float(answer)
                low = float(answer - high) if math.isfinite(high) else 0.0
            except (ValueError, ZeroDivisionError, OverflowError, ArithmeticError, mpmath.libmp.NoConvergence):
                high = low = math.nan
            highs.append(high)
            lows.append(low)
    return torch.tensor(highs, dtype=torch.float64), torch.tensor(lows, dtype=torch.float64)


def _answer(code: Any, names: tuple[str, ...], inputs: list[Any], argument: int | None) -> Any:
    def function(*values: Any) -> Any:
        return _evaluated(code, dict(zip(names, values, strict=True)))

    answer = function(*inputs) if argument is None else _derivative(function, inputs, argument)
    if isinstance(answer, mpmath.mpc):
        if abs(answer.imag) > abs(answer) * mpmath.mpf(2) ** -100:
            raise ValueError("no real number")
        answer = answer.real
    return mpmath.mpf(answer)


def _derivative(function: Callable[..., Any], inputs: list[Any], argument: int) -> Any:
    """Return a central difference. Its step is so small that the truncation error is below float64, also next to a
    pole. Its precision is so high that cancellation does not reach these bits.
    """
    size = mpmath.mag(inputs[argument])
    step = mpmath.ldexp(1, size - STEP)
    with mpmath.workprec(DIGITS + STEP + max(0, -size)):
        sides = [[*inputs[:argument], inputs[argument] + way * step, *inputs[argument + 1 :]] for way in (1, -1)]
        above, below = (function(*side) for side in sides)
        return (above - below) / (2 * step)


def _evaluated(code: Any, values: dict[str, Any]) -> Any:
    """Evaluate an expression of this package's table in mpmath. `Float` is a constant that torch stores as float64."""
    names = {**vars(mpmath), "abs": abs, "min": min, "max": max, "Float": mpmath.mpf}
    return eval(code, names | values)  # noqa: S307
