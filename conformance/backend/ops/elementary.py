"""Elementary functions of lazy float values, exact where IEEE arithmetic is exact and within 2 ulp elsewhere.

Defines exp, log, powers, the trigonometric and hyperbolic functions and their inverses in float32 and float64.

In float32, terms that cancel are computed in float64 and rounded once. In float64 such terms are stored as pairs of
numbers (`compensated`).
The module does not use torch. It works on tinygrad values of dtype float32 or float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from . import angle, logarithm
from .arithmetic import (
    INF,
    NAN,
    absolute,
    copy_sign,
    divide,
    horner,
    in_float64,
    narrow,
    nearest,
    parts,
    power_of_two,
    scale,
    sign_bit,
    subtract,
)
from .compensated import two_product

LN2 = math.log(2)


def _reduced(x: UOp) -> tuple[UOp, UOp]:
    """(k, r) with x = k ln 2 + r, |r| <= ln(2)/2 (Cody and Waite, Software Manual for the Elementary Functions, 1980).

    ln 2 is split so that k times its high part is exact. Arguments are clipped to the range outside which the
    exponential is 0, or half of it is inf.
    """
    least, most = (-104.0, 90.0) if narrow(x) else (-746.0, 711.0)
    high, low = (0.693359375, -2.12194440e-4) if narrow(x) else (6.93145751953125e-1, 1.42860682030941723212e-6)
    x = (x < least).where(least, (x > most).where(most, x))
    k, whole = nearest(x * (1 / LN2))
    return whole, subtract(subtract(x, k * high), k * low)


def _expm1_series(r: UOp) -> UOp:
    terms = 7 if narrow(r) else 13
    return r * horner(r, [1 / math.factorial(n) for n in range(terms, 0, -1)])


def exp(x: UOp) -> UOp:
    """e**x."""
    k, r = _reduced(x)
    return scale(1.0 + _expm1_series(r), k)


def half_exp(x: UOp) -> UOp:
    """e**x / 2, which overflows at a slightly larger x than e**x."""
    k, r = _reduced(x)
    return scale(1.0 + _expm1_series(r), k - 1)


def expm1(x: UOp) -> UOp:
    """e**x - 1 without cancellation."""
    k, r = _reduced(x)
    series = _expm1_series(r)
    near = power_of_two((k > 64).where(64, (k < -64).where(-64, k)), x.dtype)
    result = (k > 64).where(scale(1.0 + series, k), series * near + subtract(near, 1.0))
    return x.eq(0).where(x, result)


def log(x: UOp) -> UOp:
    """The natural logarithm."""
    return (_wide_log2(x) * LN2).cast(x.dtype) if narrow(x) else logarithm.natural(x)


def log1p(x: UOp) -> UOp:
    """log(1 + x) without cancellation; for float32 near 0 as 2 artanh(x / (2 + x))."""
    if not narrow(x):
        return logarithm.natural_of_sum(x)
    wide = x.cast(dtypes.float64)
    s = divide(wide, 2.0 + wide)
    series = s * horner(s * s, [2 / (2 * n + 1) for n in range(12, -1, -1)])
    near = (absolute(wide) < 0.4) & wide.ne(0)
    return wide.eq(0).where(wide, near.where(series, _wide_log2(1.0 + wide) * LN2)).cast(x.dtype)


def log2(x: UOp) -> UOp:
    """The binary logarithm."""
    return _wide_log2(x).cast(x.dtype) if narrow(x) else logarithm.binary(x)


def log10(x: UOp) -> UOp:
    """The decimal logarithm."""
    return (_wide_log2(x) * math.log10(2)).cast(x.dtype) if narrow(x) else logarithm.decimal(x)


def _wide_log2(x: UOp) -> UOp:
    """Binary logarithm in float64 to 3 ulp, computed by tinygrad.

    This is enough for float32, and is one node. The exact logarithm is so expensive that it gets a kernel to itself.
    """
    return x.cast(dtypes.float64).log2()


@in_float64
def logaddexp2(a: UOp, b: UOp) -> UOp:
    """log2(2**a + 2**b)."""
    return _log_of_sum(a, b, lambda difference: log1p(difference.exp2()) * (1 / LN2))


def logaddexp(a: UOp, b: UOp) -> UOp:
    """log(e**a + e**b)."""
    return _log_of_sum(a, b, lambda difference: log1p(exp(difference)))


def _log_of_sum(a: UOp, b: UOp, more: Callable[[UOp], UOp]) -> UOp:
    """The larger number plus `more` of the (non-positive) difference of both."""
    larger, smaller = (a < b).where(b, a), (a < b).where(a, b)
    result = larger + more(subtract(smaller, larger))
    result = (a.eq(b) & absolute(a).eq(INF)).where(a, result)
    return (a.ne(a) | b.ne(b)).where(NAN, result)


def _quadrant(x: UOp) -> tuple[UOp, UOp, UOp]:
    """(k, sin r, cos r) with x = k pi/2 + r, |r| <= pi/4: Cody and Waite's reduction, then Taylor series.

    pi/2 is split into parts so short that their products with k are exact up to `_LARGE`. Beyond `_LARGE`, `_beyond`
    replaces the float32 results.
    """
    if not narrow(x):
        return angle.quadrant(x)
    k, whole = nearest(x * (2 / math.pi))
    r = x
    for part in parts(angle.HALF_PI, 11, 4):
        r = subtract(r, k * part)
    z = r * r
    return whole, r + r * (z * horner(z, angle.sines(5)[:-1])), horner(z, angle.cosines(6))


_LARGE = 8192.0


def _beyond(x: UOp, near: UOp, far: Callable[[UOp], UOp]) -> UOp:
    """`near` for small angles and, in float32, `far` computed in float64 for large ones; nan for infinities."""
    if narrow(x):
        return (absolute(x) < _LARGE).where(near, far(x.cast(dtypes.float64)).cast(x.dtype))
    return (absolute(x) < INF).where(near, NAN)


def sin(x: UOp) -> UOp:
    """The sine."""
    k, sine, cosine = _quadrant(x)
    value = (k & 1).ne(0).where(cosine, sine)
    value = (k & 2).ne(0).where(-value, value)
    return x.eq(0).where(x, _beyond(x, value, lambda wide: wide.sin()))


def cos(x: UOp) -> UOp:
    """The cosine."""
    k, sine, cosine = _quadrant(x)
    value = (k & 1).ne(0).where(sine, cosine)
    value = ((k + 1) & 2).ne(0).where(-value, value)
    return _beyond(x, value, _cosine_of_large)


def _cosine_of_large(x: UOp) -> UOp:
    """1 - 2 sin(x/2)**2 with tinygrad's reduction; adding pi/2 to a large x would lose the shift."""
    half = (x * 0.5).sin()
    return subtract(1.0, 2.0 * half * half)


