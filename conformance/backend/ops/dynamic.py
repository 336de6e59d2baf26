"""Operators whose result shape depends on values: masks as indices, nonzero, masked_select, unique and others.

The shape is needed at the call, so some values must be read immediately. For a mask only the mask is read: it becomes
integer indices on the host, and the selected elements stay on the device. Where all values matter (unique, bincount)
the CPU computes, by design, counted as `host`: any device has to synchronize here.
The module leaves integer indices to `indexing` and `scatter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..dispatch import fallback, overlap
from ..dispatch.metadata import MetaRejected, check_devices
from ..dispatch.registry import ROWS, decomposition
from ..dispatch.schema_kernels import FunctionalOverload, find
from ..dispatch.tensors import is_tiny
from ..runtime.stats import STATS
from ..runtime.warn import warn
from . import indexing, scatter  # noqa: F401 - their rows are looked up below
from .bounds import read_on_host

MASKS = (torch.bool, torch.uint8)


def _integers(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Indices on the device, each mask replaced by an integer index per dimension; MetaRejected for other shapes, and
    torch's RuntimeError for indices on the device of a tensor on the CPU.
    """
    if not is_tiny(self) and any(i is not None and is_tiny(i) for i in indices):
        where = f"on {self.device} or on the same device as the indexed tensor ({self.device})"
        raise RuntimeError(f"indices should be either {where}")
    result: list[torch.Tensor | None] = []
    for i in indices:
        if i is None or i.dtype not in MASKS:
            result.append(i if i is None or is_tiny(i) else i.to(self.device))
            continue
        if i.dtype is torch.uint8:
            said = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
            warn(said)
        for d, size in enumerate(i.shape):
            if len(result) + d >= self.dim() or size != self.shape[len(result) + d]:
                raise MetaRejected("a mask has the sizes of the dimensions that it indexes")
        result.extend(
            fallback.upload(place, self.device.index or 0) for place in read_on_host(i).nonzero(as_tuple=True)
        )
    return result


def _accepting_masks(functional: str, overload: str) -> Callable[..., Any]:
    """Kernel of an indexing operator that accepts masks too."""
    base, op = find(functional), find(overload)
    assert base is not None and op is not None
    kernel = FunctionalOverload(op, base, ROWS[functional]).kernel

    def call(self: torch.Tensor, indices: Sequence[torch.Tensor | None], *args: Any, **kwargs: Any) -> Any:
        return kernel(self, _integers(self, indices), *args, **kwargs)

    return call


def _is_fill(self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor) -> bool:
    """Whether an index_put writes one element wherever a single mask is true, so that the mask need not be read."""
    mask = indices[0] if len(indices) == 1 else None
    return (
        mask is not None and mask.dtype is torch.bool and is_tiny(mask) and 0 < mask.dim() <= self.dim()
        and values.numel() == 1 and values.dim() <= 1 and values.dtype == self.dtype
        and mask.shape == self.shape[: mask.dim()]
    )  # fmt: skip


