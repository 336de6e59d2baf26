"""Elementwise operators beyond the samples of OpInfo."""

from __future__ import annotations

import math

import pytest
import torch

import conformance.backend as backend

NAN, INF = math.nan, math.inf
EDGES = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 3.5, -2.5, 1e-10, 1e20, 88.0, -104.0])
UNARY = """
    exp expm1 log log1p sin cos tan sinh cosh tanh sigmoid asin acos atan asinh acosh atanh sqrt rsqrt reciprocal
    abs neg sign sgn signbit round floor ceil trunc frac erf erfc isnan isinf relu digamma nan_to_num
""".split()
BINARY = """
    add sub mul div maximum minimum fmax fmin atan2 hypot copysign fmod remainder floor_divide pow xlogy lt le
    gt ge eq ne logical_and logical_xor nextafter
""".split()


# The CPU's choice between two zeros depends on whether the element is in a full vector or in the remainder.
ANY_ZERO = {"maximum", "minimum", "fmax", "fmin"}


def same(actual: torch.Tensor, expected: torch.Tensor, signs: bool = True, **tolerance: float) -> None:
    """Compare values, and by default signs of zero too."""
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **tolerance)
    if signs and expected.is_floating_point():
        number = ~expected.isnan()
        assert torch.equal(torch.signbit(actual.cpu())[number], torch.signbit(expected)[number])


@pytest.mark.parametrize("name", UNARY)
def test_unary_edges(name):
    """nan, infinities, signed zeros and extremes give the CPU's result, with the sign of zero."""
    same(getattr(torch, name)(EDGES.to("tiny")), getattr(torch, name)(EDGES))


@pytest.mark.parametrize("name", BINARY)
def test_binary_edges(name):
    """Every pair of edge values gives the CPU's result, with the sign of zero."""
    a, b = EDGES.unsqueeze(1), EDGES.unsqueeze(0)
    same(getattr(torch, name)(a.to("tiny"), b.to("tiny")), getattr(torch, name)(a, b), signs=name not in ANY_ZERO)


def test_arithmetic_is_not_simplified():
    """x/x, x-x and x*0 are nan where IEEE 754 requires it, and each addition of a constant rounds."""
    x = torch.tensor([1.0, 0.0, INF, NAN])
    t = x.to("tiny")
    same(t / t, x / x)
    same(t - t, x - x)
    same(t * 0, x * 0)
    same((t + 1e8) - 1e8, (x + 1e8) - 1e8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_sums_with_zeros(dtype):
    """-0.0 + 0.0 is 0.0. Formerly the addition was omitted for constant zeros of 16 bits and for a constant first
    operand."""
    x = torch.tensor([-0.0, 0.0, 1.0], dtype=dtype)
    for zero in (0.0, -0.0):
        same(x.to("tiny") + torch.full((3,), zero, dtype=dtype, device="tiny"), x + torch.full_like(x, zero))
        same(torch.full((3,), zero, dtype=dtype, device="tiny") + x.to("tiny"), torch.full_like(x, zero) + x)
        same(x.to("tiny").add_(torch.full((3,), zero, dtype=torch.bfloat16, device="tiny")), x + zero)


def test_constants_fold_as_kernels_compute():
    """A function of a constant tensor, which tinygrad folds, equals the same function of data."""
    for name in ("exp", "tanh", "sin", "erf", "log1p", "round"):
        f = getattr(torch, name)
        same(f(torch.full((3,), 0.7, device="tiny")), f(torch.full((3,), 0.7)))
        same(f(torch.ones(3, device="tiny") + 1), f(torch.ones(3) + 1))


def test_subtracting_a_negated_value_compiles():
    """x - (-x) compiles, although the kernel's language parses a--b differently."""
    x = torch.tensor([1.0, 2.0])
    same(x.to("tiny") - (-x.to("tiny")), x - (-x))
    same(x.to("tiny") + 3.5, x + 3.5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_integer_division_by_sign(dtype):
    """Integer quotients and remainders equal the CPU's for every pair of signs. The least integer by -1 does not
    trap."""
    a = torch.tensor([-7, 7, -8, 8, 0, torch.iinfo(dtype).min], dtype=dtype).unsqueeze(1)
    b = torch.tensor([3, -3, 4, -4, 1], dtype=dtype)
    for f in (torch.floor_divide, torch.remainder, torch.fmod, lambda x, y: torch.div(x, y, rounding_mode="trunc")):
        same(f(a.to("tiny"), b.to("tiny")), f(a, b))
    least = a[-1:].to("tiny")
    assert torch.fmod(least, torch.full_like(least, -1)).item() == 0


def test_integer_division_by_a_known_zero_raises():
    """Division by a constant zero raises the CPU's error."""
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.ones(2, dtype=torch.int32, device="tiny") // 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_integers_wrap(dtype):
    """Sums, products and powers of integers wrap."""
    x = torch.tensor([100, 127, 3], dtype=dtype)
    for f in (lambda t: t + t, lambda t: t * t * t, lambda t: t**9, lambda t: t**t):
        same(f(x.to("tiny")), f(x))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8])
