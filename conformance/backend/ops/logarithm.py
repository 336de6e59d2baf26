"""Logarithms of float64 values, and a logarithm with more bits than float64 has.

Defines `natural`, `natural_of_sum` (log1p), `binary`, `decimal`, and `pair`, the base of powers.

With x = 2**k (1 + f) and s = f / (2 + f), log(1 + f) is 2 artanh(s), an odd series in s with |s| <= 0.1716. Its first
term is f plus a correction for the rounding of s, so only small terms are rounded.
"""

from __future__ import annotations

from fractions import Fraction

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from .arithmetic import INF, NAN, divide, horner, parts, subtract
from .compensated import Pair, fast_two_sum, multiply_pairs, product_error, two_product, two_sum

_LN2 = Fraction("0.69314718055994530941723212145817656807550013436025525412068000949")
_LOG10_2 = Fraction("0.30102999566398119521373889472449302676818988146210854131042746113")
_INVERSE_LN2 = Fraction("1.44269504088896340735992468100189213742664595415298593413544940693")
_INVERSE_LN10 = Fraction("0.43429448190325182765112891891660508229439700580366656611445378317")
_SMALLEST_NORMAL = 2.2250738585072014e-308
_MANTISSA = (1 << 52) - 1
_ROOT_OF_TWO = 0x6A09E667F3BCD  # the mantissa of sqrt(2)

# (2 artanh(s)/s - 2)/s**2 and (artanh(s)/s - 1 - s**2/3)/s**4 in s**2 for |s| <= 0.1716, interpolated at Chebyshev
# nodes with errors below 4e-16.
_TAIL = (0.14616585424888623, 0.15331710618210773, 0.18182889455674947, 0.22222211130259878, 0.2857142862600327,
         0.39999999999899444, 0.666666666666667)  # fmt: skip
_FAR_TAIL = (0.06456808836091125, 0.06642978717596676, 0.07692787398231016, 0.09090904123772271, 0.1111111113555117,
             0.14285714285669254, 0.20000000000000012)  # fmt: skip


def _exponent(x: UOp) -> Pair:
    """(k, f) with x = 2**k (1 + f) and 1 + f between the roots of 1/2 and 2, for finite x > 0."""
    small = x < _SMALLEST_NORMAL
    bits = small.where(x * 2.0**54, x).bitcast(dtypes.int64)
    mantissa = bits & _MANTISSA
    above = mantissa > _ROOT_OF_TWO
    stored = ((bits >> 52) & 0x7FF).cast(dtypes.int32)
    k = stored + above.where(stored.const_like(-1022), -1023) + small.where(stored.const_like(-54), 0)
    one = above.where(bits.const_like(0x3FE << 52), 0x3FF << 52)
    return k.cast(dtypes.float64), subtract((mantissa | one).bitcast(dtypes.float64), 1.0)


def _special(x: UOp, value: UOp) -> UOp:
    """`value` where x is positive and finite, otherwise the logarithm of 0, inf, a negative number or nan."""
    return ((x > 0) & (x < INF)).where(value, x.eq(0).where(-INF, (x > 0).where(x.const_like(INF), NAN)))


def _natural(k: UOp, f: UOp, more: UOp | float) -> UOp:
    """k ln 2 + log(1 + f) + more, where `more` is less than an ulp of f."""
    high, low = parts(_LN2, 40, 2)  # k times the high part is exact
    s = divide(f, 2.0 + f)
    half, z = f * f * 0.5, s * s
    rest = s * (half + z * horner(z, _TAIL)) + (k * low + more)
    return subtract(k * high, subtract(subtract(half, rest), f))


def natural(x: UOp) -> UOp:
    """The natural logarithm."""
    return _special(x, _natural(*_exponent(x), 0.0))


def natural_of_sum(x: UOp) -> UOp:
    """log(1 + x) without cancellation."""
    return x.eq(0).where(x, natural_of_pair(*two_sum(x.const_like(1.0), x)))


def natural_of_pair(total: UOp, rest: UOp) -> UOp:
    """log(total + rest), where the rest is less than an ulp of the total."""
    return _special(total, _natural(*_exponent(total), divide(rest, total)))


def pair(x: UOp) -> tuple[UOp, Pair]:
    """(k, log(1 + f)) with x = 2**k (1 + f), the logarithm to about 65 bits, for finite x > 0."""
    k, f = _exponent(x)
    d, d_rest = fast_two_sum(f.const_like(2.0), f)
    s = divide(f, d)
    product = s * d
    s_rest = divide(subtract(subtract(subtract(f, product), product_error(s, d, product)), s * d_rest), d)
    z, z_rest = two_product(s, s)
    # artanh(s) is s (1 + z/3 + ...): the first two terms are pairs; the later terms are 12 bits smaller.
    third = multiply_pairs((z, z_rest + 2.0 * s * s_rest), _constant(z, Fraction(1, 3)))
    w, w_rest = fast_two_sum(third[0], z * z * horner(z, _FAR_TAIL))
    more = multiply_pairs((s, s_rest), (w, w_rest + third[1]))
    high, low = fast_two_sum(s, more[0])
    return k, (2.0 * high, 2.0 * (low + (more[1] + s_rest)))


def _constant(x: UOp, value: Fraction) -> Pair:
    high, low = parts(value, 53, 2)
    return x.const_like(high), x.const_like(low)


def binary_pair(x: UOp) -> Pair:
    """log2(x) to about 65 bits, for finite x > 0."""
    k, logarithm = pair(x)
    scaled = multiply_pairs(logarithm, _constant(x, _INVERSE_LN2))
    high, low = fast_two_sum(k, scaled[0])
    return fast_two_sum(high, low + scaled[1])


def binary(x: UOp) -> UOp:
    """The binary logarithm."""
    return _special(x, binary_pair(x)[0])


def decimal(x: UOp) -> UOp:
    """The decimal logarithm."""
    k, logarithm = pair(x)
    scaled = multiply_pairs(logarithm, _constant(x, _INVERSE_LN10))
    high, low = parts(_LOG10_2, 40, 2)
    total, rest = fast_two_sum(k * high, scaled[0])
    return _special(x, total + (rest + (k * low + scaled[1])))


def natural_pair(x: UOp) -> Pair:
    """log(x) to about 65 bits, for finite x > 0."""
    k, (high, low) = pair(x)
    ln2 = parts(_LN2, 40, 2)
    total, rest = fast_two_sum(k * ln2[0], high)
    return fast_two_sum(total, rest + (k * ln2[1] + low))
