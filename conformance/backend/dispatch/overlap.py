"""Memory overlap between tensors, by torch's own rules: torch refuses some writes that overlap.

torch detects overlap only if both tensors are dense, and accepts all other cases. This module uses the same rule. If
the result affects a call, the call goes to the CPU, which raises its own error or defines the result.

This module must not depend on operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..lazy import layout
from ..lazy.storage import storage_of

REFUSED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    "location. Please clone() the tensor before performing the operation."
)


def _dense(t: torch.Tensor) -> bool:
    plan = layout.plan(tuple(t.size()), tuple(t.stride()))
    return plan.dense and not plan.expanded


def _span(t: torch.Tensor) -> tuple[int, int]:
    begin = int(t.storage_offset()) * t.dtype.itemsize
    return begin, begin + t.numel() * t.dtype.itemsize


def overlap(a: torch.Tensor, b: torch.Tensor) -> str:
    """One of "full", "partial", "no" and "unknown", by the rules of at::get_overlap_status (ATen/MemoryOverlap.cpp)."""
    if a is b:
        return "full"
    if not a.numel() or not b.numel():
        return "no"
    if not _dense(a) or not _dense(b):
        return "unknown"
    if storage_of(a) is not storage_of(b):
        return "no"
    (low, high), (other_low, other_high) = _span(a), _span(b)
    if (low, high) == (other_low, other_high):
        return "full" if a.stride() == b.stride() else "partial"
    return "partial" if low < other_high and other_low < high else "no"


def same(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether a tensor to be written is an operand, whole and in the same geometry."""
    return read.device.type == "tiny" and overlap(written, read) == "full"


def undecided(written: Sequence[torch.Tensor], read: Iterable[Any], elementwise: bool) -> bool:
    """Whether torch may refuse to write `written` while it reads `read`.

    An elementwise operator may read and write the same tensor; other operators may not.
    """
    for t in written:
        if layout.plan(tuple(t.size()), tuple(t.stride())).expanded:
            return True
        lazy = storage_of(t)
        for other in read:
            if other.device.type != "tiny" or storage_of(other) is not lazy:
                continue
            kind = overlap(t, other)
            if kind == "partial" or (kind == "full" and not elementwise):
                return True
    return False
