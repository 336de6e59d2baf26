"""Reads and writes of views of a storage: the operations on a `LazyStorage` that take a geometry.

Defines `read`, `write`, `fill`, `hold`, and `resize`.

Most writes of a program come in loops, and most reads read a value that was just written. A write therefore stays
pending while it continues a loop or is a number. A read leaves the pending writes unapplied if they do not touch the
view, or if one of the last writes wrote exactly this view.

This module must not depend on operators.
"""

from __future__ import annotations

from typing import Any

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..runtime import expressions, torch_compat
from . import calls, flush, layout
from .addresses import ADDRESSES, size_class
from .constant_writes import Number
from .dtypes import TORCH, element
from .layout import Ints
from .loop_rerolling import Loop, Write, strided_read
from .storage import DIRTY, LAZY, LOOPING, LazyStorage, register

# Number of pending writes at which a storage applies them.
MANY_WRITES = 4096


def paired(size: Ints, stride: Ints, offset: int) -> tuple[Ints, Ints, int]:
    """The geometry of the real view of a complex view."""
    return (*size, 2), (*(2 * s for s in stride), 1), 2 * offset


def read(storage: LazyStorage, dtype: torch.dtype, size: Ints, stride: Ints, offset: int) -> UOp:
    """The elements of a view; a complex view has an additional last dimension of 2."""
    real, parts = element(dtype)
    if parts == 2:
        size, stride, offset = paired(size, stride, offset)
    flush.flush_pending(storage, real, size, stride, offset)
    loop = storage.loop
    if loop is not None and storage.dtype == real:
        if storage.nbytes < flush.IN_PLACE_BYTES and (written := loop.written(size, stride, offset)) is not None:
            return written
        if storage.flat is not None and (loop.is_outside(size, stride, offset) or loop.is_ahead(size, stride, offset)):
            return strided_read(storage.flat, size, stride, offset)
    constants = storage.constants
    if constants and constants[-1][:3] == (size, stride, offset) and storage.dtype == real:
        return UOp.const(constants[-1][3], real).expand(size)
    view, pending = storage.view, constants or loop is not None
    if view is not None and not pending and view[:3] == (size, stride, offset) and view[3].dtype == real:
        return view[3]
    # The cached views above passed this check before, and a storage that changes its size drops them.
    layout.check_inside(size, stride, offset, real.itemsize, storage.nbytes)
    value = strided_read(flush.flat_as(storage, real), size, stride, offset)
    storage.view = (size, stride, offset, value)
    return value


def write(storage: LazyStorage, dtype: torch.dtype, size: Ints, stride: Ints, offset: int, value: UOp) -> None:
    """Assign `value`, of the view's shape and dtype (complex: with a last dimension of 2), to a view."""
    real, parts = element(dtype)
    if parts == 2:
        size, stride, offset = paired(size, stride, offset)
    if 0 in size:
        return
    if _covers(storage, real, size, stride, offset):
        storage.version += 1
        hold(storage, size, stride, value)
        return
    layout.check_inside(size, stride, offset, real.itemsize, storage.nbytes)
    storage.version += 1
    constant = expressions.constant_of(value)
    if constant is not None and storage.dtype == real:
        _write_number(storage, size, stride, offset, constant)
    elif not _continues_loop(storage, Write(size, stride, offset, value), real):
        content = flush.flat_as(storage, real)
        plan = layout.plan(size, stride)
        if content is storage.flat and plan.nested and not plan.expanded:
            storage.loop, storage.view = Loop(Write(size, stride, offset, value), int(content.shape[0])), None
            LAZY[storage.serial] = LOOPING[storage.serial] = storage
            flush.postpone(storage)
        else:
            storage.flat = content
            flush.apply(storage, [Write(size, stride, offset, value)])


def fill(storage: LazyStorage, real: DType, size: Ints, stride: Ints, offset: int, number: Number) -> None:
    """Assign one number of the dtype `real` to all elements of a view."""
    if _covers(storage, real, size, stride, offset):
        storage.hold_number(real, number)
    elif storage.dtype == real:
        layout.check_inside(size, stride, offset, real.itemsize, storage.nbytes)
        storage.version += 1
        _write_number(storage, size, stride, offset, number)
        if storage.serial not in DIRTY:
            storage.mark_dirty()
    else:
        write(storage, TORCH[real], size, stride, offset, UOp.const(number, real).expand(size))
        storage.mark_dirty()


def hold(storage: LazyStorage, size: Ints, stride: Ints, value: UOp) -> None:
    """Hold `value`, which covers the whole storage in this geometry; compute it if its graph is too deep."""
    storage.hold(size, stride, value)
    flush.limit_growth(storage)


def _covers(storage: LazyStorage, real: DType, size: Ints, stride: Ints, offset: int) -> bool:
    return layout.covers(size, stride, offset, -(-storage.nbytes // real.itemsize))


def _continues_loop(storage: LazyStorage, write: Write, real: DType) -> bool:
    """Add a write to the pending loop; False if it does not continue the loop."""
    if storage.loop is None or storage.dtype != real or not storage.loop.extend(write):
        return False
    if storage.loop.count >= MANY_WRITES:
        flush.end_loop(storage)
    return True


def _write_number(storage: LazyStorage, size: Ints, stride: Ints, offset: int, number: Number) -> None:
    if storage.loop is not None:
        constant = UOp.const(number, storage.dtype)
        next_write = Write(size, stride, offset, constant.expand(size) if size else constant)
        if _continues_loop(storage, next_write, storage.dtype):
            return
        flush.end_loop(storage)
    if storage.flat is None:
        storage.base_flat()
    storage.constants.append((size, stride, offset, number))
    if storage.serial not in LAZY:
        LAZY[storage.serial] = storage
    flush.postpone(storage)
    if len(storage.constants) >= MANY_WRITES:
        flush.apply_pending(storage)


def resize(storage: Any, nbytes: int) -> None:
    """Change a torch storage's size in place. Its content stays, as far as it fits, and all views still share it.

    torch has no hook for this from Python. Storages may swap their data pointers when one of them is empty, so the new
    size arrives in two swaps.
    """
    lazy: LazyStorage = storage._lazy
    if lazy.queued:
        calls.settle()
    if nbytes == lazy.nbytes:
        return
    if nbytes < lazy.nbytes or lazy.place != lazy.device:
        lazy.place = lazy.device, nbytes
    index = storage.device.index or 0
    dtype = lazy.dtype if nbytes % lazy.dtype.itemsize == 0 else dtypes.uint8
    old = flush.flat_as(lazy, dtype)
    length = nbytes // dtype.itemsize
    kept = min(length, old.shape[0])
    lazy.replace(old.shrink(((0, kept),)).pad(((0, length - kept),)), nbytes)
    held = size_class(nbytes)
    address = ADDRESSES.reserve(held)
    make = torch_compat.construct_storage
    device = torch.device("tiny", index)
    torch_compat.swap_memory(storage, make(0, device, 0))
    torch_compat.swap_memory(storage, make(address, device, nbytes))
    register(lazy, address, held)