def _put_accepting_masks(functional: str, overload: str) -> Callable[..., Any]:
    kernel = _accepting_masks(functional, overload)
    in_place = overload.endswith("_")
    fill = torch.ops.aten.masked_fill_.Tensor if in_place else torch.ops.aten.masked_fill.Tensor

    def call(
        self: torch.Tensor,
        indices: Sequence[torch.Tensor | None],
        values: torch.Tensor,
        accumulate: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        overlaps = accumulate and 0 in self.stride()
        if not overlaps and "out" not in kwargs and _is_fill(self, indices, values):
            mask = indices[0]
            assert mask is not None
            shape = (*mask.shape, *[1] * (self.dim() - mask.dim()))
            mask = mask.view(shape) if mask.is_contiguous() else mask.reshape(shape)
            if not accumulate:
                return fill(self, mask, values.reshape(()))
            # A mask has each place once, so no place gets two sums.
            return (self if in_place else self.clone()).copy_(torch.where(mask, self + values.reshape(()), self))
        if not is_tiny(values) and values.dim() and values.numel() == 1:
            values = values.reshape(())
        return kernel(self, indices, values, accumulate, *args, **kwargs)

    return call


def masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """aten::masked_select: the elements where the mask is true, in row-major order."""
    STATS.native["aten.masked_select.default"] += 1
    if mask.dtype is not torch.bool or not is_tiny(mask):
        raise MetaRejected("a mask is boolean, and on the device")
    try:
        shape = torch.broadcast_shapes(self.shape, mask.shape)
    except RuntimeError as error:
        raise MetaRejected(str(error)) from error
    place = read_on_host(mask).expand(shape).reshape(-1).nonzero().reshape(-1)
    return torch.take(self.expand(shape), fallback.upload(place, self.device.index or 0))


def masked_select_out(self: torch.Tensor, mask: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """aten::masked_select.out."""
    if out.dtype != self.dtype or overlap.undecided([out], [self, mask], elementwise=False):
        raise MetaRejected("out overlaps an input, or has another dtype")
    chosen = masked_select(self, mask)
    if out.shape != chosen.shape:
        out.resize_(chosen.shape)
    return out.copy_(chosen)


def hosted(name: str) -> Callable[..., Any]:
    """Kernel that runs on the CPU by design, counted as `host`."""
    op = find(name)
    text = str(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        check_devices([*args, *kwargs.values()])
        STATS.host[text] += 1
        return fallback.run_on_cpu(op, args, kwargs)

    return kernel


CHUNK = 1 << 22  # elements that `unique` sorts at a time
COUNTED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_unique_at_once = hosted("_unique2")


def unique(
    self: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, ...]:
    """aten::_unique2. The CPU's kernel needs 18 bytes an element in addition to its results, so many integers with few
    distinct values are sorted in chunks.
    """
    if sorted and self.dtype in COUNTED and self.numel() > CHUNK:
        host = read_on_host(self).reshape(-1)
        distinct = _distinct(host)
        if distinct is not None:
            STATS.host["aten._unique2.default"] += 1
            values, counts = distinct
            inverse = torch.empty(host.numel() if return_inverse else 0, dtype=torch.int64, device="cpu")
            for part, place in zip(host.split(CHUNK), inverse.split(CHUNK), strict=False) if return_inverse else ():
                torch.searchsorted(values, part, out=place)
            inverse = inverse.view(self.shape) if return_inverse else inverse
            results = values, inverse, counts if return_counts else counts[:0]
            return tuple(fallback.upload(x, self.device.index or 0) for x in results)
    result: tuple[torch.Tensor, ...] = _unique_at_once(self, sorted, return_inverse, return_counts)
    return result


def _distinct(host: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(distinct elements in order, int64 number of each); None for so many that chunks would save no memory."""
    values, counts = host[:0], torch.zeros(0, dtype=torch.int64, device="cpu")
    for part in host.split(CHUNK):
        more, numbers = part.unique(return_counts=True)
        values, place = torch.cat([values, more]).unique(return_inverse=True)
        counts = torch.zeros_like(values, dtype=torch.int64).index_add_(0, place, torch.cat([counts, numbers]))
        if 2 * len(values) > CHUNK:
            return None
    return values, counts


HOSTED = ("nonzero", "nonzero.out", "nonzero_static", "nonzero_static.out",
          "_unique", "unique_dim", "unique_consecutive", "bincount",
          "repeat_interleave.Tensor")  # fmt: skip

KERNELS: dict[str, Callable[..., Any]] = {
    **{name: hosted(name) for name in HOSTED},
    "_unique2": unique,
    "index.Tensor": _accepting_masks("index.Tensor", "index.Tensor"),
    "index.Tensor_out": _accepting_masks("index.Tensor", "index.Tensor_out"),
    "_unsafe_index.Tensor": _accepting_masks("_unsafe_index.Tensor", "_unsafe_index.Tensor"),
    "index_put": _put_accepting_masks("index_put.default", "index_put"),
    "index_put_": _put_accepting_masks("index_put.default", "index_put_"),
    "index_put.out": _put_accepting_masks("index_put.default", "index_put.out"),
    "_unsafe_index_put": _put_accepting_masks("_unsafe_index_put.default", "_unsafe_index_put"),
    "_index_put_impl_": _put_accepting_masks("_index_put_impl.default", "_index_put_impl_"),
    "masked_select": masked_select,
    "masked_select.out": masked_select_out,
}


@decomposition("_nested_tensor_from_mask_left_aligned")
def nested_tensor_from_mask_left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether a TransformerEncoder may drop padding by nesting its input: never, the device has no nested tensors."""
    return False
