"""Sparse tensors on the device: two or three strided tensors under one of torch's own sparse tensor objects.

Defines `parts` and `assembled` (a sparse tensor as its strided parts and back), `refill` (write one in place), and
`BORROWED`, the operators that only look at the parts.

The key insight: torch chooses a sparse tensor's class by its device's type alone, and its CPU kernels for making one
and taking it apart never look at memory. So those kernels are borrowed, the parts are ordinary tensors of the device,
and what computes on a sparse tensor is the counted CPU fallback.
Must not know operators that compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..runtime import torch_compat

aten = torch.ops.aten
Key = torch_compat.DispatchKey

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}

# Overloads served by torch's own kernels, by the dispatch key that has them and the one that they are given to.
BORROWED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "SparsePrivateUse1": (
        Key.SparseCPU,
        (
            aten._sparse_coo_tensor_with_dims.default, aten._sparse_coo_tensor_with_dims_and_tensors.default,
            aten._indices.default, aten._values.default, aten.indices.default, aten.values.default, aten._nnz.default,
            aten._dimI.default, aten._dimV.default, aten.sparse_dim.default, aten.dense_dim.default,
            aten.is_coalesced.default, aten._coalesced_.default, aten.empty.memory_format,
            aten.sparse_resize_.default, aten.sparse_resize_and_clear_.default, aten.copy_sparse_to_sparse_.default,
            aten.clone.default, aten.copy_.default,
        ),
    ),
    "SparseCsrPrivateUse1": (
        Key.SparseCsrCPU,
        (
            aten.crow_indices.default, aten.col_indices.default, aten.ccol_indices.default, aten.row_indices.default,
            aten.values.default, aten._nnz.default, aten.sparse_dim.default, aten.dense_dim.default,
            aten.empty.memory_format, aten.clone.default, aten.resize_as_sparse_.default, aten.zero_.default,
        ),
    ),
}  # fmt: skip


def borrowed(op: Any, key: Any) -> Callable[..., Any]:
    """torch's own kernel of an operator under another dispatch key."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return op._op_dk(key, *args, **kwargs)

    return call


def is_sparse(x: Any) -> bool:
    """Whether `x` is a tensor of any sparse layout."""
    return isinstance(x, torch.Tensor) and x.layout is not torch.strided


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a sparse one consists of: indices, then values."""
    x = x.detach()
    if x.layout is torch.sparse_coo:
        return torch_compat.coo_parts(x)
    return [*(getattr(x, name)() for name in _COMPRESSED[x.layout]), x.values()]


def assembled(like: torch.Tensor, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """A sparse tensor of the layout and size of `like` from parts on one device."""
    coo = like.layout is torch.sparse_coo
    make: Any = torch.sparse_coo_tensor if coo else torch.sparse_compressed_tensor
    named: dict[str, Any] = {"is_coalesced": like.is_coalesced()} if coo else {"layout": like.layout}
    made: torch.Tensor = make(*pieces, like.shape, check_invariants=False, **named)
    return made


def refill(target: torch.Tensor, pieces: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    """Give a sparse tensor of the device the parts, and the size, of what `like` has become on the CPU."""
    if target.layout is torch.sparse_coo:
        with torch_compat.below_autograd():
            aten.sparse_resize_and_clear_.default(target, like.shape, like.sparse_dim(), like.dense_dim())
            aten.copy_sparse_to_sparse_.default(target, assembled(like, pieces))
            aten._coalesced_.default(target, like.is_coalesced())
        return
    if any(a.shape != b.shape for a, b in zip(parts(target), pieces, strict=True)):
        with torch_compat.below_autograd():
            aten.resize_as_sparse_.default(target, assembled(like, pieces))
    for a, b in zip(parts(target), pieces, strict=True):
        a.copy_(b)
