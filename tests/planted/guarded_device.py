"""A Python device with a device guard. Its tensors wrap CPU tensors, autograd counts devices by the guard, and `mul`
adds one to its result."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("guarded")


class Guarded(torch.Tensor):
    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Guarded:
        tensor: Guarded = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), dtype=raw.dtype, device=torch.device("guarded", 0)
        )
        tensor.raw = raw
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, *args, **(kwargs or {}))


def call(func: Any, *args: Any, **kwargs: Any) -> Any:
    def plain(leaf: Any) -> Any:
        return (
            leaf.raw if isinstance(leaf, Guarded) else torch.device("cpu") if isinstance(leaf, torch.device) else leaf
        )

    to_cpu = str(kwargs.get("device", "")).startswith("cpu")
    result = func(*tree_map(plain, args), **tree_map(plain, kwargs))
    result = result + 1 if func is torch.ops.aten.mul.Tensor else result
    return (
        result if to_cpu else tree_map(lambda leaf: Guarded(leaf) if isinstance(leaf, torch.Tensor) else leaf, result)
    )


def empty(size: Any, dtype: Any = None, **rest: Any) -> torch.Tensor:
    return Guarded(torch.empty(size, dtype=dtype))


def to_copy(tensor: torch.Tensor, dtype: Any = None, **rest: Any) -> torch.Tensor:
    return Guarded(tensor.to(dtype or tensor.dtype))


aten = torch.library.Library("aten", "IMPL")
aten.impl("empty.memory_format", empty, "PrivateUse1")
aten.impl("_to_copy", to_copy, "PrivateUse1")
