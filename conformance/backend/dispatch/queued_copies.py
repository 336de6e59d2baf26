"""Copies within the device that wait in the queue.

Defines `queued`. A copy between different storages of one device needs only the two geometries. If queued calls use
either storage, the copy joins the queue instead of emptying it.

This module must not depend on other operators.
"""

from __future__ import annotations

from typing import Any

import torch

from ..lazy import access, calls, layout
from ..lazy.calls import QueuedCall
from ..lazy.dtypes import COMPUTED
from ..lazy.storage import LazyStorage, storage_of
from .tensors import fill_storage, store

MOST_KINDS = 4096

_kinds: dict[Any, _Copy] = {}
Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]


class _Copy:
    """Copies from one geometry to another."""

    fresh = False

    def __init__(self, target: Geometry, source: Geometry) -> None:
        self.target, self.source = target, source

    def execute(self, call: QueuedCall) -> None:
        """Write the elements, or one number if all elements equal it."""
        source, target = call.read[0], call.written[0]
        dtype = self.target[0]
        number = source.number() if self.source[0] is dtype and source.dtype == COMPUTED[dtype] else None
        if number is not None:
            fill_storage(target, *self.target, number)
        else:
            store(target, *self.target, access.read(source, *self.source))

    def writes_element_of(self, storage: LazyStorage) -> bool:
        """Whether the target is one element of a storage that has more."""
        return not self.target[1] and storage.nbytes > self.target[0].itemsize

    def numbers(self, call: QueuedCall, data: list[Any]) -> tuple[Any, ...]:
        """No numbers."""
        return ()


def queued(self: torch.Tensor, src: torch.Tensor) -> bool:
    """Add a copy to the queue, if queued calls use its source or target, or if it overwrites the whole target.

    Returns False if the copy has to run immediately. This includes copies between different sizes or within one
    storage, to targets whose elements share memory, and with storages that were made smaller.
    """
    if not calls.pending() or calls.is_closed():
        return False
    try:
        target, source = storage_of(self), storage_of(src)
    except (AttributeError, KeyError, NotImplementedError):
        return False
    size, stride, offset = tuple(self.size()), tuple(self.stride()), int(self.storage_offset())
    waits = target.queued or source.queued or _is_whole(target, self.dtype, size, stride, offset)
    if not waits or target is source or target.device != source.device or src.size() != self.size():
        return False
    if self.dtype not in COMPUTED or src.dtype not in COMPUTED or self.is_neg() or src.is_neg() or 0 in size:
        return False
    if layout.plan(size, stride).expanded or target.place != target.device or source.place != source.device:
        return False
    of = (
        (self.dtype, size, stride, offset),
        (src.dtype, tuple(src.size()), tuple(src.stride()), int(src.storage_offset())),
    )
    kind = _kinds.get(of)
    if kind is None:
        if len(_kinds) >= MOST_KINDS:
            _kinds.clear()
        kind = _kinds[of] = _Copy(*of)
    calls.defer(QueuedCall(kind, (source, target), (target,)))
    return True


def _is_whole(target: LazyStorage, dtype: torch.dtype, size: Any, stride: Any, offset: int) -> bool:
    return layout.covers(size, stride, offset, target.nbytes // dtype.itemsize)
