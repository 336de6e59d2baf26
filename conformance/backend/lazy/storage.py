"""The content of a torch storage: one flat lazy value, and the writes that have not been applied to it.

Defines `LazyStorage` (attached to an UntypedStorage), `allocate`, `lazy_storage`, and the registries of live storages.

The key insight: a Python attribute of an UntypedStorage lives exactly as long as the storage. Every view of the storage
finds the same object, so a write through one view is visible in all.

This module neither runs kernels nor decides when they run: `evaluate` computes, `flush` decides when, and `access`
reads and writes views.

This module must not depend on operators.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..runtime import allocations, expressions, memory, recording, torch_compat
from ..runtime.lock import clear
from . import calls, layout
from .addresses import ADDRESSES, size_class
from .constant_writes import Number, NumberWrite
from .layout import Ints
from .loop_rerolling import Loop

# Contents of at least this many bytes are computed into the buffer that held the previous content.
DONOR_BYTES = 1 << 14

# The size of storages of at least this many bytes is checked against the device's memory.
CHECKED_BYTES = 1 << 20

# Keyed by serial number, so that iteration follows the order of creation: equal programs then make equal graphs.
LAZY: weakref.WeakValueDictionary[int, LazyStorage] = weakref.WeakValueDictionary()  # rewritten after a schedule
DIRTY: weakref.WeakValueDictionary[int, LazyStorage] = weakref.WeakValueDictionary()  # written in place, not computed
LOOPING: weakref.WeakValueDictionary[int, LazyStorage] = weakref.WeakValueDictionary()  # with the writes of a loop
LARGE_PENDING: weakref.WeakValueDictionary[int, LazyStorage] = weakref.WeakValueDictionary()  # with writes for memory
BY_ADDRESS: dict[int, weakref.ref[LazyStorage]] = {}  # by data pointer; a finalizer removes its own entries
_serials = itertools.count()


def living() -> list[LazyStorage]:
    """All storages of the device; one with several addresses occurs several times."""
    return [lazy for reference in list(BY_ADDRESS.values()) if (lazy := reference()) is not None]


def _unknown_owner() -> bool:
    """Owner of a storage that torch itself may also hold; takes the place of a weak reference."""
    return True


class KnownReads(NamedTuple):
    """The identities of the buffers that a lazy value reads; it keeps neither the value nor the buffers alive."""

    value: weakref.ref[UOp]
    buffers: frozenset[int]


class LazyStorage:
    """The content of one storage: a value of shape (length,), followed by pending writes.

    Pending writes are either constant writes or the writes of a loop. The result of an operator is kept in the geometry
    of its tensor, which covers the storage. It becomes flat only on demand, because the next operator mostly reads the
    same geometry.
    """

    __slots__ = (
        "__weakref__",
        "_fresh",
        "_number",
        "addresses",
        "constants",
        "device",
        "donor",
        "flat",
        "known_reads",
        "loop",
        "nbytes",
        "owner",
        "place",
        "queued",
        "serial",
        "version",
        "view",
    )

    def __init__(self, nbytes: int, device: str, dtype: DType = dtypes.uint8) -> None:
        self.nbytes, self.device, self.serial = nbytes, device, next(_serials)
        # The device; after a shrink, with the size of the storage, because the metadata of an equal call may not apply.
        self.place: str | tuple[str, int] = device
        # With neither a flat value nor a view, all elements are one number. New memory reads as zeros: torch does not
        # define its content, and a constant costs nothing.
        self._fresh = dtype
        self._number: Number = 0
        self.flat: UOp | None = None  # the content before pending writes
        self.view: tuple[Ints, Ints, int, UOp] | None = None  # a geometry, and the value that it reads
        self.constants: list[NumberWrite] = []  # pending writes of numbers
        self.loop: Loop | None = None  # pending writes of a loop
        self.donor: UOp | None = None  # the buffer of the content before it was written, if any
        self.known_reads: KnownReads | None = None  # of the last lazy value for which they were asked
        self.addresses: list[tuple[int, int]] = []  # (address, size class)
        self.version = 0  # counts changes of content
        self.queued = calls.UNQUEUED  # whether queued calls read or write this storage
        self.owner: Callable[[], object] = _unknown_owner  # the torch storage, None if it is gone

    def __del__(self) -> None:
        for address, size in self.addresses:
            if BY_ADDRESS is None:  # the interpreter ends, and has cleared this module
                return  # type: ignore[unreachable]
            BY_ADDRESS.pop(address, None)  # before another storage gets the address
            ADDRESSES.release(address, size)
        if self.flat is not None or self.view is not None or self.donor is not None or self.loop is not None:
            clear(self, ("flat", "view", "donor", "loop"))

    @property
    def dtype(self) -> DType:
        """The dtype of the current content."""
        if self.flat is not None:
            return self.flat.dtype
        return self.view[3].dtype if self.view is not None else self._fresh

    @property
    def has_pending_writes(self) -> bool:
        """Whether there are writes that have not been applied yet."""
        return bool(self.constants) or self.loop is not None

    def base_value(self) -> UOp:
        """The content before pending writes, flat or in its original geometry."""
        if self.flat is None:
            if self.view is not None:
                return self.view[3]
            self.flat = _filled(self.nbytes, self._fresh, self._number)
        return self.flat

    def base_flat(self) -> UOp:
        """The content before pending writes, as a value of shape (length,)."""
        if self.flat is None:
            value = self.base_value()
            if self.view is not None:
                plan = layout.plan(*self.view[:2])
                core, shape = plan.to_core(value), (plan.numel,)
                self.flat = core if core.shape == shape else core.reshape(shape)
        assert self.flat is not None
        return self.flat

    def base_flat_as(self, dtype: DType) -> UOp:
        """`base_flat` in another dtype: the same bits."""
        bits = self.base_flat()
        if bits.dtype == dtype:
            return bits
        if expressions.constant_of(bits) == 0:
            self.flat, self.view = _zeros(self.nbytes, dtype), None
            return self.flat
        if bits.op is Ops.BITCAST and bits.src[0].dtype == dtype:
            return bits.src[0]  # a round trip
        if bits.dtype.itemsize != dtype.itemsize and not expressions.is_realized(bits):
            # tinygrad merges a chain of bitcasts inside a kernel, even if element sizes differ; a copy prevents that.
            bits = bits.clone(self.device) if bits.device is None else bits.contiguous()
        spare = -bits.shape[0] * bits.dtype.itemsize % dtype.itemsize
        if bits.dtype is dtypes.bool:
            bits = bits.cast(dtypes.uint8)
        if spare:  # a size that is no multiple of the element's: no view reaches the remainder
            bits = bits.bitcast(dtypes.uint8).pad(((0, spare),))
        if dtype is dtypes.bool:
            return bits.bitcast(dtypes.uint8).ne(0)
        return bits.bitcast(dtype) if bits.dtype != dtype else bits

    def number(self) -> Number | None:
        """The number that all elements equal; None if they may differ."""
        if self.has_pending_writes:
            return None
        return self._number if self.flat is None and self.view is None else expressions.constant_of(self.base_value())

    def is_lazy(self) -> bool:
        """Whether the content is neither a buffer nor a constant."""
        if self.has_pending_writes:
            return True
        value = self.base_value()
        return expressions.constant_of(value) is None and not expressions.is_realized(value)

    def is_outside_loop(self, real: DType, size: Ints, stride: Ints, offset: int) -> bool:
        """Whether a view lies outside the loop writes pending for a buffer; False if there are none."""
        if self.loop is None or self.flat is None or not expressions.is_realized(self.flat):
            return False
        return self.dtype == real and self.loop.is_outside(size, stride, offset)

    def realized_buffer(self, dtype: DType) -> UOp | None:
        """The buffer that holds the content in `dtype`; None if there is none yet."""
        flat = self.flat
        if flat is None or self.has_pending_writes or flat.op is not Ops.BUFFER or flat.dtype != dtype:
            return None
        return flat if expressions.is_realized(flat) else None

    def base_buffer(self) -> UOp | None:
        """The buffer that is the content before pending writes; None if there is none."""
        value = self.flat if self.flat is not None else self.view[3] if self.view is not None else None
        return value.base if value is not None and value.base.op is Ops.BUFFER else None

    def donor_buffer(self) -> UOp | None:
        """The buffer into which the flat content may be computed, if nothing else reads that buffer; else None."""
        donor, flat = self.donor, self.base_flat()
        if donor is None or donor.dtype != flat.dtype or donor.shape != flat.shape or recording.is_open():
            return None
        return donor

    def hold(self, size: Ints, stride: Ints, value: UOp) -> None:
        """Hold `value`, which covers the whole storage in this geometry."""
        self._drop_pending_writes()
        self.remember_donor()
        self.flat, self.view = None, (size, stride, 0, value)
        self.version += 1
        LAZY[self.serial] = self

    def hold_number(self, real: DType, number: Number) -> None:
        """Hold one number of the dtype `real` in every element."""
        self._drop_pending_writes()
        self.flat, self.view, self._fresh, self._number = None, None, real, number
        self.version += 1

    def replace(self, flat: UOp, nbytes: int) -> None:
        """Hold `flat`, as a storage of `nbytes` bytes."""
        self._drop_pending_writes()
        self.flat, self.view, self.donor, self.nbytes = flat, None, None, nbytes
        self.version += 1
        LAZY[self.serial] = self

    def restore(
        self, flat: UOp | None, view: tuple[Ints, Ints, int, UOp] | None, donor: UOp | None,
        number: tuple[DType, Number] | None = None,
    ) -> None:  # fmt: skip
        """Hold the content that a replayed step left."""
        self._drop_pending_writes()
        self.flat, self.view, self.donor = flat, view, donor
        if number is not None:
            self._fresh, self._number = number
        self.version += 1
        LAZY[self.serial] = self

    def adopt(self, other: LazyStorage) -> None:
        """Take the content of another storage, which is discarded."""
        self.restore(other.flat, other.view, None, (other._fresh, other._number))

    def substitute_realized(self, value: UOp) -> None:
        """Hold an equal value instead: the same content, rewritten to read the buffers computed meanwhile."""
        if self.flat is not None:
            self.flat, self.view = value, None
        else:
            assert self.view is not None
            self.view = (*self.view[:3], value)
        if expressions.is_realized(value):
            self.donor = None

    def remember_donor(self) -> None:
        """Keep the buffer of the current content, before the content changes."""
        flat = self.flat
        if flat is not None and flat.op is Ops.BUFFER and self.nbytes >= DONOR_BYTES and expressions.is_realized(flat):
            self.donor = flat

    def mark_dirty(self) -> None:
        """Mark the storage as written in place: the next flush computes it, so that a loop's graph does not grow."""
        DIRTY[self.serial] = self

    def mark_overwritten(self) -> None:
        """Record that the memory of the buffer that this storage holds has new contents."""
        self.view = None
        self.version += 1
        memory.count_overwrite()

    def _drop_pending_writes(self) -> None:
        self.constants.clear()
        if self.loop is not None:
            self.loop = None
            LOOPING.pop(self.serial, None)


