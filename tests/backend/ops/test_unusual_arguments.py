"""Arguments that the samples of op_db lack: numbers for tensors, nan as a bound, wrong words, zeros of two signs."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.tiny


def both(call, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The answers of torch CPU and of tiny, on the CPU."""
    return call(*(x.clone() for x in tensors)), call(*(x.to("tiny") for x in tensors)).cpu()


class TestNumbers:
    @pytest.mark.parametrize(
        ("dtype", "number"),
        [(torch.float32, 3.0), (torch.int64, 2.7), (torch.bool, 2), (torch.complex64, 1 + 2j), (torch.float32, True)],
    )
    def test_copy_of_a_python_number(self, dtype, number):
        """`x.copy_(3.0)` raised an AttributeError: torch hands a wrapped number on as a number."""
        want, got = both(lambda x: x.copy_(number), torch.zeros(3, dtype=dtype))
        assert torch.equal(want, got)

    def test_copy_of_a_number_into_a_view(self):
        def call(x):
            x[1:].copy_(5)
            return x

        want, got = both(call, torch.zeros(3))
        assert want.tolist() == got.tolist() == [0, 5, 5]


class TestNanAsABound:
    X = torch.tensor([-2.0, 0.5, 3.0, math.nan])

    def test_threshold(self):
        """No number is at most nan, so that none is replaced."""
        want, got = both(lambda x: F.threshold(x, math.nan, 5.0), self.X)
        torch.testing.assert_close(want, got, equal_nan=True)

    @pytest.mark.parametrize(("low", "high"), [(math.nan, 1.0), (-1.0, math.nan), (-1.0, 1.0)])
    def test_hardtanh(self, low, high):
        want, got = both(lambda x: F.hardtanh(x, low, high), self.X)
        torch.testing.assert_close(want, got, equal_nan=True)


class TestZeros:
    @pytest.mark.parametrize("name", ["maximum", "minimum"])
    def test_of_two_zeros_the_first_is_taken(self, name):
        zeros = torch.tensor([0.0, -0.0])
        want, got = both(getattr(torch, name), zeros, -zeros)
        assert want.signbit().tolist() == got.signbit().tolist() == [False, True]

    @pytest.mark.parametrize("name", ["maximum", "minimum"])
    def test_nan_of_either_side_stays(self, name):
        a, b = torch.tensor([math.nan, 1.0, 2.0]), torch.tensor([1.0, math.nan, 3.0])
        want, got = both(getattr(torch, name), a, b)
        torch.testing.assert_close(want, got, equal_nan=True)


class TestWords:
    def test_an_unknown_reduction(self):
        """It was a KeyError."""

        def refused(device: str) -> str:
            x = torch.zeros(3, device=device)
            with pytest.raises(RuntimeError) as caught:
                x.index_reduce(0, torch.tensor([0], device=device), torch.ones(1, device=device), "zz")
            return str(caught.value)

        assert refused("tiny") == refused("cpu")


def refusal(call, device: str) -> tuple[type[Exception], str]:
    """The error of a call on a device: its type, and its text without the name of the device."""
    with pytest.raises((RuntimeError, IndexError, TypeError)) as caught:
        call(device)
    text = re.sub(r"tiny(\w+)Type", r"torch.\1Tensor", str(caught.value)).replace("CPUFloatType", "torch.FloatTensor")
    return type(caught.value), text.replace("tiny:0", "cpu")


def ints(*size: int, device: str) -> torch.Tensor:
    return torch.ones(size, dtype=torch.int64, device=device)


def ones(*size: int, device: str) -> torch.Tensor:
    return torch.ones(size, device=device)


