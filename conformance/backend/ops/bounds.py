"""Index tensors on the host: reading them, and the errors for an index that is out of range.

The key insight: an index that tinygrad's own bounds prove right costs nothing; any other is looked at. Index tensors
mostly come from the host or end a reduction (argmax, topk, sort), so realizing them seldom adds a kernel, and a wrong
one raises at the call, with the CPU's own error, instead of reading some other element.
Must not know operators: the CPU's kernel raises for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch import fallback, transfer
from ..dispatch.deferral import compute_index
from ..dispatch.registry import Context
from ..dispatch.tensors import is_tiny, peek, read
from ..lazy import calls, flush
from ..lazy.dtypes import COMPUTED
from ..lazy.storage import storage_of, storage_to_read
from ..runtime import expressions, memory, recording, scheduler

# Least and greatest element of values that were looked at, and when, by the element that was let pass. The labels of a
# training loop have the same bounds at every step, and are not realized to learn them.
_LOOKED_AT: weakref.WeakKeyDictionary[UOp, dict[int | None, tuple[float, ...]]] = weakref.WeakKeyDictionary()


Size = Any  # an int; tinygrad types the sizes of shapes as possibly symbolic


def read_on_host(t: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor on the host; they may share the device's memory, so they must not be written."""
    if not is_tiny(t):
        return t
    if recording.is_open() and (known := known_on_host(t)) is not None:
        return known
    flush.flush([storage_to_read(t)], dirty=False, why="index check")
    return transfer.on_host_to_read(t)


def in_memory(t: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor on the host, to be read only, where looking at them computes nothing; else None."""
    if not is_tiny(t):
        return t
    lazy = storage_of(t)
    if recording.is_open() or lazy.queued == calls.WRITTEN or lazy.is_lazy():
        return None
    return transfer.on_host_to_read(t)


def known_on_host(t: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor, on the host, that is computed from numbers alone; None of any other.

    A recorded graph has the same ones at each run, such as the index by which an upsampled image reads its pixels.
    """
    if not is_tiny(t):
        return t
    value, dtype = read(t), COMPUTED.get(t.dtype)
    if value.dtype != dtype or not t.numel() or expressions.read_by(value):
        return None
    (found,), _ = scheduler.realize([value.reshape((t.numel(),))], memory.device_name(t.device.index or 0))
    bytes_ = torch.frombuffer(bytearray(memory.to_host(found)), dtype=t.dtype)
    return bytes_[: t.numel()].reshape(t.shape)


def is_checked(ctx: Context, index: torch.Tensor, low: Size, high: Size, ignored: int | None = None) -> bool:
    """Check an index of a call that is going to be queued; False where it is no tensor of the device.

    Raises the CPU's error where an element is wrong.
    """
    if not is_tiny(index):
        return False
    compute_index([storage_of(index)])
    checked(ctx, index, low, high, ignored, peek)
    return True


def checked(
    ctx: Context, index: torch.Tensor, low: Size, high: Size, ignored: int | None = None,
    look: Callable[[torch.Tensor], UOp] = read,
) -> UOp:  # fmt: skip
    """The value of an integer tensor whose elements lie in [low, high) or equal `ignored`.

    Raises the CPU's error where one does not. While a graph is recorded nothing can be looked at: then each run of the
    recording checks.
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
    """Raise the CPU's error where an element of a host tensor lies outside [low, high).

    `kwargs` are keyword-only arguments without which the CPU's kernel cannot be called.
    """
    if host.numel():
        least, most = torch.aminmax(host)
        if least < low or most >= high:
            raise_as_cpu(ctx, **kwargs)


def require(ctx: Context, condition: UOp) -> None:
    """Raise the CPU's error unless a condition on elements (a 0-d bool) holds, for which it is computed.

    While a graph is recorded each run of the recording checks.
    """
    condition = condition.cast(dtypes.int32)
    if recording.is_open():
        recording.require(condition)
        return
    (found,), _ = scheduler.realize([condition.reshape((1,))], ctx.device)
    if not any(memory.to_host(found).tobytes()):
        raise_as_cpu(ctx)


def raise_as_cpu(ctx: Context, **kwargs: Any) -> NoReturn:
    """Run the functional operator on the CPU for its error; IndexError where the CPU raises none."""
    fallback.run_on_cpu(ctx.op, ctx.args, kwargs)
    raise IndexError(f"{ctx.op}: index out of range")
