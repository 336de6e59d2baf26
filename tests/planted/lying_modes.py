"""Dispatch modes over torch CPU with one fault each: `device:cpu,import=tests.planted.lying_modes,call=FUNCTION`."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Nothing(TorchDispatchMode):
    """Mode without a fault."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.changed(str(func), args, func(*args, **(kwargs or {})))

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Return what the operator of this name returns."""
        return result


class TanhBackward(Nothing):
    """The gradient of tanh is 1 % too large."""

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        return result * 1.01 if name == "aten.tanh_backward.default" else result


class NegativeCumsum(Nothing):
    """`cumsum` is wrong along a dimension that is counted from the end."""

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        return result + 1 if name == "aten.cumsum.default" and args[1] < 0 else result


def nothing() -> None:
    """Enter the mode without a fault."""
    Nothing().__enter__()


def tanh_backward() -> None:
    """Enter the mode with a wrong gradient of tanh."""
    TanhBackward().__enter__()


def negative_cumsum() -> None:
    """Enter the mode with a wrong `cumsum`."""
    NegativeCumsum().__enter__()
