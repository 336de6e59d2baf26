"""A Python device and a compiler with faults of reported devices, and right otherwise.

The device is `device:cpu,import=reported_faults,call=enable`, the compiler `compile:reported,import=reported_faults`.
`TOY_FAULTS` selects faults by name, separated by commas. The last four end a call in ways that a harness must survive:
without an answer, by errors whose text no file can hold, and with the end of the process.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import register_backend
from torch.utils._python_dispatch import TorchDispatchMode

Run = Callable[..., Any]
"""An operator, as PyTorch calls it."""


class Unprintable(RuntimeError):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def sub_alpha(run: Run, *args: Any, **kwargs: Any) -> Any:
    return run(*args, **{key: value for key, value in kwargs.items() if key != "alpha"})


def mean_dtype(run: Run, *args: Any, **kwargs: Any) -> Any:
    result = run(*args, **kwargs)
    return result if kwargs.get("dtype") is None else result.mul_(2)


def cat_three(run: Run, parts: Any, *args: Any, **kwargs: Any) -> Any:
    alike = len(parts) > 2 and parts[1].shape == parts[2].shape
    return run([*parts[:2], parts[1], *parts[3:]] if alike else parts, *args, **kwargs)


def mul_stride(run: Run, first: Any, *args: Any, **kwargs: Any) -> Any:
    return first if first.dim() == 1 and first.stride(0) == 2 else run(first, *args, **kwargs)


def add_grid(run: Run, *args: Any, **kwargs: Any) -> Any:
    result = run(*args, **kwargs)
    if result.numel() > 4096 and result.is_contiguous():
        result.view(-1)[4096:] = 0
    return result


def column_64(run: Run, first: Any, other: Any, **kwargs: Any) -> Any:
    result = run(first, other, **kwargs)
    if isinstance(other, torch.Tensor) and first.shape != other.shape and other.dim() and result.dim() > 1:
        result[..., 64:] = result[..., 63:64].clone()
    return result


def nonzero_1024(run: Run, first: Any, **kwargs: Any) -> Any:
    flat = first.clone().reshape(-1)
    flat[1024:] = 0
    return run(flat.reshape(first.shape), **kwargs)


def mask_1024(run: Run, first: Any, indices: Any) -> Any:
    if len(indices) == 1 and indices[0].dtype is torch.bool:
        flat = indices[0].clone().reshape(-1)
        flat[1024:] = False
        indices = [flat.reshape(indices[0].shape)]
    return run(first, indices)


def attention_64(run: Run, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    result = run(query, key, *args, **kwargs)
    if key.size(-2) % 64 == 0 and not key.is_contiguous():
        result[0].mul_(2)
    return result


def tanh_backward(run: Run, *args: Any, **kwargs: Any) -> Any:
    return run(*args, **kwargs).mul_(2)


def cumsum_negative(run: Run, first: Any, dim: int, **kwargs: Any) -> Any:
    return run(first, 0 if dim < 0 < first.dim() else dim, **kwargs)


def hang(*args: Any, **kwargs: Any) -> Any:
    time.sleep(1_000)


def surrogate(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("driver said \udcff")


def unprintable(*args: Any, **kwargs: Any) -> Any:
    raise Unprintable


def leave(*args: Any, **kwargs: Any) -> Any:
    sys.exit()


WRONG: dict[str, Callable[..., Any]] = {
    "sub": sub_alpha,
    "mean": mean_dtype,
    "cat": cat_three,
    "mul_": mul_stride,
    "add": add_grid,
    "div": column_64,
    "nonzero": nonzero_1024,
    "index": mask_1024,
    "_scaled_dot_product_flash_attention_for_cpu": attention_64,
    "tanh_backward": tanh_backward,
    "cumsum": cumsum_negative,
}
"""By operator, what the device does instead of calling `run`, the right operator. The names are those of the faults."""
ENDING = {"erfinv": hang, "lgamma": surrogate, "digamma": unprintable, "trace": leave}
FAULTS = {function.__name__: (operator, function) for operator, function in {**WRONG, **ENDING}.items()}


@functools.cache
def chosen(names: str) -> dict[str, Callable[..., Any]]:
    """The selected faults by operator. Raises KeyError for an unknown name."""
    return dict(FAULTS[name] for name in names.split(",") if name)


class Faulty(TorchDispatchMode):
    """torch CPU with the selected faults."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wrong = chosen(os.environ.get("TOY_FAULTS", "")).get(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {})) if wrong is None else wrong(func, *args, **(kwargs or {}))


def enable() -> None:
    """Push the mode."""
    Faulty().__enter__()


@register_backend
def reported(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
    """Run Dynamo's graph with the selected faults; a backward pass is not in it."""

    def run(*inputs: Any) -> Any:
        with Faulty():
            return graph(*inputs)

    return run
