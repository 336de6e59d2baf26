"""Logarithm of the gamma function and its derivative, in float64 to a few ulp of the result, also near zeros.

Defines `lgamma` and `digamma`. Where a result is small, large terms cancel. Such a result is built from a factor
that is exactly 0 at the zero (1 and 2), or from differences to the nearest zero without cancellation.
"""

from __future__ import annotations

import math

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import pointwise
from . import logarithm
from .arithmetic import INF, NAN, absolute, divide, horner, in_float64, narrow, rint, subtract
from .compensated import Pair, fast_two_sum, multiply_pairs, product_error, two_product, two_sum

# Bernoulli numbers B(2n) of Stirling's series, n = 1 to 8.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_STIRLING = [b / (2 * n * (2 * n - 1)) for n, b in enumerate(_BERNOULLI, 1)][::-1]
_LARGE = 10.0  # Stirling's series is used from this value on

# lgamma(x) / ((x - 1) (x - 2)) in (x - 1.375) / (x + 1.375) for 0.6 <= x <= 3, interpolated at Chebyshev nodes with an
# error below 3e-17. The quotient moves the poles and the cut at x <= 0 far away.
_CENTRE = 1.375
_BETWEEN = (-0.06407041176854986, 0.049465555128966075, -0.005502611759914764, 0.014879971796619599,
            -0.03415408790419103, 0.030306946562335745, -0.03190253250779681, 0.03143040206568324,
            -0.03770972913979806, 0.03632355175563666, -0.04430756327918034, 0.04245246923129382,
            -0.05388333275885493, 0.05110292062277511, -0.06874742772825324, 0.06413162559368006,
            -0.09501881172305199, 0.08585501646551148, -0.15450486623008808, 0.1289529245979939,
            -0.44907267850537547, 0.5024224884952695)  # fmt: skip
# (1/r - pi cot(pi r)) / r in r**2 for |r| <= 1/2, interpolated at Chebyshev nodes with an error below 4e-17.
_COTANGENT = (16.025310124031105, -14.034165332086635, 11.338662183794415, -1.3919972992115464, 2.83284381183024,
              1.8565166535443085, 2.017613207412682, 1.9984926937726855, 2.000216821627653, 2.000488225145784,
              2.0019892576906964, 2.00815471064087, 2.034686123983871, 2.164646467422226,
              3.289868133696453)  # fmt: skip
_SINE = [(-1) ** n * math.pi ** (2 * n + 1) / math.factorial(2 * n + 1) for n in range(13, -1, -1)]  # sin(pi r) / r

_MORE_PI = 1.2246467991473532e-16  # pi minus its float

