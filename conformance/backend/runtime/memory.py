"""Buffers: host memory in, host memory out.

Defines `open_device`, `from_host`, `to_host`, `host_view`, and `generation`, which invalidates knowledge about
contents.

If the host can address the device's memory, a read copies nothing. A read may therefore return the memory itself, which
callers must not write.

This module must not depend on torch, storages or schedules.
"""

from __future__ import annotations

import os
from typing import Any

from tinygrad.device import Buffer, Device
from tinygrad.dtype import DType
from tinygrad.helpers import DEV
from tinygrad.uop.ops import UOp

from . import allocations, private_memory, trace
from .counters import COUNTERS
from .lock import LOCK
from .toolchain import ensure_compiler


def device_name(index: int = 0) -> str:
    """tinygrad's name of the device behind `tiny:index`: the device that ``DEV`` selects, by default the CPU."""
    base = DEV.device or "CPU"
    return base if index == 0 else f"{base}:{index}"


def device_index(name: str) -> int:
    """The inverse of `device_name`."""
    base = DEV.device or "CPU"
    return 0 if name == base else int(name.rpartition(":")[2])


_opened: set[str] = set()
LOST: set[str] = set()
"""Devices that were opened before this process was forked, and whose drivers do not work in a fork."""


def check_fork() -> None:
    """Raise RuntimeError in a process that was forked after a GPU had been opened."""
    if LOST:
        raise RuntimeError(
            f"tiny: {', '.join(sorted(LOST))} was opened before this process was forked, and no GPU driver works in a "
            'fork: start processes with torch.multiprocessing\'s "spawn"'
        )


def _after_fork() -> None:
    LOST.update(device for device in _opened if device.split(":")[0] not in ("CPU", "PYTHON"))
    _opened.difference_update(LOST)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def open_device(device: str) -> None:
    """Open tinygrad's device once; its CPU device starts a C compiler when it opens. Raises ToolchainError."""
    if device not in _opened:
        check_fork()
        ensure_compiler()
        if host_addressable(device):
            private_memory.install()
        allocations.watch(device, Device[device].allocator)
        _opened.add(device)


def host_addressable(device: str) -> bool:
    """Whether buffers of this tinygrad device are ordinary memory of this process."""
    return device.split(":")[0] == "CPU"


def from_host(data: Any, dtype: DType, device: str) -> UOp:
    """A realized flat value of `dtype` which holds a copy of `data`, a contiguous array or buffer."""
    data = memoryview(data)
    with LOCK:
        open_device(device)
        size = data.nbytes // dtype.itemsize
        value = UOp.new_buffer(device, size, dtype)
        buffer = value.buffer.allocate()  # type: ignore[union-attr]
        if host_addressable(device):
            buffer.as_memoryview(force_zero_copy=True, no_sync=False)[:] = data.cast("B")
        else:
            buffer.allocator._copyin(buffer._buf, data.cast("B"))  # `Buffer.copy_from` builds a graph for each copy
        COUNTERS.copies_in += 1
        COUNTERS.bytes_in += data.nbytes
        if trace.LISTENERS:
            trace.notify(trace.Copy("in", data.nbytes))
        return value


_generation = 0


def generation() -> int:
    """The number of writes into buffers' memory so far. Cached facts about contents are valid within one generation."""
    return _generation


def count_overwrite() -> None:
    """Start a new generation: the memory of a buffer has new contents."""
    global _generation
    _generation += 1


def count_store() -> None:
    """Count a write by the host into a buffer's own memory."""
    COUNTERS.stored += 1
    if trace.LISTENERS:
        trace.notify(trace.Store())


def host_view(value: UOp) -> memoryview:
    """The memory of a realized flat value itself, if the host can address it."""
    buffer: Buffer = value.base.buffer.ensure_allocated()  # type: ignore[assignment,union-attr]
    return buffer.as_memoryview(force_zero_copy=True)


def to_host(value: UOp, needed: int | None = None) -> memoryview:
    """The bytes of a realized flat value: a copy, or, if the host can address it, the memory itself (do not write).

    `needed` is the number of bytes that the caller reads. If nothing is copied, only these are counted.
    """
    with LOCK:
        buffer: Buffer = value.base.buffer.ensure_allocated()  # type: ignore[assignment,union-attr]
        addressable = host_addressable(buffer.device)
        moved = needed if addressable and needed is not None else buffer.nbytes
        COUNTERS.copies_out += 1
        COUNTERS.bytes_out += moved
        if trace.LISTENERS:
            trace.notify(trace.Copy("out", moved))
        if addressable:
            return buffer.as_memoryview(force_zero_copy=True)
        data = memoryview(bytearray(buffer.nbytes))
        buffer.allocator._copyout(data, buffer._buf)
        return data
