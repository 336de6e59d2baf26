"""sort and histc beyond the samples of OpInfo."""

from __future__ import annotations

import math

import pytest
import torch

from conformance import backend


def test_a_sort_into_its_operand():
    """sort puts equal elements in the same order if its operand is the out= tensor. Such a call formerly went to the
    CPU, whose sort is not stable."""
    x = torch.randint(0, 50, (2, 600), generator=torch.Generator().manual_seed(0)).float().to("tiny")
    values, indices = torch.sort(x)
    with backend.no_fallback():
        torch.sort(x, out=(x, own := torch.empty_like(indices)))
    assert torch.equal(x, values)
    assert torch.equal(own, indices)


@pytest.mark.parametrize("element", [math.nan, math.inf])
def test_a_histogram_over_no_finite_range(element):
    """Without a range, histc refuses elements that are not finite, as on the CPU. It formerly returned zeros. With a
    range, such elements are ignored."""
    x = torch.tensor([0.5, element, 0.25])
    with pytest.raises(RuntimeError, match="is not finite"):
        torch.histc(x.to("tiny"), 4)
    with backend.no_fallback():
        assert torch.histc(x.to("tiny"), 4, 0, 1).tolist() == [0, 1, 1, 0]
        assert torch.histc(x[::2].to("tiny"), 4).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_a_histogram_of_integers(dtype):
    """histc of integers counts in their dtype, as on CUDA. It was formerly refused, as on the CPU, and mixtures of
    experts did not run."""
    x = torch.tensor([0, 3, 1, 1, 2, 7], dtype=dtype).to("tiny")
    with backend.no_fallback():
        limited, own, part = torch.histc(x, 4, 0, 3), torch.histc(x, 3), torch.histc(x[2:4], 2)
    assert limited.dtype is dtype
    assert [limited.tolist(), own.tolist(), part.tolist()] == [[1, 2, 1, 1], [4, 1, 1], [0, 2]]
