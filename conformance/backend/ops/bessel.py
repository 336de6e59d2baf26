"""Bessel functions, Airy's function and Hurwitz's zeta function, all computed in float64.

Each function is a power series near 0 and an asymptotic series far from 0. Where neither converges, it is an integral
by the trapezoidal rule, which for these integrands is as exact as the arithmetic (L. N. Trefethen and J. A. C.
Weideman, The exponentially convergent trapezoidal rule, SIAM Review 56, 2014). Formulas are cited by their numbers in
the Digital Library of Mathematical Functions (DLMF).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, pointwise, value
from ..dispatch.tensors import cast
from ..lazy.dtypes import opmath
from . import elementary as e
from .arithmetic import INF, NAN, absolute, divide, horner, subtract
from .gamma import digamma

_EULER = 0.57721566490153286061


def _in_double(function: Callable[[UOp], UOp]) -> Callable[[UOp], UOp]:
    return lambda x: function(x.cast(dtypes.float64)).cast(x.dtype)


def _quadrature(x: UOp, terms: Callable[[UOp, UOp], UOp], count: int, first: float, step: float) -> UOp:
    """step times the sum of terms(x, t) over `count` points t, computed as a reduction along a new dimension."""
    t = (UOp.arange(count).cast(dtypes.float64) * step + first).reshape((1,) * x.ndim + (count,))
    return terms(x.unsqueeze(-1), t).sum(-1) * step


def _hankel(order: int, terms: int) -> tuple[list[float], list[float]]:
    """Even and odd coefficients of DLMF 10.17.3 in powers of 1/x**2, highest power first, with their signs."""
    a = [1.0]
    for k in range(1, 2 * terms):
        a.append(a[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    return [(-1) ** k * a[2 * k] for k in range(terms)][::-1], [(-1) ** k * a[2 * k + 1] for k in range(terms)][::-1]


def _far(x: UOp, order: int, phase: float) -> UOp:
    """sqrt(2 / (pi x)) (P cos w - Q sin w) with w = x - phase (DLMF 10.17.3 and 10.17.4)."""
    even, odd = _hankel(order, 9)
    z = divide(x.const_like(1.0), x)
    p, q = horner(z * z, even), z * horner(z * z, odd)
    cos, sin = e.cos(x), e.sin(x)
    c, s = math.cos(phase), math.sin(phase)
    return (z * (2 / math.pi)).sqrt() * subtract(p * (cos * c + sin * s), q * subtract(sin * c, cos * s))


_SPLIT_J = 25.0


def bessel_j(x: UOp, order: int) -> UOp:
    """J of order 0 or 1: mean of cos(order t - x sin t) over a period (DLMF 10.9.2); Hankel's series for large x."""
    a = absolute(x)
    far = a > _SPLIT_J
    terms: Callable[[UOp, UOp], UOp] = (
        (lambda x, t: e.sin(x * e.sin(t)) * e.sin(t)) if order else (lambda x, t: e.cos(x * e.sin(t)))
    )
    # By symmetry, only 16 of the 64 points of the period give different terms.
    near = _quadrature(far.where(0.0, a), terms, 16, math.pi / 64, math.pi / 32) * (2 / math.pi)
    value = far.where(_far(far.where(a, _SPLIT_J), order, (2 * order + 1) * math.pi / 4), near)
    value = a.eq(INF).where(NAN, value)
    return x.eq(0).where(x, (x < 0).where(-value, value)) if order else value


_SPLIT_Y = 16.0


def bessel_y(x: UOp, order: int) -> UOp:
    """Y of order 0 or 1: logarithmic series (DLMF 10.8.1), Hankel's series for large x; nan below 0, -inf at 0."""
    far = x > _SPLIT_Y
    near = (far | (x <= 0)).where(1.0, x)
    half = near * 0.5
    terms = 45
    harmonic = [0.0]
    for k in range(1, terms + 2):
        harmonic.append(harmonic[-1] + 1 / k)
    if order:
        sums = [
            (-1) ** k * (harmonic[k] + harmonic[k + 1] - 2 * _EULER) / (math.factorial(k) * math.factorial(k + 1))
            for k in range(terms)
        ]
        series = subtract(divide(near.const_like(-1.0), half), half * horner(half * half, sums[::-1]))
        value = (2.0 * e.log(half) * bessel_j(near, 1) + series) * (1 / math.pi)
    else:
        sums = [(-1) ** (k + 1) * harmonic[k] / math.factorial(k) ** 2 for k in range(terms)]
        series = horner(half * half, sums[::-1])
        value = ((e.log(half) + _EULER) * bessel_j(near, 0) + series) * (2 / math.pi)
    # Far from 0, Y is J with its phase shifted by a quarter period.
    value = far.where(_far(far.where(x, _SPLIT_Y), order, (2 * order + 3) * math.pi / 4), value)
    value = x.eq(INF).where(NAN, value)
    return x.eq(0).where(-INF, (x < 0).where(NAN, x.ne(x).where(x, value)))


_SPLIT_K = 25.0


