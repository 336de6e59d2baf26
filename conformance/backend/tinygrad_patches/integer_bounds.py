"""Bounds of integers that wrap.

Defines `fits`, `unwrapped_bounds` and `may_wrap`, with which other patches exclude operations that wrap.

tinygrad simplifies comparisons by the least and greatest value of an expression. An integer that wraps can have all
values of its dtype, so bounds outside the dtype are invalid.
"""

from __future__ import annotations

from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from .patch import Patch

WRAPPING = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.SHL, Ops.NEG})

_BOUNDS = Patch(
    "tinygrad.uop.ops:UOp._min_max.func",
    "x + 255 of a byte was at least 255 and so never 0, and a byte that had become an int8 was at least 0.",
    "test_wrong_values.py::TestConversions.test_signs",
)
unwrapped_bounds = _BOUNDS.original


def fits(dtype: DType, low: Any, high: Any) -> bool:
    """Whether a dtype holds all integers from `low` to `high`."""
    return dtype is dtypes.weakint or bool(dtype.min <= low and high <= dtype.max)


def _bounds(self: UOp) -> tuple[Any, Any]:
    low, high = unwrapped_bounds(self)
    if self.op is Ops.CAST and dtypes.is_int(self.dtype) and dtypes.is_int(self.src[0].dtype):
        wraps = not fits(self.dtype, *self.src[0]._min_max)
    else:
        wraps = self.op in WRAPPING and dtypes.is_int(self.dtype) and not fits(self.dtype, low, high)
    return (self.dtype.min, self.dtype.max) if wraps else (low, high)


_BOUNDS.apply(_bounds)


def may_wrap(u: UOp) -> bool:
    """Whether an operation on integers may have a result that does not fit its dtype, by its operands' bounds."""
    if u.op not in WRAPPING or not dtypes.is_int(u.dtype) or u.dtype in (dtypes.uint32, dtypes.uint64):
        return False
    bounds = (-u.src[0].vmax, -u.src[0].vmin) if u.op is Ops.NEG else unwrapped_bounds(u)  # it has no case for NEG
    return not fits(u.dtype, *bounds)
