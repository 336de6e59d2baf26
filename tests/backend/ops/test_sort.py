"""Searching by counting: what OpInfo's samples do not reach."""

from __future__ import annotations

import math

import pytest
import torch

from conformance import backend


@pytest.mark.parametrize("element", [math.nan, math.inf])
def test_a_histogram_over_no_finite_range(element):
    """Over the range of its elements it is refused, as on the CPU; it was all zeros. Over a given one they are out."""
    x = torch.tensor([0.5, element, 0.25])
    with pytest.raises(RuntimeError, match="is not finite"):
        torch.histc(x.to("tiny"), 4)
    with backend.no_fallback():
        assert torch.histc(x.to("tiny"), 4, 0, 1).tolist() == [0, 1, 1, 0]
        assert torch.histc(x[::2].to("tiny"), 4).tolist() == [1, 0, 0, 1]
