"""Arguments that the samples of op_db lack: numbers for tensors, nan as a bound, wrong words, zeros of two signs."""

from __future__ import annotations

import math

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