def test_common_multiples_wrap_after_their_sign_is_dropped(dtype):
    """lcm(-127, 2) of int8 is 254, which wraps to -2. Formerly it was wrapped before the absolute value, and gave 2."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([low, low + 1, 0, 2, 3, 7, 100, high - 1, high], dtype=dtype)
    same(torch.lcm(x.to("tiny")[:, None], x.to("tiny")), torch.lcm(x[:, None], x))


@pytest.mark.parametrize("exponent", [0.5, -0.5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_powers_of_a_half(dtype, exponent):
    """The CPU computes roots of float32 and powers of float16, where (-inf) ** 0.5 is inf and (-0.0) ** 0.5 is 0.0."""
    same(EDGES.to(dtype).to("tiny") ** exponent, EDGES.to(dtype) ** exponent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_power(dtype):
    """The first power is the number itself. Formerly the largest number became inf, because its logarithm is rounded
    up."""
    x = torch.cat([EDGES.to(dtype), torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype)])
    for exponent in (1, torch.ones_like(x).to("tiny")):
        same(x.to("tiny") ** exponent, x, rtol=0, atol=0)


def test_remainder_of_a_rounded_quotient():
    """fmod(1, 0.1) is almost 0.1 although 1 / 0.1 rounds to 10."""
    for dtype in (torch.float32, torch.float64):
        a, b = torch.tensor([1.0, -1.0, 6.0, 5.5], dtype=dtype), torch.tensor([0.1, 0.1, 2.0, -0.7], dtype=dtype)
        for f in (torch.fmod, torch.remainder, torch.floor_divide):
            same(f(a.to("tiny"), b.to("tiny")), f(a, b), rtol=0, atol=0)


def test_sizes_near_the_largest_number():
    """hypot of a pair is finite if the dtype can represent it. It was formerly inf by rounding, and the gradient of
    polar was 0."""
    angle, largest = torch.linspace(0, 6.28, 200, dtype=torch.float64), torch.finfo(torch.float32).max * (1 - 1e-7)
    x, y = (angle.cos() * largest).float(), (angle.sin() * largest).float()
    same(torch.hypot(x.to("tiny"), y.to("tiny")), torch.hypot(x.double(), y.double()).float())


def test_remainders_near_the_largest_number():
    """Remainders and rounded quotients of float64 numbers above 2**996 are exact. They were formerly nan."""
    largest = torch.finfo(torch.float64).max
    a = torch.tensor([1, 0.9, -0.7, 0.3, 1, -1], dtype=torch.float64) * largest
    b = torch.tensor([0.8, 0.4, -0.6, -0.9, -1, 0.5], dtype=torch.float64) * largest
    with backend.no_fallback():
        for f in (torch.fmod, torch.remainder, torch.floor_divide):
            same(f(a.to("tiny"), b.to("tiny")), f(a, b), rtol=0, atol=0, signs=False)
        assert torch.floor_divide(a[:1].to("tiny"), 2.0).item() == largest / 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_copysign_of_nan(dtype):
    """copysign sets the sign of nan too. It was formerly left as it was."""
    x, sign = torch.tensor([math.nan, 2.0, 0.0], dtype=dtype), torch.tensor([[-1.0], [1.0], [-0.0]], dtype=dtype)
    for y in (sign, sign.int()):
        with backend.no_fallback():
            got = torch.copysign(x.to("tiny"), y.to("tiny")).cpu()
        assert torch.equal(got.signbit(), torch.copysign(x, y).signbit())
        assert torch.equal(got.abs().nan_to_num(7), x.nan_to_num(7).expand(3, 3))


@pytest.mark.parametrize(
    ("dtype", "ends"),
    [(torch.float32, [8.478374, 1e30, 3.0, 1e-20, 1e-45, 7e-42]), (torch.float64, [501.0, 1e20, 1e-310, 5e-324])],
)
def test_remainder_of_a_large_quotient(dtype, ends):
    """fmod and remainder are exact. The quotient of two float32 numbers has up to 277 bits, that of float64 numbers
    2098. Formerly remainders of quotients with more than 103 bits, and 53 in float64, were arbitrary."""
    x = torch.tensor([[a, -a] for a in (*ends, torch.finfo(dtype).max, torch.finfo(dtype).tiny)], dtype=dtype).flatten()
    a, b = x.repeat_interleave(len(x)), x.repeat(len(x))
    # The CPU's vector loop gives up on these, so Python computes the reference.
    exact = torch.tensor([math.fmod(*pair) for pair in zip(a.tolist(), b.tolist(), strict=True)], dtype=dtype)
    same(torch.fmod(a.to("tiny"), b.to("tiny")), exact, rtol=0, atol=0)
    floored = torch.tensor([n % d for n, d in zip(a.tolist(), b.tolist(), strict=True)], dtype=dtype)
    same(torch.remainder(a.to("tiny"), b.to("tiny")), floored, rtol=0, atol=0, signs=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transcendental_accuracy(dtype):
    """A dense sweep stays within a few ulp of the CPU's float64, far below OpInfo's tolerances."""
    x = torch.linspace(-9, 9, 2001, dtype=dtype)
    rtol = 2e-6 if dtype is torch.float32 else 1e-13
    atol = 5e-7 if dtype is torch.float32 else 1e-14
    for name in ("exp", "tanh", "sin", "cos", "erf", "sigmoid", "atan", "expm1"):
        f = getattr(torch, name)
        torch.testing.assert_close(f(x.to("tiny")).cpu(), f(x.double()).to(dtype), rtol=rtol, atol=atol)


def test_large_angles():
    """Sine and cosine are right for float32 arguments beyond any table of multiples of pi."""
    x = torch.tensor([1e4, -1e6, 1e10, 1e30])
    same(x.to("tiny").sin(), x.double().sin().float())
    same(x.to("tiny").cos(), x.double().cos().float())


def test_foreach_and_in_place_need_no_fallback():
    """Foreach operators and in-place forms run without a fallback, through the same functions."""
    with backend.no_fallback():
        xs = [torch.ones(3, device="tiny"), torch.ones(2, 2, device="tiny")]
        torch._foreach_add_(xs, 2.0)
        torch._foreach_mul_(xs, xs)
        xs[0].exp_().clamp_(max=5.0)
    assert xs[1].cpu().eq(9).all() and xs[0].cpu().eq(5).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_a_sum_that_wraps_is_compared_as_it_is(dtype):
    """Comparisons with a sum that wraps are right. tinygrad took a byte + 255 to be at least 255, so never 0. It
    rewrote x + c < d to x < d - c, and clang did that for 32 and 64 bits."""
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, 0, 1, 2, info.max - 1, info.max], dtype=dtype)
    for c in (info.max, info.max - 1, info.min + 1, 1, 3):
        for f in (
            lambda t, c=c: t + c == 0,
            lambda t, c=c: (t + c) < 5,
            lambda t, c=c: (t - c) > 1,
            lambda t, c=c: ((t + 2) - c).logical_not(),
            lambda t, c=c: (t * 2 + c) != t,
            lambda t, c=c: (t * 3).clamp(0, 5),
        ):
            assert torch.equal(f(x.to("tiny")).cpu(), f(x)), (dtype, c)


def test_bools_are_not_subtracted():
    """Subtraction of bools is refused, as on the CPU. torch's meta kernels accept it, and tiny formerly did too."""
    t, m = torch.ones(2, device="tiny"), torch.ones(2, dtype=torch.bool, device="tiny")
    for f in (lambda: t - m, lambda: m - t, lambda: m - m, lambda: m - 1, lambda: 1 - m, lambda: t - True,
              lambda: t.sub_(m), lambda: torch.sub(t, m, out=t)):  # fmt: skip
        with pytest.raises(RuntimeError, match="Subtraction"):
            f()
    assert (t - 1).tolist() == torch.sub(t, 1, out=t).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