def tan(x: UOp) -> UOp:
    """The tangent."""
    k, sine, cosine = _quadrant(x)
    near = (k & 1).ne(0).where(divide(-cosine, sine), divide(sine, cosine))
    return x.eq(0).where(x, _beyond(x, near, lambda wide: divide(wide.sin(), _cosine_of_large(wide))))


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
    if not narrow(x):
        t = expm1(2.0 * a)
        ratio = divide((a < 1).where(t, 2.0), t + 2.0)
        return copy_sign((a < 1).where(ratio, subtract(1.0, ratio)), x)
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
    if narrow(x):
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
    """sqrt(a*a + b*b) without overflow; inf takes precedence over nan.

    float32 goes through float64. Its rounding makes no result infinite that float32 can hold.
    """
    if a.dtype is dtypes.float32:
        x, y = a.cast(dtypes.float64), b.cast(dtypes.float64)
        return (absolute(a).eq(INF) | absolute(b).eq(INF)).where(INF, (x * x + y * y).sqrt().cast(a.dtype))
    a, b = absolute(a), absolute(b)
    larger, smaller = (a < b).where(b, a), (a < b).where(a, b)
    ratio = divide(smaller, larger)
    result = larger.eq(0).where(larger, larger * (1.0 + ratio * ratio).sqrt())
    result = (a.ne(a) | b.ne(b)).where(NAN, result)
    return (a.eq(INF) | b.eq(INF)).where(INF, result)


def power(base: UOp, exponent: UOp) -> UOp:
    """base ** exponent of floats, with IEEE 754's pow for nan, infinities and zeros.

    float32 goes through float64, where the error of log2(base) * exponent stays below half an ulp of float32.
    """
    b, x = base.cast(dtypes.float64), exponent.cast(dtypes.float64)
    size = absolute(b)
    # The logarithm gives 0 ** x and inf ** x correctly, except for the sign of an odd power.
    magnitude = (x * size.log2()).exp2() if narrow(base) else positive_power(size, x)
    half = x * 0.5
    whole, odd = x.trunc().eq(x), half.trunc().ne(half) & x.trunc().eq(x)
    magnitude = size.eq(1).where(1.0, magnitude)
    value = sign_bit(b).where(odd.where(-magnitude, magnitude), magnitude)
    value = ((b < 0) & whole.logical_not() & size.ne(INF)).where(NAN, value)
    value = (b.ne(b) | x.ne(x)).where(NAN, value)
    value = (x.eq(0) | b.eq(1)).where(1.0, value).cast(base.dtype)
    return exponent.eq(1).where(base, value)  # otherwise the rounded logarithm of the largest number would overflow


def positive_power(size: UOp, x: UOp) -> UOp:
    """size ** x in float64 for size >= 0, except nan: 2 to the power of a product that is stored as a pair."""
    plain = (size > 0) & (size < INF)
    logarithm_, rest = logarithm.binary_pair(plain.where(size, 1.0))
    # Beyond 2**80 a power of any number except 1 is 0 or inf, and the product of pairs could overflow.
    x = (x > 2.0**80).where(2.0**80, (x < -(2.0**80)).where(-(2.0**80), x))
    high, low = two_product(x, logarithm_)
    within = absolute(high) < 1100
    low = within.where(low + x * rest, 0.0)
    high = within.where(high, (high > 0).where(high.const_like(1100.0), -1100.0))
    k, whole = nearest(high)
    r = (subtract(high, k) + low) * LN2
    return plain.where(scale(1.0 + _expm1_series(r), whole), size.eq(0).ne(x < 0).where(0.0, x.const_like(INF)))
