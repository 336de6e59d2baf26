"""Registration of the device `tiny` with torch, and `torch.tiny`.

Defines `register`, which uses torch's own Python-backend registration. This module adds the device module, with the
functions of its neighbours: devices, memory, streams and events, random numbers. They replace functions that torch
implements only in C++.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from ..lazy.dtypes import COMPUTED, PAIRS
from ..runtime import torch_compat
from . import (
    amp,
    device_memory,
    devices,
    distributed,
    generators,
    legacy_types,
    nested,
    pending_errors,
    processes,
    profiler,
    storages,
    streams,
)


def _module() -> ModuleType:
    module = ModuleType("torch.tiny", __doc__)
    for room in (devices, device_memory, streams, generators):
        for function in room.PUBLIC:
            setattr(module, function.__name__, function)
    module._initialized = True  # type: ignore[attr-defined] # else torch.utils.checkpoint does not keep random states
    module.default_generators = ()  # type: ignore[attr-defined] # numbers come from torch's default CPU generator
    module.amp = amp.module()  # type: ignore[attr-defined]
    for name, made in legacy_types.classes().items():
        setattr(module, name, made)
    return module


class _Guard(torch_compat.DeviceGuard):  # type: ignore[misc]
    def type_(self) -> Any:
        pending_errors.set_aside()
        return torch_compat.DeviceType.PrivateUse1


class _Hooks(torch_compat.PrivateUse1Hooks):  # type: ignore[misc]
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def register() -> None:
    """Make `tiny` a torch device. Call once, before kernels are installed."""
    torch_compat.set_up_device("tiny", backend_module=_module(), hook=_Hooks(), device_guard=_Guard())
    storages.install()
    generators.install()
    streams.install()
    device_memory.install()
    legacy_types.install()
    nested.install()
    pending_errors.install()
    processes.install()
    distributed.install()
    profiler.install()
    _serve_accelerator()
    _print_on_host()
    _keep_shared_parameters()
    # tinygrad's scheduler is not thread-safe; backward runs in the calling thread.
    torch.autograd.set_multithreading_enabled(False)


def _print_on_host() -> None:
    """Format tensors on the host: torch uses some thirty operators, and on a copy none of them runs on the device."""

    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return torch_compat.tensor_str(self.cpu() if self.device.type == "tiny" else self, indent)

    torch_compat.replace_tensor_str(tensor_str)


def _keep_shared_parameters() -> None:
    """Keep parameters shared when a module moves to or from a device of another kind.

    torch makes a new parameter for each place of use. Shared parameters (a language model's embedding and its last
    layer) would become separate and train independently, without an error. Here all places of one parameter get the
    same new one.
    """
    original = torch_compat.module_apply
    moving = False

    def apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        nonlocal moving
        if moving or not recurse:
            return original(self, fn, recurse)
        places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        for module in self.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, name))
        moving = True
        try:
            moved = original(self, fn, recurse)
        finally:
            moving = False
        for (first, name), *others in places.values():
            for module, other in others:
                module._parameters[other] = first._parameters[name]
        return moved

    torch_compat.replace_module_apply(apply)


def _serve_accelerator() -> None:
    """Replace functions of `torch.accelerator` that C++ cannot answer for a Python device, such as its index."""

    def set_device_index(device: Any, /) -> None:
        """Make another device the current one; no effect if the index is negative."""
        if not isinstance(device, int) or device >= 0:
            devices.set_device(device)

    replacements = {
        "set_device_index": set_device_index, "set_device_idx": set_device_index,
        "current_device_index": devices.current_device, "current_device_idx": devices.current_device,
        "device_index": devices.device, "device_count": devices.device_count,
        "get_device_capability": _capability,
    }  # fmt: skip
    for name, function in replacements.items():
        if hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, function)


def _capability(device: Any = None, /) -> dict[str, Any]:
    """The dtypes that tensors on tiny may have and convert to."""
    devices.index_of(device)
    float8 = {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz}
    return {"supported_dtypes": {*COMPUTED, *PAIRS, *float8}}
