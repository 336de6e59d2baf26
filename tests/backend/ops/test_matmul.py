"""Matrix products."""

from __future__ import annotations

import pytest
import torch
from tinygrad.device import Buffer

from conformance import backend, kernels


def test_short_products_that_cancel():
    """Large products whose sum is small come out as the CPU's, which does not round each product before it is added."""
    a = torch.tensor([[1000.1, 999.7, -1000.3, 1.0]])
    b = torch.tensor([[1.7], [0.9], [2.5994], [3.3]])
    exact = (a.double() @ b.double()).float()
    assert torch.equal((a.to("tiny") @ b.to("tiny")).cpu(), exact)  # one rounding, of the sum


def test_a_batch_of_products_that_cancels():
    """`addbmm` of op_db adds 25 products, of which a thousandth of the largest is left: with each product rounded to
    float32 it was off by 1.7e-5, and the CPU by 6e-6."""
    torch.manual_seed(0)
    rows = torch.randn(1, 24) * 8
    columns = torch.randn(24, 1) * 8
    rest = -(rows.double() @ columns.double())  # the 25th product leaves next to nothing
    a = torch.cat([rows, torch.ones(1, 1)], 1)
    b = torch.cat([columns, rest.float()])
    true = (a.double() @ b.double()).item()
    assert abs((a.to("tiny") @ b.to("tiny")).item() - true) <= 1e-12 * abs(rest.item())


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


def test_a_costly_factor_is_computed_once_for_all_who_read_it():
    """A layer's two gradients read the same value, in different order; it was stored twice."""
    torch.manual_seed(0)
    a, b, c = (torch.randn(6, 6).to("tiny") for _ in range(3))
    with kernels.count() as k:
        costly = torch.sinh(a)
        (costly @ b + costly.t() @ c).cpu()
    assert k.kernels == 2  # it, and the sum of the two products


def test_costly_factors_share_memory(monkeypatch):
    """What is stored on the way to a result gives its memory to what follows; each had its own until all was done."""
    made = []
    allocate = Buffer.allocate

    def counted(self, *args, **kwargs):
        made.append(self.nbytes if self._base is None else 0)
        return allocate(self, *args, **kwargs)

    x, w = torch.ones(64, 64).to("tiny"), torch.ones(64, 64).to("tiny")
    monkeypatch.setattr(Buffer, "allocate", counted)
    for _ in range(10):
        x = torch.sinh(x @ w * 0.01)
    x.cpu()
    assert sum(made) <= 5 * x.nbytes  # the result, a product and its sinh, and the like of the next


def test_a_costly_factor_is_kept_for_who_reads_it_later():
    """What a schedule stored on its way was forgotten though a lazy value still read it, and computed once more."""
    a, b = (torch.randn(6, 6).to("tiny") for _ in range(2))
    costly = torch.sinh(a)
    now, later = costly @ b, b @ costly
    now.cpu()
    with kernels.count() as k:
        later.cpu()
    assert k.kernels == 1
