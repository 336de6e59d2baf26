"""Storages on tiny through every public interface: construction, resizing, moving, copying.

Defines `install`. torch's own storage methods use an allocator, which a device registered from Python does not have:
some raise, some crash the process. For tiny's storages, each of them is replaced by the functions that the whole device
uses to make and change storages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..lazy import access
from ..lazy.storage import allocate
from ..runtime import torch_compat
from ..runtime.lock import locked
from .devices import index_of

_storages = torch.library.Library("aten", "IMPL")


def install() -> None:
    """Serve storages on tiny; storages of other devices keep torch's methods."""
    _serve_constructor()
    methods: dict[str, Callable[..., Any]] = {
        "resize_": _resize, "new": _new, "byteswap": _byteswap,
        "is_shared": lambda self: False,  # torch returns True for all memory of accelerators
    }  # fmt: skip
    _refuse_slices()
    for name, method in methods.items():
        _replace(name, method)
    torch_compat.make_storage_methods("tiny")
    _pin_by_copying()
    _storages.impl("from_file", refuse_file, "PrivateUse1")


def refuse_file(*_: Any, **__: Any) -> Any:
    """Raise NotImplementedError: a file can only be mapped to host memory."""
    raise NotImplementedError(
        "tiny: a file cannot be mapped into the device's memory: torch.from_file without a device maps it on the CPU, "
        'and .to("tiny") copies from there'
    )


def _serve_constructor() -> None:
    """Replace the constructor: PrivateUse1 has no allocator, so torch's own would crash on device="tiny"."""
    original: Any = torch.UntypedStorage.__new__

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "tiny":
            return original(cls, *args, **kwargs) if device is None else original(cls, *args, device=device, **kwargs)
        index = index_of(device)
        if not args:
            return allocate(0, index)
        if len(args) == 1 and isinstance(args[0], int) and not isinstance(args[0], bool):
            return allocate(_checked(args[0]), index)
        values = original(cls, *args).tolist()  # refused as on the CPU
        made = allocate(len(values), index)
        made.copy_(torch.tensor(values, dtype=torch.uint8, device="cpu").untyped_storage())
        return made

    torch.UntypedStorage.__new__ = staticmethod(new)  # type: ignore[method-assign,assignment]


def _replace(name: str, method: Callable[..., Any]) -> None:
    original: Any = getattr(torch.UntypedStorage, name)
    method = locked(method)

    def chosen(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "tiny":
            return method(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    chosen.__name__, chosen.__doc__ = name, original.__doc__
    setattr(torch.UntypedStorage, name, chosen)


def _refuse_slices() -> None:
    """Refuse slices of storages: a slice would begin inside another storage, which the device does not support."""
    original: Any = torch.UntypedStorage.__getitem__

    def getitem(self: torch.UntypedStorage, index: Any) -> Any:
        if isinstance(index, slice) and self.device.type == "tiny":
            raise NotImplementedError("tiny: a storage has no slices: slice a tensor over it, or its copy from .cpu()")
        return original(self, index)

    torch.UntypedStorage.__getitem__ = getitem  # type: ignore[method-assign,assignment]


def _checked(nbytes: int) -> int:
    if nbytes < 0:
        raise RuntimeError(f"tiny: a storage cannot have {nbytes} bytes")
    return nbytes


def _resize(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    access.resize(self, _checked(int(size)))
    return self


def _new(self: torch.UntypedStorage) -> torch.UntypedStorage:
    return allocate(0, self.device.index or 0)


def _byteswap(self: torch.UntypedStorage, dtype: torch.dtype) -> None:
    host = self.cpu()
    host.byteswap(dtype)
    self.copy_(host)


def _pin_by_copying() -> None:
    """Make `pin_memory()` of a CPU tensor a copy marked as pinned: all host memory has the same transfer speed."""

    def pinned(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        made = self.clone()
        made.untyped_storage()._pinned = True  # type: ignore[attr-defined]
        return made

    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        return bool(getattr(self.untyped_storage(), "_pinned", False))

    _storages.impl("_pin_memory", pinned, "CPU")
    _storages.impl("is_pinned", is_pinned, "CPU")