def _filled(nbytes: int, dtype: DType, number: Number) -> UOp:
    if number == 0 and math.copysign(1, number) > 0:
        return _zeros(nbytes, dtype)
    return UOp.const(number, dtype).expand((-(-nbytes // dtype.itemsize),))


@functools.lru_cache(maxsize=1024)
def _zeros(nbytes: int, dtype: DType) -> UOp:
    return UOp.const(0, dtype).expand((-(-nbytes // dtype.itemsize),))


def allocate(nbytes: int, index: int, dtype: DType = dtypes.uint8) -> torch.UntypedStorage:
    """A new storage of `nbytes` bytes on `tiny:index`; it reads as zeros in `dtype`.

    Raises torch.OutOfMemoryError if it is larger than all memory of the device, although it occupies none yet.
    """
    device, held = memory.device_name(index), size_class(nbytes)
    address = reserve(nbytes, held, device)
    storage: torch.UntypedStorage = torch_compat.construct_storage(address, torch.device("tiny", index), nbytes)
    own(storage, LazyStorage(nbytes, device, dtype), address, held)
    return storage


def stand_in(nbytes: int, index: int, dtype: DType) -> tuple[torch.UntypedStorage, UOp]:
    """A new storage whose content is a buffer without memory, which a recorded schedule reads; and that buffer."""
    storage = allocate(nbytes, index, dtype)
    lazy: LazyStorage = storage._lazy  # type: ignore[attr-defined]
    buffer = UOp.new_buffer(lazy.device, -(-nbytes // dtype.itemsize), dtype)
    lazy.replace(buffer, nbytes)
    return storage, buffer


def reserve(nbytes: int, held: int, device: str) -> int:
    """The address of a new storage of a size class. Raises torch.OutOfMemoryError like `allocate`."""
    if nbytes >= CHECKED_BYTES:
        allocations.check_size(device, nbytes)
    return ADDRESSES.reserve(held)


def own(storage: torch.UntypedStorage, lazy: LazyStorage, address: int, held: int) -> None:
    """Attach this content to a torch storage at a reserved address of a size class."""
    storage._lazy = lazy  # type: ignore[attr-defined]
    lazy.owner = weakref.ref(storage)
    register(lazy, address, held)


def register(lazy: LazyStorage, address: int, held: int) -> None:
    """Let a content be found by a reserved address, which becomes available again when the content dies."""
    lazy.addresses.append((address, held))
    BY_ADDRESS[address] = weakref.ref(lazy)


def view_of(lazy: LazyStorage) -> torch.UntypedStorage:
    """An additional torch storage with this content, which does not own it."""
    address, index = lazy.addresses[0][0], memory.device_index(lazy.device)
    storage: Any = torch_compat.construct_storage(address, torch.device("tiny", index), lazy.nbytes)
    storage._lazy = lazy
    return storage


def storage_of(tensor: torch.Tensor) -> LazyStorage:
    """The content object of a tiny tensor's storage, for identity only: queued calls may still change the content."""
    storage: Any = tensor.untyped_storage()
    try:
        lazy: LazyStorage = storage._lazy
    except AttributeError:
        # torch made the storage of a bare pointer, as when it writes a file
        existing = BY_ADDRESS[storage.data_ptr()]()
        if existing is None:
            raise KeyError(storage.data_ptr()) from None
        lazy = existing
        lazy.owner = _unknown_owner
    return lazy


def storage_to_read(tensor: torch.Tensor) -> LazyStorage:
    """The content of a tiny tensor's storage for reading; queued calls that write it run first."""
    lazy = storage_of(tensor)
    if lazy.queued == calls.WRITTEN:
        calls.settle()
    return lazy


def lazy_storage(tensor: torch.Tensor) -> LazyStorage:
    """The content of a tiny tensor's storage for reading or writing; queued calls that use it run first."""
    lazy = storage_of(tensor)
    if lazy.queued:
        calls.settle()
    return lazy
