"""The times at which lazy contents are computed and their pending writes applied.

Defines:

- `flush`: compute contents, before values leave the device.
- `flat`, `flat_as`: the content with all writes applied.
- `limit_growth`: compute a value whose graph is too deep for one schedule.
- `flush_pending`: store pending writes of large buffers, before an operator reads.
- `detach_readers`: compute the other readers of a buffer, before its memory is written.

Laziness must not be observable. A value is computed only in three cases: the host reads it, its graph is too large for
one schedule, or memory that it reads is about to change.

This module must not depend on operators or tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from ..runtime import expressions, memory, recording, scheduler
from ..runtime.garbage import FewerCollections
from ..runtime.lock import LOCK
from ..runtime.subnormals import Subnormals
from . import calls, layout, steps
from .constant_writes import Number, NumberWrite, changes, replayed
from .dtypes import TORCH
from .evaluate import computed_along, evaluate
from .layout import Ints
from .loop_rerolling import Write
from .storage import DIRTY, LARGE_PENDING, LAZY, LOOPING, LazyStorage, living

# A lazy value is computed when its measure exceeds one of these limits. Scheduling time grows with depth, and compile
# time with cost. clang accepts at most 256 nested brackets.
MAX_DEPTH = 4096
MAX_NESTING = 128
MAX_COST = 2048
# A cut does not store a live value that takes fewer operations than this from the stored ones. Temporary results of a
# formula in C++ are such values: they are alive if the formula runs directly, and dead if its calls were queued.
MIN_STORED_COST = 16
_COSTLY = frozenset({Ops.REDUCE, Ops.CONTIGUOUS})  # worth a store at any number of operations
# Number of consecutive constant writes kept as movement ops; a longer series becomes one table on the host.
FEW_WRITES = 4
# A write is stored directly in the buffer's memory if the buffer has at least this many bytes and the write is at most
# this share of it.
IN_PLACE_BYTES = 1 << 20
IN_PLACE_SHARE = 16


def flush(storages: Iterable[LazyStorage], dirty: bool = True, why: str = "observed") -> None:
    """Compute these storages in one schedule, and (if `dirty`) all storages that were written in place.

    Nothing is computed if the contents of all these storages are known, and the others only have writes of a loop,
    which may go on. `why` is the reason that a trace reports.
    """
    recording.check_closed("needs values while the graph is recorded")
    storages = list(storages)
    with LOCK, Subnormals():
        if not any(map(_is_unknown, storages)) and not calls.writes_in_place(but_elements=bool(storages)):
            written = [storage for group in (DIRTY, LOOPING, LARGE_PENDING) if group for storage in group.values()]
            if not written or (storages and all(storage.has_pending_writes for storage in written)):
                return  # queued calls are not needed yet; `a[index[i]] = i` reads between writes that wait for more
        with FewerCollections():
            step = steps.pending_queue(storages) if dirty else None
            if step is None:
                if dirty or any(storage.queued == calls.WRITTEN for storage in storages):
                    calls.settle()
                _compute(storages, dirty, why)
            elif not steps.replay(step, why):
                steps.recorded(step, lambda: _compute(storages, dirty, why))


def _is_unknown(storage: LazyStorage) -> bool:
    """Whether a content has to be computed, or may have to be after the queued calls."""
    return storage.queued == calls.WRITTEN or storage.is_lazy()


def _compute(storages: Sequence[LazyStorage], dirty: bool, why: str) -> None:
    for storage in list(LOOPING.values()):
        end_loop(storage)
    wanted = list(dict.fromkeys([*storages, *(list(DIRTY.values()) if dirty else ())]))
    if dirty:
        DIRTY.clear()
    by_device: dict[str, list[LazyStorage]] = {}
    for storage in wanted:
        content = flat(storage)
        if expressions.constant_of(content) is None and not expressions.is_realized(content) and storage.nbytes:
            by_device.setdefault(storage.device, []).append(storage)
    for device, group in by_device.items():
        along = computed_along(group, device)
        for storage in along:
            apply_pending(storage)
        evaluate([*group, *along], device, why)
    for storage in list(LAZY.values()):
        if not storage.is_lazy():
            LAZY.pop(storage.serial, None)


def flat(storage: LazyStorage) -> UOp:
    """The content as a value of shape (length,), all writes applied."""
    apply_pending(storage)
    return storage.base_flat()


def flat_as(storage: LazyStorage, dtype: DType) -> UOp:
    """The content in `dtype`, all writes applied: the same bits."""
    apply_pending(storage)
    return storage.base_flat_as(dtype)


def to_host(storage: LazyStorage, needed: int | None = None) -> tuple[memoryview | None, Number | None]:
    """The content after `flush`: its bytes, or (None, number) if all elements are one constant.

    `needed` is the number of bytes that the caller reads, if it is known.
    """
    content = flat(storage)
    constant = expressions.constant_of(content)
    return (memory.to_host(content, needed), None) if constant is None else (None, constant)


def limit_growth(storage: LazyStorage) -> None:
    """Compute a value whose graph is too large for one schedule.

    Live storages whose values are costly parts of the graph are computed in the same schedule, to avoid a second
    computation.
    """
    if recording.is_open():
        return
    value = _value(storage)
    depth, nesting, cost = expressions.measure(value)
    if depth > MAX_DEPTH or nesting > MAX_NESTING or cost > MAX_COST:
        inside = value.toposort()
        under = [s for s in list(LAZY.values()) if s is not storage and _value(s) in inside]
        flush([storage, *_costly(under)], dirty=False, why="cut")


def _costly(storages: Sequence[LazyStorage]) -> list[LazyStorage]:
    """The storages, in the order of their creation, whose values need a reduction or many operations from the stored
    ones."""
    costly: list[LazyStorage] = []
    stored: set[UOp] = set()
    for storage in storages:
        value = _value(storage)
        nodes = value.toposort(gate=lambda node: node not in stored and node.op is not Ops.BUFFER)
        operations = [node for node in nodes if node.op in GroupOp.ALU and node not in stored]
        if len(operations) >= MIN_STORED_COST or any(node.op in _COSTLY for node in nodes):
            costly.append(storage)
            stored.add(value)
    return costly


def flush_pending(storage: LazyStorage, real: DType, size: Ints, stride: Ints, offset: int) -> None:
    """Store the pending writes of large buffers, before an operator reads this view and possibly others.

    Kernels read their operands when they run. A store between the reads of one operator's operands would change the
    earlier ones. Elements outside all pending writes of the storage itself may be read without a store.
    """
    if LARGE_PENDING and not storage.is_outside_loop(real, size, stride, offset) and not recording.is_open():
        storages = list(LARGE_PENDING.values())
        LARGE_PENDING.clear()
        for other in storages:
            flat(other)


def detach_readers(storages: Iterable[LazyStorage]) -> bool:
    """Make every other storage independent of the buffers of these realized storages, whose memory is about to change.

    Lazy values that read the buffers are computed, and copies that share them become real ones. Returns whether there
    were any.
    """
    calls.settle()
    written = {flat(storage).base: storage for storage in storages}
    readers = []
    for storage in set(living()):
        value = _value(storage)
        if value.base in written:
            if written[value.base] is storage:
                continue
            storage.replace(flat(storage).clone(storage.device), storage.nbytes)
        elif value.op is Ops.BUFFER or written.keys().isdisjoint(value.toposort()):
            continue
        readers.append(storage)
    if readers:
        flush(readers, dirty=False, why="write in place")
    return bool(readers)


def postpone(storage: LazyStorage) -> None:
    """Register pending writes: into a large buffer they are stored before the next operator reads."""
    if storage.nbytes >= IN_PLACE_BYTES:
        LARGE_PENDING[storage.serial] = storage


def apply_pending(storage: LazyStorage) -> None:
    """Apply all pending writes."""
    if storage.loop is not None:
        end_loop(storage)
    if storage.constants:
        _apply_constants(storage)


def end_loop(storage: LazyStorage) -> None:
    """Apply the pending writes of a loop, rerolled into few writes."""
    loop, storage.loop = storage.loop, None
    if loop is not None:
        LOOPING.pop(storage.serial, None)
        device = storage.device
        flat = storage.base_flat()
        apply(storage, loop.writes(flat, lambda numbers, dtype: _upload_numbers(numbers, dtype, device), device))


def apply(storage: LazyStorage, writes: Sequence[Write]) -> None:
    """Apply writes whose values were all computed before the first write."""
    if _stored_in_memory(storage, writes):
        return
    storage.remember_donor()
    for write in writes:
        assert storage.flat is not None
        storage.flat = layout.write(storage.flat, *write, lambda positions: _upload_table(positions, storage.device))
    storage.view = None
    LAZY[storage.serial] = storage
    limit_growth(storage)


def _apply_constants(storage: LazyStorage) -> None:
    """Apply the constant writes: a few as movement ops, many replayed on the host into one table."""
    writes, storage.constants = storage.constants, []
    content = storage.base_flat()
    dtype = content.dtype
    if _stored_in_memory(storage, writes):
        return
    storage.remember_donor()
    if len(writes) <= FEW_WRITES or dtype not in TORCH or dtype is dtypes.bfloat16:
        for size, stride, offset, number in writes:
            is_data = dtype in TORCH and not recording.is_open() and changes(number, content, size, stride)
            value = _upload_numbers([number], dtype, storage.device) if is_data else UOp.const(number, dtype)
            value = value.reshape(()).expand(size)
            content = layout.write(
                content, size, stride, offset, value, lambda positions: _upload_table(positions, storage.device)
            )
    else:
        content = replayed(writes, content, storage.device)
    storage.flat, storage.view = content, None
    limit_growth(storage)


def _stored_in_memory(storage: LazyStorage, writes: Sequence[Write | NumberWrite]) -> bool:
    """Store small writes directly in a large buffer's memory, in time proportional to their size; False if impossible.

    Other readers of the buffer first get its old content: lazy values are computed, and copies become real ones.
    """
    content = storage.flat
    count = sum(layout.plan(size, stride).numel for size, stride, _, _ in writes)
    if content is None or storage.nbytes < IN_PLACE_BYTES or count * IN_PLACE_SHARE > content.shape[0]:
        return False
    if recording.is_open():
        return False
    if (
        not memory.host_addressable(storage.device)
        or not expressions.is_realized(content)
        or content.dtype not in TORCH
    ):
        return False
    dtype = TORCH[content.dtype]
    computed = [w[3] for w in writes if isinstance(w[3], UOp)]
    buffers, _ = scheduler.realize(computed, storage.device, why="write in place")
    done = iter(buffers)
    contents = [
        torch.frombuffer(memory.host_view(next(done)), dtype=dtype).view(size) if isinstance(value, UOp) else value
        for size, _, _, value in writes
    ]
    detach_readers([storage])
    assert storage.flat is not None
    content = storage.flat  # another one, if a copy that shared the buffer had writes of its own
    elements = torch.frombuffer(memory.host_view(content), dtype=dtype)
    for (size, stride, offset, _), written in zip(writes, contents, strict=True):
        target = elements.as_strided(size, stride, offset)
        target.copy_(written) if isinstance(written, torch.Tensor) else target.fill_(written)
    storage.mark_overwritten()
    memory.count_store()
    return True


def _value(storage: LazyStorage) -> UOp:
    """The content without pending constant writes, flat or in its original geometry."""
    if storage.loop is not None:
        end_loop(storage)
    return storage.base_value()


def _upload_table(positions: np.ndarray, device: str) -> UOp:
    return memory.from_host(np.ascontiguousarray(positions), dtypes.int64, device)


def _upload_numbers(numbers: list[Number], dtype: DType, device: str) -> UOp:
    host = torch.tensor(numbers, dtype=TORCH[dtype], device="cpu").view(torch.uint8)
    return memory.from_host(host.numpy(), dtype, device)
