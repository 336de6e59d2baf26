"""A device in plain Python, registered as `foreign`: host memory behind the key PrivateUse1, and CPU kernels on it.

Each function at the end registers the device, as `device:foreign,import=foreign_device,call=whole`. They differ in the
operators that have no kernel, for which torch raises its own not-implemented errors. The device has no streams, so
`torch.accelerator.synchronize` raises. Its memory is never freed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._C import DispatchKey

CPU, EXTENSION = 1, 12
"""kDLCPU and kDLExtDev of dlpack.h; torch maps the second to PrivateUse1."""

CODES = {
    torch.int8: 0, torch.int16: 0, torch.int32: 0, torch.int64: 0, torch.uint8: 1,
    torch.float16: 2, torch.float32: 2, torch.float64: 2, torch.bfloat16: 4,
    torch.complex64: 5, torch.complex128: 5, torch.bool: 6,
}  # fmt: skip
"""DLDataTypeCode by dtype: the dtypes that the device holds."""

METADATA = (
    *("as_strided", "view", "_reshape_alias", "unfold", "is_set_to"),
    *("set_.source_Storage_storage_offset", "set_.source_Tensor", "set_.source_Storage"),
)
"""Operators that read no memory. torch's CPU kernels implement them."""

CONVOLUTIONS = ("convolution_overrideable", "convolution_backward_overrideable")
"""Operators whose composite kernel in torch raises unless the device registers its own kernel."""


class _Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h, flattened."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("index", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_kept: list[Any] = []


def _flat(kind: int, address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return a 1-d tensor over the memory at this address."""
    shape, strides = (ctypes.c_int64 * 1)(count), (ctypes.c_int64 * 1)(1)
    managed = _Managed(address, kind, 0, 1, CODES[dtype], 8 * dtype.itemsize, 1, shape, strides, 0, None, None)
    _kept.append((managed, shape, strides))
    flat: torch.Tensor = torch._C._from_dlpack(_capsule(ctypes.addressof(managed), b"dltensor", None))
    return flat


def _borrowed(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: op._op_dk(DispatchKey.CPU, *args, **kwargs)


def _new(dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    count = 1 + sum((n - 1) * st for n, st in zip(size, stride, strict=True)) if 0 not in size else 0
    memory = torch.zeros(max(count, 1), dtype=dtype)
    _kept.append(memory)
    return torch.ops.aten.as_strided(_flat(EXTENSION, memory.data_ptr(), dtype, count), tuple(size), tuple(stride), 0)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    like = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    return _new(dtype, tuple(map(int, like.shape)), like.stride())


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> torch.Tensor:
    return _new(dtype or torch.get_default_dtype(), size, stride)


def _resize(self: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    like = torch.empty(size, dtype=self.dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    if tuple(like.shape) == tuple(self.shape):
        return self
    storage, offset = self.untyped_storage(), self.storage_offset()
    if storage.nbytes() < (offset + like.numel()) * self.itemsize:
        grown, old = _new(self.dtype, (int(offset + like.numel()),), (1,)), storage.nbytes() // self.itemsize
        ctypes.memmove(grown.data_ptr(), storage.data_ptr(), old * self.itemsize) if old else None
        storage = grown.untyped_storage()
    return torch.ops.aten.set_.source_Storage_storage_offset(self, storage, offset, like.shape, like.stride())


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the tensor's own memory."""
    storage = tensor.untyped_storage()
    flat = _flat(CPU, storage.data_ptr(), tensor.dtype, storage.nbytes() // tensor.itemsize)
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _computed(op: Any) -> Callable[..., Any]:
    """Return a kernel that runs the CPU kernel on the same memory."""
    returns = op._schema.returns
    names = [argument.name for argument in op._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        def host(leaf: Any) -> Any:
            if isinstance(leaf, (list, tuple)):
                return [host(part) for part in leaf]
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "foreign":
                return _on_host(leaf)
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        def back(result: Any) -> Any:
            if isinstance(result, (list, tuple)):
                return type(result)(map(back, result))
            if not isinstance(result, torch.Tensor):
                return result
            there = _new(result.dtype, result.shape, result.stride())
            _on_host(there).copy_(result)
            return there

        operands = {**dict(zip(names, args, strict=False)), **kwargs}
        written = {
            alias: operands[argument.name]
            for argument in op._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
            for alias in argument.alias_info.after_set
        }
        on_host = {name: host(value) for name, value in operands.items()}
        for argument in op._schema.arguments:  # an out= tensor grows here, before the CPU kernel reads its memory
            if argument.is_out and isinstance(operands.get(argument.name), torch.Tensor):
                on_host[argument.name] = on_host[argument.name].clone()
        result = op(*[on_host[name] for name in names[: len(args)]], **{name: on_host[name] for name in kwargs})
        for argument in op._schema.arguments:
            if argument.is_out and isinstance(operands.get(argument.name), torch.Tensor):
                _resize(operands[argument.name], on_host[argument.name].shape)
                _on_host(operands[argument.name]).copy_(on_host[argument.name])
        if len(returns) == 1 and returns[0].alias_info is not None:
            return next((written[name] for name in returns[0].alias_info.after_set if name in written), back(result))
        if returns and all(returned.alias_info is not None for returned in returns):
            return tuple(written[next(iter(returned.alias_info.after_set))] for returned in returns)
        return back(result)

    return kernel


def _register(*absent: str) -> None:
    """Register the device without kernels for these operators."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    module = ModuleType("torch.foreign")
    module.is_available, module.device_count, module.current_device = lambda: True, lambda: 1, lambda: 0  # type: ignore[attr-defined]
    _setup_privateuseone_for_python_backend("foreign", backend_module=module)
    torch.autograd.set_multithreading_enabled(False)
    aten = torch.library.Library("aten", "IMPL")
    _kept.append(aten)
    own = {"empty.memory_format": _empty, "empty_strided": _empty_strided, "resize_": _resize}
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if name == full or name in absent:
            continue
        op = _overload(name)
        if name in own or name in METADATA:
            aten.impl(name, own.get(name) or _borrowed(op), "PrivateUse1")
        elif name in CONVOLUTIONS:
            aten.impl(name, _computed(_overload(name.replace("_overrideable", ""))), "PrivateUse1")
        elif name == "copy_" or (
            op is not None
            and has(full, "CPU")
            and not any(has(full, key) for key in ("CompositeExplicitAutograd", "CompositeImplicitAutograd"))
        ):
            aten.impl(name, _computed(op), "PrivateUse1")


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def whole() -> None:
    """Register the device with a kernel for every operator."""
    _register()


def without_convolution() -> None:
    """Register the device without convolution kernels, so that torch's composite convolution raises."""
    _register(*CONVOLUTIONS)


def without_convolution_and_set() -> None:
    """Register the device without `set_` and convolution kernels. The harness builds inputs with `as_strided`."""
    _register(*CONVOLUTIONS, "set_.source_Storage_storage_offset")