OF_INTEGERS = {
    "silu": F.silu, "mish": F.mish, "gelu": F.gelu, "softplus": F.softplus, "glu": F.glu, "logsigmoid": F.logsigmoid,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "logaddexp": lambda x: torch.logaddexp(x, x),
    "logaddexp2": lambda x: torch.logaddexp2(x, x), "log_softmax": lambda x: F.log_softmax(x, 0),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[None], 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[None], 2), "trace": lambda x: x.bool().trace(),
    "ceil": lambda x: x.bool().ceil(), "argmax": lambda x: x.bool().argmax(), "abs": lambda x: x.bool().abs(),
    "bitwise_not": lambda x: x.float().bitwise_not(), "std": lambda x: x.std(), "histc": lambda x: x.bool().histc(),
}  # fmt: skip
REFUSED = {
    "a dimension": lambda d: ones(2, 3, device=d).argsort(7),
    "bias of a convolution": lambda d: F.conv1d(ones(1, 3, 9, device=d), ones(2, 3, 3, device=d), ones(3, device=d)),
    "bias of a large convolution": lambda d: F.conv1d(
        ones(1, 3, 9000, device=d), ones(2, 3, 3, device=d), ones(3, device=d)
    ),
    "groups": lambda d: F.conv_transpose1d(ones(1, 3, 9, device=d), ones(3, 3, 3, device=d), groups=7),
    "lengths of put": lambda d: ones(9, device=d).put(ints(3, device=d), ones(2, device=d)),
    "lengths of a large put": lambda d: ones(30000, device=d).put(ints(3, device=d), ones(2, device=d)),
    "sizes of addmv": lambda d: torch.addmv(ones(3, device=d), ones(0, 4, device=d), ones(4, device=d)),
    "size of addmm": lambda d: torch.addmm(ones(1, 2, 3, device=d), ones(2, 2, device=d), ones(2, 3, device=d)),
    "a number that is written": lambda d: torch.add(ones(3, device=d), ones(3, device=d), out=2),
    "bool alpha": lambda d: torch.add(ones(3, device=d), ones(3, device=d), alpha=True),
    "alpha that is too large": lambda d: torch.add(ones(3, device=d), ones(3, device=d), alpha=1e300),
    "alpha that is too large, later": lambda d: [
        torch.add(ones(3, device=d), ones(3, device=d), alpha=x) for x in (0.5, 0.25, 1e300)
    ],
    "complex number": lambda d: torch.addcdiv(ones(3, device=d), ones(3, device=d), ones(3, device=d), value=1j),
    "complex beta": lambda d: torch.addmm(ones(2, 2, device=d), ones(2, 2, device=d), ones(2, 2, device=d), beta=1j),
    "complex fill": lambda d: ones(3, device=d).index_fill(0, ints(1, device=d), 1j),
    "copy of another length": lambda d: ones(3, device=d).copy_(ones(4, device=d)),
    "mask of another length": lambda d: ones(3, device=d).masked_select(ones(4, device=d).bool()),
    "slices of another size": lambda d: ones(20, 900, device=d).slice_scatter(ones(20, 899, device=d), 1),
    "place outside of a volume": lambda d: F.max_unpool3d(
        ones(1, 1, 2, 2, 2, device=d), -ints(1, 1, 2, 2, 2, device=d), 2
    ),
    "elu_ with a negative slope": lambda d: F.elu_(ones(3, device=d).requires_grad_() * 1, -0.5).sum().backward(),
    "leaky_relu_ with a negative slope": lambda d: (
        F.leaky_relu_(ones(3, device=d).requires_grad_() * 1, -0.5).sum().backward()
    ),
    "gradient of another length": lambda d: torch.ops.aten._softmax_backward_data(
        ones(1, 5, device=d), ones(5, device=d), 0, torch.float32
    ),
}


def sampled(interpolation: int, padding: int, d: str) -> torch.Tensor:
    return torch.grid_sampler(ones(1, 1, 3, 3, device=d), ones(1, 2, 2, 2, device=d), interpolation, padding, False)


def normed(weight: int | None, mean: int | None, training: bool, d: str) -> tuple[torch.Tensor, ...]:
    weights, means, variances = (None if n is None else ones(n, device=d) for n in (weight, mean, mean and 3))
    return torch.native_batch_norm(ones(2, 3, 4, device=d), weights, None, means, variances, training, 0.1, 0.1)


