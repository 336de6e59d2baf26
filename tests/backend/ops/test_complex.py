"""Complex tensors beyond the samples of OpInfo."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

import conformance.backend as backend
from conformance.backend import kernels

Program = Callable[[str], torch.Tensor]


def conjugated_in_place(d: str) -> torch.Tensor:
    """Return the base of a conjugate view that conjugates itself."""
    z = torch.tensor([1 + 2j, 3 - 1j]).to(d)
    z.conj().conj_physical_()
    return z


PROGRAMS: dict[str, Program] = {
    "conj_physical_": lambda d: torch.tensor([1 + 2j, 3 - 1j]).to(d).conj_physical_(),
    "conj_physical_ of a conjugate view": conjugated_in_place,
    "where of an integer": lambda d: torch.where(
        torch.tensor([True, False]).to(d), torch.tensor([3, 4]).to(d), torch.tensor([1 + 2j, 0j]).to(d)
    ),
    "where of a bool": lambda d: torch.where(
        torch.tensor([True, False]).to(d), torch.tensor([1 + 2j, 0j]).to(d), torch.tensor(True).to(d)
    ),
    "index_fill of an integer tensor": lambda d: (
        torch.zeros(3, dtype=torch.complex64).to(d).index_fill(0, torch.tensor([2]).to(d), torch.tensor(3).to(d))
    ),
    "logical_not_": lambda d: torch.tensor([1 + 2j, 0j]).to(d).logical_not_(),
    "logical_xor out=": lambda d: torch.logical_xor(
        torch.tensor([1j, 0j]).to(d), torch.tensor([0j, 0j]).to(d), out=torch.ones(2, dtype=torch.complex64).to(d)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_place(name: str) -> None:
    """A write to a complex tensor stores both parts. Through a conjugate view it stores the conjugate."""
    with backend.no_fallback():
        actual = PROGRAMS[name]("tiny").cpu()
    assert torch.equal(actual, PROGRAMS[name]("cpu"))


@pytest.mark.parametrize("source", [torch.tensor([1 + 2j, 2j, 3]), torch.tensor([1 + 2j]), torch.tensor(1 + 2j)])
def test_into_real_elements(source: torch.Tensor) -> None:
    """Complex CPU elements are written into a real tensor as their real parts, with torch's warning."""
    x = torch.zeros(3, device="tiny")
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch's own conversion of a single number warns, other calls only once per process
    try:
        with pytest.warns(UserWarning, match="discards the imaginary part"):
            x[:] = source
    finally:
        torch.set_warn_always(before)
    assert torch.equal(x.cpu(), source.real.expand(3))


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
def test_product_is_one_kernel(dim):
    """A product is one kernel with a sequential loop. Formerly halves were multiplied by halves, with two kernels for
    each round."""
    x = torch.view_as_complex(torch.linspace(-1.5, 1.5, 48).sin().view(2, 3, 4, 2).clone())
    there = x.to("tiny")
    with kernels.count() as k:
        mine = (there.prod() if dim is None else there.prod(dim)).cpu()
    assert k.kernels == (1 if dim in (None, -1) else 2)
    torch.testing.assert_close(mine, x.prod() if dim is None else x.prod(dim))


@pytest.mark.parametrize("left", [True, False])
def test_out_that_the_cpu_leaves_conjugated(left: bool) -> None:
    """The CPU's lu_solve from the right sets the conjugate bit of its out= tensor. The fallback formerly lost it."""
    generator = torch.Generator().manual_seed(0)
    matrix, b = (torch.randn(3, 3, dtype=torch.complex64, generator=generator) for _ in range(2))
    factors, pivots = torch.linalg.lu_factor(matrix)
    outs = []
    for device in ("cpu", "tiny"):
        out = torch.empty(3, 3, dtype=torch.complex64, device=device)
        operands = [x.to(device) for x in (factors, pivots, b)]
        outs.append(torch.linalg.lu_solve(*operands, left=left, out=out))
    assert outs[0].is_conj() == outs[1].is_conj()
    assert torch.equal(outs[0], outs[1].cpu())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_sums_with_infinite_parts(dtype):
    """torch first multiplies the second operand by 1 + 0j, so that an infinite part makes the other nan. The device
    formerly did not. (The fuzzer's seed 60022, program 4588.)"""
    inf = float("inf")
    values = [complex(4, inf), complex(inf, 1), complex(-inf, inf), complex(2, 3), complex(float("nan"), 1), 0j]
    a = torch.tensor([x for x in values for _ in values], dtype=dtype)
    b = torch.tensor(values * len(values), dtype=dtype)
    for function in (
        torch.add,
        torch.sub,
        torch.rsub,
        lambda x, y: x.clone().add_(y),
        lambda x, y: x.clone().sub_(y),
        lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: x + complex(inf, 2),
        lambda x, y: inf - x,
        lambda x, y: x.real + y,
        lambda x, y: x + y.real,
        lambda x, y: torch.addcmul(x, y, x),
        lambda x, y: torch.addcdiv(x, y, x),
        lambda x, y: torch.addcmul(x, y, x, value=2),
    ):
        mine, expected = (torch.view_as_real(z) for z in (function(a.to("tiny"), b.to("tiny")).cpu(), function(a, b)))
        torch.testing.assert_close(mine, expected, rtol=0, atol=0, equal_nan=True)


