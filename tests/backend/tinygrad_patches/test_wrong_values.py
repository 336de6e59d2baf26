"""Wrong values and invalid reads of tinygrad 0.14 that the patches correct. Each result equals torch CPU's."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
import torch
from tinygrad.helpers import Context
from tinygrad.renderer.cstyle import ClangRenderer

import conformance.backend  # noqa: F401 - registers the device
from tests.run_script import Standalone

SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
INTEGERS = [torch.uint8, *SIGNED, torch.uint16, torch.uint32, torch.uint64]


def agrees(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """Check that the device's result equals the CPU's."""
    want, got = function(x), function(x.to("tiny")).cpu()
    assert want.dtype == got.dtype
    assert want.tolist() == got.tolist()


def edges(dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    few = [info.min, info.min + 1, 0, 1, 2, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
    return torch.tensor(few if info.min == 0 else [*few, -1], dtype=dtype)


class TestLeastConstant:
    """Results computed with the least integer wrap. C reads -2147483648 as a long, and 9223372036854775808 as unsigned,
    so that they formerly did not."""

    @pytest.mark.parametrize("dtype", SIGNED)
    @pytest.mark.parametrize("function", [
        lambda t, c: t + c == 0, lambda t, c: (t + c) < 0, lambda t, c: t - c == 0, lambda t, c: (c - t) < 3,
        lambda t, c: (t * c) < 1, lambda t, c: (c - t) > 0, lambda t, c: (t ^ c) + 1 < 0, lambda t, c: (t + c) >> 1,
        lambda t, c: torch.where(t == c, c, t) + c < 0, lambda t, c: (t + c).long(), lambda t, c: (t + c).double(),
        lambda t, c: t > c, lambda t, c: t >= c + 1, lambda t, c: ~(t < c + 1), lambda t, c: (t >= c) & (t != c),
    ])  # fmt: skip
    def test_is_of_its_dtype(self, function, dtype):
        """Comparisons, conversions and shifts of results computed with the least integer see the wrapped value."""
        agrees(lambda t: function(t, torch.iinfo(dtype).min), edges(dtype))

    @pytest.mark.parametrize("dtype", SIGNED)
    def test_constants_that_fold_beyond_the_dtype(self, dtype):
        """x + c + c becomes x + 2c, although 2c exceeds the dtype."""
        most, half = torch.iinfo(dtype).max, torch.iinfo(dtype).bits // 2
        for function in (lambda t: ((t + most) + most) < 2, lambda t: ((t * 2**half) * 2**half) == 0,
                         lambda t: (t * most + t * most) < 0):  # fmt: skip
            agrees(function, edges(dtype))


class TestNegatives:
    @pytest.mark.parametrize("dtype", SIGNED)
    @pytest.mark.parametrize("function", [
        lambda t: -t < 5, lambda t: t.abs() < 5, lambda t: t * -1 > -5, lambda t: (t * -1) < (t.flip(0) * -1),
        lambda t: (t * -1) // 5, lambda t: -t < t * -3,
    ])  # fmt: skip
    def test_of_the_least_integer(self, function, dtype):
        """The least integer is its own negative, also in a comparison. clang needs an option for signed wrap-around."""
        agrees(function, edges(dtype))


class TestConversions:
    """Signs after a conversion are right. Formerly a byte converted to int8 was assumed to be at least 0, like every
    number that lost its top bits."""

    @pytest.mark.parametrize("to", SIGNED)
    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_signs(self, dtype, to):
        """Comparisons and clamps see the converted value."""
        agrees(lambda t: t.to(to) < 0, edges(dtype))
        agrees(lambda t: t.to(to).clamp(min=-1), edges(dtype))

    def test_of_a_sum(self):
        """A bool shifted beyond an int32 and converted back has its low bits."""
        bits = torch.tensor([False, True])
        agrees(lambda t: (t.long() + 2**31).int() < 0, bits)
        agrees(lambda t: (t.long() * 2**32).int() == 0, bits)


class TestDivisions:
    @pytest.mark.parametrize("dtype", [torch.uint8, *SIGNED])
    def test_by_two_numbers_in_turn(self, dtype):
        """Nested divisions are right, even if the product or sum of the divisors wraps. Formerly (x // a) // b became x
        // (a * b). (x // a + c) // b became (x + a * c) // (a * b)."""
        most, root = torch.iinfo(dtype).max, 2 ** (torch.iinfo(dtype).bits // 2)
        for a, b in ((2, 3), (100, 100), (16, 16), (64, 64), (most // 2, 3), (root, root)):
            if b <= most:
                agrees(lambda t, a=a, b=b: (t // a) // b, edges(dtype))
                agrees(lambda t, a=a, b=b: (t // a + most // 2) // b, edges(dtype))

    def test_shifts_of_longs(self):
        """x >> 32 of a long keeps its bits in a second shift. It fits an int, and formerly an int's shift removed all
        bits."""
        agrees(lambda t: (t >> 32) >> 32, edges(torch.int64))
        agrees(lambda t: (t >> 40) >> 31, edges(torch.int64))


class TestReductions:
    @pytest.mark.parametrize("dtype", [torch.uint8, *SIGNED])
    def test_the_largest_of_products_that_wrap(self, dtype):
        """The maximum of x * 4 is not 4 times the maximum of x if the product wraps."""
        large = torch.iinfo(dtype).max // 4 + 1
        agrees(lambda t: (t * 4).amax(), torch.tensor([large, 1], dtype=dtype))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_sums_of_scaled_numbers(self, dtype):
        """A sum of large numbers times a small factor does not overflow, for a number or a tensor as the factor. A
        factor of 0 makes it 0."""
        x = torch.full((2, 2), torch.finfo(dtype).max, dtype=dtype)
        agrees(lambda t: (t * 2**-20).sum(1), x)
        agrees(lambda t: (t * (t[:, :1] * 0)).sum(1), x)


def test_logarithms_of_negative_subnormal_numbers():
    """Logarithms of negative subnormal numbers are nan. They were formerly -inf, like the logarithm of -0.0."""
    for x in (torch.tensor([-1e-40, -1e-45, -0.0, 1e-40]), torch.tensor([-1e-310, -5e-324, -0.0], dtype=torch.float64)):
        for function in (torch.log, torch.log2, torch.log10):
            assert function(x.to("tiny")).isnan().tolist() == function(x).isnan().tolist()


class TestSumsOfNegativeZeros:
    """Sums of -0.0 have the CPU's sign. Unrolled sums formerly began with their first term, unlike longer ones."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("function", [torch.sum, torch.mean, torch.nansum])
    def test_are_zero(self, function, dtype):
        """A sum begins at 0.0, for few and many terms and along any dimension. The sum of one term is that term."""
        for size in ((2,), (8,), (33,), (2, 5), (5, 2), (3, 4), (4, 40)):
            x = torch.full(size, -0.0, dtype=dtype)
            for dims in ((), *((d,) for d in range(len(size)))):
                agrees(lambda t, dims=dims: torch.signbit(function(t, *dims)), x)

    def test_running_and_of_products(self):
        """Running sums and matrix products also begin at 0.0."""
        for n in (2, 3, 20):
            agrees(lambda t: torch.signbit(t.cumsum(0)), torch.full((n,), -0.0))
            agrees(lambda t: torch.signbit(t.cumsum(1)), torch.full((3, n), -0.0))
        for n in (2, 9, 40):
            agrees(lambda t: torch.signbit(torch.dot(t, t + 1)), torch.full((n,), -0.0))
            agrees(lambda t: torch.signbit(t @ (t.t() + 1)), torch.full((5, n), -0.0))


class TestFloatsThatFitNoInteger:
    @pytest.mark.parametrize("to", [torch.int32, torch.int64, torch.uint8, torch.uint64])
    @pytest.mark.parametrize("number", [3e9, 2.0**64, -1e30, math.inf, math.nan])
    def test_constants_that_the_compiler_finds(self, number, to):
        """A float constant that does not fit the integer converts as on the CPU. clang folded a constant in a padding
        or in some elements, and C leaves the conversion undefined, so that the result was arbitrary."""

        def some(t):
            return torch.where(torch.arange(10, device=t.device) % 3 == 0, torch.full_like(t, number), -number)

        x = torch.arange(10, dtype=torch.float64)
        agrees(lambda t: (some(t) * 1.5).to(to), x)
        agrees(lambda t: (torch.nn.functional.pad(t, (2, 2), value=number) + 4).to(to), x)

    def test_float64_as_a_byte(self):
        """A byte has the low bits of a float64 as an int64. A float64 beyond an int32 formerly gave 0."""
        x = torch.tensor([2.0**31 + 7, 2.0**32 - 1, -(2.0**31) - 1, 1e10 + 13, 2.0**63, math.nan, -5.5, 300.0])
        agrees(lambda t: t.to(torch.uint8), x.double())
        agrees(lambda t: t.to(torch.uint8), x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("length", [7, 12])
def test_what_lies_beyond_a_padding_is_stored(dtype, length):
    """Elements beyond a padding are stored. Formerly a condition on a maximum of padded elements was assumed invalid,
    and the elements beyond were not written."""

    def program(x):
        x = x.clone()
        part = x.as_strided((2, 2), (3, 2))
        index, source = torch.tensor([[0]], device=x.device), torch.zeros((1, 1), dtype=dtype, device=x.device)
        part.scatter_reduce_(0, index, source, "amax")
        part.abs_()
        return x

    agrees(program, torch.arange(length).to(dtype))


def test_an_index_is_loaded_only_where_it_is_used(standalone: Standalone) -> None:
    """An index is loaded only where it is used. For a view of 8 elements in a storage of 9, the kernel formerly loaded
    an unused index beyond the end. tinygrad's interpreter, which checks, runs in a separate process."""
    script = """
import torch, conformance.backend
whole = torch.arange(9).to("tiny")
view = whole.as_strided((2, 4), (4, 1))
view[torch.tensor([0, 0], device="tiny")] = torch.tensor([[2, 3, 4, 5], [6, 7, 8, 9]], device="tiny")
print(whole.tolist())
"""
    run = standalone(script, environment={"DEV": "PYTHON"})
    assert run.stdout.strip() == "[6, 7, 8, 9, 4, 5, 6, 7, 8]", run.stderr[-500:]


MADE = {
    "product": (lambda x, i: x @ x.t(), False),
    "exponential": (lambda x, i: x.exp(), False),
    "padded": (lambda x, i: torch.nn.functional.max_pool2d(x[None], 3, 2, 1), False),
    "sum": (lambda x, i: i + 1, True),
    "total": (lambda x, i: i.sum(), True),
    "constants": (lambda x, i: torch.arange(29, dtype=torch.int32, device=i.device) * 2**30 < 0, True),
}


@pytest.mark.skipif(os.environ.get("DEV", "CPU") not in ("CPU", "CPU:CLANG"), reason="looks at the C for clang")
@pytest.mark.parametrize("name", MADE)
def test_clang_is_told_of_integers_that_may_wrap(name, monkeypatch):
    """clang gets -fwrapv only for a kernel whose integers may wrap. With -fwrapv for every kernel, as formerly, a
    matrix product took 1.7 times as long."""
    sources = []
    render = ClangRenderer.render
    monkeypatch.setattr(ClangRenderer, "render", lambda self, uops: sources.append(render(self, uops)) or sources[-1])
    make, wraps = MADE[name]
    x, i = torch.rand(29, 31).to("tiny"), torch.arange(29).to("tiny")  # a shape that no other test has
    with Context(CACHELEVEL=0):
        make(x, i).cpu()
    assert len(sources) == 1
    assert sources[0].startswith("// integers wrap") == wraps


def test_a_sum_over_what_is_compared_with_a_sum():
    """Comparisons inside a sum are right. Formerly terms were moved across != endlessly if none depends on the summed
    dimension, and across < also for floats."""
    x = torch.tensor([0.0, 1.0, 2.0])
    agrees(lambda t: t[:2, None].sign().ne(0).float().gather(0, torch.tensor([[1]], device=t.device)), x)
    agrees(lambda t: ((torch.arange(7, device=t.device) * 0.1 + t[0]) < 0.1 + 0.2).sum(), torch.tensor([0.2]).double())
    agrees(
        lambda t: ((torch.arange(9, device=t.device).to(torch.int8) + t[0]) < -120).sum(),
        torch.tensor([125], dtype=torch.int8),
    )


def test_sums_over_what_is_repeated():
    """Sums over repeated elements are right. Formerly two loops were merged with a third that was merged before, and
    each of two copies counted twice."""
    x = torch.arange(1.0, 7.0).view(2, 3)
    for reduce in (torch.sum, torch.mean, torch.prod, lambda t: t.sum(0), lambda t: t.amax(1).sum()):
        for times in ((1, 2), (2, 1), (3, 2), (2, 1, 2)):
            agrees(lambda t, times=times, reduce=reduce: reduce(t.repeat(times)), x)
    agrees(lambda t: (t.repeat(2, 2) + t.repeat_interleave(2, 0).repeat_interleave(2, 1)).sum(), x)
    agrees(lambda t: t.expand(2, 2, 3).sum() + t.unsqueeze(1).expand(2, 2, 3).sum(), x)
