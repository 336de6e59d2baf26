"""Memory of tinygrad's buffers, for each device: bytes in use, bytes kept for reuse, their peaks, and a limit.

Defines `watch`, `Usage`, `usage`, `let_go`, `release_unused` and `check_size`.

Every buffer comes from its device's allocator with its size, so wrappers around two functions of that allocator count
all memory. Lazy values occupy none, and do not count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

UNLIMITED = 1 << 62

HOLDERS: list[Callable[[], None]] = []
"""Callbacks that release buffers without another owner: called before memory is refused, and before it is counted."""


def let_go() -> None:
    """Call all `HOLDERS`, to release buffers that are no longer needed."""
    for holder in HOLDERS:
        holder()


@dataclass
class Figure:
    """One quantity: its current value, its peak, and the sums of additions and removals; the last three can be
    reset.
    """

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, amount: int) -> None:
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def take(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount


class Usage:
    """Memory of one of tinygrad's devices, in bytes, and the number of its allocations."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.allocator: Any = None  # tinygrad's, once the device is open
        self.in_use, self.reserved = Figure(), Figure()
        self.buffers, self.blocks = Figure(), Figure()  # the same as counts
        self.out_of_memory = self.retries = 0
        self.limit = UNLIMITED

    def allocate(self, original: Any, size: int, options: Any) -> Any:
        """A buffer from the original allocator. Raises torch.OutOfMemoryError above the limit or if memory is
        exhausted.
        """
        cache = getattr(self.allocator, "cache", {})
        reused = bool(cache.get((size, options)))
        if not reused and self.reserved.current + size > self.limit:
            self.retries += 1
            let_go()
            self.release_unused()
            if self.reserved.current + size > self.limit:
                raise self.refusal(size)
        try:
            memory = original(size, options)
        except (MemoryError, OSError) as error:  # from mmap, or from tinygrad for a driver's error
            raise self.refusal(size) from error
        self.in_use.add(size)
        self.buffers.add(1)
        if not reused:
            self.reserved.add(size)
            self.blocks.add(1)
        return memory

    def free(self, original: Any, memory: Any, size: int, options: Any) -> None:
        """Return a buffer to the original allocator, which keeps most for the next allocation of the same size."""
        kept = self._kept(size, options)
        original(memory, size, options)
        self.in_use.take(size)
        self.buffers.take(1)
        if self._kept(size, options) == kept:
            self.reserved.take(size)
            self.blocks.take(1)

    def release_unused(self) -> None:
        """Return the unused memory that the allocator keeps to the system."""
        if self.allocator is None or not hasattr(self.allocator, "free_cache"):
            return
        self.allocator.free_cache()
        self.reserved.take(self.reserved.current - self.in_use.current)
        self.blocks.take(self.blocks.current - self.buffers.current)

    def total(self) -> int:
        """The memory of the device in bytes, 0 if tinygrad does not report it; on tinygrad's CPU the host's memory."""
        if self.device.split(":")[0] in ("CPU", "PYTHON"):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return 0

    def capacity(self) -> int:
        """The bytes that may be reserved: the limit, else all of the device's memory, else unlimited."""
        return min(self.limit, self.total() or UNLIMITED)

    def refusal(self, size: int) -> torch.OutOfMemoryError:
        """The error for `size` bytes that cannot be allocated."""
        self.out_of_memory += 1
        limit = f", limited to {_readable(self.limit)}" if self.limit < UNLIMITED else ""
        return torch.OutOfMemoryError(
            f"tiny out of memory: tried to allocate {_readable(size)} on tinygrad's {self.device}, which has "
            f"{_readable(self.total())} in total{limit}; {_readable(self.in_use.current)} are in use and "
            f"{_readable(self.reserved.current - self.in_use.current)} kept for reuse"
        )

    def _kept(self, size: int, options: Any) -> int:
        return len(getattr(self.allocator, "cache", {}).get((size, options), ()))


_usages: dict[str, Usage] = {}


def usage(device: str) -> Usage:
    """The memory of one of tinygrad's devices, which need not be open yet."""
    if device not in _usages:
        _usages[device] = Usage(device)
    return _usages[device]


def watch(device: str, allocator: Any) -> None:
    """Count the allocations and releases of tinygrad's allocator from now on; called when its device is opened."""
    device_usage = usage(device)
    if device_usage.allocator is not None:
        return
    device_usage.allocator = allocator
    allocate, free = allocator.alloc, allocator.free
    allocator.alloc = lambda size, options=None: device_usage.allocate(allocate, size, options)
    allocator.free = lambda memory, size, options=None: device_usage.free(free, memory, size, options)


def release_unused() -> None:
    """Return the unused memory that all devices' allocators keep to the system."""
    for one_usage in _usages.values():
        one_usage.release_unused()


def check_size(device: str, nbytes: int) -> None:
    """Raise torch.OutOfMemoryError for a storage that is larger than all of the device's memory."""
    device_usage = usage(device)
    if nbytes > device_usage.capacity():
        raise device_usage.refusal(nbytes)


def _readable(nbytes: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes = nbytes / 1024  # type: ignore[assignment]
    return f"{nbytes:.4g} GiB"
