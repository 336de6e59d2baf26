"""Elementary functions of lazy float values, exact where IEEE arithmetic is and within a few ulp elsewhere.

Defines division, subtraction and products that tinygrad's simplifier leaves as they are, and exp, log, powers, the
trigonometric and hyperbolic functions and their inverses in float32 and float64.

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
LN2 = math.log(2)


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


def _narrow(x: UOp) -> bool:
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


def _reduced(x: UOp) -> tuple[UOp, UOp]:
    """(k, r) with x = k ln 2 + r, |r| <= ln(2)/2 (Cody and Waite, Software Manual for the Elementary Functions, 1980).

    ln 2 is split so that k times its high part is exact. Arguments are clipped where the exponential is 0, or half of
    it inf.
    """
    least, most = (-104.0, 90.0) if _narrow(x) else (-746.0, 711.0)
    high, low = (0.693359375, -2.12194440e-4) if _narrow(x) else (6.93145751953125e-1, 1.42860682030941723212e-6)
    x = (x < least).where(least, (x > most).where(most, x))
    k, whole = nearest(x * (1 / LN2))
    return whole, subtract(subtract(x, k * high), k * low)


def _expm1_series(r: UOp) -> UOp:
    terms = 7 if _narrow(r) else 13
    return r * horner(r, [1 / math.factorial(n) for n in range(terms, 0, -1)])


def exp(x: UOp) -> UOp:
    """e**x."""
    k, r = _reduced(x)
    return scale(1.0 + _expm1_series(r), k)


def half_exp(x: UOp) -> UOp:
    """e**x / 2, which is finite a little longer than e**x."""
    k, r = _reduced(x)
    return scale(1.0 + _expm1_series(r), k - 1)


def expm1(x: UOp) -> UOp:
    """e**x - 1 without cancellation."""
    k, r = _reduced(x)
    series = _expm1_series(r)
    near = power_of_two((k > 64).where(64, (k < -64).where(-64, k)), x.dtype)
    result = (k > 64).where(scale(1.0 + series, k), series * near + subtract(near, 1.0))
    return x.eq(0).where(x, result)


@in_float64
def log(x: UOp) -> UOp:
    """The natural logarithm; tinygrad's binary one is 2 ulp off next to 1."""
    return x.log2() * LN2


@in_float64
def log2(x: UOp) -> UOp:
    """The binary logarithm."""
    return x.log2()


@in_float64
def log10(x: UOp) -> UOp:
    """The decimal logarithm."""
    return x.log2() * math.log10(2)


@in_float64
def log1p(x: UOp) -> UOp:
    """log(1 + x) without cancellation: near 0 by 2 artanh(x / (2 + x))."""
    s = divide(x, 2.0 + x)
    series = s * horner(s * s, [2 / (2 * n + 1) for n in range(12, -1, -1)])
    near = (absolute(x) < 0.4) & x.ne(0)
    return x.eq(0).where(x, near.where(series, (1.0 + x).log2() * LN2))


@in_float64
def logaddexp2(a: UOp, b: UOp) -> UOp:
    """log2(2**a + 2**b)."""
    return logaddexp(a * LN2, b * LN2) * (1 / LN2)


def logaddexp(a: UOp, b: UOp) -> UOp:
    """log(e**a + e**b)."""
    larger, smaller = (a < b).where(b, a), (a < b).where(a, b)
    result = larger + log1p(exp(subtract(smaller, larger)))
    result = (a.eq(b) & absolute(a).eq(INF)).where(a, result)
    return (a.ne(a) | b.ne(b)).where(NAN, result)


_HALF_PI = Fraction("1.57079632679489661923132169163975144209858469968755291487472296153908203143104499314")


def _split(value: Fraction, bits: int, count: int) -> list[float]:
    """A number as a sum of floats of at most `bits` bits each."""
    parts = []
    for _ in range(count):
        unit = Fraction(2) ** (math.frexp(float(value))[1] - bits)
        parts.append(float(round(value / unit) * unit))
        value -= Fraction(parts[-1])
    return parts


