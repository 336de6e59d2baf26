"""Complex numbers as pairs of lazy real values, their arithmetic and their elementary functions.

Defines `Pair`, `parts` and `joined`, which split and join a value with a last dimension of 2, and the functions of one
or two Pairs.

An inexact or infinite part must not affect the other part, unless mathematics or torch requires it. The functions
therefore use published algorithms instead of the textbook formulas. Branch cuts are those of C99's Annex G, by W.
Kahan, Branch Cuts for Complex Elementary Functions, 1987.
The module does not use torch, and contains no operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.tensors import cast
from . import elementary as e
from .arithmetic import INF, NAN, absolute, copy_sign, divide, subtract


class Pair(NamedTuple):
    """Complex value of any shape as its real and imaginary part."""

    re: UOp
    im: UOp


def parts(x: UOp) -> Pair:
    """Parts of a value whose last dimension is 2."""
    shape = x.shape[:-1]
    whole = [(0, n) for n in shape]
    re, im = (x.shrink((*whole, (i, i + 1))).reshape(shape) for i in (0, 1))
    return Pair(re, im)


def joined(z: Pair, size: tuple[int, ...]) -> UOp:
    """Value with a last dimension of 2 from its parts, which are broadcast to `size`."""
    re, im = (x.expand(size).unsqueeze(-1) if x.shape != size else x.unsqueeze(-1) for x in z)
    return re.cat(im, dim=-1)


def plus(a: Pair, b: Pair) -> Pair:
    """a + b."""
    return Pair(a.re + b.re, a.im + b.im)


def minus(a: Pair, b: Pair) -> Pair:
    """a - b."""
    return Pair(subtract(a.re, b.re), subtract(a.im, b.im))


def times(a: Pair, b: Pair) -> Pair:
    """a b, computed from the four real products."""
    return Pair(subtract(a.re * b.re, a.im * b.im), a.re * b.im + a.im * b.re)


def scaled(z: Pair, factor: Pair | None) -> Pair:
    """z times a factor, 1 + 0i by default.

    torch multiplies by that default too, so an infinite part turns the other part into nan (pytorch#82510).
    """
    return times(_or_one(factor, z), z)


def less(a: Pair, b: Pair, factor: Pair | None) -> Pair:
    """a minus b times a factor; torch adds b times the negative factor."""
    return plus(a, scaled(b, negative(_or_one(factor, b))))


def _or_one(factor: Pair | None, like: Pair) -> Pair:
    return Pair(like.re.const_like(1.0), like.re.const_like(0.0)) if factor is None else factor


def negative(z: Pair) -> Pair:
    """-z."""
    return Pair(-z.re, -z.im)


def conjugate(z: Pair) -> Pair:
    """The conjugate."""
    return Pair(z.re, -z.im)


def over(a: Pair, b: Pair) -> Pair:
    """a / b, scaled by the larger part of b (c10/util/complex.h, after R. L. Smith, Algorithm 116, 1962)."""
    larger = absolute(b.im) <= absolute(b.re)
    p, q = larger.where(b.re, b.im), larger.where(b.im, b.re)
    zero = p.eq(0) & q.eq(0)
    ratio = divide(q, zero.where(1.0, p))
    denominator = p + q * ratio
    re = divide(larger.where(a.re + a.im * ratio, a.re * ratio + a.im), denominator)
    im = divide(larger.where(subtract(a.im, a.re * ratio), subtract(a.im * ratio, a.re)), denominator)
    return Pair(zero.where(divide(a.re, absolute(b.re)), re), zero.where(divide(a.im, absolute(b.re)), im))


def modulus(z: Pair) -> UOp:
    """|z|."""
    return e.hypot(z.re, z.im)


def angle(z: Pair) -> UOp:
    """The argument."""
    return e.atan2(z.im, z.re)


def exp(z: Pair) -> Pair:
    """e**z; the result for a real number is real."""
    length, nothing = e.exp(z.re), z.re.eq(-INF)  # for -inf the result is 0 in any direction
    re, im = (nothing.where(0.0, length * turn(z.im)) for turn in (e.cos, e.sin))
    return Pair(z.re.eq(INF).where(_or_infinite(z.im, re), re), z.im.eq(0).where(z.im, im))


def _or_infinite(direction: UOp, part: UOp) -> UOp:
    """inf where the direction of an infinite number is infinite too, otherwise this part (C99, G.6.3.1)."""
    return absolute(direction).eq(INF).where(INF, part)


def log(z: Pair) -> Pair:
    """The principal logarithm; log |z| near 1 without cancellation."""
    x, y = absolute(z.re), absolute(z.im)
    larger, smaller = (x < y).where(y, x), (x < y).where(x, y)
    near = 0.5 * e.log1p(subtract(larger, 1.0) * (larger + 1.0) + smaller * smaller)
    close = (larger > 0.5) & (larger < 2.0)
    size = _is_far(z).where(_log_of_far(z), e.log(modulus(z)))
    return Pair(close.where(near, size), angle(z))


_FAR = 2.0**60
"""Magnitude from which on 1 and the square of a number have no common digit, in any dtype."""


def _is_far(z: Pair) -> UOp:
    return (absolute(z.re) > _FAR) | (absolute(z.im) > _FAR)


def _log_of_far(z: Pair) -> UOp:
    """log |z| of large and infinite numbers, without intermediate overflow."""
    return e.log(modulus(Pair(z.re * 2.0**-40, z.im * 2.0**-40))) + 40 * math.log(2)


def _chosen(first: UOp, a: Pair, b: Pair) -> Pair:
    return Pair(*(first.where(chosen, other) for chosen, other in zip(a, b, strict=True)))


def sqrt(z: Pair) -> Pair:
    """Principal square root; for an infinite imaginary part both parts are infinite."""
    far, upright = _is_far(z), absolute(z.im).eq(INF)
    scale, back = far.where(z.re.const_like(0.25), 1.0), far.where(z.re.const_like(2.0), 1.0)
    re, im = z.re * scale, z.im * scale
    root = (0.5 * (modulus(Pair(re, im)) + absolute(re))).sqrt()
    other = root.eq(0).where(0.0, divide(im, 2.0 * root))
    root, other = upright.where(INF, root * back), upright.where(z.im, other * back)
    right = (z.re >= 0) | upright
    return Pair(right.where(root, absolute(other)), right.where(other, copy_sign(root, z.im)))


def power(a: Pair, b: Pair) -> Pair:
    """a**b as e**(b log a), in float64; a power of 0 is 0 if the exponent's real part is positive, else inf or nan."""
    dtype = a.re.dtype
    wide = [Pair(cast(z.re, dtypes.float64), cast(z.im, dtypes.float64)) for z in (a, b)]
    result = exp(times(wide[1], log(wide[0])))
    nothing, one = a.re.eq(0) & a.im.eq(0), b.re.eq(0) & b.im.eq(0)
    re, im = (cast(part, dtype) for part in result)
    right = b.re > 0
    of_zero = right.where(re.const_like(0.0), (b.re < 0).where(re.const_like(INF), NAN))
    return Pair(nothing.where(of_zero, re), nothing.where(right.where(im.const_like(0.0), NAN), one.where(0.0, im)))


def sinh(z: Pair) -> Pair:
    """The hyperbolic sine."""
    return Pair(e.sinh(z.re) * e.cos(z.im), e.cosh(z.re) * e.sin(z.im))


def cosh(z: Pair) -> Pair:
    """The hyperbolic cosine."""
    return Pair(e.cosh(z.re) * e.cos(z.im), e.sinh(z.re) * e.sin(z.im))


def tanh(z: Pair) -> Pair:
    """The hyperbolic tangent (Kahan's CTANH)."""
    large = absolute(z.re) > 20
    x = large.where(0.0, z.re)
    t = e.tan(z.im)
    beta, s = 1.0 + t * t, e.sinh(x)
    rho = (1.0 + s * s).sqrt()
    denominator = 1.0 + beta * s * s
    re, im = divide(beta * rho * s, denominator), divide(t, denominator)
    return Pair(large.where(copy_sign(re.const_like(1.0), z.re), re), large.where(0.0, im))


def asin(z: Pair) -> Pair:
    """The inverse sine (Kahan's CASIN)."""
    below, above = sqrt(Pair(subtract(1.0, z.re), -z.im)), sqrt(Pair(1.0 + z.re, z.im))
    re = e.atan2(z.re, subtract(below.re * above.re, below.im * above.im))
    near = Pair(re, e.asinh(subtract(below.re * above.im, below.im * above.re)))
    far = Pair(e.atan2(z.re, absolute(z.im)), copy_sign(_log_of_far(z) + math.log(2), z.im))
    return _chosen(_is_far(z), far, near)


def acos(z: Pair) -> Pair:
    """The inverse cosine (Kahan's CACOS)."""
    below, above = sqrt(Pair(subtract(1.0, z.re), -z.im)), sqrt(Pair(1.0 + z.re, z.im))
    near = Pair(2.0 * e.atan2(below.re, above.re), e.asinh(subtract(above.re * below.im, above.im * below.re)))
    far = Pair(e.atan2(absolute(z.im), z.re), copy_sign(_log_of_far(z) + math.log(2), -z.im))
    return _chosen(_is_far(z), far, near)


def acosh(z: Pair) -> Pair:
    """The inverse hyperbolic cosine (Kahan's CACOSH)."""
    below, above = sqrt(Pair(subtract(z.re, 1.0), z.im)), sqrt(Pair(z.re + 1.0, z.im))
    near = Pair(e.asinh(below.re * above.re + below.im * above.im), 2.0 * e.atan2(below.im, above.re))
    return _chosen(_is_far(z), Pair(_log_of_far(z) + math.log(2), angle(z)), near)


def atanh(z: Pair) -> Pair:
    """The inverse hyperbolic tangent, an odd function computed on the right half-plane."""
    x, square = absolute(z.re), z.im * z.im
    rest = subtract(1.0, x)
    re = 0.25 * e.log1p(divide(4.0 * x, rest * rest + square))
    near = Pair(copy_sign(re, z.re), 0.5 * e.atan2(2.0 * z.im, subtract(rest * (1.0 + x), square)))
    size = modulus(z)
    inverse = size.eq(INF).where(0.0, divide(divide(x, size), size))
    quarter = copy_sign(z.im.const_like(math.pi / 2), z.im)
    return _chosen(_is_far(z), Pair(copy_sign(inverse, z.re), z.im.ne(z.im).where(z.im, quarter)), near)


def turned(function: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """-i f(i z): sin from sinh, asinh from asin, and so on."""

    def rotated(z: Pair) -> Pair:
        w = function(Pair(-z.im, z.re))
        return Pair(w.im, -w.re)

    return rotated


def reciprocal(z: Pair) -> Pair:
    """1 / z."""
    return over(Pair(z.re.const_like(1.0), z.im.const_like(0.0)), z)


def sign(z: Pair) -> Pair:
    """z / |z|, and 0 for 0."""
    size = modulus(z)
    zero = size.eq(0)
    return Pair(zero.where(0.0, divide(z.re, size)), zero.where(0.0, divide(z.im, size)))


def times_real(z: Pair, factor: float) -> Pair:
    """z times a real number."""
    return Pair(z.re * factor, z.im * factor)


def sigmoid(z: Pair) -> Pair:
    """1 / (1 + e**-z)."""
    w = exp(negative(z))
    return reciprocal(Pair(1.0 + w.re, w.im))


def lerp(a: Pair, b: Pair, weight: Pair) -> Pair:
    """a + weight (b - a), from the nearer end (ATen/native/Lerp.h)."""
    difference = minus(b, a)
    near = modulus(weight) < 0.5
    first = plus(a, times(weight, difference))
    other = minus(b, times(difference, Pair(subtract(1.0, weight.re), -weight.im)))
    return Pair(near.where(first.re, other.re), near.where(first.im, other.im))


def sinc(z: Pair) -> Pair:
    """sin(pi z) / (pi z), and 1 at 0."""
    w = times_real(z, math.pi)
    value, zero = over(turned(sinh)(w), w), z.re.eq(0) & z.im.eq(0)
    return Pair(zero.where(1.0, value.re), zero.where(0.0, value.im))
