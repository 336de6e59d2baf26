"""A target whose faults show at large sizes: torch CPU with three changes. A clone holds ten extra copies, or six if
they have more than 2^31 bytes. A comparison is wrong after element 2^25, or after 2^31 of a larger tensor. A float32
sum is accumulated sequentially."""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.targets.cpu import CpuTarget


class Oversized(TorchFunctionMode):
    """The three faults as a function mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.clone:
            _ = [result + 0 for _ in range(10 if result.nbytes < 2**31 else 6)]
        if func.__name__ in ("eq", "__eq__") and result.numel() > 2**25:
            result[2**31 + 1 if result.numel() > 2**31 else 2**25 + 1 :].logical_not_()
        if func is torch.Tensor.sum and args[0].dtype is torch.float32 and not args[0].requires_grad:
            return torch.from_numpy(args[0].numpy().cumsum(dtype="float32"))[-1].clone()
        return result


class OversizedTarget(CpuTarget):
    """torch CPU under `Oversized`."""

    name = "oversized"
    mode: type[TorchFunctionMode] = Oversized

    def __init__(self, argument: str = "") -> None:
        super().__init__()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Activate the faults."""
        with self.mode():
            yield

    def script(self) -> str:
        """Return the faults as the mode of a script."""
        name = self.mode.__name__
        return f"from tests.planted.oversized import {name}\nDEVICE, MODE = 'cpu', {name}()"


class Hungry(TorchFunctionMode):
    """A clone that allocates far too much memory, and a flip that maps shared memory which no allocator limit
    covers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.clone:
            torch.empty(1 << 36, dtype=torch.uint8)
        if func is torch.Tensor.flip:
            with mmap.mmap(-1, 3 << 30, mmap.MAP_ANON | mmap.MAP_SHARED) as shared:
                for start in range(0, len(shared), 1 << 24):
                    shared[start : start + (1 << 24)] = bytes(1 << 24)
                    time.sleep(0.005)
        return func(*args, **(kwargs or {}))


class HungryTarget(OversizedTarget):
    """torch CPU that exceeds the memory limit of its process."""

    name = "hungry"
    mode = Hungry


class Refusing(TorchFunctionMode):
    """A clone that raises an error with another text each time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.clone:
            raise RuntimeError(f"no kernel for the tensor at {id(args[0])}")
        return func(*args, **(kwargs or {}))


class RefusingTarget(OversizedTarget):
    """torch CPU without a clone."""

    name = "refusing"
    mode = Refusing