# Zeros of lgamma at -(n + v). Each row: the end of the range of |x| whose nearest zero this is, then v and cot(pi v),
# each as a sum of two numbers, and 1/sin(pi v).
_ZEROS = (
    (2.6, 0.45702473822080064, -1.843554041574456e-17, 0.13583711348265284, 9.449273150787271e-19, 1.0091836906130118),
    (3.0, -0.2523173532725874, 2.04688991691325e-17, -0.9855446223335973, -1.3724992895910452e-17, -1.4040292741288098),
    (3.5, 0.14358088834998006, -3.862806401714152e-18, 2.064500300101351, -1.6408755000071685e-16, 2.293940166856705),
    (
        4.0,
        -0.04470571514140207,
        -8.223977942582053e-19,
        -7.073238795225894,
        3.9631776100070813e-16,
        -7.1435780288514135,
    ),
    (4.5, 0.03936183974053688, -3.2731379225891636e-18, 8.045501726649938, -1.177028841612777e-16, 8.107410069407315),
    (5.0, -0.008455359439952277, -8.231751957350036e-19, -37.63707711293753, 3.043621147651498e-15, -37.65035954151309),
    (5.5, 0.008218168322593521, 5.582665915956405e-19, 38.723854831888616, -3.137302577200787e-15, 38.7367646176237),
    (
        6.0,
        -0.0013925199191243706,
        7.090441230646531e-20,
        -228.58405914100294,
        1.2530776107002992e-14,
        -228.58624650966541,
    ),
    (
        6.5,
        0.0013852944531550972,
        2.6295731811446077e-20,
        229.77633083099542,
        -6.8599235247399155e-15,
        229.77850684986848,
    ),
    (
        7.0,
        -0.0001984921093623021,
        -6.263909978492175e-21,
        -1603.6397917668767,
        2.4163444114113232e-14,
        -1603.640103557563,
    ),
    (
        7.5,
        0.00019833340732475162,
        -1.1820573401560963e-20,
        1604.9229894481584,
        4.7228436875292736e-14,
        1604.9233009895563,
    ),
    (
        8.0,
        -2.4802904179335845e-05,
        -3.15397713595963e-22,
        -12833.573166998984,
        8.799535414687289e-13,
        -12833.573205959294,
    ),
    (
        8.5,
        2.48002706819597e-05,
        -1.0083974251164085e-21,
        12834.935941697377,
        -1.4429323003435432e-13,
        12834.93598065355,
    ),
    (
        9.0,
        -2.7557490225318057e-06,
        6.500300408654724e-23,
        -115507.57473675719,
        6.767915095214653e-12,
        -115507.5747410859,
    ),
    (
        9.5,
        2.7557148226503463e-06,
        5.624459871432079e-23,
        115509.00824697797,
        -3.955931246214138e-12,
        115509.00825130663,
    ),
    (
        10.0,
        -2.7557337083353163e-07,
        -1.4502658434955713e-23,
        -1155082.1663969695,
        1.0094230228412833e-10,
        -1155082.1663974023,
    ),
    (10.5, 2.755730136466002e-07, 2.4472526783403563e-23, 1155083.6635691673, 2.406109934053617e-11, 1155083.6635696),
    (
        11.0,
        -2.5052109918476226e-08,
        6.807394864189793e-25,
        -12705911.28729771,
        -5.676150980686625e-10,
        -12705911.28729775,
    ),
    (
        11.5,
        2.5052106852407546e-08,
        -1.2924868620853802e-24,
        12705912.842344435,
        -9.107046456461556e-10,
        12705912.842344474,
    ),
    (
        12.0,
        -2.087675709796081e-09,
        8.658839215884982e-26,
        -152470943.97380444,
        8.903028846457573e-09,
        -152470943.97380444,
    ),
    (12.5, 2.087675687777539e-09, 4.849684877236172e-26, 152470945.5819028, 3.5556066508814086e-09, 152470945.5819028),
)
_SHIFT = 8


def _sin_pi(r: UOp) -> UOp:
    """sin(pi r) for |r| <= 0.6."""
    return r * horner(r * r, _SINE)


def _sin_pi_pair(r: UOp) -> Pair:
    """sin(pi r) for |r| <= 0.6, with its rounding error."""
    z = r * r
    high, low = two_product(r, r.const_like(math.pi))
    return fast_two_sum(high, low + r * (z * horner(z, _SINE[:-1]) + _MORE_PI))


def _positive(y: UOp, below: UOp, size: UOp) -> UOp:
    """lgamma(y) for y >= 0.6, minus log(size) where `below` (there y is below 1.6).

    From 3 to `_LARGE` it is lgamma of y minus an integer, plus the logarithm of the factors in between.
    """
    large = (y > _LARGE) | y.eq(_LARGE)
    w, product = large.where(2.0, y), y.const_like(1.0)
    for _ in range(7):
        beyond = w > 3
        w = beyond.where(subtract(w, 1.0), w)
        product = beyond.where(product * w, product)
    t = divide(subtract(w, _CENTRE), w + _CENTRE)
    quotient = fast_two_sum(t.const_like(_BETWEEN[-1]), t * horner(t, _BETWEEN[:-1]))
    between, between_rest = multiply_pairs(two_product(subtract(w, 1.0), subtract(w, 2.0)), quotient)
    high, low = logarithm.natural_pair(below.where(size, large.where(y, product)))
    total, rest = two_sum(between, below.where(high * -1, high))
    rest = rest + between_rest
    inverse, half = divide(y.const_like(1.0), y), subtract(y, 0.5)
    series = inverse * horner(inverse * inverse, _STIRLING) + 0.5 * (math.log(2 * math.pi) - 1)
    stirling = half * subtract(high, 1.0) + (half * low + series)
    return large.where(stirling, total + (rest + below.where(low * -1, low)))


