"""Number of tiny devices, the current device, and properties of devices.

Defines the functions of `torch.tiny` about devices, and `index_of`, which interprets every device argument. PyTorch's
generic code queries the device module before any tensor, so these functions determine, for example, the dtypes in which
a library trains.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from ..runtime import allocations, memory
from . import current_device as current_device_

_current = 0


def device_count() -> int:
    """Number of tiny devices: the environment variable TINY_DEVICES, by default 1."""
    text = os.environ.get("TINY_DEVICES", "1")
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise RuntimeError(f"tiny: TINY_DEVICES is how many devices there are, a number from 1 on, not {text!r}")
    return int(text)


def is_available() -> bool:
    """True: the device needs no hardware."""
    return True


def is_initialized() -> bool:
    """True: nothing has to be initialized before the first kernel."""
    return True


def init() -> None:
    """No effect: nothing has to be initialized before the first kernel."""


def current_device() -> int:
    """Index of the device that `device="tiny"` means."""
    return _current


def index_of(device: Any = None) -> int:
    """The index of a device argument: a number, a name, a torch.device, or None for the current device.

    Raises RuntimeError if there is no such tiny device.
    """
    if device is None:
        return _current
    if isinstance(device, int):
        index = device
    else:
        named = torch.device(device)
        if named.type != "tiny":
            raise RuntimeError(f"tiny: expected a tiny device, but got {named}")
        index = _current if named.index is None else named.index
    if not 0 <= index < device_count():
        raise RuntimeError(
            f"tiny: there is no device tiny:{index}; TINY_DEVICES says how many there are, now {device_count()}"
        )
    return index


def set_device(device: Any) -> None:
    """Make another device the current one, for `device="tiny"`."""
    global _current
    index = index_of(device)
    if index or _current:
        current_device_.select(index)
    _current = index


class device:
    """Context manager: within it `device="tiny"` means this index; None, -1 and "tiny" change nothing.

    Raises ValueError for a device of another kind.
    """

    def __init__(self, device: Any) -> None:
        named = torch.device(device) if device is not None and not isinstance(device, int) else None
        if named is not None and named.type != "tiny":
            raise ValueError(f"tiny: expected a tiny device, but got {named}")
        index = named.index if named is not None else device
        self.index = -1 if index is None else index
        self.before = 0

    def __enter__(self) -> device:
        self.before = _current
        if self.index >= 0:
            set_device(self.index)
        return self

    def __exit__(self, *_: object) -> None:
        set_device(self.before)


class device_of(device):
    """Context manager: within it `device="tiny"` means the device of a tensor; no effect if that is not on tiny."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if getattr(obj, "device", None) and obj.device.type == "tiny" else None)


def exchange_device(index: int) -> int:
    """Make a device current; returns the previous one. A negative index changes nothing."""
    before = _current
    if index >= 0:
        set_device(index)
    return before


@dataclass(frozen=True)
class Properties:
    """Properties of a tiny device."""

    name: str  # tinygrad's device and its code generator
    total_memory: int  # bytes that may be used: the host's memory or the limit; 0 if tinygrad does not report it
    multi_processor_count: int  # processor cores
    major: int = 0
    minor: int = 0


def get_device_properties(device: Any = None) -> Properties:
    """Name, memory in bytes and processor count of a device."""
    name = memory.device_name(index_of(device))
    total = allocations.usage(name).capacity()
    return Properties(f"tinygrad {name}", 0 if total == allocations.UNLIMITED else total, os.cpu_count() or 1)


def get_device_name(device: Any = None) -> str:
    """The name of tinygrad's device, such as "tinygrad CPU"."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(0, 0): the device has no generations."""
    index_of(device)
    return 0, 0


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether one device's kernels can read another's memory: only its own; copies between devices go through the
    host.
    """
    return index_of(device) == index_of(peer_device)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 is computed in float32 and rounded where the CPU rounds; False without emulation."""
    return including_emulation


def is_tf32_supported() -> bool:
    """False: float32 is computed in float32."""
    return False


def get_arch_list() -> list[str]:
    """Empty: no code was compiled for generations of the device."""
    return []


def get_amp_supported_dtype() -> list[torch.dtype]:
    """dtypes that `torch.autocast("tiny", dtype=...)` accepts."""
    return [torch.bfloat16, torch.float16]


def ipc_collect() -> None:
    """No effect: tensors on tiny are not shared between processes."""


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had opened a device which does not work in a fork."""
    return bool(memory.LOST)


PUBLIC = (
    device_count, is_available, is_initialized, init, current_device, set_device, device, device_of, exchange_device,
    get_device_properties, get_device_name, get_device_capability, can_device_access_peer, is_bf16_supported,
    is_tf32_supported, get_arch_list, get_amp_supported_dtype, ipc_collect, _is_in_bad_fork,
)  # fmt: skip
