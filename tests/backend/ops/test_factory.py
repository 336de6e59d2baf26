"""Factories: what op_db does not check."""

from __future__ import annotations

import math

import pytest
import torch

import conformance.backend  # noqa: F401


def agree(make):
    """What `make` gives on the device is the CPU's, bit for bit, and what the CPU refuses is refused in its words."""

    def made(device):
        try:
            return make(device).cpu()
        except (RuntimeError, OverflowError) as error:
            return str(error)

    expected, actual = made("cpu"), made("tiny")
    if isinstance(expected, str):
        assert actual == expected
    else:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.int64, torch.float16, torch.float32])
@pytest.mark.parametrize("number", [0, -1, 5, 255, 300, -300, 2**40, 1.7, -0.0, math.inf, math.nan, 1e39, True])
def test_fill_takes_what_the_cpu_takes(dtype, number):
    """fill_ on the device took numbers that the CPU refuses, such as 300 for an int8."""
    agree(lambda device: torch.zeros(2, dtype=dtype, device=device).fill_(number))


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.uint64, torch.bool, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("number", [0, -0.0, 7, 2**63, 2.5, True, 1 + 2j, math.nan])
def test_scalar_tensor(dtype, number):
    """The right side of `a[i] = 2`: the default dtype where none is asked for; the CPU's errors."""
    agree(lambda device: torch.scalar_tensor(number, dtype=dtype, device=device))
