"""Reductions, scans, sorts and searches: nan, ties, empty inputs and widths beyond the samples of OpInfo."""

from __future__ import annotations

import math
import re

import pytest
import torch

import conformance.backend  # noqa: F401 - registers the device

NAN, INF = math.nan, math.inf
FLOATS = torch.tensor([[1.0, NAN, 3.0, NAN], [-INF, -0.0, 0.0, -1.0], [2.0, 2.0, -2.0, 2.0]])


def both(f, x):
    """Compare the results of `f` on the device and on the CPU."""
    actual, expected = f(x.to("tiny")), f(x)
    torch.testing.assert_close(torch.utils._pytree.tree_map(lambda t: t.cpu(), actual), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin", "sum", "prod", "mean"])
def test_nan(name, dtype):
    """nan wins, and its first position is the index."""
    for dim in (0, 1):
        both(lambda x, d=dim: getattr(x, name)(d), FLOATS.to(dtype))


@pytest.mark.parametrize("name", ["max", "min", "cummax", "cummin"])
def test_index_of_ties(name):
    """A reduction returns the index of the first of equals, a scan of the last, in 32 and in 64 bits."""
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8):
        x = (FLOATS if dtype.is_floating_point else FLOATS[2:].abs()).to(dtype)
        both(lambda t: tuple(getattr(t, name)(1)), x)


def test_sort_with_nan_and_zeros():
    """nan sorts as the largest, zeros of both signs are equal, and a stable sort keeps the order of equals."""
    for descending in (False, True):
        both(lambda x, d=descending: tuple(x.sort(dim=1, descending=d, stable=True)), FLOATS)
        both(lambda x, d=descending: tuple(x.double().sort(dim=0, descending=d, stable=True)), FLOATS)


def test_integer_extremes():
    """The extremes of each integer dtype are ordered correctly and keep their values."""
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        info = torch.iinfo(dtype)
        x = torch.tensor([info.max, info.min, 0, info.max - 1], dtype=dtype)
        both(lambda t: (t.max(), t.min(), t.argmax(), t.argmin(), *t.sort(stable=True)), x)


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "mean", "var", "argmax", "amax"])
def test_empty(name):
    """A reduction of no elements gives the CPU's result or raises its error."""
    f, x = getattr(torch, name), torch.empty(0, 3)
    try:
        expected = f(x, 0)
    except (RuntimeError, IndexError) as error:
        with pytest.raises(type(error), match=re.escape(str(error)[:20])):
            f(x.to("tiny"), 0)
    else:
        torch.testing.assert_close(f(x.to("tiny"), 0).cpu(), expected, equal_nan=True)


def test_softmax_of_infinities():
    """A row of -inf gives nan, a row with some gives zeros, and large numbers do not overflow."""
    x = torch.tensor([[-INF, -INF], [-INF, 1.0], [1e30, -1e30], [NAN, 0.0]])
    both(lambda t: (t.softmax(1), t.log_softmax(1), t.logsumexp(1)), x)


def test_sums_of_narrow_integers_are_wide():
    """Integers are summed in int64, and wrap if the call requests a narrow dtype."""
    x = torch.full((300,), 100, dtype=torch.uint8)
    both(lambda t: (t.sum(), t.cumsum(0), t.sum(dtype=torch.uint8)), x)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_values_of_float32_are_kept_in_float64(name):
    """Every prefix of 5000 elements equals the CPU's to the last bit. In float32 the sum of 5000 tenths was
    500.0013."""
    x = torch.full((5000,), 0.1) if name == "cumsum" else 1 + torch.linspace(-0.005, 0.005, 5000)
    assert torch.equal(getattr(x.to("tiny"), name)(0).cpu(), getattr(x, name)(0))


def test_long_rows_are_declined_not_wrong():
    """A sort too long for the counting algorithm falls back to the CPU and is counted."""
    import conformance.backend as backend

    before = backend.stats()["fallback"].get("aten.sort.default", 0)
    both(lambda t: t.sort()[0], torch.randn(20_000))
    assert backend.stats()["fallback"]["aten.sort.default"] == before + 1


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("function", [torch.median, torch.nanmedian, lambda x, d: torch.kthvalue(x, 2, d)])
def test_elements_by_rank(function, dim):
    """Ranks along any dimension are right, a zero keeps its sign, and the order of the other dimensions stays."""
    x = torch.linspace(-3, 3, 36)[torch.arange(36) * 7 % 36].view(2, 3, 6).clone()
    x[0, 1, 2] = x[1, 0, 5] = x[1, 2, 1] = -0.0  # one in each row: the CPU may return any of equal elements
    x[0, 0, 0] = INF
    for mine, expected in zip(function(x.to("tiny"), dim), function(x, dim), strict=True):
        assert mine.cpu().tolist() == expected.tolist()
        assert torch.equal(mine.cpu().signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16, torch.uint8])
