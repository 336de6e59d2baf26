"""Operands of another dtype in a call that computes in 16 bits."""

from __future__ import annotations

import pytest
import torch

import conformance.backend  # noqa: F401

HALVES = [torch.float16, torch.bfloat16]
WIDE = [
    torch.tensor([2049, 70000, -257, 2**63 - 1]),
    torch.tensor(2049),
    torch.tensor([70000]),
    torch.tensor(257.0),
    torch.tensor(70000.0, dtype=torch.float64),
]
CALLS = ["add", "sub", "mul", "div", "fmod", "remainder", "pow", "eq", "lt", "maximum", "atan2", "hypot"]


@pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_operands_are_rounded_first(name, dtype):
    """An integer or a 0-d float32 is rounded to the dtype that it promotes to. Formerly it was not: 70000 * half(0) was
    0, where the CPU computes inf * 0. Only mul and div leave a second operand of one element unrounded."""
    narrow = torch.tensor([0.5, 3000.0, 1.0078125, 0.0], dtype=dtype)
    call = getattr(torch, name)
    for wide in WIDE:
        for pair in (narrow, wide), (wide, narrow):
            expected, actual = call(*pair), call(*(operand.to("tiny") for operand in pair)).cpu()
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual, expected, equal_nan=True, rtol=torch.finfo(dtype).eps / 2, atol=0.0)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_one_divisor_is_a_number(mode):
    """A divisor of one element is not rounded: 6144 / 2049 is 2 and a remainder, 6144 / half(2049) is 3."""
    dividend = torch.tensor([6144.0, 2048.0], dtype=torch.float16)
    for divisor in torch.tensor(2049), torch.tensor([2049]), torch.tensor([2049, 2049]):
        expected = torch.div(dividend, divisor, rounding_mode=mode)
        actual = torch.div(dividend.to("tiny"), divisor.to("tiny"), rounding_mode=mode).cpu()
        assert actual.tolist() == expected.tolist()


NUMBERED = {
    **{name: lambda x, n, name=name: getattr(torch, name)(x, n) for name in (
        "add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "xlogy", "eq", "ne", "lt", "le",
        "gt", "ge", "clamp_min",
    )},
    "number of a remainder": lambda x, n: torch.remainder(n, x),
    "base of a power": lambda x, n: torch.pow(n, x),
    "sub(alpha=)": lambda x, n: torch.sub(x, x.flip(0), alpha=n),
    "add_": lambda x, n: x.clone().add_(n),
    "hardshrink": torch.nn.functional.hardshrink,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "lerp": lambda x, n: torch.lerp(x, x.flip(0), n),
    "logit": lambda x, n: torch.logit(x, n / 4),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", NUMBERED)
def test_numbers_are_rounded_first(name, dtype):
    """Regression test: a half that holds 0.1 was not equal to 0.1, and `x % 0.1` was off by 0.1. mul, div and some more
    compute with the number itself. From the fourth number on, a number is data and no constant."""
    x, call = torch.arange(1, 65, dtype=dtype) / 64, NUMBERED[name]
    for number in (0.1, 0.3, 0.7, 0.013, 1 / 3, 0.9):
        x[:4] = number
        expected, actual = call(x, number), call(x.to("tiny"), number).cpu()
        # torch CPU's xlogy also rounds the logarithm before the product: two roundings of half an eps beside one.
        torch.testing.assert_close(actual, expected, rtol=1.5 * torch.finfo(dtype).eps * (name == "xlogy"), atol=0)
