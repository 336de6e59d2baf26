"""Layouts of input tensors: the same values with other strides, an offset, gaps, or shared memory.

Defines `laid_out` for the layouts of `record/names.py`. Scripts carry the source of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from conformance.standalone.moving import storage_key


def laid_out(leaf: Any, layout: str, kept: Iterable[int] = ()) -> Any:
    """Return a tensor's values in another layout, with the same `requires_grad`. Other leaves, and tensors that stay on
    the CPU, are returned unchanged.

    `expanded` also changes values: it repeats the first entry along one dimension, so only floating and complex tensors
    take it.
    """
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or storage_key(leaf) in kept:
        return leaf
    with torch.no_grad():
        result = _LAYOUTS[layout](leaf.detach())
    return result.requires_grad_(leaf.requires_grad) if result is not leaf else leaf


def _strided_copy(values: torch.Tensor, stride: list[int], offset: int, rest: int = 0) -> torch.Tensor:
    extent = 1 + sum((size - 1) * step for size, step in zip(values.shape, stride, strict=True))
    base = torch.zeros(offset + (extent if values.numel() else 0) + rest, dtype=values.dtype, device=values.device)
    return base.as_strided(values.shape, stride, offset).copy_(values)


def contiguous_stride(shape: Iterable[int], step: int = 1) -> list[int]:
    """Return the strides of this shape without gaps, or with every `step`th element of the storage."""
    sizes = [max(size, 1) for size in shape]
    return [step * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]


def _transposed(values: torch.Tensor) -> torch.Tensor:
    return _strided_copy(values, contiguous_stride(reversed(values.shape))[::-1], 0)


def _expanded(values: torch.Tensor) -> torch.Tensor:
    dim = next((i for i, size in enumerate(values.shape) if size > 1), None)
    if dim is None or not (values.is_floating_point() or values.is_complex()):
        return values
    return values.narrow(dim, 0, 1).clone().expand(values.shape)


def _channels_last(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values


_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda values: _strided_copy(values, contiguous_stride(values.shape), 0),
    "transposed": _transposed,
    "gaps": lambda values: _strided_copy(values, contiguous_stride(values.shape, 2), 0, 1),
    "offset": lambda values: _strided_copy(values, contiguous_stride(values.shape), 3, 2),
    "expanded": _expanded,
    "channels_last": _channels_last,
}
