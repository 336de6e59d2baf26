"""torch CPU as a target: the harness against itself, which must always pass, or a device that lacks features.

`cpu:without=storages+set_` moves and observes tensors as on a device that lacks these features, and a use of one of
them in these operations raises. A finding is then a bug of the harness.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from conformance.declare.features import FEATURES
from conformance.engine.target import Target, TargetFacts
from conformance.record.errors import TargetError
from conformance.record.names import ORACLES
from conformance.standalone.torch_compat import TorchDispatchMode

METHODS = {"storages": "untyped_storage", "data_ptr": "data_ptr"}
"""Tensor methods that stand for a feature."""


class CpuTarget(Target):
    name = "cpu"
    facts = TargetFacts(oracles=frozenset(ORACLES), of_pytorch="torch CPU")

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        key, _, names = argument.partition("=")
        if argument and (key != "without" or not names):
            raise TargetError(
                f"target 'cpu:{argument}' is not understood: write cpu, or cpu:without=FEATURE[+FEATURE] with features "
                f"from {', '.join(FEATURES)}"
            )
        if argument:
            self.spec = f"cpu:{argument}"
            self.facts = self.facts.without(names.split("+"))

    def synchronize(self) -> None:
        """Do nothing: CPU ops are synchronous."""

    def lay_out(self, flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
        """Lay out as on any device, with the lacking features disabled."""
        with self._refused():
            return super().lay_out(flat, like, alone)

    def flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        """Flatten as on any device, with the lacking features disabled."""
        with self._refused():
            return super().flatten(tensor)

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        if not self.facts.lacks:
            yield
            return
        with contextlib.ExitStack() as stack:
            for name in self.facts.lacks & {*METHODS}:
                stack.enter_context(mock.patch.object(torch.Tensor, METHODS[name], _refuse(name)))
            stack.enter_context(_Refusing({call for name in self.facts.lacks for call in FEATURES[name].operators}))
            yield


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"this device has no {name}")

    return refuse


class _Refusing(TorchDispatchMode):
    """Mode that raises NotImplementedError when one of these operators is called."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, _, overload = str(func.name()).partition(".")
        if name in self.names or f"{name}.{overload}" in self.names:
            raise NotImplementedError(f"this device has no {func.name()}")
        return func(*args, **(kwargs or {}))