def test_running_sums_of_a_slice(dtype):
    """Running sums work wherever the slice begins. Formerly a kernel assumed a pointer to whole vectors, and clang's
    aligned load ended the process."""
    for start in (1, 2, 3):
        both(lambda t, start=start: (t[start:].cumsum(0), t[start:].cumprod(0)), torch.arange(start + 4).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("values", [[-0.0, -0.0, -0.0], [-1.0, -0.0, -2.0], [1.0, -0.0, 2.0], [math.nan, -0.0, 1.0]])
def test_an_extreme_of_minus_zero(values, dtype):
    """An extreme of -0 stays -0, in running extremes too. It formerly became 0, and 1 / 0 is not 1 / -0."""
    x = torch.tensor(values, dtype=dtype)
    for name in ("amax", "amin", "max", "min", "cummax", "cummin"):
        want, got = (getattr(t, name)(0) for t in (x, x.to("tiny")))
        want, got = (r if isinstance(r, tuple) else (r,) for r in (want, got))
        for expected, actual in zip(want, got, strict=True):
            torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
            number = ~expected.isnan()
            assert torch.equal(torch.signbit(actual.cpu())[number], torch.signbit(expected)[number]), name


def test_the_first_of_two_zeros_is_the_largest():
    """A zero extreme has the sign of the element at the returned index."""
    for values in ([0.0, -0.0], [-0.0, 0.0], [-1.0, -0.0, 0.0]):
        x = torch.tensor(values)
        for name in ("max", "min", "cummax", "cummin"):
            want, got = (getattr(t, name)(0) for t in (x, x.to("tiny")))
            assert torch.equal(got[1].cpu(), want[1])
            assert torch.equal(torch.signbit(got[0].cpu()), torch.signbit(want[0])), (name, values)


def test_nansum_over_no_dimension_is_of_all_elements():
    """nansum over an empty list of dimensions sums all elements. The meta kernel reduces none, which formerly raised a
    ValueError of tinygrad."""
    x = torch.tensor([[1.0, float("nan")], [3.0, 4.0]])
    assert torch.nansum(x.to("tiny"), dim=()).cpu().item() == torch.nansum(x, dim=()).item() == 8
    torch.testing.assert_close(torch.nanmean(x.to("tiny"), dim=()).cpu(), torch.nanmean(x, dim=()))


LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("name", ["std", "std_mean", "var_mean"])
def test_moments_whose_sum_overflows(name):
    """Moments are right although the float32 sum overflows. Formerly sums were rounded to float32 before the division
    or the root."""
    x = torch.tensor([[LARGEST, 0.0, 1.0], [LARGEST, LARGEST, LARGEST], [1.0, 2.0, 4.0]])
    both(lambda x: getattr(torch, name)(x, 1), x)


@pytest.mark.parametrize("order", [6, 2, 0.5, 0, -2, INF, NAN])
def test_the_norm_of_one_element(order):
    """The norm of one element is its absolute value for any order. Formerly its power overflowed, also for a 0-d tensor
    with a dim."""
    for x in (torch.tensor(LARGEST), torch.tensor([[LARGEST], [-1e30]])):
        both(lambda x: torch.linalg.vector_norm(x, order), x)
        both(lambda x: torch.linalg.vector_norm(x, order, -1), x)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in ("sum", "mean", "nansum", "cumsum") for dtype in (torch.float32, torch.float16)),
        *((name, torch.complex64) for name in ("sum", "mean", "cumsum")),
    ],
    ids=str,
)
def test_a_sum_of_one_minus_zero_is_zero(name, dtype):
    """The CPU's sums begin with 0, except for a running sum of no dimension. Regression test: tinygrad dropped a
    reduction of one element, so `rsqrt` of the result was -inf."""
    for x in (torch.tensor([[-0.0]]), torch.tensor([-0.0]), torch.tensor(-0.0), torch.tensor([[-0.0], [-0.0]])):
        expected, actual = (getattr(side, name)(-1) for side in (x.to(dtype), x.to(dtype).to("tiny")))
        signs = [
            (torch.view_as_real(side) if dtype.is_complex else side).signbit() for side in (expected, actual.cpu())
        ]
        assert torch.equal(*signs), x
