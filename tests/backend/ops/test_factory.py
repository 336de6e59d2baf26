"""Factories beyond the checks of op_db."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import conformance.backend  # noqa: F401


def agree(make):
    """Compare the result of `make` on the device with the CPU's, bit for bit, or compare the messages of the errors."""

    def outcome(device):
        try:
            return make(device).cpu()
        except (RuntimeError, OverflowError) as error:
            return str(error)

    expected, actual = outcome("cpu"), outcome("tiny")
    if isinstance(expected, str):
        assert actual == expected
    else:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.int64, torch.float16, torch.float32])
@pytest.mark.parametrize("number", [0, -1, 5, 255, 300, -300, 2**40, 1.7, -0.0, math.inf, math.nan, 1e39, True])
def test_fill_takes_what_the_cpu_takes(dtype, number):
    """fill_ refuses the numbers that the CPU refuses. The device formerly accepted 300 for an int8."""
    agree(lambda device: torch.zeros(2, dtype=dtype, device=device).fill_(number))


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.uint64, torch.bool, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("number", [0, -0.0, 7, 2**63, 2.5, True, 1 + 2j, math.nan])
def test_scalar_tensor(dtype, number):
    """scalar_tensor is the right side of `a[i] = 2`. It uses the default dtype if no dtype is given, and raises the
    CPU's errors."""
    agree(lambda device: torch.scalar_tensor(number, dtype=dtype, device=device))


FILLED = {
    "arange": lambda out: torch.arange(4, out=out),
    "arange from": lambda out: torch.arange(1, 9, 2, out=out),
    "range": lambda out: torch.range(0, 3, out=out),
    "linspace": lambda out: torch.linspace(0, 3, 4, out=out),
    "linspace of tensors": lambda out: torch.linspace(torch.tensor(0.0), torch.tensor(3.0), 4, out=out),
    "logspace": lambda out: torch.logspace(0, 2, 4, base=2, out=out),
    "eye": lambda out: torch.eye(2, out=out),
    "randperm": lambda out: torch.randperm(4, generator=torch.Generator().manual_seed(0), out=out),
    "full": lambda out: torch.full((4,), 3, out=out),
    "fftfreq": lambda out: torch.fft.fftfreq(4, out=out),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16])
@pytest.mark.parametrize("name", FILLED)
def test_out_of_another_shape(name, dtype):
    """A range fills an out= tensor with as many elements in the given shape and strides. Formerly narrow(1, 1, 2) of
    zeros(2, 4) was resized to four contiguous elements, two of them outside of the view. `range` gave rows of 0, 1."""
    views = (
        lambda x: x.narrow(1, 1, 2), lambda x: x[:, :2].t(), lambda x: x.flatten()[::2], lambda x: x[0],
        lambda x: x.flatten()[1:6], lambda x: x[:0, 0],
    )  # fmt: skip
    if name == "fftfreq" and not dtype.is_floating_point:
        return

    for view in views:
        outs = []
        for device in ("cpu", "tiny"):
            x = torch.full((2, 4), 9, dtype=dtype).to(device)
            out = view(x)
            FILLED[name](out)
            outs.append((out.size(), out.stride(), out.storage_offset(), out.tolist(), x.tolist()))
        assert outs[0] == outs[1]


def test_warnings_of_a_resized_out():
    """The device warns of a resized out= only if the CPU does. It formerly warned where the CPU resizes silently."""
    for make in (FILLED["linspace"], FILLED["eye"], FILLED["arange"]):
        said = []
        for device in ("cpu", "tiny"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                make(torch.zeros(5, 1).to(device))
            said.append(sorted(str(w.message).split(" (Triggered")[0] for w in caught))
        assert said[0] == said[1]


@pytest.mark.parametrize("base", [2.0, 3.0, 10.0])
def test_powers_that_are_whole(base):
    """Integer powers are exact. logspace of integers formerly gave 9 and 99 for 10 and 100, because a power rounded
    down was truncated."""
    agree(lambda device: torch.logspace(0, 15, 16, base=base, dtype=torch.int64, device=device))
    agree(lambda device: torch.logspace(0.5, 3.5, 4, base=base, dtype=torch.int32, device=device))


def test_logspace_of_whole_exponents():
    """10 ** 1 is 10 in float64. It was formerly 9.999999999999998."""
    assert torch.logspace(3, -2, 6, dtype=torch.float64, device="tiny").tolist() == [1000, 100, 10, 1, 0.1, 0.01]


def test_range_into_out_without_a_step():
    """`aten::range.out_` works. torch sends it to the CPU kernel, which formerly ended the process."""
    on_cpu, on_tiny = torch.empty(4), torch.empty(4, device="tiny")
    torch.ops.aten.range.out_(1, 4, out=on_cpu)
    torch.ops.aten.range.out_(1, 4, out=on_tiny)
    assert torch.equal(on_tiny.cpu(), on_cpu)
