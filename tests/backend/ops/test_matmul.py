"""Matrix products."""

from __future__ import annotations

import torch

import conformance.backend  # noqa: F401 - registers the device


def test_short_products_that_cancel():
    """Large products whose sum is small come out as the CPU's, which does not round each product before it is added."""
    a = torch.tensor([[1000.1, 999.7, -1000.3, 1.0]])
    b = torch.tensor([[1.7], [0.9], [2.5994], [3.3]])
    exact = (a.double() @ b.double()).float()
    torch.testing.assert_close((a.to("tiny") @ b.to("tiny")).cpu(), exact, rtol=1e-7, atol=0)
