"""Operands that move: views of a computed storage whose offset changes from step to step, such as `data[i : i + n]`.

Defines `Windows`, which replaces such operands of one overload by copies.

An offset is a constant of the graph, so each batch of a training loop would make a new graph, and its whole step would
be scheduled again. The third step with another offset, and all later ones, read a copy at offset 0 instead. Several
offsets within one step are a loop over the elements, which keeps its graph.

This module must not depend on operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tinygrad.uop.ops import UOp

from ..lazy import calls, layout
from ..lazy.dtypes import COMPUTED
from ..lazy.storage import storage_of
from ..runtime import memory
from ..runtime.counters import COUNTERS
from .call_caches import remember
from .tensors import Spec, geometry, new_tensor

MOVES = 3  # steps with different offsets, before operands are copied
MOST_CALLS = 2048  # geometries of calls whose offsets are observed
_PLAIN = frozenset({int, float, bool, type(None), str, torch.dtype, torch.memory_format, torch.layout, torch.device})


def buffer_of(t: torch.Tensor) -> UOp | None:
    """The buffer with the storage of a view that reads a range of it without gaps, at most its half.

    None if the storage has no computed content in host memory, or if a queued call writes it.
    """
    size, stride, _ = geometry(t)
    lazy = storage_of(t)
    real = COMPUTED.get(t.dtype)
    if real is None or lazy.queued == calls.WRITTEN or not memory.host_addressable(lazy.device):
        return None
    if not 0 < 2 * t.nbytes <= lazy.nbytes or not layout.covers(size, stride, 0, t.numel()):
        return None
    return lazy.realized_buffer(real)


def copied(t: torch.Tensor, buffer: UOp) -> torch.Tensor:
    """A tensor with a copy of the elements and with the strides of a view, in a storage without further elements."""
    start = t.storage_offset() * t.itemsize
    result = new_tensor(Spec(t.dtype, tuple(t.size()), tuple(t.stride())), t.device.index or 0)
    lazy = storage_of(result)
    data = memory.host_view(buffer)[start : start + t.nbytes]
    lazy.replace(memory.from_host(data, COMPUTED[t.dtype], lazy.device), t.nbytes)
    return result


def describe(x: Any, key: list[Any]) -> bool:
    """Add an argument to a key, without the offsets of views that can be copied; whether there is such a view."""
    if isinstance(x, torch.Tensor):
        can = buffer_of(x) is not None
        key += [x.dtype, x.shape, x.stride(), None if can else x.storage_offset()]
        return can
    if isinstance(x, (list, tuple)):
        key += [type(x), len(x)]
        nested = [describe(y, key) for y in x]  # of all, which are the key
        return any(nested)
    key += [type(x), x]
    return False


def with_copies(x: Any) -> Any:
    """An argument with copies instead of the views that can be copied."""
    if isinstance(x, torch.Tensor):
        buffer = buffer_of(x)
        return x if buffer is None else copied(x, buffer)
    return type(x)([with_copies(y) for y in x]) if isinstance(x, (list, tuple)) else x


class Windows:
    """The offsets in the calls of one overload."""

    def __init__(self) -> None:
        self.moves: dict[Any, tuple[int, int]] = {}  # of a call: steps with another offset, and the last of them

    def settled(self, args: Sequence[Any], others: Sequence[Any]) -> Sequence[Any] | None:
        """The arguments of a call with an unknown geometry, with copies instead of views that move; None without any.

        `others` are the settings and the keyword arguments, which also distinguish calls. A call with tensors among
        them keeps its views.
        """
        described: list[Any] = []
        if not describe(tuple(args), described) or not all(type(x) in _PLAIN for x in others):
            return None
        key, step = (*described, *others), COUNTERS.schedules
        moves, last = self.moves.get(key, (0, -1))
        if moves < MOVES:
            moves = 0 if last == step else moves + 1
        remember(self.moves, key, (moves, step), MOST_CALLS)
        return None if moves < MOVES else with_copies(tuple(args))
