"""Kernels that change or read only metadata: views, resize_, set_, empty.

torch's CPU kernels for these never access memory, so they are correct for any device. This module adds only kernels
that depend on a storage's size or on an element's size.

This module must not depend on values.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.deterministic

from ..lazy import access, layout
from ..lazy import layout as layout_  # `layout` is an argument of factories
from ..lazy.storage import allocate
from ..runtime import torch_compat
from .tensors import CPU, SET, Spec, new_tensor, tensor_on

aten = torch.ops.aten

# Overloads served by torch's own CPU kernel.
BORROWED = (
    aten.as_strided.default,
    aten.view.default,
    aten._reshape_alias.default,
    aten.unfold.default,
    aten.is_set_to.default,
)  # fmt: skip


def borrowed(op: Any) -> Callable[..., Any]:
    """torch's CPU kernel of an operator that uses metadata only."""
    kernel = op._op_dk

    def call(*args: Any, **kwargs: Any) -> Any:
        return kernel(CPU, *args, **kwargs)

    return call


def _index(device: Any) -> int:
    index = torch.device(device).index if device is not None else None
    return torch.tiny.current_device() if index is None else index  # type: ignore[attr-defined]


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    """aten::empty.memory_format; memory reads as zeros, or as the fill value of deterministic mode."""
    _refuse_pinned(pin_memory)
    if memory_format is None and dtype is not None and all(type(s) is int and s >= 0 for s in size):
        shape = tuple(size)
        strides = layout_.contiguous_strides(shape)
        return _filled(new_tensor(Spec(dtype, shape, strides), _checked(_index(device))))
    meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    return _filled(new_tensor(Spec(meta.dtype, tuple(meta.size()), tuple(meta.stride())), _checked(_index(device))))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> torch.Tensor:
    """aten::empty_strided: exactly these strides."""
    _refuse_pinned(pin_memory)
    spec = _strided(tuple(size), tuple(stride), torch.get_default_dtype() if dtype is None else dtype)
    return _filled(new_tensor(spec, _checked(_index(device))))


def _refuse_pinned(pin_memory: bool | None) -> None:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")  # as CUDA says


@functools.lru_cache(maxsize=2048)
def _strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Spec:
    """Metadata that torch CPU accepts; raises its error otherwise."""
    if len(size) == len(stride) and all(n > 0 for n in size):
        moves = [(n - 1) * step for n, step in zip(size, stride, strict=True)]
        if min(moves, default=0) < 0 or (sum(moves) + 1) * dtype.itemsize >= 1 << 63:
            raise RuntimeError(
                f"Storage size calculation overflowed with sizes={list(size)} and strides={list(stride)}"
            )
    torch.empty_strided(size, stride, dtype=dtype, device="meta")
    return Spec(dtype, size, stride)


def _filled(memory: torch.Tensor) -> torch.Tensor:
    """New memory, filled as `torch.utils.deterministic` requires: with nan, or the largest number of its dtype."""
    fills = torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if fills:
        dtype = memory.dtype
        numeric = dtype.is_floating_point or dtype.is_complex
        aten.fill_.Scalar(memory, math.nan if numeric else dtype is torch.bool or torch.iinfo(dtype).max)
    return memory


def _checked(index: int) -> int:
    if index == 0:
        return 0
    count = torch.tiny.device_count()  # type: ignore[attr-defined]
    if not 0 <= index < count:
        raise RuntimeError(f"tiny: there is no device tiny:{index}; TINY_DEVICES says how many there are, now {count}")
    return index


