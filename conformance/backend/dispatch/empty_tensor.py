"""Empty tensors on a given tiny device, for a storage to be put under.

The key insight: torch's constructor for Python backends makes tensors on the current device only, and the current
device of a Python backend is always 0. DLPack names the index, so one empty tensor for each further device and dtype
comes through it, and the rest are aliases of that.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from ..runtime import torch_compat

_EXTENSION_DEVICE = 12  # kDLExtDev: what torch maps to PrivateUse1


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


def empty_tensor(dtype: torch.dtype, index: int) -> torch.Tensor:
    """A new tensor of no elements on `tiny:index`."""
    if index == 0:
        made: torch.Tensor = torch_compat.create_empty_tensor((0,), dtype)
        return made
    with torch_compat.below_autograd():
        return torch.ops.aten.alias.default(_template(dtype, index))


# DLDataTypeCode of dlpack.h for each kind of dtype.
_FLOAT8 = {
    torch.float8_e4m3fn: 10, torch.float8_e4m3fnuz: 11, torch.float8_e5m2: 12, torch.float8_e5m2fnuz: 13,
    torch.float8_e8m0fnu: 14,
}  # fmt: skip


def _code(dtype: torch.dtype) -> int:
    if dtype in _FLOAT8:
        return _FLOAT8[dtype]
    if dtype is torch.bool:
        return 6
    if dtype is torch.bfloat16:
        return 4
    if dtype.is_complex:
        return 5
    return 2 if dtype.is_floating_point else 0 if dtype.is_signed else 1


@functools.cache
def _template(dtype: torch.dtype, index: int) -> torch.Tensor:
    shape, strides = (ctypes.c_int64 * 1)(0), (ctypes.c_int64 * 1)(1)
    kind = _DType(_code(dtype), 8 * dtype.itemsize, 1)
    managed = _ManagedTensor(None, _Device(_EXTENSION_DEVICE, index), 1, kind, shape, strides, 0, None, None)
    _KEPT.append((managed, shape, strides))
    make: Any = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made: torch.Tensor = torch_compat.from_dlpack(make(ctypes.addressof(managed), b"dltensor", None))
    return made


_KEPT: list[Any] = []  # what a capsule points to must outlive it
