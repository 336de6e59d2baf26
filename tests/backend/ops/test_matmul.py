"""Matrix products."""

from __future__ import annotations

import pytest
import torch

from conformance import backend


def test_short_products_that_cancel():
    """Large products whose sum is small come out as the CPU's, which does not round each product before it is added."""
    a = torch.tensor([[1000.1, 999.7, -1000.3, 1.0]])
    b = torch.tensor([[1.7], [0.9], [2.5994], [3.3]])
    exact = (a.double() @ b.double()).float()
    assert torch.equal((a.to("tiny") @ b.to("tiny")).cpu(), exact)  # one rounding, of the sum


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view_as(x)])
def test_a_sum_into_its_own_first_operand(view):
    """`torch.addmm(x, a, b, out=x)` adds to x; it went to the CPU, as where a factor is written."""
    results = []
    for device in ("cpu", "tiny"):
        x = torch.arange(4.0, device=device).view(2, 2)
        a = torch.tensor([[1.0, 2], [3, 4]], device=device)
        with backend.no_fallback():
            torch.addmm(view(x), a, a, out=x)
        results.append(x.cpu())
    assert torch.equal(results[0], results[1])


def test_a_product_into_its_own_factor_is_the_cpus():
    """What lies in a factor while it is overwritten is for the CPU's kernel to say."""
    x = torch.ones(2, 2, device="tiny")
    with pytest.raises(backend.FallbackError), backend.no_fallback():
        torch.addmm(torch.zeros(2, 2, device="tiny"), x, x, out=x)
