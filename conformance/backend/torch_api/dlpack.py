"""DLPack, the protocol by which libraries share tensors.

Defines `install`. Within torch a tensor of the device shares its storage, as on any device. Another library would have
to read the storage's address, which is not memory. It gets a copy on the CPU if it asks for the CPU, and otherwise one
sentence with the remedy:

    torch.from_dlpack(x)                    # shares the storage of x
    numpy.from_dlpack(x, device="cpu")      # a copy
    numpy.from_dlpack(x)                    # BufferError
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from .replacements import replace_on_first_use

REFUSED = (
    "tiny: DLPack shares memory by its address, and memory of this device has none: ask for a copy on the CPU, as in "
    'from_dlpack(x, device="cpu") or x.cpu()'
)


def install() -> None:
    """Serve DLPack for tensors of the device."""
    replace_on_first_use("torch:Tensor.__dlpack_device__", _naming_device)
    replace_on_first_use("torch:Tensor.__dlpack__", _exporting)
    for module in ("torch", "torch.utils.dlpack"):
        replace_on_first_use(f"{module}:from_dlpack", _importing)
        replace_on_first_use(f"{module}:to_dlpack", _making_capsules)


def _naming_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def dlpack_device(self: torch.Tensor) -> tuple[DLDeviceType, int]:
        """torch's own compares the type with the name that the device had before it was called `tiny`."""
        return (DLDeviceType.kDLExtDev, self.device.index) if self.device.type == "tiny" else original(self)

    return dlpack_device


def _exporting(original: Callable[..., Any]) -> Callable[..., Any]:
    def dlpack(self: torch.Tensor, *, dl_device: Any = None, copy: bool | None = None, **options: Any) -> Any:
        """A capsule for a consumer that is not torch: of a copy on the CPU, or none."""
        if self.device.type != "tiny":
            return original(self, dl_device=dl_device, copy=copy, **options)
        if dl_device is None or dl_device[0] != DLDeviceType.kDLCPU or copy is False:
            raise BufferError(REFUSED)
        return original(self.cpu(), **options)

    return dlpack


def _importing(original: Callable[..., Any]) -> Callable[..., Any]:
    def from_dlpack(
        ext_tensor: Any, *, device: torch.device | str | None = None, copy: bool | None = None
    ) -> torch.Tensor:
        """torch.from_dlpack."""
        if not isinstance(ext_tensor, torch.Tensor) or ext_tensor.device.type != "tiny":
            return original(ext_tensor, device=device, copy=copy)  # type: ignore[no-any-return]
        if ext_tensor.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        target = ext_tensor.device if device is None else torch.device(device)
        if target.type == "tiny" and target.index in (None, ext_tensor.device.index):
            return ext_tensor.clone() if copy else ext_tensor.detach()
        if copy is False:
            raise ValueError(f"cannot move DLPack tensor from {ext_tensor.device} to {target} without copying")
        return ext_tensor.to(target)

    return from_dlpack


def _making_capsules(original: Callable[..., Any]) -> Callable[..., Any]:
    def to_dlpack(tensor: torch.Tensor) -> Any:
        """torch.utils.dlpack.to_dlpack, whose capsule names no device that a consumer wants."""
        if tensor.device.type == "tiny":
            raise BufferError(REFUSED)
        return original(tensor)

    return to_dlpack