def _quadrant(x: UOp) -> tuple[UOp, UOp, UOp]:
    """(k, sin r, cos r) with x = k pi/2 + r, |r| <= pi/4: Cody and Waite's reduction, then Taylor series.

    pi/2 is split into parts so short that their products with k are exact up to `_TRIG_LIMIT`.
    """
    k, whole = nearest(x * (2 / math.pi))
    r = x
    for part in _split(_HALF_PI, 11 if _narrow(x) else 24, 4):
        r = subtract(r, k * part)
    terms, z = 5 if _narrow(x) else 9, r * r
    sine = r * horner(z, [(-1) ** n / math.factorial(2 * n + 1) for n in range(terms, -1, -1)])
    cosine = horner(z, [(-1) ** n / math.factorial(2 * n) for n in range(terms + 1, -1, -1)])
    return whole, sine, cosine


def _small_angle(x: UOp) -> UOp:
    return absolute(x) < (8192.0 if _narrow(x) else 2.0**28)


def _sin_of_large(x: UOp) -> UOp:
    """The sine by tinygrad's Payne-Hanek reduction, which in float32 keeps too few bits of pi."""
    return x.cast(dtypes.float64).sin()


def sin(x: UOp) -> UOp:
    """The sine; of large arguments in float64."""
    k, sine, cosine = _quadrant(x)
    value = (k & 1).ne(0).where(cosine, sine)
    value = (k & 2).ne(0).where(-value, value)
    return x.eq(0).where(x, _small_angle(x).where(value, _sin_of_large(x).cast(x.dtype)))


def cos(x: UOp) -> UOp:
    """The cosine; of large arguments 1 - 2 sin(x/2)**2, since a shift by pi/2 would be rounded away."""
    k, sine, cosine = _quadrant(x)
    value = (k & 1).ne(0).where(sine, cosine)
    value = ((k + 1) & 2).ne(0).where(-value, value)
    return _small_angle(x).where(value, _cos_of_large(x).cast(x.dtype))


def _cos_of_large(x: UOp) -> UOp:
    half = _sin_of_large(x * 0.5)
    return subtract(1.0, 2.0 * half * half)


def tan(x: UOp) -> UOp:
    """The tangent; of large arguments sin/cos."""
    k, sine, cosine = _quadrant(x)
    near = (k & 1).ne(0).where(divide(-cosine, sine), divide(sine, cosine))
    large = divide(_sin_of_large(x), _cos_of_large(x)).cast(x.dtype)
    return x.eq(0).where(x, _small_angle(x).where(near, large))


def sinh(x: UOp) -> UOp:
    """The hyperbolic sine."""
    a = absolute(x)
    e = expm1(a)
    return copy_sign((a < 20).where(0.5 * (e + divide(e, e + 1.0)), half_exp(a)), x)


def cosh(x: UOp) -> UOp:
    """The hyperbolic cosine."""
    half = half_exp(absolute(x))
    return half + divide(half.const_like(0.25), half)


# tanh(x)/x - 1 in x*x below 0.625: S. L. Moshier, Cephes Mathematical Library, tanhf.c.
_TANH32 = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def tanh(x: UOp) -> UOp:
    """The hyperbolic tangent."""
    a = absolute(x)
    if not _narrow(x):
        t = expm1(-2.0 * a)
        return copy_sign(divide(-t, 2.0 + t), x)
    z = a * a
    far = subtract(1.0, divide(a.const_like(2.0), exp(2.0 * a) + 1.0))
    return copy_sign((a < 0.625).where(a + a * (z * horner(z, _TANH32)), far), x)


def sigmoid(x: UOp) -> UOp:
    """1 / (1 + e**-x)."""
    return divide(x.const_like(1.0), 1.0 + exp(-x))


def asinh(x: UOp) -> UOp:
    """The inverse hyperbolic sine."""
    a = absolute(x)
    small = log1p(a + divide(a * a, 1.0 + (1.0 + a * a).sqrt()))
    return copy_sign((a > 1e8).where(log(a) + LN2, small), x)


def acosh(x: UOp) -> UOp:
    """The inverse hyperbolic cosine; nan below 1."""
    t = subtract(x, 1.0)
    small = log1p(t + (2.0 * t + t * t).sqrt())
    return (x < 1).where(NAN, (x > 1e8).where(log(x) + LN2, small))


