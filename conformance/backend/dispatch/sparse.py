"""Sparse tensors on the device: two or three strided tensors in one of torch's own sparse tensor objects.

Defines `parts` and `assembled` (a sparse tensor as its strided parts and back), `refill` (write one in place), and
`BORROWED` (operators that only access the parts).

torch chooses a sparse tensor's class by the device type. Its CPU kernels that construct and split sparse tensors never
read memory, so the device uses these kernels. The parts are ordinary tensors of the device. Computation on a sparse
tensor is a counted CPU fallback.

This module must not depend on operators that compute.
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

# Overloads served by torch's own kernels, by dispatch key on the device, with the key of torch's kernel.
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
    """The strided tensors of a sparse tensor: indices, then values."""
    x = x.detach()
    if x.layout is torch.sparse_coo:
        return torch_compat.coo_parts(x)
    return [*(getattr(x, name)() for name in _COMPRESSED[x.layout]), x.values()]


def assembled(like: torch.Tensor, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """A sparse tensor of the layout and size of `like` from parts on one device."""
    coo = like.layout is torch.sparse_coo
    make: Any = torch.sparse_coo_tensor if coo else torch.sparse_compressed_tensor
    named: dict[str, Any] = {"is_coalesced": like.is_coalesced()} if coo else {"layout": like.layout}
    result: torch.Tensor = make(*pieces, like.shape, check_invariants=False, **named)
    return result


def refill(target: torch.Tensor, pieces: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    """Update a sparse tensor of the device with new parts, and with the size of `like`, its changed CPU copy."""
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
