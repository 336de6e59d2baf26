"""Constants that tinygrad folds: quotients, nan, and numbers that do not fit a dtype.

tinygrad folds constants with Python's arithmetic, which raises where the hardware gives inf or nan, and has no dtypes.
A folded constant must equal the result of the kernel that it replaces.
"""

from __future__ import annotations

import math
from typing import Any

from tinygrad.dtype import DType, dtypes

from .patch import Patch


def _divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


_QUOTIENT = Patch(
    "tinygrad.uop.ops:python_alu[FDIV]",
    "The table by which constants are folded lacks the division that the renderers have.",
    "test_folding.py::test_quotients_of_constants",
    missing=True,
)
if _QUOTIENT.original is None:
    _QUOTIENT.apply(_divide)


def _differ(a: Any, b: Any) -> bool:
    return float(a) != float(b) if isinstance(a, float) or isinstance(b, float) else bool(a != b)


Patch(
    "tinygrad.uop.ops:python_alu[CMPNE]",
    "Constants count two nans as equal, so that a search for nan found none among constants.",
    "test_folding.py::test_nan_differs_from_itself",
).apply(_differ)
Patch(
    "tinygrad.uop.ops:python_alu[CMPEQ]",
    "Constants count two nans as equal.",
    "test_folding.py::test_nan_differs_from_itself",
).apply(lambda a, b: not _differ(a, b))

_CONSTANT = Patch(
    "tinygrad.dtype:DType.const",
    "A cast of nan or inf to an integer is folded by int(), which raises; 1e20 becomes a literal that no C compiler "
    "takes; and -1 of an unsigned dtype is less than 0.",
    "test_folding.py::test_constants_lie_within_their_dtype",
)
_const = _CONSTANT.original
_BOUNDED = frozenset({
    dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64,
})  # fmt: skip


def _within(self: DType, number: Any) -> Any:
    """A constant within its dtype: a float that does not fit becomes the least integer, an integer wraps."""
    if isinstance(number, float) and dtypes.is_int(self):
        whole = int(number) if math.isfinite(number) else self.min
        number = whole if self.min <= whole <= self.max else self.min  # type: ignore[operator]
    elif isinstance(number, int) and self in _BOUNDED:
        number = (number - self.min) % (1 << self.bitsize) + self.min  # type: ignore[operator]
    return _const(self, number)


_CONSTANT.apply(_within)
