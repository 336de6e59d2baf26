"""Arithmetic of lazy floats after IEEE 754, and the building blocks of approximations.

Defines division, subtraction and products that tinygrad's simplifier does not change, signs, rounding, powers of two,
and polynomials.

The simplifier of tinygrad treats floats as reals (x/x becomes 1, x*0 becomes 0, (x+c)-c becomes x). That loses nan, inf
and the rounding that compensated formulas need. No such rule matches the nodes FDIV and SUB, so divisions and
differences are built from them.
The module does not use torch. It works on tinygrad values of dtype float32 or float64 (`rint`, `sign_bit`: any float).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import polyN
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..runtime import expressions

INF, NAN = math.inf, math.nan


def divide(a: UOp, b: UOp | float) -> UOp:
    """a / b, correctly rounded; tinygrad's own division multiplies by a reciprocal and cancels x/x."""
    return a.alu(Ops.FDIV, _like(a, b))


def subtract(a: UOp | float, b: UOp | float) -> UOp:
    """a - b, not combined with other terms."""
    if isinstance(a, UOp):
        return a.alu(Ops.SUB, _like(a, b))
    assert isinstance(b, UOp)
    return _like(b, a).alu(Ops.SUB, b)


def add(a: UOp, b: UOp) -> UOp:
    """a + b; a constant is not merged with the constants of an inner sum, because each sum rounds."""
    if dtypes.is_float(a.dtype):
        for x, y in ((a, b), (b, a)):
            number = expressions.constant_of(y)
            if number is not None:
                return x.alu(Ops.SUB, y.const_like(-number))
    return a + b


def multiply(a: UOp, b: UOp) -> UOp:
    """a * b; a constant 0 becomes a division by infinity, which gives nan for inf and nan, as the product does."""
    if dtypes.is_float(a.dtype):
        for x, y in ((a, b), (b, a)):
            number = expressions.constant_of(y)
            if number == 0:
                return x.alu(Ops.FDIV, y.const_like(math.copysign(INF, number)))
    return a * b


def _like(a: UOp, b: UOp | float) -> UOp:
    return b if isinstance(b, UOp) else UOp.const(float(b), a.dtype)


def bits_dtype(dtype: DType) -> DType:
    """Signed integer dtype of the same width."""
    return {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[dtype.itemsize]


def sign_bit(x: UOp) -> UOp:
    """Whether the sign bit is set; also valid for zeros and nans."""
    return x.bitcast(bits_dtype(x.dtype)) < 0


def absolute(x: UOp) -> UOp:
    """|x|, also for zeros and nans."""
    return sign_bit(x).where(x * -1, x)


def copy_sign(magnitude: UOp, sign: UOp) -> UOp:
    """Magnitude of one value with the sign bit of another value of the same dtype."""
    return sign_bit(magnitude).ne(sign_bit(sign)).where(magnitude * -1, magnitude)


def rint(x: UOp) -> UOp:
    """Nearest integer, halves to even, as nearbyint rounds; keeps the sign of zero."""
    whole = x.trunc()
    rest = absolute(subtract(x, whole))
    half = whole * 0.5
    up = (rest > 0.5) | (rest.eq(0.5) & half.trunc().ne(half))
    return up.where(whole + copy_sign(x.const_like(1.0), x), whole)


def narrow(x: UOp) -> bool:
    """Whether the value is float32."""
    return x.dtype is dtypes.float32


def in_float64(function: Callable[..., UOp]) -> Callable[..., UOp]:
    """Wrap a function so that it computes float32 values in float64 and rounds once.

    For functions with many roundings, or with a rounding before a cancellation, whose error would exceed 2 ulp.
    """

    @functools.wraps(function)
    def wide(*values: UOp) -> UOp:
        return function(*(x.cast(dtypes.float64) for x in values)).cast(values[0].dtype)

    return wide


def horner(x: UOp, coefficients: Sequence[float]) -> UOp:
    """Value of a polynomial; coefficients start with the highest power."""
    return polyN(x, list(coefficients))  # type: ignore[return-value]


def power_of_two(k: UOp, dtype: DType) -> UOp:
    """2**k for integers k of the float's width, within the range of normal exponents.

    The exponent is masked before and after the sum, so that tinygrad's bounds fit for any bounds of k.
    """
    exponent, mantissa = dtypes.finfo(dtype)
    bits = (1 << exponent) - 1
    return ((((k & bits) + (bits >> 1)) & bits) * (1 << mantissa)).bitcast(dtype)


def scale(x: UOp, k: UOp) -> UOp:
    """x * 2**k in two steps, so that no factor overflows."""
    half = k >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(half + (k & 1), x.dtype)


def nearest(x: UOp) -> tuple[UOp, UOp]:
    """An integer nearest to x, as a float and as an integer of the same width.

    Adding and subtracting a large constant would not work: tinygrad folds constants in double precision.
    """
    k = (x + 0.5).floor()
    return k, k.cast(bits_dtype(x.dtype))


def parts(value: Fraction, bits: int, count: int) -> list[float]:
    """Split a number into floats of at most `bits` bits each, largest first."""
    result = []
    for _ in range(count):
        unit = Fraction(2) ** (math.frexp(float(value))[1] - bits)
        result.append(float(round(value / unit) * unit))
        value -= Fraction(result[-1])
    return result
