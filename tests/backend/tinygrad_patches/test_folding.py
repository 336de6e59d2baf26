"""Constant folding gives the results of kernels."""

from __future__ import annotations

import math

import pytest
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

import conformance.backend  # noqa: F401 - applies the patches


def number(value: UOp) -> object:
    """Return the constant that a value folds to."""
    folded = value.simplify()
    assert folded.op is Ops.CONST, folded
    return folded.val


@pytest.mark.parametrize(
    ("a", "b", "quotient"), [(1.0, 4.0, 0.25), (1.0, 0.0, math.inf), (-1.0, 0.0, -math.inf), (1.0, -0.0, -math.inf)]
)
def test_quotients_of_constants(a, b, quotient):
    """A quotient of constants folds to the right number, also for a zero divisor of either sign."""
    assert number(UOp.const(a, dtypes.float32).alu(Ops.FDIV, UOp.const(b, dtypes.float32))) == quotient


def test_nan_differs_from_itself():
    """A comparison of nan with itself folds to unequal."""
    nan = UOp.const(math.nan, dtypes.float32)
    assert number(nan.alu(Ops.CMPNE, nan)) is True
    assert number(nan.alu(Ops.CMPEQ, nan)) is False


@pytest.mark.parametrize(
    ("value", "dtype", "kept"),
    [
        (math.nan, dtypes.int32, -(2**31)),
        (math.inf, dtypes.int64, -(2**63)),
        (1e20, dtypes.int32, -(2**31)),
        (-1, dtypes.uint8, 255),
        (2**31, dtypes.int32, -(2**31)),
    ],
)
def test_constants_lie_within_their_dtype(value, dtype, kept):
    """A float that does not fit becomes the least integer, and an integer wraps."""
    assert dtype.const(value) == kept
