"""A device whose errors have texts that no file can hold: `device:cpu,import=odd_texts,call=enable`.

`neg` raises an error with a lone surrogate, as a driver's message in another encoding has it. `abs` raises one whose
`__str__` raises.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Unprintable(RuntimeError):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Odd(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.neg:
            raise RuntimeError("driver said \udcff <&>")
        if func.overloadpacket is torch.ops.aten.abs:
            raise Unprintable
        return func(*args, **(kwargs or {}))


def enable() -> None:
    """Push the mode."""
    Odd().__enter__()