UNDEFINED = {
    "interpolation": (lambda d: sampled(7, 0, d), "interpolation mode to be 0, 1 or 2, but got 7"),
    "padding": (lambda d: sampled(0, 7, d), "padding mode to be 0, 1 or 2, but got 7"),
    "short statistics": (lambda d: normed(None, 2, True, d), "running_mean should contain 3 elements not 2"),
    "no weights": (lambda d: normed(0, 3, True, d), "weight should contain 3 elements not 0"),
    "no statistics": (lambda d: normed(None, None, False, d), "running_mean must be defined in evaluation mode"),
    "no pivots": (lambda d: torch.lu_unpack(ones(3, 3, device=d), ints(0, device=d).int()), "pivots of size"),
    "another dtype": (
        lambda d: torch.linalg.solve_triangular(ones(2, 2, device=d), ints(2, 1, device=d), upper=True),
        "same dtype",
    ),
    "another device": (
        lambda d: torch.nonzero(ones(3, device=d), out=torch.empty(0, dtype=torch.int64)),
        "same device",
    ),
}


class TestRefusals:
    """Calls that torch CPU refuses raise its exception, by type and text. Each was answered, or raised an exception of
    tinygrad or of the device's own code.
    """

    @pytest.mark.parametrize("name", OF_INTEGERS)
    def test_of_a_dtype(self, name):
        def call(device: str) -> torch.Tensor:
            return OF_INTEGERS[name](ints(4, 4, device=device))

        assert refusal(call, "tiny") == refusal(call, "cpu")

    @pytest.mark.parametrize("function", [F.silu, F.mish, F.gelu, F.hardsigmoid])
    def test_of_a_dtype_of_many_elements(self, function):
        def call(device: str) -> torch.Tensor:
            return function(ints(30000, device=device))

        assert refusal(call, "tiny") == refusal(call, "cpu")

    @pytest.mark.parametrize("name", REFUSED)
    def test_of_another_argument(self, name):
        assert refusal(REFUSED[name], "tiny") == refusal(REFUSED[name], "cpu")

    @pytest.mark.parametrize("name", UNDEFINED)
    def test_that_torch_cpu_does_not_make(self, name):
        """torch CPU computes these from memory outside of the arguments, or leaves the result without a value."""
        call, said = UNDEFINED[name]
        with pytest.raises(RuntimeError, match=said):
            call("tiny")

    @pytest.mark.parametrize("name", ["add_", "mul_", "sub_", "eq_", "lerp_"])
    def test_of_a_tensor_on_the_cpu_that_would_be_written(self, name):
        """`x.add_(y)` of a CPU tensor and a number on the device wrote a wrong value. Another device refuses it."""
        x, y = torch.ones(3), torch.tensor(-1.5).tiny()
        with pytest.raises(RuntimeError, match="same device"):
            getattr(x, name)(*((y, y) if name == "lerp_" else (y,)))
        assert x.tolist() == [1, 1, 1]


