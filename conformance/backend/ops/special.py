"""Special functions: the error function and its relatives, and modified Bessel functions.

Each is a combination of published approximations for ranges of x; all ranges are computed and one is selected.
"""

from __future__ import annotations

import math

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import pointwise
from . import elementary as e
from .arithmetic import INF, NAN, absolute, copy_sign, divide, horner, in_float64, subtract

# Rational approximations of erf and erfc: Sun Microsystems, fdlibm 5.3, s_erf.c, which states the error bounds.
_NEAR_P = (-2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02,
           -3.25042107247001499370e-01, 1.28379167095512558561e-01)  # fmt: skip
_NEAR_Q = (-3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03,
           6.50222499887672944485e-02, 3.97917223959155352819e-01, 1.0)  # fmt: skip
_ONE_P = (-2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01,
          3.18346619901161753674e-01, -3.72207876035701323847e-01, 4.14856118683748331666e-01,
          -2.36211856075265944077e-03)  # fmt: skip
_ONE_Q = (1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01,
          7.18286544141962662868e-02, 5.40397917702171048937e-01, 1.06420880400844228286e-01, 1.0)  # fmt: skip
_TAIL_P = (-9.81432934416914548592e+00, -8.12874355063065934246e+01, -1.84605092906711035994e+02,
           -1.62396669462573470355e+02, -6.23753324503260060396e+01, -1.05586262253232909814e+01,
           -6.93858572707181764372e-01, -9.86494403484714822705e-03)  # fmt: skip
_TAIL_Q = (-6.04244152148580987438e-02, 6.57024977031928170135e+00, 1.08635005541779435134e+02,
           4.29008140027567833386e+02, 6.45387271733267880336e+02, 4.34565877475229228821e+02,
           1.37657754143519042600e+02, 1.96512716674392571292e+01, 1.0)  # fmt: skip
_FAR_P = (-4.83519191608651397019e+02, -1.02509513161107724954e+03, -6.37566443368389627722e+02,
          -1.60636384855821916062e+02, -1.77579549177547519889e+01, -7.99283237680523006574e-01,
          -9.86494292470009928597e-03)  # fmt: skip
_FAR_Q = (-2.24409524465858183362e+01, 4.74528541206955367215e+02, 2.55305040643316442583e+03,
          3.19985821950859553908e+03, 1.53672958608443695994e+03, 3.25792512996573918826e+02,
          3.03380607434824582924e+01, 1.0)  # fmt: skip
_ERX = 8.45062911510467529297e-01
# For float32, by Lawson's weighted least squares at Chebyshev nodes, with an error below 2e-9 in the result:
# erf(x)/x - 1 in x*x for |x| < 1, and -log(erfc(x)) for 1 <= x <= 4, above which the nearest float32 is 1.
_NARROW_NEAR = (7.889119533429579e-05, -8.02084128036277e-04, 5.189535339425536e-03, -2.6854444591966647e-02,
                1.1283600176259322e-01, -3.761262713596605e-01, 1.283791659137512e-01)  # fmt: skip
_NARROW_FAR = (2.168600143116912e-05, -4.4132637143127026e-04, 4.204512884117785e-03, -2.5208125874273367e-02,
               1.0841837192867787e-01, 6.332200827454338e-01, 1.12957832878131, -1.88019989469268e-04)  # fmt: skip


def _erfc_rest(a: UOp) -> UOp:
    """log(a erfc(a)) + a*a + 0.5625 for a >= 1.25."""
    z = divide(a.const_like(1.0), a * a)
    return (a < 1 / 0.35).where(
        divide(horner(z, _TAIL_P), horner(z, _TAIL_Q)), divide(horner(z, _FAR_P), horner(z, _FAR_Q))
    )


def _erfc_tail(a: UOp) -> UOp:
    """erfc of a >= 1.25; the exponential is split so that the rounding of the square does not matter."""
    rest = _erfc_rest(a)
    bits, low = (dtypes.int32, 0xFFF) if a.dtype is dtypes.float32 else (dtypes.int64, 0xFFFFFFFF)
    head = (a.bitcast(bits) & ~low).bitcast(a.dtype)
    return divide(e.exp(subtract(head * -head, 0.5625)) * e.exp(subtract(head, a) * (head + a) + rest), a)


