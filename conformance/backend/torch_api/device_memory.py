"""`torch.tiny.memory_allocated()` and related functions, and the same functions of `torch.accelerator`.

Defines them, and `ACCELERATOR`, the functions that serve `torch.accelerator`. Memory in use is the
memory of tinygrad's buffers. Lazy values have none, and neither do tensors of zeros that were never written. The
numbers are therefore the memory of the process, not the sizes of the tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..runtime import allocations, memory
from .devices import get_device_name, index_of

_FIGURES = {
    "allocated_bytes": "in_use", "active_bytes": "in_use", "requested_bytes": "in_use", "reserved_bytes": "reserved",
    "allocation": "buffers", "allocated": "buffers", "active": "buffers", "segment": "blocks",
}  # fmt: skip


def _usage(device: Any) -> allocations.Usage:
    allocations.let_go()
    return allocations.usage(memory.device_name(index_of(device)))


def empty_cache() -> None:
    """Return the unused memory that the allocator keeps to the system."""
    allocations.release_unused()


def empty_host_cache() -> None:
    """No effect: the device keeps no host memory for transfers."""


def memory_stats(device: Any = None) -> OrderedDict[str, Any]:
    """Bytes and counts by torch's names, such as "allocated_bytes.all.peak"; there are no pools other than "all"."""
    usage = _usage(device)
    counts: dict[str, int] = {}
    for name, figure in _FIGURES.items():
        for kind in ("current", "peak", "allocated", "freed"):
            counts[f"{name}.all.{kind}"] = getattr(getattr(usage, figure), kind)
    counts |= {"num_ooms": usage.out_of_memory, "num_alloc_retries": usage.retries}
    counts |= {"num_device_alloc": usage.blocks.allocated, "num_device_free": usage.blocks.freed}
    return OrderedDict(sorted(counts.items()))


def host_memory_stats() -> OrderedDict[str, Any]:
    """Empty: the device keeps no host memory for transfers."""
    return OrderedDict()


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats` with the parts of each name as keys of nested dictionaries."""
    result: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *outer, last = name.split(".")
        inner = result
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return result


def memory_allocated(device: Any = None) -> int:
    """Bytes of the buffers in use."""
    return _usage(device).in_use.current


def max_memory_allocated(device: Any = None) -> int:
    """Largest number of bytes in use since `reset_peak_memory_stats`."""
    return _usage(device).in_use.peak


def memory_reserved(device: Any = None) -> int:
    """Bytes in use and kept for reuse."""
    return _usage(device).reserved.current


def max_memory_reserved(device: Any = None) -> int:
    """Largest number of bytes in use and kept for reuse since `reset_peak_memory_stats`."""
    return _usage(device).reserved.peak


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset the peaks to the current use."""
    usage = _usage(device)
    for figure in (usage.in_use, usage.reserved, usage.buffers, usage.blocks):
        figure.peak = figure.current


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Reset the totals of allocated and freed memory to zero."""
    usage = _usage(device)
    usage.out_of_memory = usage.retries = 0
    for figure in (usage.in_use, usage.reserved, usage.buffers, usage.blocks):
        figure.allocated = figure.freed = 0


def reset_max_memory_allocated(device: Any = None) -> None:
    """The older name of `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def memory_cached(device: Any = None) -> int:
    """The older name of `memory_reserved`."""
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """The older name of `max_memory_reserved`."""
    return max_memory_reserved(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """The older name of `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes; total is the host's memory or the limit.

    Raises RuntimeError for a device whose memory size tinygrad does not report.
    """
    usage = _usage(device)
    total = usage.capacity()
    if total == allocations.UNLIMITED:
        raise RuntimeError(
            f"tiny: tinygrad does not say how much memory its device {usage.device} has; "
            "torch.tiny.set_memory_limit(bytes) does"
        )
    return max(0, total - usage.in_use.current), total


def set_memory_limit(nbytes: int | None, device: Any = None) -> None:
    """Limit the reserved memory to this many bytes; None removes the limit.

    Allocations above the limit raise torch.OutOfMemoryError.
    """
    if nbytes is not None and nbytes < 0:
        raise ValueError(f"tiny: a memory limit is a number of bytes, not {nbytes}")
    _usage(device).limit = allocations.UNLIMITED if nbytes is None else nbytes


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit the reserved memory to this share of the device's memory; 1 removes the limit.

    Raises ValueError for a share outside 0 to 1, and RuntimeError if tinygrad does not report the size of the memory.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"tiny: a fraction of the memory lies in 0 to 1, not {fraction}")
    usage = _usage(device)
    if fraction == 1:
        usage.limit = allocations.UNLIMITED
    elif usage.total():
        usage.limit = int(fraction * usage.total())
    else:
        raise RuntimeError(
            f"tiny: tinygrad does not say how much memory its device {usage.device} has; use set_memory_limit(bytes)"
        )


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The share of the device's memory that may be reserved; 1 without a limit, or if tinygrad reports no total."""
    usage = _usage(device)
    return usage.capacity() / usage.total() if usage.total() else 1.0


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A few lines of text with the memory in use and reserved, now and at its peak."""
    stats = memory_stats(device)
    lines = [f"Memory of tiny:{index_of(device)} ({get_device_name(device)}), bytes"]
    for title, name in (("in use", "allocated_bytes"), ("reserved", "reserved_bytes")):
        current, peak = stats[f"{name}.all.current"], stats[f"{name}.all.peak"]
        lines.append(f"{title:9}{current:>16,}   peak {peak:>16,}")
    return "\n".join(lines)


PUBLIC = (
    empty_cache, empty_host_cache, host_memory_stats, memory_stats, memory_allocated, max_memory_allocated,
    memory_reserved, max_memory_reserved, reset_peak_memory_stats, reset_accumulated_memory_stats, mem_get_info,
    set_memory_limit, set_per_process_memory_fraction, get_per_process_memory_fraction, memory_summary,
    memory_stats_as_nested_dict, memory_cached, max_memory_cached, reset_max_memory_allocated,
    reset_max_memory_cached,
)  # fmt: skip


ACCELERATOR: dict[str, Callable[..., Any]] = {
    "isAllocatorInitialized": lambda: True,
    "emptyCache": empty_cache,
    "emptyHostCache": empty_host_cache,
    "getDeviceStats": memory_stats_as_nested_dict,
    "resetAccumulatedStats": reset_accumulated_memory_stats,
    "resetPeakStats": reset_peak_memory_stats,
    "getMemoryInfo": mem_get_info,
}
"""The C functions below `torch.accelerator.memory` that need an allocator in C++."""