def atanh(x: UOp) -> UOp:
    """The inverse hyperbolic tangent; nan outside [-1, 1]."""
    a = absolute(x)
    return copy_sign(0.5 * log1p(divide(2.0 * a, subtract(1.0, a))), x)


# atan on [0, tan(pi/8)]: S. L. Moshier, Cephes Mathematical Library, atanf.c and atan.c.
_ATAN32 = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ATAN64_P = (
    -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
    -1.228866684490136173410e2, -6.485021904942025371773e1,
)  # fmt: skip
_ATAN64_Q = (
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
    4.853903996359136964868e2, 1.945506571482613964425e2,
)  # fmt: skip
_MORE_BITS = 6.123233995736765886130e-17  # pi/2 minus its double


def atan(x: UOp) -> UOp:
    """The inverse tangent."""
    a = absolute(x)
    large, middle = a > 2.414213562373095, a > 0.4142135623730950
    t = large.where(divide(a.const_like(-1.0), a), middle.where(divide(subtract(a, 1.0), a + 1.0), a))
    base = large.where(math.pi / 2, middle.where(a.const_like(math.pi / 4), 0.0))
    z = t * t
    if _narrow(x):
        series = t + t * z * horner(z, _ATAN32)
    else:
        more = large.where(_MORE_BITS, middle.where(a.const_like(_MORE_BITS / 2), 0.0))
        series = t + (t * z * divide(horner(z, _ATAN64_P), horner(z, _ATAN64_Q)) + more)
    return x.eq(0).where(x, copy_sign(base + series, x))


def atan2(y: UOp, x: UOp) -> UOp:
    """The angle of (x, y), with the signs of zeros and the infinities of IEEE 754's atan2."""
    ay, ax = absolute(y), absolute(x)
    larger, smaller = (ax < ay).where(ay, ax), (ax < ay).where(ax, ay)
    ratio = larger.eq(0).where(0.0, smaller.eq(INF).where(1.0, divide(smaller, larger)))
    angle = atan(ratio)
    angle = (ax < ay).where(subtract(math.pi / 2, angle), angle)
    angle = sign_bit(x).where(subtract(math.pi, angle), angle)
    return (x.ne(x) | y.ne(y)).where(NAN, copy_sign(angle, y))


def asin(x: UOp) -> UOp:
    """The inverse sine; nan outside [-1, 1]."""
    return atan(divide(x, (subtract(1.0, x) * (1.0 + x)).sqrt()))


def acos(x: UOp) -> UOp:
    """The inverse cosine; nan outside [-1, 1]."""
    return 2.0 * atan(divide(subtract(1.0, x), 1.0 + x).sqrt())


def hypot(a: UOp, b: UOp) -> UOp:
    """sqrt(a*a + b*b) without overflow; inf wins over nan."""
    a, b = absolute(a), absolute(b)
    larger, smaller = (a < b).where(b, a), (a < b).where(a, b)
    ratio = divide(smaller, larger)
    result = larger.eq(0).where(larger, larger * (1.0 + ratio * ratio).sqrt())
    result = (a.ne(a) | b.ne(b)).where(NAN, result)
    return (a.eq(INF) | b.eq(INF)).where(INF, result)


def power(base: UOp, exponent: UOp) -> UOp:
    """base ** exponent of floats, with IEEE 754's pow for nan, infinities and zeros.

    float32 goes through float64, where the error of log2(base) * exponent stays below half an ulp.
    """
    b, x = base.cast(dtypes.float64), exponent.cast(dtypes.float64)
    magnitude = (x * absolute(b).log2()).exp2()
    half = x * 0.5
    whole, odd = x.trunc().eq(x), half.trunc().ne(half) & x.trunc().eq(x)
    # 0 ** x and inf ** x come out of the logarithm right, but for the sign of an odd power.
    magnitude = absolute(b).eq(1).where(1.0, magnitude)
    value = sign_bit(b).where(odd.where(-magnitude, magnitude), magnitude)
    value = ((b < 0) & whole.logical_not() & absolute(b).ne(INF)).where(NAN, value)
    value = (b.ne(b) | x.ne(x)).where(NAN, value)
    return (x.eq(0) | b.eq(1)).where(1.0, value).cast(base.dtype)