def _erf_parts(x: UOp) -> tuple[UOp, UOp, UOp]:
    """(|x|, erf below 0.84375 over x minus 1, erf on [0.84375, 1.25] minus `_ERX`)."""
    a = absolute(x)
    z, s = x * x, subtract(a, 1.0)
    return a, divide(horner(z, _NEAR_P), horner(z, _NEAR_Q)), divide(horner(s, _ONE_P), horner(s, _ONE_Q))


def erf(x: UOp) -> UOp:
    """The error function."""
    if x.dtype is dtypes.float32:
        return _erf_narrow(x)
    a, near, one = _erf_parts(x)
    far = (a > 6).where(1.0, subtract(1.0, _erfc_tail(a)))
    result = (a < 1.25).where(_ERX + one, far)
    return x.ne(x).where(x, (a < 0.84375).where(x + x * near, copy_sign(result, x)))


def _erf_narrow(x: UOp) -> UOp:
    a = absolute(x)
    beyond = subtract(1.0, e.exp(-horner((a > 4).where(4.0, a), _NARROW_FAR)))
    return (a < 1).where(x + x * horner(x * x, _NARROW_NEAR), copy_sign(beyond, x))


@in_float64
def erfc(x: UOp) -> UOp:
    """1 - erf(x), accurate where it is small."""
    a, near, one = _erf_parts(x)
    tail = (a > 28).where(0.0, _erfc_tail(a))
    result = (a < 1.25).where(subtract(1 - _ERX, one), tail)
    result = (x < 0).where(subtract(2.0, result), result)
    small = (x < 0.25).where(subtract(1.0, x + x * near), subtract(0.5, subtract(x, 0.5) + x * near))
    return x.ne(x).where(x, (a < 0.84375).where(small, result))


# erfinv(x)/x where w = -log((1 - x) (1 + x)) is below 5, in w - 2.5: M. Giles, Approximating the erfinv function, GPU
# Computing Gems, Jade Edition, 2011, the single precision table. For w from 5 to 37, in sqrt(w), interpolated at
# Chebyshev nodes with an error below 3e-6.
_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
           -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_OUTER = (-4.1108870173472984e-07, 1.4248809981076078e-05, -0.0001925403703230816, 0.0010494463645772292,
          0.0024336756685685262, -0.07456092854497864, 0.5221656185976057, -1.997173413278236,
          4.535966511125542, -4.78254490452974, 3.0412680503778957)  # fmt: skip


def _erf_minus(y: UOp, a: UOp) -> UOp:
    """erf(y) - a for y near erfinv(a), 0 <= a < 1, without cancellation in any range."""
    _, near, one = _erf_parts(y)
    far = subtract(subtract(1.0, a), _erfc_tail(y))
    return (y < 0.84375).where(subtract(y, a) + y * near, (y < 1.25).where(subtract(one, subtract(a, _ERX)), far))


@in_float64
def erfinv(x: UOp) -> UOp:
    """Inverse of erf on (-1, 1), with two of Halley's steps."""
    a = absolute(x)
    w = -e.log(subtract(1.0, a) * (1.0 + a))
    y = a * (w < 5).where(horner(subtract(w, 2.5), _CENTRE), horner(w.sqrt(), _OUTER))
    for _ in range(2):
        step = _erf_minus(y, a) * e.exp(y * y) * (math.sqrt(math.pi) / 2)
        y = subtract(y, divide(step, 1.0 + y * step))
    return copy_sign(a.eq(1).where(INF, (a > 1).where(NAN, y)), x)


def erfcx(x: UOp) -> UOp:
    """e**(x*x) erfc(x), without the overflow and underflow of the factors."""
    a = absolute(x)
    tail = divide(e.exp(subtract(_erfc_rest(a), 0.5625)), a)
    square = e.exp(x * x)
    near = square * erfc((a < 1.25).where(x, 0.0))
    negative = subtract(2.0 * square, tail)
    return x.ne(x).where(x, (a < 1.25).where(near, (x < 0).where(negative, tail)))


