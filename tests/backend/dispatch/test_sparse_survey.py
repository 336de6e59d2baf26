"""Calls on every sparse layout: the result or the type of error is torch CPU's."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch

import conformance.backend  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore")

DENSE = torch.tensor([[0.0, 2, 0, 1], [3, 0, 0, 0], [0, 0, 0, 4], [1, 0, 5, 0]])
BLOCK = (2, 2)

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr(BLOCK),
    "bsc": lambda x: x.to_sparse_bsc(BLOCK),
}

Call = Callable[[torch.Tensor, torch.Tensor], object]  # of a sparse tensor and its dense original


def saved(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


def gradient(s: torch.Tensor, d: torch.Tensor) -> torch.Tensor | None:
    leaf = s.detach().requires_grad_()
    (leaf @ d).sum().backward()
    return leaf.grad


CALLS: dict[str, Call] = {
    "itself": lambda s, d: s,
    "moved away": lambda s, d: s.cpu(),
    "moved here": lambda s, d: s.cpu().to(d.device),
    "clone": lambda s, d: s.clone(),
    "pickled": lambda s, d: pickle.loads(pickle.dumps(s)),
    "saved": saved,
    "nnz": lambda s, d: s._nnz(),
    "layout": lambda s, d: (s.layout, s.is_sparse, tuple(s.shape), s.dim()),
    "to_dense": lambda s, d: s.to_dense(),
    "to_sparse": lambda s, d: s.to_sparse(),
    "to_sparse_csr": lambda s, d: s.to_sparse_csr(),
    "to_sparse_csc": lambda s, d: s.to_sparse_csc(),
    "to_sparse_bsr": lambda s, d: s.to_sparse_bsr(BLOCK),
    "double": lambda s, d: s.double(),
    "half": lambda s, d: s.half().to_dense(),
    "complex": lambda s, d: s.to(torch.complex64).to_dense(),
    "empty_like": lambda s, d: torch.empty_like(s).layout,
    "zeros_like": lambda s, d: torch.zeros_like(s),
    "ones_like": lambda s, d: torch.ones_like(s),
    "zero_": lambda s, d: s.zero_(),
    "mul_": lambda s, d: s.mul_(3),
    "copy_": lambda s, d: torch.zeros_like(s).copy_(s),
    "neg": lambda s, d: -s,
    "abs": lambda s, d: s.abs(),
    "sqrt": lambda s, d: s.sqrt(),
    "log1p": lambda s, d: s.log1p(),
    "relu": lambda s, d: s.relu(),
    "times 2": lambda s, d: s * 2,
    "over 2": lambda s, d: s / 2,
    "plus sparse": lambda s, d: s + s,
    "plus dense": lambda s, d: s + d,
    "dense plus": lambda s, d: d + s,
    "times dense": lambda s, d: s * d,
    "sum": lambda s, d: s.sum(),
    "sum of a dimension": lambda s, d: s.sum(0),
    "sum that keeps it": lambda s, d: s.sum(1, keepdim=True),
    "torch.sparse.sum": lambda s, d: torch.sparse.sum(s, 0),
    "mean": lambda s, d: s.mean(),
    "norm": lambda s, d: s.norm(),
    "any": lambda s, d: s.any(),
    "matmul": lambda s, d: s @ d,
    "matmul of a vector": lambda s, d: s @ d[0],
    "dense matmul": lambda s, d: d @ s,
    "sparse matmul": lambda s, d: s @ s,
    "addmm": lambda s, d: torch.addmm(d, s, d),
    "smm": torch.smm,
    "sspaddmm": lambda s, d: torch.sspaddmm(s, s, d),
    "linear": lambda s, d: torch.nn.functional.linear(d, s),
    "sampled_addmm": lambda s, d: torch.sparse.sampled_addmm(s, d, d),
    "bmm": lambda s, d: torch.bmm(s.unsqueeze(0), d.unsqueeze(0)),
    "softmax": lambda s, d: torch.sparse.softmax(s, 1),
    "sparse_mask": lambda s, d: d.sparse_mask(s),
    "t": lambda s, d: s.t(),
    "transpose": lambda s, d: s.transpose(0, 1),
    "select": lambda s, d: s.select(0, 1),
    "narrow": lambda s, d: s.narrow(0, 0, 2),
    "cat": lambda s, d: torch.cat([s, s]),
    "gradient": gradient,
}


def outcome(layout: str, call: Call, device: str) -> object:
    dense = DENSE.clone().to(device)
    try:
        return call(LAYOUTS[layout](dense), dense)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return error


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_agrees_with_the_cpu(name: str, layout: str) -> None:
    """Layout, dtype, number of stored elements, and elements agree, or the type of error does."""
    expected, actual = outcome(layout, CALLS[name], "cpu"), outcome(layout, CALLS[name], "tiny")
    assert type(actual) is type(expected), (actual, expected)
    if isinstance(expected, Exception):
        return
    if not isinstance(expected, torch.Tensor):
        assert actual == expected
        return
    assert isinstance(actual, torch.Tensor)
    assert (actual.layout, actual.dtype, actual.shape) == (expected.layout, expected.dtype, expected.shape)
    if expected.layout != torch.strided:
        assert actual._nnz() == expected._nnz()
        actual, expected = actual.to_dense(), expected.to_dense()
    torch.testing.assert_close(actual.cpu(), expected)


def test_most_calls_are_answered() -> None:
    """torch CPU computes at least this many calls. A survey of errors alone would also pass."""
    answered = {
        layout: sum(not isinstance(outcome(layout, call, "cpu"), Exception) for call in CALLS.values())
        for layout in LAYOUTS
    }
    assert all(count >= 30 for count in answered.values()), answered


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_is_apart(layout: str) -> None:
    """deepcopy makes an independent copy. torch CPU refuses deepcopy for compressed layouts."""
    sparse = LAYOUTS[layout](DENSE.clone().to("tiny"))
    copied = copy.deepcopy(sparse)
    sparse.zero_()
    assert torch.equal(copied.to_dense().cpu(), DENSE)