def _nearest_zero(a: UOp) -> tuple[UOp, ...]:
    """Row of `_ZEROS` for a <= 12.5."""
    *others, last = _ZEROS
    coefficients = [a.const_like(number) for number in last[1:]]
    for end, *numbers in reversed(others):
        coefficients = [(a < end).where(number, other) for number, other in zip(numbers, coefficients, strict=True)]
    return tuple(coefficients)


def _by_nearest_zero(a: UOp) -> tuple[Pair, Pair]:
    """(s, argument) with lgamma(-a) = log(argument) - s, for 2 < a <= 12.5.

    From lgamma(-a) = log(pi / (a sin(pi a))) - lgamma(a), minus the same equation at the zero, whose left side is 0:
    quotients of the factors, and the difference of Stirling's series for a + 8, each by the distance from the zero.
    """
    v0, v0_rest, cotangent, cotangent_rest, cosecant = _nearest_zero(a)
    n = (a < 2.6).where(2.0, (a + 0.5).floor())
    v = subtract(a, n)
    delta = subtract(subtract(v, v0), v0_rest)
    zero = n + v0
    # Product of (a + k) / (zero + k), minus 1, and sin(pi a) / sin(pi zero), minus 1.
    more = a.const_like(0.0)
    for k in range(1, _SHIFT):
        factor = divide(delta, zero + float(k))
        more = more + (factor + more * factor)
    half = _sin_pi(delta * 0.5)
    less, less_rest = multiply_pairs((cotangent, cotangent_rest), _sin_pi_pair(delta))
    less, less_rest = two_sum(less, subtract(less_rest, 2.0 * half * half))
    ratio = _sin_pi(v) * cosecant
    near = (ratio > 0.5) & (ratio < 2)
    # Near the zero the quotient of the products is 1 + (more - less) / (1 + less).
    dividend, dividend_rest = two_sum(more, less * -1)
    divisor, divisor_rest = two_sum(a.const_like(1.0), less)
    excess = divide(dividend, divisor)
    whole, lost = two_product(excess, divisor)
    remainder = subtract(subtract(dividend, whole), lost) + subtract(dividend_rest, less_rest)
    excess_rest = divide(subtract(remainder, excess * (divisor_rest + less_rest)), divisor)
    total, rest = two_sum(a.const_like(1.0), excess)
    rest = rest + excess_rest
    argument = near.where(total, divide(1.0 + more, ratio)), near.where(rest, 0.0)
    y, y0 = a + float(_SHIFT), zero + float(_SHIFT)
    inverse, inverse0 = (divide(a.const_like(1.0), z) for z in (y, y0))
    # Stirling's series is f(z) / y in z = 1/y**2; its difference uses the divided difference of f.
    z, z0 = inverse * inverse, inverse0 * inverse0
    series, slope = a.const_like(0.0), a.const_like(0.0)
    for number in _STIRLING:
        slope, series = slope * z + series, series * z0 + number
    more = delta * inverse * inverse0 * (inverse * (inverse + inverse0) * slope + series)
    difference = subtract(y0, 0.5) * logarithm.natural_of_sum(divide(delta, y0))
    logarithm_, logarithm_rest = logarithm.natural_pair(y)
    s, lost = two_sum(difference, delta * subtract(logarithm_, 1.0))
    return (s, lost + subtract(delta * logarithm_rest, more)), argument


