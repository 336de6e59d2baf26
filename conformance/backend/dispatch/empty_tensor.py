"""New tensors on a given tiny device, with their memory and geometry, or empty.

Defines `Mold`, and `empty_tensor`, whose storage the caller replaces.

torch's constructor for Python backends makes empty tensors on the current device only, which is always device 0 for a
Python backend. DLPack carries the device's index, the memory and the geometry, so one call makes the tensor. The DLPack
structure is filled in again for the next tensor of another geometry.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..runtime import torch_compat
from ..runtime.lock import LOCK

_EXTENSION_DEVICE = 12  # kDLExtDev: torch maps it to PrivateUse1


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h, flattened; no deleter, since there is nothing to free."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


_CODES = {
    torch.int8: 0, torch.int16: 0, torch.int32: 0, torch.int64: 0,
    torch.uint8: 1, torch.uint16: 1, torch.uint32: 1, torch.uint64: 1,
    torch.float16: 2, torch.float32: 2, torch.float64: 2, torch.bfloat16: 4,
    torch.complex32: 5, torch.complex64: 5, torch.complex128: 5, torch.bool: 6,
    torch.float8_e4m3fn: 10, torch.float8_e4m3fnuz: 11, torch.float8_e5m2: 12, torch.float8_e5m2fnuz: 13,
    torch.float8_e8m0fnu: 14,
}  # fmt: skip
"""DLDataTypeCode of dlpack.h for the dtypes that torch takes from DLPack."""


def is_describable(dtype: torch.dtype) -> bool:
    """Whether `Mold` supports this dtype; it does not support torch's integers of less than a byte, for
    example.
    """
    return dtype in _CODES


class _Described:
    """The DLPack structure for tensors of one dtype, device and number of dimensions. It is never freed: the storages
    that torch makes from it hold its address.
    """

    def __init__(self, dtype: torch.dtype, index: int, dims: int) -> None:
        self.shape, self.strides = (ctypes.c_int64 * dims)(), (ctypes.c_int64 * dims)()
        kind = _DType(_CODES[dtype], 8 * dtype.itemsize, 1)
        device = _Device(_EXTENSION_DEVICE, index)
        self.managed = _ManagedTensor(None, device, dims, kind, self.shape, self.strides, 0, None, None)
        self.address = ctypes.addressof(self.managed)
        self.mold: Mold | None = None  # the geometry that the structure holds


_new_capsule: Any = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_described: dict[tuple[torch.dtype, int, int], _Described] = {}


class Mold:
    """The dtype and geometry of new tensors on `tiny:index`."""

    __slots__ = ("_described", "_size", "_stride")

    def __init__(self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], index: int) -> None:
        """Raises KeyError for a dtype that is not describable."""
        key = (dtype, index, len(size))
        with LOCK:
            if key not in _described:
                _described[key] = _Described(*key)
        self._described, self._size, self._stride = _described[key], size, stride

    def tensor_at(self, address: int) -> torch.Tensor:
        """A new tensor, whose storage is new and begins at `address`."""
        described = self._described
        with LOCK:
            if described.mold is not self:
                described.shape[:] = self._size  # type: ignore[call-overload]
                described.strides[:] = self._stride  # type: ignore[call-overload]
                described.mold = self
            described.managed.data = address
            result: torch.Tensor = torch_compat.from_dlpack(_new_capsule(described.address, b"dltensor", None))
            return result


def empty_tensor(dtype: torch.dtype, index: int) -> torch.Tensor:
    """A new tensor of no elements on `tiny:index`. If index is not 0, raises KeyError for a dtype that DLPack lacks."""
    if index == 0:
        result: torch.Tensor = torch_compat.create_empty_tensor((0,), dtype)
        return result
    with torch_compat.below_autograd():
        return torch.ops.aten.alias.default(_template(dtype, index))


@functools.cache
def _template(dtype: torch.dtype, index: int) -> torch.Tensor:
    return Mold(dtype, (0,), (1,), index).tensor_at(0)