def log_ndtr(x: UOp) -> UOp:
    """Logarithm of the cumulative density of the normal distribution."""
    t = x * math.sqrt(0.5)
    low = subtract(e.log(0.5 * erfcx((x < 0).where(-t, 0.0))), t * t)
    return (x < -1).where(low, e.log1p(-0.5 * erfc(t)))


def ndtri(p: UOp) -> UOp:
    """Inverse of the cumulative density of the normal distribution; nan outside [0, 1].

    Below 0.1, where 2 p - 1 loses digits of p, Newton's method on the logarithm of erfc, which is nearly a parabola.
    """
    small = p < 0.1
    q = (small & (p > 0)).where(p, 0.1)
    log = e.log(q) + math.log(2)
    t = subtract(-0.5 * e.log(-log * math.pi), log).sqrt()
    for _ in range(3):
        scaled = erfcx(t)
        t = t + subtract(subtract(e.log(scaled), t * t), log) * scaled * (math.sqrt(math.pi) / 2)
    value = math.sqrt(2) * small.where(-t, erfinv(subtract(2.0 * p, 1.0)))
    return p.eq(0).where(-INF, (p < 0).where(NAN, value))


def _bessel_i_series(x: UOp, order: int) -> UOp:
    """(|x|/2)**order times the sum of (x*x/4)**k / (k! (k+order)!), whose terms are all positive (DLMF 10.25.2)."""
    terms = 24 if x.dtype is dtypes.float32 else 60
    coefficients = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(terms, -1, -1)]
    half = absolute(x) * 0.5
    value = horner(half * half, coefficients)
    return half * value if order else value


def bessel_i_scaled(x: UOp, order: int) -> UOp:
    """e**-|x| I_order(x): the power series, or the asymptotic series for large arguments (DLMF 10.40.1)."""
    limit, terms = (9.0, 8) if x.dtype is dtypes.float32 else (25.0, 24)
    a = absolute(x)
    large = a > limit
    near = large.where(0.0, a)
    coefficients, c = [1.0], 1.0
    for k in range(1, terms + 1):
        c *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * k)
        coefficients.append(c)
    far = large.where(a, 1.0)
    asymptotic = divide(
        horner(divide(far.const_like(1.0), far), coefficients[::-1]), far.sqrt() * math.sqrt(2 * math.pi)
    )
    value = large.where(asymptotic, _bessel_i_series(near, order) * e.exp(-near))
    return x.ne(x).where(x, (x < 0).where(-value, value) if order else value)  # I(-0.0) is 0.0, as on the CPU


def bessel_i(x: UOp, order: int) -> UOp:
    """Modified Bessel function of the first kind, of order 0 or 1."""
    a = absolute(x)
    limit = 100.0 if x.dtype is dtypes.float32 else 720.0
    beyond = (a > limit) & (a < INF)  # the result for inf is nan, as on the CPU
    half = e.exp(a * 0.5)
    value = half * (half * bessel_i_scaled(x, order))
    return beyond.where(copy_sign(x.const_like(INF), x) if order else x.const_like(INF), value)


def spherical_bessel_j0(x: UOp) -> UOp:
    """sin(x)/x, by its series near 0."""
    z = x * x
    series = horner(z, [(-1) ** n / math.factorial(2 * n + 1) for n in range(6, -1, -1)])
    value = (absolute(x) < 0.5).where(series, divide(e.sin(x), x))
    return absolute(x).eq(INF).where(0.0, value)


pointwise(
    {
        "erf": erf,
        "erfc": erfc,
        "erfinv": erfinv,
        "special_erfcx": erfcx,
        "special_log_ndtr": log_ndtr,
        "i0": lambda x: bessel_i(x, 0),
        "special_i1": lambda x: bessel_i(x, 1),
        "special_modified_bessel_i0": lambda x: bessel_i(x, 0),
        "special_modified_bessel_i1": lambda x: bessel_i(x, 1),
        "special_i0e": lambda x: bessel_i_scaled(x, 0),
        "special_i1e": lambda x: bessel_i_scaled(x, 1),
        "special_spherical_bessel_j0": spherical_bessel_j0,
        "special_ndtri": ndtri,
    }
)
