"""`torch.autocast("tiny", dtype=torch.bfloat16)`: operators that run in the lower precision, and in float32.

torch has these lists in C++ for each device, and none for a device that is registered from Python, so autocast would
have no effect. The CPU's lists are used: the names below are the exceptions, and all other operators that the CPU casts
run in float32 (torch's documentation, "CPU Op-Specific Behavior").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..runtime import torch_compat

LOWER = frozenset({
    "conv1d", "conv2d", "conv3d", "bmm", "mm", "linalg_vecdot", "baddbmm", "addmm", "addbmm", "linear", "matmul",
    "_convolution", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "prelu",
    "scaled_dot_product_attention", "_native_multi_head_attention", "_addmm_activation",
})  # fmt: skip
WIDEST = frozenset({"stack", "cat", "index_copy"})

_libraries: list[torch.library.Library] = []


def install() -> None:
    """Register an autocast kernel for each operator that the CPU casts."""
    library, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend((library, others))
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for qualified in torch_compat.all_op_names():
        if not qualified.startswith("aten::"):
            continue
        if torch_compat.has_kernel(qualified, "AutocastCPU"):
            name, _, overload = qualified.removeprefix("aten::").partition(".")
            op = getattr(getattr(torch.ops.aten, name), overload or "default")
            choose = _lower if name in LOWER else _widest if name in WIDEST else _float32
            library.impl(op, _kernel(op, choose), "AutocastPrivateUse1")


def _lower(tensors: list[torch.Tensor]) -> torch.dtype:
    return torch.get_autocast_dtype("tiny")


def _float32(tensors: list[torch.Tensor]) -> torch.dtype:
    return torch.float32


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    return max((t.dtype for t in tensors), key=lambda d: d.itemsize, default=torch.float32)


def _kernel(op: Any, choose: Callable[[list[torch.Tensor]], torch.dtype]) -> Callable[..., Any]:
    keys = torch_compat.DispatchKeySet(torch_compat.parse_key("AutocastPrivateUse1"))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch_compat.exclude_keys(keys):
            dtype = choose([t for t in _tensors([args, *kwargs.values()]) if _eligible(t)])
            return op(*_cast(args, dtype), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _eligible(t: torch.Tensor) -> bool:
    return t.device.type == "tiny" and t.is_floating_point() and t.dtype is not torch.float64


def _tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for y in x for t in _tensors(y)] if isinstance(x, (list, tuple)) else []


def _cast(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to(dtype) if _eligible(x) else x
    return type(x)(_cast(y, dtype) for y in x) if type(x) in (list, tuple) else x
