"""Dispatch modes that watch the aten operators of a run.

`AtenOps` counts the operators that compute or move data on torch CPU, which bounds a device's kernels. `OperatorNames`
records the names, `OperatorCalls` the arguments and the call that raised, and `Tagged` whether an operator has one of
torch's tags. Eager execution runs one kernel for each aten operator that computes or moves data, and none for a view;
the operator's schema tells which.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.standalone.torch_compat import DispatchKey, DispatchKeySet, TorchDispatchMode, run_kernel


class AtenOps(TorchDispatchMode):
    """Counts the aten ops that compute or move data; eager execution runs one kernel for each."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":
            self.total += not is_metadata_only(func)
            return func(*args, **(kwargs or {}))
        # An operator registered from Python, such as linear_cross_entropy in chunks, calls other operators inside.
        before = self.total
        with self:
            result = func.redispatch(DispatchKeySet(DispatchKey.CPU), *args, **(kwargs or {}))
        self.total = max(self.total, before + 1)
        return result


class OperatorNames(TorchDispatchMode):
    """Records the names of called operators, as the dispatcher writes them: aten::add.Tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[name_of(func)] = None
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator of the dispatcher, with its arguments."""

    func: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The operator's name, as `name_of` writes it."""
        return name_of(self.func)

    def below(self, key: str) -> list[OperatorCall]:
        """Return the nested calls that raise when the kernel of this dispatch key runs, this call first."""
        with OperatorCalls() as inside, contextlib.suppress(Exception):
            run_kernel(self.func, key, *self.args, **self.kwargs)
        return [self, *(inside.raised.below(key) if inside.raised is not None else ())]


class OperatorCalls(TorchDispatchMode):
    """Records the last call of each operator, by name, and the last call that raised."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, OperatorCall] = {}
        self.raised: OperatorCall | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self.by_name[name_of(func)] = OperatorCall(func, args, kwargs or {})
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.raised = call
            raise


def name_of(func: Any) -> str:
    """Return an overload's name as the dispatcher writes it: aten::add.Tensor, and aten::exp for the default
    overload."""
    overload = func._schema.overload_name
    return str(func._schema.name) + (f".{overload}" if overload else "")


def is_metadata_only(func: Any) -> bool:
    """Whether the op only changes metadata, or returns a view and writes nothing, according to its schema and
    `METADATA_ONLY`."""
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
    """Records whether a called aten op has one of these torch tags."""

    supports_higher_order_operators = True
    """See TorchDispatchMode: without this, operators of functions, such as `cond`, raise. They have no tags."""

    def __init__(self, tags: Collection[torch.Tag]) -> None:
        super().__init__()
        self.tags, self.seen = tags, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= any(tag in getattr(func, "tags", ()) for tag in self.tags)
        return func(*args, **(kwargs or {}))
