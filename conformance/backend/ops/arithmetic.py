"""Arithmetic of lazy floats as IEEE 754 has it, and what approximations are made of.

Defines division, subtraction and products that tinygrad's simplifier leaves as they are, signs, rounding, powers of
two, and polynomials.

The key insight: tinygrad's simplifier treats floats as reals (x/x becomes 1, x*0 becomes 0, (x+c)-c becomes x), which
loses nan, inf and the rounding that compensated formulas live on. Its nodes FDIV and SUB are outside those rules, so
divisions and differences are built from them.
Must not know torch: it works on tinygrad values of dtype float32 or float64 (`rint`, `sign_bit`: of any float).
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
    """a - b, never combined with other terms."""
    if isinstance(a, UOp):
        return a.alu(Ops.SUB, _like(a, b))
    assert isinstance(b, UOp)
    return _like(b, a).alu(Ops.SUB, b)


def add(a: UOp, b: UOp) -> UOp:
    """a + b; a constant is not merged with the constants of an inner sum, since each sum rounds."""
    if dtypes.is_float(a.dtype):
        for x, y in ((a, b), (b, a)):
            number = expressions.constant_of(y)
            if number is not None:
                return x.alu(Ops.SUB, y.const_like(-number))
    return a + b


def multiply(a: UOp, b: UOp) -> UOp:
    """a * b; a constant 0 is kept as a division by infinity, which gives nan for inf and nan as the product does."""
    if dtypes.is_float(a.dtype):
        for x, y in ((a, b), (b, a)):
            number = expressions.constant_of(y)
            if number == 0:
                return x.alu(Ops.FDIV, y.const_like(math.copysign(INF, number)))
    return a * b


def _like(a: UOp, b: UOp | float) -> UOp:
    return b if isinstance(b, UOp) else UOp.const(float(b), a.dtype)


def bits_dtype(dtype: DType) -> DType:
    """The signed integer dtype of a dtype's width."""
    return {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[dtype.itemsize]


def sign_bit(x: UOp) -> UOp:
    """Whether the sign bit is set, of zeros and nans too."""
    return x.bitcast(bits_dtype(x.dtype)) < 0


def absolute(x: UOp) -> UOp:
    """|x|, of zeros and nans too."""
    return sign_bit(x).where(x * -1, x)


def copy_sign(magnitude: UOp, sign: UOp) -> UOp:
    """The magnitude of one value with the sign bit of another of the same dtype."""
    return sign_bit(magnitude).ne(sign_bit(sign)).where(magnitude * -1, magnitude)


def rint(x: UOp) -> UOp:
    """The nearest integer, halves to even, as nearbyint does; keeps the sign of zero."""
    whole = x.trunc()
    rest = absolute(subtract(x, whole))
    half = whole * 0.5
    up = (rest > 0.5) | (rest.eq(0.5) & half.trunc().ne(half))
    return up.where(whole + copy_sign(x.const_like(1.0), x), whole)


def narrow(x: UOp) -> bool:
    """Whether the value is float32."""
    return x.dtype is dtypes.float32


def in_float64(function: Callable[..., UOp]) -> Callable[..., UOp]:
    """The function with float32 values computed in float64 and rounded once: where many roundings, or one before a
    cancellation, would leave more than 2 ulp."""

    @functools.wraps(function)
    def wide(*values: UOp) -> UOp:
        return function(*(x.cast(dtypes.float64) for x in values)).cast(values[0].dtype)

    return wide


def horner(x: UOp, coefficients: Sequence[float]) -> UOp:
    """A polynomial, highest power first."""
    return polyN(x, list(coefficients))  # type: ignore[return-value]


def power_of_two(k: UOp, dtype: DType) -> UOp:
    """2**k for integers k of the float's width within its normal exponents.

    The exponent's bits are taken before and after the sum: then it is known to fit, whatever is known of k.
    """
    exponent, mantissa = dtypes.finfo(dtype)
    bits = (1 << exponent) - 1
    return ((((k & bits) + (bits >> 1)) & bits) * (1 << mantissa)).bitcast(dtype)


def scale(x: UOp, k: UOp) -> UOp:
    """x * 2**k in two steps, so that neither factor overflows."""
    half = k >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(half + (k & 1), x.dtype)


def nearest(x: UOp) -> tuple[UOp, UOp]:
    """An integer nearest to x as a float and as an integer of the same width.

    No trick that leans on a sum's rounding: tinygrad folds constants in double precision.
    """
    k = (x + 0.5).floor()
    return k, k.cast(bits_dtype(x.dtype))


def parts(value: Fraction, bits: int, count: int) -> list[float]:
    """A number as a sum of floats of at most `bits` bits each, the largest first."""
    found = []
    for _ in range(count):
        unit = Fraction(2) ** (math.frexp(float(value))[1] - bits)
        found.append(float(round(value / unit) * unit))
        value -= Fraction(found[-1])
    return found
