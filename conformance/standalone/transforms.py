"""Transforms of torch that targets apply to functions. Scripts carry them, so this module needs torch only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conformance.standalone.torch_compat import TorchDispatchMode


class DecompositionMode(TorchDispatchMode):
    """Mode that calls the decomposition of each operator in `table`, also of operators that a decomposition calls.
    `replaced` counts these calls."""

    def __init__(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.table, self.replaced = table, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.table:
            with self:
                result = self.table[func](*args, **(kwargs or {}))
            if result is not NotImplemented:
                self.replaced += 1
                return result
        return func(*args, **(kwargs or {}))
