"""Registration of the device `tiny` with torch, and `torch.tiny`.

Defines `register`. torch's own Python-backend registration does the work; this adds the device module (random state,
devices, synchronization) and replaces what needs an allocator: `UntypedStorage(n, device="tiny")`.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch

from ..lazy import flush
from ..lazy.storage import allocate
from ..runtime import torch_compat

_current = 0


def device_count() -> int:
    """Number of tiny devices: the environment variable TINY_DEVICES, 1 without it."""
    return int(os.environ.get("TINY_DEVICES", "1"))


def is_available() -> bool:
    """True: the device needs no hardware."""
    return True


def is_initialized() -> bool:
    """True: there is nothing to initialize before the first kernel."""
    return True


def current_device() -> int:
    """Index of the device that `device="tiny"` means."""
    return _current


def set_device(device: Any) -> None:
    """Make another device the one that `device="tiny"` means."""
    global _current
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if not 0 <= index < device_count():
        raise RuntimeError(f"tiny: there is no device tiny:{index}; TINY_DEVICES says how many there are")
    _current = index


class device:
    """Context manager: within it `device="tiny"` means this index; None and -1 change nothing."""

    def __init__(self, device: Any) -> None:
        self.index = -1 if device is None else device if isinstance(device, int) else torch.device(device).index or 0
        self.before = 0

    def __enter__(self) -> device:
        self.before = _current
        if self.index >= 0:
            set_device(self.index)
        return self

    def __exit__(self, *_: object) -> None:
        set_device(self.before)


def synchronize(device: Any = None) -> None:
    """Run everything that was written in place and not yet computed."""
    flush.flush([], why="realize")


def manual_seed(seed: int) -> None:
    """Random numbers come from torch's CPU generator: torch.manual_seed seeds it, and this does nothing more."""


manual_seed_all = manual_seed


def get_rng_state(device: Any = "tiny") -> torch.Tensor:
    """The state of the generator that tiny draws from: torch's CPU generator."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tiny") -> None:
    """Set the state of the generator that tiny draws from: torch's CPU generator."""
    torch.set_rng_state(new_state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """dtypes that `torch.autocast("tiny", dtype=...)` takes."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return False


def _module() -> ModuleType:
    module = ModuleType("torch.tiny", __doc__)
    public = (
        device_count, is_available, is_initialized, current_device, set_device, device, synchronize, manual_seed,
        get_rng_state, set_rng_state, get_amp_supported_dtype, _is_in_bad_fork,
    )  # fmt: skip
    for function in public:
        setattr(module, function.__name__, function)
    module.manual_seed_all = manual_seed  # type: ignore[attr-defined]
    return module


class _Guard(torch_compat.DeviceGuard):  # type: ignore[misc]
    def type_(self) -> Any:
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
    _serve_untyped_storage()
    _print_on_host()
    _keep_shared_parameters()
    _serve_accelerator()
    _pin_by_copying()
    # tinygrad's scheduler is not thread-safe; backward runs in the calling thread.
    torch.autograd.set_multithreading_enabled(False)


def _serve_untyped_storage() -> None:
    """PrivateUse1 has no allocator, so torch's own constructor would crash on device="tiny"."""
    original: Any = torch.UntypedStorage.__new__

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "tiny":
            return original(cls, *args, **kwargs) if device is None else original(cls, *args, device=device, **kwargs)
        if len(args) == 1 and isinstance(args[0], int) and not isinstance(args[0], bool):
            return allocate(args[0], torch.device(device).index or 0)
        if not args:
            return allocate(0, torch.device(device).index or 0)
        values = torch.tensor(list(args[0]), dtype=torch.uint8, device="cpu")
        made = allocate(values.numel(), torch.device(device).index or 0)
        made.copy_(values.untyped_storage())
        return made

    torch.UntypedStorage.__new__ = staticmethod(new)  # type: ignore[method-assign,assignment]


def _print_on_host() -> None:
    """torch formats a tensor with some thirty operators; formatting a copy on the host needs none of the device."""

    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return torch_compat.tensor_str(self.cpu() if self.device.type == "tiny" else self, indent)

    torch_compat.replace_tensor_str(tensor_str)


def _keep_shared_parameters() -> None:
    """torch moves a module to or from a device of another kind by making new parameters, one for each place of use.

    Parameters that were shared (a language model's embedding and its last layer) would come out separate and train
    apart, without an error. The places that shared one share the first one's successor again.
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
    """`torch.accelerator` asks C++ for what a device registered from Python cannot give it: an index, an allocator."""

    def no_statistics(device_index: Any = None, /) -> Any:
        raise RuntimeError(
            "tiny: there is no caching allocator to ask for statistics; conformance.backend.stats() counts bytes moved"
        )

    def empty_cache() -> None:
        """Nothing: memory goes back to tinygrad when a storage dies."""

    def set_device_index(device: Any, /) -> None:
        """Make another device the current one; nothing where the index is negative."""
        index = device if isinstance(device, int) else torch.device(device).index or 0
        if index >= 0:
            set_device(index)

    replacements = {
        "synchronize": synchronize, "empty_cache": empty_cache, "memory_stats": no_statistics,
        "set_device_index": set_device_index, "set_device_idx": set_device_index,
        "current_device_index": current_device, "current_device_idx": current_device, "device_index": device,
    }  # fmt: skip
    for module in (torch.accelerator, torch.accelerator.memory):
        for name, function in replacements.items():
            if hasattr(module, name):
                setattr(module, name, function)


_pinning = torch.library.Library("aten", "IMPL")


def _pin_by_copying() -> None:
    """`pin_memory()` of a CPU tensor is a copy: a transfer reads any host memory at the same speed."""

    def pinned(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        return self.clone()

    _pinning.impl("_pin_memory", pinned, "CPU")
