"""A target with three faults: torch CPU, except that batch_norm accumulates its variance in the dtype of the input, exp
is off by 20 ulp, and sigmoid ends the process."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.targets.cpu import CpuTarget


class Inexact(TorchFunctionMode):
    """The three faults as a function mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.sigmoid:
            ctypes.string_at(0)
        if func is torch.exp:
            return func(*args) * (1 + 20 * torch.finfo(args[0].dtype).eps)
        if func is torch.nn.functional.batch_norm and kwargs.get("training"):
            return batch_norm(*args)
        return func(*args, **kwargs)


def batch_norm(x: torch.Tensor, mean: Any, var: Any, weight: Any = None, bias: Any = None) -> torch.Tensor:
    """batch_norm that accumulates the squares sequentially in the dtype of the input."""
    channels = x.transpose(0, 1).flatten(1)
    squares = torch.zeros(len(channels), dtype=x.dtype)
    for column in channels.square().unbind(1):
        squares = squares + column
    mean = channels.mean(1)
    scale = (squares / channels.shape[1] - mean * mean + 1e-5).rsqrt()
    scale, shift = (scale, -mean * scale) if weight is None else (scale * weight, bias - mean * scale * weight)
    return x * scale[:, None, None] + shift[:, None, None]


class Inaccurate(CpuTarget):
    """torch CPU under `Inexact`."""

    name = "inaccurate"

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Activate the faults."""
        with Inexact():
            yield
