"""Construction, transfer, computation and gradients of sparse tensors on the device, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import conformance.backend as backend

DENSE = torch.tensor([[0, 1.0, 0], [2, 0, 3]])
ONES = torch.ones(3, 2)


@pytest.fixture(autouse=True)
def _no_checks() -> None:
    """Choose not to check invariants, because torch warns without a choice."""
    torch.sparse.check_sparse_tensor_invariants.disable()


def gradient_of_a_product(d: str) -> Tensor:
    """Return the gradient of a sparse factor, which is sparse."""
    x, y = DENSE.to(d).to_sparse().requires_grad_(), ONES.clone().to(d).requires_grad_()
    torch.sparse.mm(x, y).square().sum().backward()
    assert x.grad is not None
    return x.grad


def reduced(reduce: str) -> Callable[[str], Tensor]:
    """Return a program for the gradient of a dense factor of a product with a reduction other than a sum."""

    def program(d: str) -> Tensor:
        y = ONES.clone().to(d).requires_grad_()
        torch.sparse.mm(DENSE.to(d).to_sparse_csr(), y, reduce).square().sum().backward()
        assert y.grad is not None
        return y.grad

    return program


def sparse_embedding(d: str) -> Tensor:
    """Return an embedding's weight after one step along its sparse gradient."""
    table = torch.nn.Embedding(5, 2, sparse=True, _weight=torch.arange(10.0).view(5, 2)).to(d)
    table(torch.tensor([1, 1, 3]).to(d)).square().sum().backward()
    torch.optim.SparseAdam(table.parameters()).step()
    return table.weight.detach()


PROGRAMS: dict[str, Callable[[str], Tensor]] = {
    "to_sparse": lambda d: DENSE.to(d).to_sparse(),
    "to_sparse_csr": lambda d: DENSE.to(d).to_sparse_csr(),
    "to_sparse_bsc": lambda d: torch.ones(4, 4).to(d).to_sparse_bsc((2, 2)),
    "moved": lambda d: DENSE.to_sparse().to(d),
    "moved csr": lambda d: DENSE.to_sparse_csr().to(d),
    "uncoalesced": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[0, 0], [1, 1]]).to(d), torch.tensor([1.0, 2]).to(d), (2, 2)
    ),
    "coalesce": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[0, 0], [1, 1]]).to(d), torch.tensor([1.0, 2]).to(d), (2, 2)
    ).coalesce(),
    "to_dense": lambda d: DENSE.to(d).to_sparse().to_dense(),
    "add": lambda d: DENSE.to(d).to_sparse() + DENSE.to(d).to_sparse(),
    "mul_": lambda d: DENSE.to(d).to_sparse().mul_(2),
    "zero_": lambda d: DENSE.to(d).to_sparse().zero_(),
    "zero_ csr": lambda d: DENSE.to(d).to_sparse_csr().zero_(),
    "add_ csr": lambda d: DENSE.to(d).to_sparse_csr().add_((DENSE + 1).to(d).to_sparse_csr()),
    "resize_as_sparse_": lambda d: (
        torch.zeros(2, 3).to(d).to_sparse_csr().resize_as_sparse_(DENSE.to(d).to_sparse_csr()).zero_()
    ),
    "sspaddmm": lambda d: torch.sspaddmm(torch.eye(2).to(d).to_sparse(), DENSE.to(d).to_sparse(), ONES.to(d), beta=2),
    "sum": lambda d: torch.sparse.sum(DENSE.to(d).to_sparse(), 0),
    "index_select": lambda d: DENSE.to(d).to_sparse().index_select(0, torch.tensor([1]).to(d)),
    "clone": lambda d: DENSE.to(d).to_sparse().clone(),
    "into dense": lambda d: DENSE.to(d).clone().add_(DENSE.to(d).to_sparse()),
    "mm": lambda d: torch.sparse.mm(DENSE.to(d).to_sparse(), ONES.to(d)),
    "mm csr": lambda d: DENSE.to(d).to_sparse_csr() @ ONES.to(d),
    "gradient": gradient_of_a_product,
    "reduce mean": reduced("mean"),
    "reduce amax": reduced("amax"),
    "embedding": sparse_embedding,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_the_cpu(name: str) -> None:
    """The device's result has the layout, indices, values and coalescing of the CPU's."""
    expected, actual = PROGRAMS[name]("cpu"), PROGRAMS[name]("tiny")
    assert actual.device.type == "tiny"
    assert (actual.layout, actual.dtype) == (expected.layout, expected.dtype)
    if expected.layout is torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
    torch.testing.assert_close(actual.cpu(), expected)


def test_values_are_a_view() -> None:
    """A write to the values changes the sparse tensor."""
    x = DENSE.to("tiny").to_sparse()
    x._values().mul_(10)
    assert torch.equal(x.to_dense().cpu(), DENSE * 10)


def test_fallbacks_are_counted() -> None:
    """Computing on sparse tensors is a fallback, which no_fallback() forbids. Constructing one is not a fallback."""
    indices, values = torch.tensor([[0, 1], [1, 0]]).to("tiny"), torch.ones(2, device="tiny")
    with backend.no_fallback():
        x = torch.sparse_coo_tensor(indices, values, (2, 2))
        with pytest.raises(backend.FallbackError, match="to_dense"):
            x.to_dense()
