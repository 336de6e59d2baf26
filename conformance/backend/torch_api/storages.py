"""Storages on tiny through every public interface: construction, resizing, moving, copying.

Defines `install`. torch's own storage methods use an allocator, which a device registered from Python does not have:
some raise, some crash the process. For tiny's storages, each of them is replaced by the functions that the whole device
uses to make and change storages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..lazy import access
from ..lazy.storage import allocate
from ..runtime.lock import locked
from .devices import index_of
from .replacements import replace_at_import, replace_on_first_use

_storages = torch.library.Library("aten", "IMPL")


def install() -> None:
    """Serve storages on tiny; storages of other devices keep torch's methods."""
    replace_at_import("torch.storage:UntypedStorage.__new__", _constructing)
    methods: dict[str, Callable[..., Any]] = {
        "resize_": _resize, "new": _new, "byteswap": _byteswap,
        "is_shared": lambda self: False,  # torch returns True for all memory of accelerators
    }  # fmt: skip
    for name, method in methods.items():
        replace_on_first_use(f"torch.storage:UntypedStorage.{name}", functools.partial(_choosing, locked(method)))
    replace_on_first_use("torch.storage:UntypedStorage.__getitem__", _refusing_slices)
    _storages.impl("_pin_memory", _pinned, "CPU")
    _storages.impl("from_file", refuse_file, "PrivateUse1")


def refuse_file(*_: Any, **__: Any) -> Any:
    """Raise NotImplementedError: a file can only be mapped to host memory."""
    raise NotImplementedError(
        "tiny: a file cannot be mapped into the device's memory: torch.from_file without a device maps it on the CPU, "
        'and .to("tiny") copies from there'
    )


def _constructing(original: Any) -> Any:
    """The constructor: PrivateUse1 has no allocator, so torch's own would crash on device="tiny"."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return original(cls, *args)
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "tiny":
            return original(cls, *args, **kwargs)
        del kwargs["device"]
        index = index_of(device)
        if not args and not kwargs:
            return allocate(0, index)
        if len(args) == 1 and isinstance(args[0], int) and not isinstance(args[0], bool):
            return allocate(_checked(args[0]), index)
        values = original(cls, *args, **kwargs).tolist()  # refused as on the CPU
        result = allocate(len(values), index)
        result.copy_(torch.tensor(values, dtype=torch.uint8, device="cpu").untyped_storage())
        return result

    new.__annotations__ = {}  # the signature of the class stays
    return staticmethod(new)


def _choosing(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """The method for storages on tiny, and torch's own for others."""

    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def chosen(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "tiny":
            return method(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return chosen


def _refusing_slices(original: Callable[..., Any]) -> Callable[..., Any]:
    """Indexing without slices: a slice would begin inside another storage, which the device does not support."""

    def getitem(self: torch.UntypedStorage, index: Any) -> Any:
        if isinstance(index, slice) and self.device.type == "tiny":
            raise NotImplementedError("tiny: a storage has no slices: slice a tensor over it, or its copy from .cpu()")
        return original(self, index)

    return getitem


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


def _pinned(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """`pin_memory()` of a CPU tensor: a copy marked as pinned, since all host memory has the same transfer speed."""
    _serve_is_pinned()
    result = self.clone()
    result.untyped_storage()._pinned = True  # type: ignore[attr-defined]
    return result


@functools.cache
def _serve_is_pinned() -> None:
    """Recognize marked copies. Until there is one, torch's own kernel serves, which is three times as fast."""
    _storages.impl("is_pinned", _is_pinned, "CPU")


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return bool(getattr(self.untyped_storage(), "_pinned", False))