def _between_zeros(a: UOp) -> Pair:
    """Argument of lgamma(-a) = lgamma(4 - a) + log(argument) for a near 2.61, a minimum between zeros."""
    product, rest = multiply_pairs(two_product(a, subtract(a, 1.0)), two_product(subtract(a, 2.0), subtract(3.0, a)))
    quotient = divide(a.const_like(1.0), product)
    whole, lost = two_product(quotient, product)
    return quotient, subtract(subtract(subtract(1.0, whole), lost), quotient * rest) * quotient


def lgamma(x: UOp) -> UOp:
    """log |gamma(x)|: Stirling's series, a polynomial near the zeros 1 and 2, reflection for negative numbers.

    float64 is accurate near the negative zeros, too.
    """
    wide = x.cast(dtypes.float64)
    a = absolute(wide)
    below, upper = a < 0.6, wide > -0.4
    middle = upper.logical_not() & (a > 2.53) & (a < 2.69)
    y = below.where(1.0 + upper.where(wide, a), a)
    value = _positive(y if narrow(x) else middle.where(subtract(4.0, a), y), below, a)
    argument = divide(a.const_like(math.pi), a * absolute(_sin_pi(subtract(a, rint(a)))))
    rest, s, s_rest = a.const_like(0.0), value, a.const_like(0.0)
    if not narrow(x):
        by_zero = (a > 2) & (a < 12.5)
        difference, zero_argument = _by_nearest_zero(by_zero.where(a, 3.5))
        between_argument = _between_zeros(middle.where(a, 2.6))
        argument, rest = (
            middle.where(one, by_zero.where(other, plain))
            for one, other, plain in zip(between_argument, zero_argument, (argument, rest), strict=True)
        )
        s = middle.where(value * -1, by_zero.where(difference[0], s))
        s_rest = (by_zero & middle.logical_not()).where(difference[1], 0.0)
    high, low = logarithm.natural_pair(argument)
    reflected, lost = two_sum(high, s * -1)
    reflected = reflected + (subtract(lost + low, s_rest) + divide(rest, argument))
    value = upper.where(value, reflected)
    value = ((wide < 0) & wide.floor().eq(wide) | wide.eq(0)).where(INF, value)
    return wide.ne(wide).where(wide, a.eq(INF).where(INF, value)).cast(x.dtype)


@in_float64
def digamma(x: UOp) -> UOp:
    """Derivative of log gamma; nan at the negative integers, -+inf at +-0.

    Stirling's series after a shift of small arguments; pi cot(pi x) is a fraction plus a small remainder.
    """
    a = absolute(x)
    negative = x < 0
    y = negative.where(1.0 + a, a)
    total, rest, z = y.const_like(0.0), y.const_like(0.0), y
    for _ in range(int(_LARGE)):
        small = z < _LARGE
        total, lost = two_sum(total, small.where(divide(z.const_like(1.0), z), 0.0))
        rest, z = rest + lost, small.where(z + 1.0, z)
    inverse = divide(z.const_like(1.0), z)
    square = inverse * inverse
    series = square * horner(square, [b / (2 * n) for n, b in enumerate(_BERNOULLI, 1)][::-1])
    high, low = logarithm.natural_pair(z)
    value, lost = two_sum(high, total * -1)
    low = low + subtract(lost, rest)
    k = subtract(a, rint(a))
    pole = divide(k.const_like(1.0), k)
    pole_rest = subtract(subtract(1.0, pole * k), product_error(pole, k, pole * k)) * pole
    reflected, lost = two_sum(value, pole)
    reflected_low = low + (lost + subtract(pole_rest, k * horner(k * k, _COTANGENT)))
    value = negative.where(reflected, value) + subtract(negative.where(reflected_low, low), 0.5 * inverse + series)
    value = (a < 2.0**-100).where(divide(x.const_like(-1.0), x), value)
    value = ((x < 0) & (x.floor().eq(x))).where(NAN, value)
    return x.eq(INF).where(INF, value)


pointwise({"lgamma": lgamma, "digamma": digamma})
