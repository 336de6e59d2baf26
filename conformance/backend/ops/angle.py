"""Sine and cosine of any float64, by reducing its angle modulo pi/2.

Defines `quadrant`. A product of 2/pi and a large number needs only some bits of 2/pi: the bits whose products are
neither multiples of 4 nor too small. The exponent of the number selects this window, so one product of integers of 53
and 192 bits is enough (M. H. Payne and R. N. Hanek, Radian reduction for trigonometric functions, 1983). No float64 is
closer than about 2**-61 to a multiple of pi/2, so at least 76 bits of the remainder are correct.
"""

from __future__ import annotations

import math
from fractions import Fraction

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from .arithmetic import absolute, horner, nearest, parts, sign_bit, subtract
from .compensated import Pair, fast_two_sum, multiply_pairs, two_sum

HALF_PI = Fraction("1.57079632679489661923132169163975144209858469968755291487472296153908203143104499314")
_LARGE = 2.0**28  # reduced in integers from this magnitude on
# Products of the first three parts with k are exact for |x| < _LARGE.
_HALF_PI = parts(HALF_PI, 24, 3)
_HALF_PI.append(float(HALF_PI - sum(map(Fraction, _HALF_PI))))

_WORDS, _WINDOW = 38, 6
_LOW = 0xFFFFFFFF


def _two_over_pi(bits: int) -> int:
    """The leading bits of 2/pi after the point, by Machin's pi/4 = 4 atan(1/5) - atan(1/239) in integers."""
    one = 1 << (bits + 64)

    def inverse_tangent(n: int) -> int:
        power, total, k = one // n, 0, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power, k = power // (n * n), k + 2
        return total

    quarter = 4 * inverse_tangent(5) - inverse_tangent(239)
    return (one << bits) // (2 * quarter)


def _words() -> list[int]:
    """32 zero bits followed by the bits of 2/pi, in words of 32 bits."""
    count = 32 * (_WORDS - 1)
    digits = _two_over_pi(count)
    return [0, *((digits >> (count - 32 * n)) & _LOW for n in range(1, _WORDS))]


_TABLE = _words()


def _window(start: UOp) -> list[UOp]:
    """Words of 32 bits of 2/pi, starting at bit `start`, highest word first."""
    index, shift = start >> 5, start & 31
    kept = [start.const_like(word) for word in _TABLE]
    for bit in (16, 8, 4, 2, 1):
        chosen = (index & bit).ne(0)
        kept = [chosen.where(kept[n + bit], kept[n]) for n in range(bit + _WINDOW)]
    double = [(high << 32) | low for high, low in zip(kept, kept[1:])]
    return [(words >> ((shift ^ 31) + 1)) & _LOW for words in double]  # by 32 - shift


def _product(mantissa: UOp, window: list[UOp]) -> list[UOp]:
    """Product modulo 2**192 in words of 32 bits, lowest word first."""
    low, high = mantissa & _LOW, mantissa >> 32
    factors = window[::-1]
    columns: list[list[UOp]] = [[] for _ in range(_WINDOW + 2)]
    for n, factor in enumerate(factors):
        for shift, part in enumerate((low, high)):
            product = part * factor
            columns[n + shift].append(product & _LOW)
            columns[n + shift + 1].append(product >> 32)
    words: list[UOp] = []
    carry = None
    for column in columns[:_WINDOW]:
        total = column[0]
        for more in column[1:]:
            total = total + more
        total = total if carry is None else total + carry
        words.append(total & _LOW)
        carry = total >> 32
    return words


def _reduced_by_integers(x: UOp) -> tuple[UOp, Pair]:
    """(k, r) with x = k pi/2 + r, |r| <= pi/4, k modulo 4, for finite x >= _LARGE; arbitrary for other x."""
    bits = x.bitcast(dtypes.int64).bitcast(dtypes.uint64)
    exponent = (bits >> 52) & 0x7FF
    start = (exponent < 1051).where(exponent.const_like(1051), exponent) - 1045  # 1051: the exponent of _LARGE
    words = _product((bits & ((1 << 52) - 1)) | (1 << 52), _window(start))
    top, second, third, fourth, fifth = words[:0:-1]
    # Two bits of the quadrant, then the fraction as a signed number: its first 64 bits, and the next 64 bits.
    fraction = ((top & 0x3FFFFFFF) << 34) | (second << 2) | (third >> 30)
    quadrant = ((top >> 30) + (fraction >> 63)).cast(dtypes.int64)
    signed = fraction.bitcast(dtypes.int64)
    more = [((a & 0x3FFFFFFF) << 2) | (b >> 30) for a, b in ((third, fourth), (fourth, fifth))]
    high, low, third_part, fourth_part = (
        part.cast(dtypes.float64) * 2.0 ** (-32 * n) for n, part in enumerate((signed >> 32, signed & _LOW, *more), 1)
    )
    total, rest = fast_two_sum(high, low)
    turn = fast_two_sum(total, rest + (third_part + fourth_part))
    half_pi = parts(HALF_PI, 53, 2)
    return quadrant, fast_two_sum(*multiply_pairs(turn, (x.const_like(half_pi[0]), x.const_like(half_pi[1]))))


def _reduced(x: UOp) -> tuple[UOp, Pair]:
    """(k, r) with x = k pi/2 + r, |r| <= pi/4: Cody and Waite's reduction, or integers for large numbers."""
    k, whole = nearest(x * (2 / math.pi))
    r = x
    *exact, third, last = _HALF_PI
    for part in exact:
        r = subtract(r, k * part)
    r, rest = two_sum(r, k * -third)
    near = two_sum(r, subtract(rest, k * last))
    small, sign = absolute(x) < _LARGE, sign_bit(x)
    turns, far = _reduced_by_integers(absolute(x))
    high, low = (small.where(a, sign.where(b * -1, b)) for a, b in zip(near, far, strict=True))
    return small.where(whole, sign.where(turns * -1, turns)), (high, low)


def sines(terms: int) -> list[float]:
    """Taylor coefficients of sin(r)/r in r*r, highest power first."""
    return [(-1) ** n / math.factorial(2 * n + 1) for n in range(terms, -1, -1)]


def cosines(terms: int) -> list[float]:
    """Taylor coefficients of cos(r) in r*r, highest power first."""
    return [(-1) ** n / math.factorial(2 * n) for n in range(terms, -1, -1)]


def quadrant(x: UOp) -> tuple[UOp, UOp, UOp]:
    """(k, sin r, cos r) with x = k pi/2 + r, |r| <= pi/4, for finite x; only the lowest two bits of k are valid."""
    k, (r, rest) = _reduced(x)
    z = r * r
    # The corrections of r, and of 1 - z/2 with its rounding error, are small.
    half = z * 0.5
    most = subtract(1.0, half)
    cosine = most + (subtract(subtract(1.0, most), half) + subtract(z * z * horner(z, cosines(10)[:-2]), r * rest))
    return k, r + (r * (z * horner(z, sines(9)[:-1])) + rest * cosine), cosine
