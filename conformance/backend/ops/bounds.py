"""Index tensors on the host: reading them, and the errors for an index that is out of range.

An index whose tinygrad bounds are within range costs nothing; only other indices are read. Index tensors mostly come
from the host or end a reduction (argmax, topk, sort), so realizing them seldom adds a kernel. A wrong index raises at
the call, with the CPU's own error, and never reads another element.
The module contains no operator: the CPU's kernel raises for each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch import fallback, transfer
from ..dispatch.deferral import bounds_in_queue, compute_index
from ..dispatch.registry import Context
from ..dispatch.tensors import is_tiny, peek, read
from ..lazy import calls, flush
from ..lazy.dtypes import COMPUTED
from ..lazy.storage import storage_of, storage_to_read
from ..runtime import expressions, memory, recording, scheduler

# For each value and each `ignored` element: its least and greatest element, and the memory generation of that reading.
# The labels of a training loop have the same bounds at every step, so later steps need not realize them.
_LOOKED_AT: weakref.WeakKeyDictionary[UOp, dict[int | None, tuple[float, ...]]] = weakref.WeakKeyDictionary()


Size = Any  # an int; tinygrad types the sizes of shapes as possibly symbolic


def read_on_host(t: torch.Tensor) -> torch.Tensor:
    """Elements of a tensor on the host, read only: they may share the device's memory."""
    if not is_tiny(t):
        return t
    if recording.is_open() and (known := known_on_host(t)) is not None:
        return known
    flush.flush([storage_to_read(t)], dirty=False, why="index check")
    return transfer.on_host_to_read(t)


def in_memory(t: torch.Tensor) -> torch.Tensor | None:
    """Elements of a tensor on the host, read only, if reading them computes nothing; otherwise None."""
    if not is_tiny(t):
        return t
    lazy = storage_of(t)
    if recording.is_open() or lazy.queued == calls.WRITTEN or lazy.is_lazy():
        return None
    return transfer.on_host_to_read(t)


def known_on_host(t: torch.Tensor) -> torch.Tensor | None:
    """Elements, on the host, of a tensor that is computed from constants only; None for any other tensor.

    Such elements are the same at each run of a recorded graph. An example is the index of an upsampled image's pixels.
    """
    if not is_tiny(t):
        return t
    value, dtype = read(t), COMPUTED.get(t.dtype)
    if value.dtype != dtype or not t.numel() or expressions.read_by(value):
        return None
    (buffer,), _ = scheduler.realize([value.reshape((t.numel(),))], memory.device_name(t.device.index or 0))
    bytes_ = torch.frombuffer(bytearray(memory.to_host(buffer)), dtype=t.dtype)
    return bytes_[: t.numel()].reshape(t.shape)


def is_checked(ctx: Context, index: torch.Tensor, low: Size, high: Size, ignored: int | None = None) -> bool:
    """Check an index of a call that will be queued; return False if the index is not on the device.

    Raises the CPU's error if an element is out of range.
    """
    if not is_tiny(index):
        return False
    bounds = bounds_in_queue(index)
    if bounds is not None and bounds[0] >= low and bounds[1] < high:
        return True
    compute_index([storage_of(index)])
    checked(ctx, index, low, high, ignored, peek)
    return True


def checked(
    ctx: Context, index: torch.Tensor, low: Size, high: Size, ignored: int | None = None,
    look: Callable[[torch.Tensor], UOp] = read,
) -> UOp:  # fmt: skip
    """Value of an integer tensor whose elements lie in [low, high) or equal `ignored`.

    Raises the CPU's error if an element does not. While a graph is recorded no element can be read, so each run of the
    recording checks instead.
    """
    value = look(index)
    if not index.numel() or (value.vmin >= low and value.vmax < high):
        return value
    if recording.is_open():
        right = (value >= low) & (value < high)
        right = right if ignored is None else right | value.eq(ignored)
        recording.require(right.reshape((index.numel(),)).cast(dtypes.int32).min())
        return value
    known = _LOOKED_AT.get(value, {}).get(ignored)
    if known is not None and known[0] >= low and known[1] < high and known[2] == memory.generation():
        return value
    host = read_on_host(index)
    if ignored is not None:
        host = host[host != ignored]
    check(ctx, host, low, high)
    value = look(index)  # realized by now
    if host.numel():
        least, most = torch.aminmax(host)
        _LOOKED_AT.setdefault(value, {})[ignored] = (int(least), int(most), memory.generation())
    return value


def check(ctx: Context, host: torch.Tensor, low: int, high: int, **kwargs: Any) -> None:
    """Raise the CPU's error if an element of a host tensor lies outside [low, high).

    `kwargs` are keyword-only arguments that the CPU's kernel requires.
    """
    if host.numel():
        least, most = torch.aminmax(host)
        if least < low or most >= high:
            raise_as_cpu(ctx, **kwargs)


def require(ctx: Context, condition: UOp) -> None:
    """Compute a condition on elements (a 0-d bool), and raise the CPU's error unless it holds.

    While a graph is recorded, each run of the recording checks instead.
    """
    condition = condition.cast(dtypes.int32)
    if recording.is_open():
        recording.require(condition)
        return
    (buffer,), _ = scheduler.realize([condition.reshape((1,))], ctx.device)
    if not any(memory.to_host(buffer).tobytes()):
        raise_as_cpu(ctx)


def raise_as_cpu(ctx: Context, **kwargs: Any) -> NoReturn:
    """Run the functional operator on the CPU to raise its error; IndexError if the CPU raises none."""
    fallback.run_on_cpu(ctx.op, ctx.args, kwargs)
    raise IndexError(f"{ctx.op}: index out of range")
