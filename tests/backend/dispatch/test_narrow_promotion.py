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
