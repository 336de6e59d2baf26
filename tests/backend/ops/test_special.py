"""Special functions: float64 results compared with power series in 80 digits, and results for extreme numbers with the
CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext

import pytest
import torch

import conformance.backend  # noqa: F401
from conformance.backend import kernels


def summed(terms: Iterator[Decimal], x: Decimal) -> Decimal:
    """Sum a power series until a term no longer counts. Terms decrease from index |x| on."""
    total, count = Decimal(0), 0
    for term in terms:
        total, count = total + term, count + 1
        if count > abs(x) + 20 and abs(term) < Decimal(10) ** -50:
            break
    return total


def bessel_j(order: int) -> Callable[[Decimal], Decimal]:
    """Return J_n(x) as the sum of (-1)^k (x/2)^(2k+n) / (k! (k+n)!) (DLMF 10.2.2)."""

    def terms(x: Decimal) -> Iterator[Decimal]:
        term, k = (x / 2) ** order if order else Decimal(1), 0
        while True:
            yield term
            k += 1
            term = -term * x * x / (4 * k * (k + order))

    return lambda x: summed(terms(x), x)


def airy_ai(x: Decimal) -> Decimal:
    """Return Ai(x) from its two Maclaurin series (DLMF 9.4.1), with Ai(0) and -Ai'(0) of DLMF 9.2.3 and 9.2.4."""

    def terms(first: Decimal, step: int) -> Iterator[Decimal]:
        term, k = first, 0
        while True:
            yield term
            k += 1
            term = term * x**3 / ((3 * k - 1 + step) * (3 * k + step))

    at_zero = Decimal("0.355028053887817239260063186004183176397979174199177752403092")
    slope = Decimal("0.258819403792806798405183560189203963479091138354934582210002")
    return at_zero * summed(terms(Decimal(1), 0), 3 * x) - slope * summed(terms(x, 1), 3 * x)


@pytest.mark.parametrize(
    ("name", "reference", "low", "high"),
    [("bessel_j0", bessel_j(0), 0, 20), ("bessel_j1", bessel_j(1), 0, 20), ("airy_ai", airy_ai, -8, 4)],
)
def test_more_exact_than_the_cpu(name: str, reference: Callable[[Decimal], Decimal], low: int, high: int) -> None:
    """The worst absolute error is below 1e-11, where torch 2.13's CPU kernels are off by 1e-7 and more."""
    x = torch.linspace(low, high, 201, dtype=torch.float64)
    with localcontext() as digits:
        digits.prec = 80
        exact = [reference(Decimal(v)) for v in x.tolist()]
        worst = {
            device: float(max(abs(Decimal(a) - e) for a, e in zip(values, exact, strict=True)))
            for device in ("cpu", "tiny")
            for values in [getattr(torch.special, name)(x.to(device)).tolist()]
        }
    assert worst["tiny"] < 1e-11
    assert worst["cpu"] > 1e-7


def test_zeta_is_one_kernel():
    """zeta computes its three sums and their remainders in one reduction. Formerly each sum had three kernels."""
    s, q = torch.tensor([2.0, 3.0, 5.0, 2.5]), torch.tensor([0.3, -1.7, -4.2, 7.0])
    with kernels.count() as k:
        mine = torch.special.zeta(s.to("tiny"), q.to("tiny")).cpu()
    assert k.kernels == 1
    torch.testing.assert_close(mine, torch.special.zeta(s, q))


def test_erf_of_float32():
    """erf is within 1.1 units in the last place everywhere, with the CPU's special values and signs of zero."""
    x = torch.cat([torch.linspace(-6, 6, 4001), torch.logspace(-38, 2, 200), torch.tensor([0.0, -0.0])])
    exact = torch.erf(x.double())
    nearest = exact.float().abs()
    unit = (torch.nextafter(nearest, torch.tensor(9.0)) - nearest).double()
    actual = torch.erf(x.to("tiny")).cpu()
    assert ((actual.double() - exact).abs() / unit).max() < 1.1
    assert torch.equal(actual.signbit(), x.signbit())
    special = torch.tensor([torch.inf, -torch.inf, torch.nan])
    torch.testing.assert_close(torch.erf(special.to("tiny")).cpu(), torch.erf(special), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ndtri_of_small_probabilities(dtype):
    """ndtri of small probabilities agrees with the CPU. Below the rounding of 1 it was formerly -inf, and only the CPU
    gave nan for negative ones."""
    info = torch.finfo(dtype)
    p = torch.tensor(
        [0.0, info.smallest_normal / 4, info.tiny, 1e-30, 1e-12, 1e-3, 0.0999, 0.1001, 0.5, 0.9, 1.0, -1e-30]
    )
    p = p.to(dtype)
    theirs = torch.special.ndtri(p)
    torch.testing.assert_close(torch.special.ndtri(p.to("tiny")).cpu(), theirs, equal_nan=True)


@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modified_bessel_functions_of_large_numbers(name, dtype):
    """Modified Bessel functions of large numbers agree. Formerly the scaled function underflowed, so that inf times 0
    was nan, or 2 pi x overflowed, which gave 0."""
    most = torch.finfo(dtype).max
    x = torch.tensor([80.0, 101.0, 700.0, 730.0, 1e10, most, -most, -105.0, -math.inf], dtype=dtype)
    function = getattr(torch.special, name)
    torch.testing.assert_close(function(x.to("tiny")).cpu(), function(x), equal_nan=True, atol=0.0, rtol=2e-5)


SIGNED_AT_ZERO = ("i1", "i1e", "modified_bessel_i1", pytest.param("bessel_j1", marks=pytest.mark.slow), "entr")


@pytest.mark.parametrize("name", SIGNED_AT_ZERO)
def test_the_sign_at_zero(name):
    """The sign at zero is the CPU's: for -0.0, J1 is -0.0, and I1 and the entropy are 0.0. tiny formerly had the
    opposite signs."""
    x, f = torch.tensor([-0.0, 0.0, -1.0, 2.0, math.nan]), getattr(torch.special, name)
    expected, actual = f(x), f(x.to("tiny")).cpu()
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert torch.equal(actual[:4].signbit(), expected[:4].signbit())


def test_digamma_of_subnormal_numbers():
    """digamma of a subnormal x is -1/x, which overflows for 2**-128. Formerly pi / tan(pi x) did not, because pi times
    a subnormal number is rounded."""
    x = torch.tensor([2.0**-128, -(2.0**-128), 1e-45, 1e-38, -1e-37, 1e-10, -2.9999995, 0.3, 0.0, -2.0])
    torch.testing.assert_close(torch.digamma(x.to("tiny")).cpu(), torch.digamma(x), equal_nan=True)


def test_zeta_of_very_large_numbers():
    """zeta of a very large exponent is inf or 1 for numbers up to 1, where it was formerly nan. For other numbers the
    CPU returns nan."""
    s = torch.tensor([torch.finfo(torch.float32).max, math.inf, 1e13, 3e13, 200.0, 2.0]).repeat_interleave(8)
    q = torch.tensor([torch.finfo(torch.float32).max, math.inf, 2.0, 1.0000001, 1.0, 0.5, -1.5, 0.0]).repeat(6)
    actual, expected = torch.special.zeta(s.to("tiny"), q.to("tiny")).cpu(), torch.special.zeta(s, q)
    torch.testing.assert_close(actual, expected, equal_nan=True)
