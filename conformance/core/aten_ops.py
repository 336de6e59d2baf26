"""Counting aten ops on torch CPU: the bound on kernels that no fusing device should exceed.

Defines `AtenOps`, and `Tagged`, which tells by torch's tags whether metadata follows from values, or whether random
numbers are drawn. The key insight: eager execution pays one kernel for each aten op that computes or moves data, and
none for a view, which the op's schema tells."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from conformance.core.torch_compat import DispatchKey, DispatchKeySet, TorchDispatchMode


class AtenOps(TorchDispatchMode):
    """Counts the aten ops that compute or move data: what eager execution pays one kernel each for."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":
            self.total += not is_metadata_only(func)
            return func(*args, **(kwargs or {}))
        # An operator that was registered from Python, such as linear_cross_entropy in chunks, runs what it runs inside.
        before = self.total
        with self:
            result = func.redispatch(DispatchKeySet(DispatchKey.CPU), *args, **(kwargs or {}))
        self.total = max(self.total, before + 1)
        return result


class Operators(TorchDispatchMode):
    """Notes the operators that are called, by name as the dispatcher writes it: aten::add.Tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}
        self.last = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        overload = func._schema.overload_name
        self.last = func._schema.name + (f".{overload}" if overload else "")
        self.names[self.last] = None
        return func(*args, **(kwargs or {}))


def is_metadata_only(func: Any) -> bool:
    """Whether the schema says that the op returns a view and writes nothing, or changes metadata only."""
    if func.overloadpacket in METADATA_ONLY:
        return True
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


METADATA_ONLY = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        *("t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_", "resize_", "set_"),
        *("detach_", "_reshape_alias", "_unsafe_view", "lift_fresh"),
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"),
        *("sym_size", "sym_stride", "sym_storage_offset", "sym_numel"),
    )
)
"""Ops that change or read metadata, or allocate, though their schema does not say so."""


class Tagged(TorchDispatchMode):
    """Notes whether an aten op is called that has one of these tags of torch's."""

    def __init__(self, tags: Collection[torch.Tag]) -> None:
        super().__init__()
        self.tags, self.found = tags, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= any(tag in func.tags for tag in self.tags)
        return func(*args, **(kwargs or {}))
