"""A target with planted faults: torch CPU, except that each op in `FAULTS` fails in a different way.

The tests of the harness load it by an entry point (`planted-0.dist-info`), as they would load the target of a third
party.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.engine.target import Target


def wrong_value(result: torch.Tensor, args: Any) -> torch.Tensor:
    return result + 1


def wrong_strides(result: torch.Tensor, args: Any) -> torch.Tensor:
    return result.clone(memory_format=torch.contiguous_format).mT.contiguous().mT if result.dim() > 1 else result


def wrong_offset(result: torch.Tensor, args: Any) -> torch.Tensor:
    base = result.new_zeros(result.numel() + 1)
    return base[1:].view(result.shape).copy_(result)


def wrong_dtype(result: torch.Tensor, args: Any) -> torch.Tensor:
    return result.double()


def copies(result: torch.Tensor, args: Any) -> torch.Tensor:
    return result.clone(memory_format=torch.preserve_format)


def aliases(result: torch.Tensor, args: Any) -> torch.Tensor:
    return args[0] if args[0].shape == result.shape else result


def writes_input(result: torch.Tensor, args: Any) -> torch.Tensor:
    args[0].add_(1)
    return result


def on_meta(result: torch.Tensor, args: Any) -> torch.Tensor:
    return result.to("meta")


def not_implemented(result: torch.Tensor, args: Any) -> torch.Tensor:
    raise NotImplementedError("aten::exp has no kernel")


def raises(result: torch.Tensor, args: Any) -> torch.Tensor:
    raise ValueError("</script><script>alert(1)</script>\x1b[31m")


def crashes(result: torch.Tensor, args: Any) -> torch.Tensor:
    ctypes.string_at(0)
    return result


def exits(result: torch.Tensor, args: Any) -> torch.Tensor:
    os._exit(3)


def hangs(result: torch.Tensor, args: Any) -> torch.Tensor:
    time.sleep(1_000)
    return result


def explodes(result: torch.Tensor, args: Any) -> torch.Tensor:
    return torch.ones(1 << 36)


def dies_later(result: torch.Tensor, args: Any) -> torch.Tensor:
    """End the process once, one second later, when the case is over and its result has been sent."""
    mark = Path("flaky")
    if not mark.exists():
        mark.touch()
        threading.Timer(1.0, os._exit, (9,)).start()
    return result


def flaky(result: torch.Tensor, args: Any) -> torch.Tensor:
    mark = Path("flaky")
    if mark.exists():
        return result
    mark.touch()
    return result + 1


FAULTS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "add": wrong_value,
    "sub": wrong_strides,
    "mul": wrong_offset,
    "floor": wrong_dtype,
    "view_as": copies,
    "expm1": aliases,
    "cos": writes_input,
    "exp": not_implemented,
    "tan": raises,
    "atan": crashes,
    "asinh": exits,
    "acosh": hangs,
    "erf": explodes,
    "sinh": flaky,
    "asin": dies_later,
}


class Planted(TorchFunctionMode):
    """Apply the fault to the result of the op. Ops inside the fault function run without faults."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        fault = FAULTS.get(getattr(func, "__name__", "").partition(".")[0])  # an operator's overload is exp.default
        return fault(result, args) if fault is not None and isinstance(result, torch.Tensor) else result


class PlantedTarget(Target):
    """torch CPU under `Planted`."""

    name = "planted"

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with Planted():
            yield

    def script(self) -> str:
        return "import planted\n\nDEVICE, MODE = 'cpu', planted.Planted()"


class DyingTarget(Target):
    """A target whose loading ends the process with exit code 7."""

    name = "dying"

    def prepare(self) -> None:
        os._exit(7)


class WrongName(TorchFunctionMode):
    """A mode in which `exp` raises an error that blames a working operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "exp":
            raise NotImplementedError("aten::neg is not implemented")
        return func(*args, **(kwargs or {}))


class WrongNameTarget(Target):
    """A target whose error blames the wrong operator."""

    name = "wrong name"

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with WrongName():
            yield