def _k_scaled(x: UOp, order: float) -> UOp:
    """e**x K of any order for x >= 2: the integral of exp(-x (cosh t - 1)) cosh(order t) (DLMF 10.32.9)."""
    far = x > _SPLIT_K
    near, z = far.where(2.0, x), far.where(x, _SPLIT_K)
    count, step = 31, 0.125

    def terms(x: UOp, t: UOp) -> UOp:
        s = e.sinh(t * 0.5)
        weight = t.eq(0).where(UOp.const(0.5, dtypes.float64), 1.0)
        return weight * e.exp(x * (s * s) * -2.0) * e.cosh(t * order)

    coefficients, c = [1.0], 1.0
    for k in range(1, 20):
        c *= (4 * order * order - (2 * k - 1) ** 2) / (8 * k)
        coefficients.append(c)
    series = horner(divide(z.const_like(1.0), z), coefficients[::-1])  # DLMF 10.40.2
    return far.where(divide(z.const_like(math.pi / 2), z).sqrt() * series, _quadrature(near, terms, count, 0.0, step))


def bessel_k(x: UOp, order: int, scaled: bool) -> UOp:
    """K of order 0 or 1, times e**x if `scaled`; logarithmic series below 2 (DLMF 10.31.1 and 10.31.2)."""
    large = x > 2
    near = (large | (x <= 0)).where(1.0, x)
    half = near * 0.5
    z, terms = half * half, 20
    psi = [-_EULER]
    for k in range(1, terms + 2):
        psi.append(psi[-1] + 1 / k)
    if order:
        i = [1 / (math.factorial(k) * math.factorial(k + 1)) for k in range(terms)]
        rest = [(psi[k] + psi[k + 1]) * c for k, c in enumerate(i)]
        series = divide(half.const_like(0.5), half) + half * subtract(
            e.log(half) * horner(z, i[::-1]), 0.5 * horner(z, rest[::-1])
        )
    else:
        i = [1 / math.factorial(k) ** 2 for k in range(terms)]
        rest = [psi[k] * c for k, c in enumerate(i)]
        series = subtract(horner(z, rest[::-1]), e.log(half) * horner(z, i[::-1]))
    big = large.where(x, 2.0)
    value = large.where(_k_scaled(big, order), series * e.exp(near))
    value = value if scaled else value * e.exp(-large.where(x, near))
    value = x.eq(INF).where(0.0, value)
    return x.eq(0).where(INF, (x < 0).where(NAN, x.ne(x).where(x, value)))


_AI0, _AI1 = 0.355028053887817239, 0.258819403792806798  # Ai(0) and -Ai'(0)


def airy_ai(x: UOp) -> UOp:
    """Ai: Maclaurin series (DLMF 9.4.1), K of order 1/3 for x > 2.1 (9.6.2), oscillating form for x < -7.5 (9.7.9)."""
    right, left = x > 2.1, x < -7.5
    near = (right | left).where(0.0, x)
    cube = near * near * near
    f, g = [1.0], [1.0]
    for k in range(1, 50):
        f.append(f[-1] / ((3 * k - 1) * 3 * k))
        g.append(g[-1] / (3 * k * (3 * k + 1)))
    series = subtract(_AI0 * horner(cube, f[::-1]), _AI1 * near * horner(cube, g[::-1]))
    r = right.where(x, 2.1)
    zeta = r * r.sqrt() * (2 / 3)
    decaying = (r * (1 / 3)).sqrt() * _k_scaled(zeta, 1 / 3) * e.exp(-zeta) * (1 / math.pi)
    n = left.where(-x, 7.5)
    zeta = n * n.sqrt() * (2 / 3)
    u = [1.0]
    for k in range(1, 18):
        u.append(u[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / ((2 * k - 1) * 216 * k))
    z = divide(zeta.const_like(1.0), zeta)
    even = horner(z * z, [(-1) ** k * u[2 * k] for k in range(9)][::-1])
    odd = z * horner(z * z, [(-1) ** k * u[2 * k + 1] for k in range(9)][::-1])
    cos, sin = e.cos(zeta), e.sin(zeta)
    root = math.sqrt(0.5)
    oscillating = divide((cos + sin) * root * even + subtract(sin, cos) * root * odd, (n.sqrt() * math.pi).sqrt())
    value = right.where(decaying, left.where(oscillating, series))
    return absolute(x).eq(INF).where(NAN, x.ne(x).where(x, (x > 103.892).where(0.0, value)))


_SHIFT = 10
_OVERFLOWS = 25256835601046.0  # where the product s (s + 1) ... (s + 22) is inf
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)


