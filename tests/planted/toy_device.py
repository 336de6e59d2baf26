"""A toy Python device with planted bugs: `device:toy,import=toy_device`.

A tensor of the device uses CPU memory under the dispatch key PrivateUse1, with real strides and storages. Each operator
runs on CPU tensors over the same memory. `TOY_FAULTS` selects faults by name, separated by commas. By default the
device has the faults in `FAULTS`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.dlpack import from_dlpack, to_dlpack

FAULTS = ("lost_copy_", "relu", "unfold")
LUCKY_MEMORY = "lucky_memory"
"""Fault: new memory holds the values that the last lost copy should have written. Without it, new memory holds
`UNWRITTEN`, so that no lost copy is right by chance."""
UNWRITTEN = 99
NO_FILL = "no_fill_"
"""Fault: the device lacks `fill_`."""
LOST = "lost_after_sort"
"""Fault: `sort` fails, and after it every operator fails until the process ends."""
ALL = (*FAULTS, LUCKY_MEMORY, NO_FILL, LOST)
CPU, EXTENSION = 1, 12
"""DLPack's device types."""

_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def chosen() -> frozenset[str]:
    """The faults that `TOY_FAULTS` selects. Raises ValueError for an unknown name."""
    names = os.environ.get("TOY_FAULTS", ",".join(FAULTS))
    faults = frozenset(filter(None, names.split(",")))
    if not faults <= {*ALL}:
        raise ValueError(f"TOY_FAULTS={names}: choose from {', '.join(ALL)}")
    return faults


def relabelled(flat: torch.Tensor, device_type: int) -> torch.Tensor:
    """Return a tensor over the same memory on another device. `flat` is contiguous and covers its storage."""
    capsule = to_dlpack(flat.detach())
    ctypes.c_int.from_address(_pointer(capsule, b"dltensor") + 8).value = device_type  # behind the data pointer
    return from_dlpack(capsule)


def laid_over(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a view of `flat` with the dtype and geometry of `like`."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # views compute metadata only, on any device
    with torch._C._AutoDispatchBelowAutograd():
        if flat.dtype is not like.dtype:
            flat = torch.ops.aten.view.dtype.redispatch(keys, flat, like.dtype)
        geometry = like.size(), like.stride(), like.storage_offset()
        return torch.ops.aten.as_strided.default.redispatch(keys, flat, *geometry)


def covering(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat view of the whole storage of a tensor."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.ops.aten.as_strided.default.redispatch(keys, tensor.detach(), (count,), (1,), 0)


class Call:
    """One call on the device, with a CPU tensor for each storage among its arguments."""

    def __init__(self) -> None:
        self.flats: dict[int, torch.Tensor] = {}
        """The flat CPU tensors, keyed by the storages of the device."""
        self.there: dict[int, torch.Tensor] = {}
        """The flat device tensors, keyed by the storages of the CPU tensors."""

    def host(self, value: Any) -> Any:
        """Return the CPU tensor of a device tensor, the CPU for the device, and any other value unchanged."""
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor) or value.device.type != "toy":
            return value
        key = value.untyped_storage()._cdata
        if key not in self.flats:
            there = covering(value)
            self.flats[key] = here = relabelled(there, CPU)
            self.there[here.untyped_storage()._cdata] = there
        return laid_over(self.flats[key], value)

    def back(self, value: Any) -> Any:
        """Return the device tensor of a CPU tensor: over the storage of an argument, or a new one."""
        if not isinstance(value, torch.Tensor):
            return value
        there = self.there.get(value.untyped_storage()._cdata)
        there = relabelled(covering(value), EXTENSION) if there is None else there
        return laid_over(there, value)

    def follow(self, there: Any, here: Any) -> None:
        """Give a written tensor the geometry and memory that the operator gave to its CPU tensor, as `out=` does."""
        if isinstance(there, (list, tuple)):
            for pair in zip(there, here, strict=True):
                self.follow(*pair)
        elif isinstance(there, torch.Tensor) and (there.size(), there.stride()) != (here.size(), here.stride()):
            moved = self.back(here)
            geometry = moved.storage_offset(), moved.size(), moved.stride()
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
            with torch._C._AutoDispatchBelowAutograd():
                set_ = torch.ops.aten.set_.source_Storage_storage_offset
                set_.redispatch(keys, there, moved.untyped_storage(), *geometry)


lost: list[torch.Tensor] = []
"""The source of the last lost copy, on the CPU."""


broken: list[str] = []
"""The operator that broke the device, if one did."""


def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the CPU with the selected faults."""
    faults, name, call = chosen(), op.overloadpacket.__name__, Call()
    raw_args, raw_kwargs = tree_map(call.host, args), tree_map(call.host, kwargs)
    if LOST in faults and (name == "sort" or broken):
        broken.append(name)
        raise RuntimeError(f"toy error: assertion failed in {broken[0]}")
    if name == NO_FILL.removeprefix("no_") and NO_FILL in faults:
        raise NotImplementedError("fill_ on toy")
    if name == "_copy_from":  # every `copy_` from, to or within the device
        source, destination = args[:2]
        if not ("lost_copy_" in faults and source.device == destination.device and source.dim() == 2):
            raw_args[1].copy_(raw_args[0])
        else:
            lost[:] = [raw_args[0].clone()]
        return destination
    if name == "resize_" and raw_args[0].numel() != torch.Size(args[1]).numel():
        grown = torch.zeros(args[1], dtype=args[0].dtype)  # memory shared by DLPack cannot grow
        count = min(grown.numel(), raw_args[0].numel())
        grown.view(-1)[:count].copy_(raw_args[0].reshape(-1)[:count])
        call.follow(args[0], grown)
        return args[0]
    numbers = any(isinstance(value, (bool, int, float, complex)) and isinstance(argument.type, torch.TensorType)
                  for value, argument in zip(raw_args, op._schema.arguments))  # fmt: skip
    # torch wrapped the number as a tensor. It arrives here as a number again, which needs another overload.
    result = (op.overloadpacket if numbers else op)(*raw_args, **raw_kwargs)
    if name.startswith("empty"):
        lucky = LUCKY_MEMORY in faults and lost and lost[0].shape == result.shape
        result.copy_(lost[0]) if lucky else result.fill_(UNWRITTEN)
    if name == "relu" and "relu" in faults:
        result = torch.where(raw_args[0] < 0, raw_args[0] * 0.01, result).to(result.dtype)  # a leaky relu
    if name == "unfold" and "unfold" in faults:
        result = result.clone()  # a copy instead of a view
    written = [*written_by(op, args, kwargs)]
    for there, here in zip(written, written_by(op, raw_args, raw_kwargs), strict=True):
        call.follow(there, here)
    if isinstance(result, torch.Tensor) and written:
        return written[0]
    return tuple(written) if len(written) > 1 else tree_map(call.back, result)


def written_by(op: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the arguments that the operator writes according to its schema."""
    for at, argument in enumerate(op._schema.arguments):
        if argument.is_write:
            yield args[at] if at < len(args) else kwargs[argument.name]


_setup_privateuseone_for_python_backend("toy")
_library = torch.library.Library("_", "IMPL")
_library.fallback(kernel, "PrivateUse1")