FAR = (0.0, 1.0, -2.5, torch.finfo(torch.float32).max, -1e25, math.inf, -math.inf)
"""Real and imaginary parts: large, infinite and ordinary."""


@pytest.mark.parametrize("name", ["log", "sqrt", "asin", "acosh", "atanh"])
def test_functions_of_far_numbers(name):
    """Functions of large and infinite numbers agree with C99 and torch CPU. Formerly squares and absolute values
    overflowed, and inf - inf was nan instead of a direction."""
    z = torch.tensor([complex(re, im) for re, im in itertools.product(FAR, FAR)], dtype=torch.complex64)
    expected, actual = getattr(torch, name)(z), getattr(torch, name)(z.to("tiny")).cpu()
    torch.testing.assert_close(torch.view_as_real(actual), torch.view_as_real(expected), equal_nan=True)


def test_powers_of_zero_and_by_numbers():
    """0 ** (-1 + 1j) was formerly 0, and a square was e ** (2 log z), which is nan for an infinite number."""
    exponents = torch.tensor([complex(re, im) for re in (-1, 0, 2) for im in (-1, 0, 1)], dtype=torch.complex64)
    zeros = torch.zeros_like(exponents)
    expected, actual = zeros**exponents, (zeros.to("tiny") ** exponents.to("tiny")).cpu()
    torch.testing.assert_close(torch.view_as_real(actual), torch.view_as_real(expected), equal_nan=True)
    z = torch.tensor([complex(math.inf, 2), complex(-1, math.inf), 3 - 2j, 0j], dtype=torch.complex64)
    for exponent in (0, 1, 2, 3):
        sides = [torch.view_as_real((z.to(device) ** exponent).cpu()) for device in ("tiny", "cpu")]
        torch.testing.assert_close(*sides, equal_nan=True)


def test_exponentials_and_means_of_infinite_numbers():
    """e ** -inf is 0 in any direction, so sigmoid is 1 there. The divisor of a mean is complex too."""
    z = torch.tensor([complex(math.inf, math.inf), complex(math.inf, 1), complex(-math.inf, math.inf)])
    for f in (torch.exp, torch.sigmoid, torch.expm1, lambda z: z[1:2].mean()):
        sides = [torch.view_as_real(f(z.to(device)).cpu()) for device in ("tiny", "cpu")]
        torch.testing.assert_close(*sides, equal_nan=True)


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view_as_real of a conjugate": lambda z: torch.view_as_real(z.conj()),
    "a conjugate as float32": lambda z: z.conj().view(torch.float32),
    "a negative view as int32": lambda z: z.conj().imag.view(torch.int32),
}


@pytest.mark.parametrize("name", REFUSED)
def test_views_of_memory_below_a_bit_are_refused(name: str) -> None:
    """A view of another dtype would lose the conjugate or negative bit: torch's error. Formerly the values of the
    memory were returned."""
    texts = []
    for device in ("cpu", "tiny"):
        with pytest.raises(RuntimeError) as error:
            REFUSED[name](torch.tensor([[1 + 2j, 3 - 1j]], device=device))
        texts.append(str(error.value))
    assert texts[0] == texts[1]


NEGATIVE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view_as_real": lambda z: torch.view_as_real(torch._neg_view(z)),
    "real": lambda z: torch._neg_view(z).real,
    "view_as_complex": lambda z: torch.view_as_complex(torch._neg_view(torch.view_as_real(z))),
    "conv1d": lambda z: torch.nn.functional.conv1d(torch._neg_view(z)[None], z[None]),
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_views_keep_the_negative_bit(name: str) -> None:
    """A real view of a negative view is negative, and conversely. Formerly these four had the opposite sign."""
    there, here = (NEGATIVE[name](torch.tensor([[1 + 2j, 3 - 1j]], device=d)) for d in ("tiny", "cpu"))
    assert there.is_neg() == here.is_neg()
    assert torch.equal(there.cpu(), here)