@pytest.mark.parametrize("function", [
    lambda a, b, out: torch.div(a, b, rounding_mode="trunc", out=out),
    lambda a, b, out: torch.floor_divide(a, b, out=out),
    lambda a, b, out: torch.remainder(a, b, out=out),
    lambda a, b, out: torch.scatter_reduce(a, 0, torch.zeros_like(b, dtype=torch.int64), b, "mean", out=out),
    lambda a, b, out: torch.index_reduce(a, 0, torch.zeros_like(b[:, 0], dtype=torch.int64), b, "mean", out=out),
])  # fmt: skip
def test_quotients_into_gaps(function, dtype):
    """Quotients into a strided out= tensor work. Formerly the divisor was read as 0 in the gaps, and a floating point
    exception ended the process."""
    a, b = (torch.arange(25, dtype=dtype).reshape(5, 5) + k for k in (3, 1))
    stored = []
    for device in ("cpu", "tiny"):
        storage = torch.full((99,), 7, dtype=dtype, device=device)
        function(a.to(device), b.to(device), storage.as_strided((5, 5), (20, 2)))
        stored.append(storage.cpu().tolist())
    assert stored[0] == stored[1]


def test_shrinking_and_swish_keep_nan():
    """hardshrink and hardswish keep nan. Formerly a nan was within any limits, because tinygrad's >= and <= hold for
    it."""
    for limit in (0.5, 0.0, -0.5, NAN, INF):
        same(torch.nn.functional.hardshrink(EDGES.to("tiny"), limit), torch.nn.functional.hardshrink(EDGES, limit))
    x = EDGES.repeat(3)[:32]  # for fewer elements the CPU's gradient of nan is 1
    mine, theirs = (torch.ops.aten.hardswish_backward(torch.ones_like(y), y) for y in (x.to("tiny"), x))
    same(mine, theirs)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_large_numbers(approximate):
    """gelu of a large number is that number. Formerly it was doubled before it was halved, which is inf. torch CPU's
    float32 has the same fault with oneDNN, so the reference is float64."""
    x = torch.tensor([3e38, 1e30, 5.0])
    expected = torch.nn.functional.gelu(x.double(), approximate=approximate).float()
    same(torch.nn.functional.gelu(x.to("tiny"), approximate=approximate), expected, rtol=1e-6, atol=0.0)