def zeta(s: UOp, q: UOp) -> UOp:
    """Hurwitz's zeta function: ten terms, and the remainder by the Euler-Maclaurin formula (DLMF 25.11.5).

    A negative q, which requires an integer s, adds two more such sums over positive numbers. The terms of all three
    sums form one reduction, so that the kernel holds one exponential and one logarithm. Written out, they take the
    compiler a minute. s = 1 gives inf and s < 1 gives nan, even for a nan q, as in Cephes (S. L. Moshier, zeta.c) and
    on the CPU.
    """
    below = q < 0
    steps = below.where(-q.floor(), 0.0)
    fraction = q + steps
    mirrored = subtract(subtract(1.0, steps), q)  # computed from q, because the fraction loses the bits of a tiny q
    half = s * 0.5
    sign = half.floor().ne(half).where(q.const_like(-1.0), 1.0)
    # Arguments of the three sums, each with its factor.
    arguments, factors = (fraction, mirrored, mirrored + steps), (q.const_like(1.0), sign, -sign)
    which = UOp.arange(3).reshape((1,) * q.ndim + (3, 1))
    term = UOp.arange(_SHIFT + 1).reshape((1,) * q.ndim + (1, _SHIFT + 1))
    argument, factor = (which.eq(0).where(a, which.eq(1).where(b, c)) for a, b, c in
                        ((x.unsqueeze(-1).unsqueeze(-1) for x in xs) for xs in (arguments, factors)))  # fmt: skip
    s_, below_ = s.unsqueeze(-1).unsqueeze(-1), below.unsqueeze(-1).unsqueeze(-1)
    left_out = (which > 0) & below_.logical_not() | (argument <= 0)
    safe_s = (s_ > 1).where((s_ < 1e30).where(s_, 1e30), 2.0)  # inf times log 1 is nan
    base = left_out.where(1.0, argument) + term.cast(dtypes.float64)
    power = e.positive_power(base, safe_s * -1)
    none = left_out | power.eq(0)  # for a power of 0 the remainder is inf or nan
    value = none.where(0.0, factor * power * term.eq(_SHIFT).where(_rest(safe_s, base), 1.0)).sum((-2, -1))
    # The CPU multiplies powers that are all 0 by a remainder that overflows.
    value = (value.eq(0) & ((s > _OVERFLOWS) | q.eq(INF)) | s.ne(s) | q.ne(q)).where(NAN, value)
    value = (q <= 0).where(q.floor().eq(q).where(INF, s.floor().ne(s).where(NAN, value)), value)
    return (s < 1).where(NAN, s.eq(1).where(INF, value))


def _rest(s: UOp, a: UOp) -> UOp:
    """Sum of (a + k)**-s, divided by a**-s."""
    square = divide(a.const_like(1.0), a * a)
    factor, rest = s * divide(a.const_like(1.0), a), s.const_like(0.0)
    for n, b in enumerate(_BERNOULLI, 1):
        rest = rest + factor * (b / math.factorial(2 * n))
        factor = factor * (s + float(2 * n - 1)) * (s + float(2 * n)) * square
    return divide(a, subtract(s, 1.0)) + 0.5 + rest


def _zeta(s: UOp, q: UOp) -> UOp:
    dtype = q.dtype
    s, q = s._broadcasted(q)
    return zeta(s.cast(dtypes.float64), q.cast(dtypes.float64)).cast(dtype)


def trigamma(x: UOp) -> UOp:
    """Derivative of digamma, with the CPU's reflection for x below 1/2 (aten/src/ATen/native/Math.h)."""
    small = x < 0.5
    sine = e.sin(x * math.pi)
    y = small.where(subtract(1.0, x), x)
    total, one = y.const_like(0.0), y.const_like(1.0)
    for _ in range(6):
        total, y = total + divide(one, y * y), y + 1.0
    z = divide(one, y * y)
    series = 1.0 + divide(one, 2.0 * y) + z * subtract(1 / 6, z * subtract(1 / 30, z * (1 / 42)))
    value = total + divide(series, y)
    return small.where(subtract(divide(one * (math.pi * math.pi), sine * sine), value), value)


@value("polygamma")
def polygamma(ctx: Context, n: int, x: UOp) -> UOp:
    """n-th derivative of digamma; for n >= 2 a zeta function (DLMF 5.15.1 and 25.11.12)."""
    x = cast(x, opmath(ctx.out.computed))
    if n < 2:
        return trigamma(x) if n else digamma(x)
    wide = x.cast(dtypes.float64)
    value = zeta(wide.const_like(float(n + 1)), wide) * (math.gamma(n + 1) if n < 170 else INF)
    return (value if n % 2 else -value).cast(x.dtype)


def _modified(order: int, scaled: bool) -> Callable[[UOp], UOp]:
    return _in_double(lambda x: bessel_k(x, order, scaled))


pointwise(
    {
        "special_bessel_j0": _in_double(lambda x: bessel_j(x, 0)),
        "special_bessel_j1": _in_double(lambda x: bessel_j(x, 1)),
        "special_bessel_y0": _in_double(lambda x: bessel_y(x, 0)),
        "special_bessel_y1": _in_double(lambda x: bessel_y(x, 1)),
        "special_modified_bessel_k0": _modified(0, scaled=False),
        "special_modified_bessel_k1": _modified(1, scaled=False),
        "special_scaled_modified_bessel_k0": _modified(0, scaled=True),
        "special_scaled_modified_bessel_k1": _modified(1, scaled=True),
        "special_airy_ai": _in_double(airy_ai),
        "special_zeta": _zeta,
        "special_zeta.self_scalar": _zeta,
        "special_zeta.other_scalar": _zeta,
    }
)
