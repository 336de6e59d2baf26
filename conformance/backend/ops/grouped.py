"""Grouped matrix products: each row of one operand belongs to one of several matrices, as in mixtures of experts.

The offsets that assign rows to groups are data. In torch's loop over the groups, each group's length is a shape, so a
router that sends tokens elsewhere at every step recompiles every kernel. With the group of each row as an index, one
kernel serves all offsets, and nothing is read on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected, device_index
from ..dispatch.tensors import Spec, elements, is_tiny, make
from ..lazy import layout
from ..lazy.dtypes import opmath
from ..runtime import torch_compat
from ..runtime.materialization import materialize
from ..runtime.stats import STATS
from .bounds import Size
from .matmul import stored, summed

OP = torch.ops.aten._grouped_mm.default
# Products of groups of columns by groups of rows are computed as sums over all groups with the other groups masked, so
# the work is multiplied by the number of groups. Above this many products torch's loop is faster, even if it has to
# compile new kernels.
MOST = 1 << 28


def _by_torch(*args: Any, **kwargs: Any) -> Any:
    return OP._op_dk(torch_compat.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def _spec(a: torch.Tensor, b: torch.Tensor, groups: int, *args: Any) -> Spec:
    """Metadata of a result. Raises MetaRejected if torch refuses the call.

    The metadata come from torch's own loop over groups without rows; torch's meta kernel has only CUDA's rules.
    """
    metas = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta") for t in (a, b)]
    try:
        meta = _by_torch(*metas, torch.zeros(groups, dtype=torch.int32, device="cpu"), *args)
    except Exception as error:
        raise MetaRejected(str(error)) from error
    return Spec(meta.dtype, tuple(meta.size()), tuple(meta.stride()))


def _members(offsets: UOp, count: Size) -> UOp:
    """Whether each of `count` rows lies between a group's offset and the previous one, of shape (groups, count).

    Descending, negative or out-of-range offsets have the same meaning as the bounds of a slice.
    """
    ends = offsets.cast(dtypes.int64)
    ends = (ends < 0).where(ends + count, ends).maximum(0).minimum(count)
    starts = ends.shrink(((0, ends.shape[0] - 1),)).pad(((1, 0),))
    row = UOp.arange(count, dtype=dtypes.int64).reshape((1, count))
    return (row >= starts.unsqueeze(-1)) & (row < ends.unsqueeze(-1))


def _rows_by_matrices(a: UOp, b: UOp, members: UOp, dtype: Any) -> UOp:
    """(rows, k) x (groups, k, n) -> (rows, n); rows of no group are 0, rows of several groups use the last one."""
    groups = members.shape[0]
    place = UOp.arange(groups, dtype=dtypes.int32).reshape((groups, 1)) + 1
    group = materialize(members.where(place, place.const_like(0)).max(0))  # counted from 1; 0 means no group
    chosen = layout.elements(stored(b).transpose(-1, -2), (group - 1).maximum(0))  # (rows, n, k)
    products = summed(stored(a).unsqueeze(-2), chosen, dtype)
    return (group > 0).unsqueeze(-1).where(products, products.const_like(0))


def _grouped_mm(
    self: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """aten::_grouped_mm: products of one matrix for each group of consecutive rows or columns.

    (rows, k) x (groups, k, n) with groups of rows; (groups, m, k) x (k, columns) with groups of columns;
    (m, k) x (k, n) -> (groups, m, n) with groups along k. `offs` (int32) holds the end of each group.
    """
    if offs is None or not all(map(is_tiny, (self, mat2, offs))) or offs.dtype is not torch.int32 or offs.dim() != 1:
        return _by_torch(self, mat2, offs, bias, out_dtype)
    spec = _spec(self, mat2, offs.numel(), bias, out_dtype)
    products = spec.size[0] * spec.size[1] * self.shape[-1] * (offs.numel() if self.dim() == mat2.dim() else 1)
    if 0 in (*self.shape, *mat2.shape, *offs.shape) or (self.dim() == mat2.dim() and products > MOST):
        return _by_torch(self, mat2, offs, bias, out_dtype)
    a, b, dtype = elements(self), elements(mat2), opmath(spec.computed)
    if self.dim() == 2 and mat2.dim() == 3:
        answer = _rows_by_matrices(a, b, _members(elements(offs), a.shape[0]), dtype)
    elif self.dim() == 3:
        members = _members(elements(offs), b.shape[-1])
        answer = _rows_by_matrices(b.transpose(0, 1), a.transpose(1, 2), members, dtype).transpose(0, 1)
    else:
        members = materialize(_members(elements(offs), a.shape[-1])).reshape((-1, 1, 1, a.shape[-1]))
        rows, columns = stored(a).reshape((1, -1, 1, a.shape[-1])), stored(b).transpose(0, 1).unsqueeze(0).unsqueeze(0)
        answer = summed(rows, columns, dtype, members)
    STATS.native[str(OP)] += 1
    return make(spec, answer, device_index((self, mat2, offs), {}))


KERNELS: dict[str, Callable[..., Any]] = {"_grouped_mm": _grouped_mm}