def _view(
    self: torch.Tensor, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """A view of a tensor with this geometry and its negative bit. In inference mode, a view of a normal tensor is a
    normal tensor.
    """
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() and not self.is_inference() else _NO_MODE:
        view = tensor_on(self.untyped_storage(), dtype, size, stride, offset)
    torch_compat.set_neg(view, self.is_neg())
    return view


_NO_MODE = contextlib.nullcontext()


def _with_bits(shape: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """A meta tensor with the conjugate and negative bits of another tensor, which views of other dtypes refuse."""
    torch_compat.set_conj(shape, of.is_conj())
    torch_compat.set_neg(shape, of.is_neg())
    return shape


def view_dtype(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """aten::view.dtype; size, strides and errors from the meta kernel, the offset in the new element's size."""
    shape = torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device="meta")
    old, new = self.dtype.itemsize, dtype.itemsize
    if self.storage_offset() * old % new:
        # torch's error message contains the offset, so the meta tensor needs it.
        base = torch.empty(self.untyped_storage().nbytes(), dtype=torch.uint8, device="meta")
        shape = torch.empty(0, dtype=self.dtype, device="meta").set_(  # type: ignore[call-overload]
            base.untyped_storage(), self.storage_offset(), self.size(), self.stride()
        )
    changed = _with_bits(shape, self).view(dtype)
    return tensor_on(
        self.untyped_storage(), dtype, changed.size(), changed.stride(), int(self.storage_offset()) * old // new
    )


def view_as_real(self: torch.Tensor) -> torch.Tensor:
    """aten::view_as_real: a last dimension of 2, strides and offset counted in reals; errors from the meta kernel."""
    shape = torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device="meta")
    meta = torch.view_as_real(_with_bits(shape, self))
    return _view(self, meta.dtype, meta.size(), meta.stride(), 2 * int(self.storage_offset()))


def view_as_complex(self: torch.Tensor) -> torch.Tensor:
    """aten::view_as_complex: the last dimension of 2 becomes the pair; errors from the meta kernel."""
    base = torch.empty(self.untyped_storage().nbytes(), dtype=torch.uint8, device="meta")
    shape = torch.empty(0, dtype=self.dtype, device="meta").set_(  # type: ignore[call-overload]
        base.untyped_storage(), self.storage_offset(), self.size(), self.stride()
    )
    changed = torch.view_as_complex(shape)
    return _view(self, changed.dtype, changed.size(), changed.stride(), int(changed.storage_offset()))


def _reach(size: Sequence[int], stride: Sequence[int], offset: int, itemsize: int) -> int:
    extent = layout.plan(tuple(size), tuple(stride)).extent
    return (offset + extent) * itemsize if extent else 0


def resize_(self: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
    """aten::resize_: the storage grows in place if necessary, so that views still share it."""
    if tuple(self.size()) == tuple(size) and memory_format is None:
        return self
    meta = torch.empty(size, dtype=self.dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    need = _reach(meta.size(), meta.stride(), int(self.storage_offset()), self.dtype.itemsize)
    store = self.untyped_storage()
    old = store.nbytes()
    if need > old:
        access.resize(store, need)
        cells = [size // self.dtype.itemsize for size in (old, need)]
        _filled(tensor_on(store, self.dtype, (cells[1] - cells[0],), (1,), cells[0]))
    return SET(self, store, self.storage_offset(), meta.size(), meta.stride())


def set_storage_offset(
    self: torch.Tensor, source: Any, storage_offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """aten::set_.source_Storage_storage_offset; a storage that is too small grows, as on CPU."""
    store = source.untyped() if isinstance(source, torch.TypedStorage) else source
    strides = tuple(stride) if stride or not size else layout.contiguous_strides(size)
    need = _reach(size, strides, storage_offset, self.dtype.itemsize)
    if need > store.nbytes():
        access.resize(store, need)
    return SET(self, store, storage_offset, size, strides)


def set_storage(self: torch.Tensor, source: Any) -> torch.Tensor:
    """aten::set_.source_Storage: the whole storage, one-dimensional."""
    store = source.untyped() if isinstance(source, torch.TypedStorage) else source
    return SET(self, store, 0, (store.nbytes() // self.dtype.itemsize,), (1,))


def set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """aten::set_.source_Tensor: the geometry and storage of another tensor."""
    return SET(self, source.untyped_storage(), source.storage_offset(), source.size(), source.stride())


def set_empty(self: torch.Tensor) -> torch.Tensor:
    """aten::set_: a new, empty storage."""
    return SET(self, allocate(0, self.device.index or 0), 0, (0,), (1,))


def lazy_clone(self: torch.Tensor) -> torch.Tensor:
    """aten::_lazy_clone: the same geometry over a copy of the whole storage, which is computed when it is read."""
    copied = self.untyped_storage().clone()
    return tensor_on(copied, self.dtype, self.size(), self.stride(), int(self.storage_offset()))


def record_stream(self: torch.Tensor, s: Any) -> None:
    """aten::record_stream: no effect, since memory is not reused while the program uses it."""


KERNELS: dict[str, Callable[..., Any]] = {
    "_lazy_clone": lazy_clone,
    "record_stream": record_stream,
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "view.dtype": view_dtype,
    "view_as_real": view_as_real,
    "view_as_complex": view_as_complex,
    "resize_": resize_,
    "set_.source_Storage_storage_offset": set_storage_offset,
    "set_.source_Storage": set_storage,
    "set_.source_Tensor": set_tensor,
    "set_": set_empty,
}
