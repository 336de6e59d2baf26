"""Elementary functions in float64, compared with mpmath at formerly wrong points, and with torch CPU at special
values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath  # type: ignore[import-untyped]
import pytest
import torch

from conformance.engine.loading import load_target
from conformance.sources.accuracy.measure import measure
from conformance.sources.accuracy.table import select

Points = Sequence[tuple[float, ...]]
HARDEST_ANGLE = 6381956970095103 * 2.0**797
"""The float64 number closest to a multiple of pi/2."""

FORMER: dict[str, tuple[Callable[..., Any], Callable[..., Any], Points]] = {
    # 2.5 ulp off, because it was a multiple of the binary logarithm.
    "log": (torch.log, mpmath.log, [(0.69305449875311,), (0.9999999473160764,), (5e-324,)]),
    "log2": (torch.log2, lambda x: mpmath.log(x, 2), [(1.0000051586982444,)]),
    "log10": (torch.log10, mpmath.log10, [(1.322837106512521,), (1000.0,)]),
    "atanh": (torch.atanh, mpmath.atanh, [(-0.23937747903620177,)]),
    # No digit was right beyond 2**28, because too few bits of pi were used.
    "sin": (torch.sin, mpmath.sin, [(1.4780378550757972e47,), (HARDEST_ANGLE,), (2.0**28,)]),
    "cos": (torch.cos, mpmath.cos, [(-4.323555321566996e180,), (HARDEST_ANGLE,), (1.7976931348623157e308,)]),
    "tan": (torch.tan, mpmath.tan, [(4.132170178510604e56,), (-HARDEST_ANGLE,), (-1.0047299207167004,)]),
    "tanh": (torch.tanh, mpmath.tanh, [(-6.028305156937083,), (0.999740601427554,), (1e-5,)]),
    # 60 ulp and more, because a product with a rounded logarithm was the exponent.
    "pow": (torch.pow, mpmath.power, [(0.015192611622160618, 23.012169428562974), (1.4058334828455428e-96, 2.5)]),
    "logaddexp2": (
        torch.logaddexp2, lambda x, y: y + mpmath.log1p(2 ** (x - y)) / mpmath.log(2),
        [(-98.11611086015238, 1.0506189478686787e-155)],
    ),
    # No digit was right near 1, 2 and the negative zeros.
    "lgamma": (
        torch.lgamma, lambda x: mpmath.log(abs(mpmath.gamma(x))),
        [(1.9999999999999991,), (1.0000001,), (-2.7834578701399533,), (-2.6135769488381406,), (-3.1435808883499,),
         (-0.4,), (-10.5,), (0.6,), (3.0,), (10.0,), (1e5,), (-11.99999999,)],
    ),
    # 25 ulp where the terms of the shift cancel.
    "digamma": (torch.digamma, mpmath.digamma, [(2.0252944364066496,), (-0.25,), (1e-12,)]),
    # The start value of the iteration had float32 precision.
    "erfinv": (torch.erfinv, mpmath.erfinv, [(0.9999999999999998,), (-0.9998428222953728,), (0.5,), (1e-300,)]),
}  # fmt: skip
"""By name: torch's function, mpmath's function, and arguments."""

SLOW = {
    "erfinv": "4e14 ulp next to 1",
    "lgamma": "8e16 ulp next to 2",
    "mvlgamma.mvlgamma_p_3": "60 ulp, by lgamma",
    "polygamma.polygamma_n_2": "880 ulp, by powers",
    "special.zeta": "187 ulp, by powers",
    "xlogy": "its gradient had the error of the logarithm",
}


def _ulps(got: float, exact: Any) -> float:
    return float(abs(mpmath.mpf(got) - exact) / math.ulp(float(exact)))


@pytest.mark.parametrize("name", FORMER)
def test_points_that_were_wrong(name: str) -> None:
    """Results are within 2 ulp of the exact answer, and digamma within 3, where torch CPU has 2.8."""
    function, reference, points = FORMER[name]
    arguments = torch.tensor(points, dtype=torch.float64).unbind(-1)
    results = function(*(x.to("tiny") for x in arguments)).tolist()
    with mpmath.workprec(1300):
        off = [_ulps(got, reference(*map(mpmath.mpf, point))) for got, point in zip(results, points, strict=True)]
    assert max(off) <= (3 if name == "digamma" else 2), dict(zip(points, off, strict=True))


def test_gradients_that_cancelled() -> None:
    """The gradients of mish and square are exact. Formerly 1 - t * t lost digits in mish, and square was a power."""
    x = torch.tensor([7.694946756554301], dtype=torch.float64, device="tiny", requires_grad=True)
    (mish,) = torch.autograd.grad(torch.nn.functional.mish(x), x)
    with mpmath.workprec(200):
        exact = mpmath.diff(lambda z: z * mpmath.tanh(mpmath.log1p(mpmath.exp(z))), mpmath.mpf(x.item()))
    assert _ulps(mish.item(), exact) <= 2
    y = torch.tensor([-265.88198901587316], dtype=torch.float64, device="tiny", requires_grad=True)
    (square,) = torch.autograd.grad(torch.square(y), y)
    assert square.item() == 2 * y.item()


def test_powers_of_special_values() -> None:
    """Powers of zeros, infinities, nan, subnormal numbers and large exponents agree with the CPU, with the sign of
    zero."""
    numbers = [
        0.0,
        1.0,
        2.0,
        0.5,
        3.0,
        2.5,
        1e308,
        1e-308,
        5e-324,
        1e10,
        1e15 + 0.5,
        2.0**53,
        2.0**63,
        1 + 2**-52,
        math.inf,
    ]
    signed = [*numbers, *(-x for x in numbers), math.nan]
    base, exponent = torch.tensor(list(itertools.product(signed, signed)), dtype=torch.float64).unbind(-1)
    actual, expected = torch.pow(base.to("tiny"), exponent.to("tiny")).cpu(), torch.pow(base, exponent)
    # 2 units in the last place: an error of 1.03 ulp in the check of accuracy, plus half a unit of torch CPU's.
    torch.testing.assert_close(actual, expected, rtol=4.5e-16, atol=0, equal_nan=True)
    kept = ~expected.isnan()
    assert bool((actual.signbit() == expected.signbit())[kept].all())


@pytest.mark.parametrize(
    "name", ["log", "log1p", "log2", "log10", "sin", "cos", "tan", "tanh", "lgamma", "digamma", "erfinv"]
)
def test_special_values(name: str) -> None:
    """nan, infinities, signed zeros, poles and subnormal numbers give the CPU's results."""
    numbers = [0.0, 1.0, 2.0, 1e-310, 1e308, math.inf]
    x = torch.tensor([*numbers, *(-x for x in numbers), math.nan], dtype=torch.float64)
    function = getattr(torch, name)
    actual, expected = function(x.to("tiny")).cpu(), function(x)
    torch.testing.assert_close(actual, expected, rtol=4e-15, atol=5e-324, equal_nan=True)
    kept = ~expected.isnan()
    assert bool((actual.signbit() == expected.signbit())[kept].all())


def test_zeta_of_special_values() -> None:
    """zeta agrees with the CPU at special values. For large exponents only the first term counts."""
    numbers = [0.0, 1.0, 2.0, 0.5, -0.5, -2.0, 1e308, 30.0, math.inf, math.nan]
    s, q = torch.tensor(list(itertools.product(numbers, numbers)), dtype=torch.float64).unbind(-1)
    actual, expected = torch.special.zeta(s.to("tiny"), q.to("tiny")).cpu(), torch.special.zeta(s, q)
    torch.testing.assert_close(actual, expected, rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_errors(name: str) -> None:
    """No row that was formerly wrong has more than 4 times the error of torch CPU."""
    for case in select([name], ["float64"], ["forward", "backward"]):
        worst, *_ = measure(case, load_target("tiny"))
        assert worst.accuracy.excess <= 1, worst.accuracy