class TestAnswers:
    """Unusual arguments that torch CPU accepts."""

    @pytest.mark.parametrize("alpha", [math.inf, -math.inf, 0.0])
    def test_products_with_an_infinite_factor(self, alpha):
        """A scaled factor gives inf - inf, which is nan. With 0, no factor is read, so a nan does not spread. BLAS
        scales a factor or the product, by the CPU; the device scales a factor."""
        a = torch.tensor([[1.0, -2.0], [3.0, 4.0 if alpha else math.nan]])
        product, got = both(lambda x: torch.addmm(torch.zeros_like(x), x, x, alpha=alpha), a)
        want = a @ (alpha * a) if alpha else product
        torch.testing.assert_close(want, got, equal_nan=True)
        _, got = both(lambda x: torch.addbmm(torch.zeros_like(x), x[None], x[None], alpha=alpha), a)
        torch.testing.assert_close(want, got, equal_nan=True)
        want, got = both(lambda x: torch.addmv(torch.zeros_like(x[0]), x, x[0], alpha=alpha), a)
        torch.testing.assert_close(want, got, equal_nan=True)

    @pytest.mark.parametrize("real", [1, 2])
    def test_a_product_of_a_complex_and_a_real_vector(self, real):
        """The parts of a real vector were read as the parts of a complex number."""
        vectors = [torch.arange(1.0, 4.0), torch.arange(2.0, 4.0)]
        vectors[real - 1] = vectors[real - 1].to(torch.complex64) * (1 + 2j)
        want, got = both(torch.addr, torch.ones(3, 2), *vectors)
        torch.testing.assert_close(want, got)

    @pytest.mark.parametrize("decimals", [400, -(2**63)])
    def test_decimals_beyond_float64(self, decimals):
        """A power of ten that no float holds raised an OverflowError."""
        want, got = both(lambda x: torch.round(x, decimals=decimals), torch.tensor([1.5, -2.25]))
        torch.testing.assert_close(want, got, equal_nan=True)

    @pytest.mark.parametrize("order", [math.nan, -math.inf])
    def test_an_unusual_norm(self, order):
        """No norm of nan is above the bound, and the norm of -inf is the least element. tinygrad raised."""
        want, got = both(
            lambda x: F.embedding(torch.tensor([0, 1], device=x.device), x, max_norm=1.0, norm_type=order),
            torch.arange(6.0).reshape(2, 3),
        )
        torch.testing.assert_close(want, got)

    def test_strides_of_a_logcumsumexp_of_a_column(self):
        """Regression test: a column had the strides of a transposed row."""
        x = torch.zeros(3, 1)
        assert torch.logcumsumexp(x.to("tiny"), 0).stride() == torch.logcumsumexp(x, 0).stride() == (1, 1)

    def test_strides_of_a_logcumsumexp_without_elements(self):
        x = torch.ones(0, 5, 3)
        assert torch.logcumsumexp(x.tiny(), 0).stride() == torch.logcumsumexp(x, 0).stride() == (15, 3, 1)

    @pytest.mark.parametrize("function", [torch.var, torch.std])
    def test_a_correction_of_nan(self, function):
        want, got = both(lambda x: function(x, 1, correction=math.nan), torch.arange(6.0).reshape(2, 3))
        torch.testing.assert_close(want, got)

    def test_a_threshold_of_nan_keeps_the_gradient(self):
        def call(x):
            x.requires_grad_()
            F.threshold(x, math.nan, 5.0).sum().backward()
            return x.grad

        want, got = both(call, torch.tensor([-1.0, 2.0, math.nan]))
        assert want.tolist() == got.tolist() == [1, 1, 1]

    @pytest.mark.parametrize("function", [lambda x, p: torch.cdist(x, x + 1, p), torch.pdist])
    def test_an_exponent_beyond_float32(self, function):
        want, got = both(lambda x: function(x, 1e300), torch.arange(6.0).reshape(2, 3).sin())
        torch.testing.assert_close(want, got)

    @pytest.mark.parametrize("size", [3, 30000])
    @pytest.mark.parametrize(
        "loss",
        [
            lambda x, y: F.huber_loss(x, y, reduction="none"),
            lambda x, y: F.binary_cross_entropy(x, x, y, reduction="none"),
        ],
    )
    def test_a_loss_of_two_dtypes(self, loss, size):
        """The meta kernel and torch's decomposition promote to float64, and torch CPU does not."""
        x = torch.full((size,), 0.25)
        want, got = both(loss, x, x.double() * 3)
        assert want.dtype == got.dtype == torch.float32
        torch.testing.assert_close(want, got)

    @pytest.mark.parametrize("factor", [1.0, 1.5])
    def test_equal_of_two_dtypes(self, factor):
        x = torch.ones(3)
        assert torch.equal(x.tiny() * factor, x.long().tiny()) == torch.equal(x * factor, x.long()) == (factor == 1)

    def test_a_resize_with_one_scale(self):
        want, got = both(
            lambda x: torch.ops.aten._upsample_bilinear2d_aa(x, [2, 2], False, 1.0, None),
            torch.arange(16.0).reshape(1, 1, 4, 4),
        )
        torch.testing.assert_close(want, got)


@pytest.mark.parametrize("shape", [(), (0,), (2,)])
@pytest.mark.parametrize("dim", [3, -2])
def test_a_running_sum_of_exponentials_refuses_a_dimension_out_of_range(shape, dim):
    """Without a dimension or an element, a copy was the answer, whatever the dimension."""
    for device in ("cpu", "tiny"):
        with pytest.raises(IndexError, match=re.escape(f"expected to be in range of [-1, 0], but got {dim}")):
            torch.logcumsumexp(torch.ones(shape, device=device), dim)
