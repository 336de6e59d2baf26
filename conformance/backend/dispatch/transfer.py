"""Transfers between host and device: `copy_` in every direction, whole storages, single numbers.

A transfer moves memory, not elements. The whole storage is copied and viewed again on the other side, so a copy out
needs no gather kernel and keeps all strides. Elements are gathered on the side where that is free.

This module must not depend on operators other than copies.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any

import torch
from tinygrad.uop.ops import UOp

from ..lazy import flush, layout
from ..lazy.dtypes import COMPUTED, TORCH, element
from ..lazy.storage import LazyStorage, lazy_storage, storage_of, storage_to_read
from ..runtime import memory, torch_compat
from ..runtime.warn import warn_once
from . import overlap
from .queued_copies import queued
from .tensors import assign, check_writable, elements, fill, geometry, is_tiny

_NAN = struct.pack("d", math.nan)
_DISCARDED = "Casting complex values to real discards the imaginary part"


def host_bytes(lazy: LazyStorage, needed: int | None = None) -> torch.Tensor:
    """The storage's bytes as a flat uint8 CPU tensor; the storage must have been flushed.

    If the host can address the device's memory, the result shares it: copy the result before any write.
    """
    if not lazy.nbytes:  # an empty buffer is never allocated
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    memory, number = flush.to_host(lazy, needed)
    if memory is None:
        assert number is not None
        real = TORCH[lazy.dtype]
        return torch.full((-(-lazy.nbytes // real.itemsize),), number, dtype=real, device="cpu").view(torch.uint8)[
            : lazy.nbytes
        ]
    return torch.frombuffer(memory, dtype=torch.uint8, count=lazy.nbytes)


def on_host(tensor: torch.Tensor, host: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """A CPU tensor on the storage of `host`, with the geometry and the conjugate and negative bits of `tensor`.

    `host` holds the bytes of the tensor's storage from `shift` elements on.
    """
    view = torch.empty(0, dtype=tensor.dtype, device="cpu")
    size, stride, offset = geometry(tensor)
    memory = host.untyped_storage()
    layout.check_inside(size, stride, offset + shift, tensor.itemsize, memory.nbytes())  # `set_` would let it grow
    view.set_(memory, offset + shift, size, stride)  # type: ignore[call-overload]
    view = view.conj() if tensor.is_conj() else view
    return torch_compat.neg_view(view) if tensor.is_neg() else view


def on_host_to_read(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor on the host, only for reading; its storage must have been flushed.

    The result may share the device's memory. If all elements equal one number, it is that number, expanded.
    """
    lazy = storage_to_read(tensor)
    number = None if COMPUTED.get(tensor.dtype) != lazy.dtype or tensor.is_neg() else lazy.number()
    if number is not None:
        layout.check_inside(*geometry(tensor), tensor.itemsize, lazy.nbytes)
        return torch.full((), number, dtype=tensor.dtype, device="cpu").expand(tensor.size())
    return on_host(tensor, host_bytes(lazy))


def to_host(tensors: Iterable[torch.Tensor], to_read: bool = False) -> list[torch.Tensor]:
    """CPU tensors with the same geometry as these tiny ones, with the same sharing of storages; one schedule for
    all.

    With `to_read` they may share the device's memory, and must not be written.
    """
    tensors = list(tensors)
    storages = {id(c): c for c in (storage_of(t) for t in tensors)}
    if any(lazy.nbytes for lazy in storages.values()):
        flush.flush(storages.values())
    hosts = {key: host_bytes(lazy) if to_read else host_bytes(lazy).clone() for key, lazy in storages.items()}
    return [on_host(t, hosts[id(storage_of(t))]) for t in tensors]


def load(lazy: LazyStorage, host: torch.Tensor, dtype: torch.dtype) -> None:
    """Replace a storage's content by a flat contiguous CPU tensor of bytes, held as elements of `dtype`."""
    real, _ = element(dtype)
    nbytes = host.nbytes
    spare = -nbytes % real.itemsize
    if spare:
        host = torch.cat([host.view(torch.uint8), torch.zeros(spare, dtype=torch.uint8, device="cpu")])
    lazy.replace(_upload(host, real, lazy.device), nbytes)


def _upload(host: torch.Tensor, real: Any, device: str) -> UOp:
    flat = host.reshape(-1)
    if flat.stride() != (1,):  # with one element any stride counts as contiguous, but cannot be viewed as bytes
        flat = flat.clone(memory_format=torch.contiguous_format)
    if not flat.numel():
        return UOp.const(0, real).expand((0,))
    return memory.from_host(flat.view(torch.uint8).numpy(), real, device)


def item(tensor: torch.Tensor) -> Any:
    """The Python number in a tensor of one element (aten::_local_scalar_dense)."""
    lazy = storage_of(tensor)
    flush.flush([lazy])
    host = on_host(tensor, host_bytes(lazy, tensor.element_size()))
    return host.item() if tensor.numel() else torch.ops.aten._local_scalar_dense.default(host)  # raises torch's error


def to_copy(self: torch.Tensor, *, non_blocking: bool = False, **options: Any) -> torch.Tensor:
    """aten::_to_copy, where torch's own kernel would look for pinned memory if a copy to the CPU need not block."""
    device = options.get("device")
    composite = torch_compat.DispatchKey.CompositeExplicitAutograd
    result: torch.Tensor = torch.ops.aten._to_copy.default._op_dk(
        composite, self, **options, non_blocking=non_blocking and (device is None or device.type != "cpu")
    )
    return result


def copy_(self: torch.Tensor, src: torch.Tensor | complex, non_blocking: bool = False) -> torch.Tensor:
    """aten::copy_ if either tensor is on the device: any two layouts and dtypes, with broadcast. A Python number,
    which torch's parser wraps as a tensor, arrives here as a number again."""
    if not isinstance(src, torch.Tensor):
        src = torch.tensor(src)
    if queued(self, src) or (is_tiny(self) and is_tiny(src) and _same(self, src)):
        return self
    if (not src.dim() or src.size() == self.size()) and _filled(self, src):
        return self
    if self.size() != src.size() and not _broadcasts(src.size(), self.size()):
        torch.empty(self.size(), device="cpu").copy_(torch.empty(src.size(), device="cpu"))  # raises torch's error
    if not self.numel():
        return self
    check_writable(self)
    if is_tiny(self) and is_tiny(src) and overlap.overlap(self, src) == "partial":
        raise RuntimeError(overlap.REFUSED)
    if self.is_conj():  # a conjugate view stores the conjugate
        copy_(self.conj(), src.conj())
    elif self.is_neg():
        copy_(torch_compat.neg_view(self), torch_compat.neg_view(src))
    elif not is_tiny(self):
        _copy_out(self, src)
    elif not is_tiny(src):
        _copy_in(self, src)
    elif self.device == src.device:
        _copy_within(self, src)
    else:
        _copy_in(self, to_host([src])[0])
    return self


def _broadcasts(size: torch.Size, to: torch.Size) -> bool:
    """Whether a tensor of one size can be copied into a tensor of another."""
    return len(size) <= len(to) and all(n in (1, m) for n, m in zip(reversed(size), reversed(to), strict=False))


def _filled(self: torch.Tensor, src: torch.Tensor) -> bool:
    """Copy a constant, as in ``a[i] = 1``, also to a row; False if the source is not a constant."""
    dtype = self.dtype
    if not self.numel():
        return False
    if dtype is not src.dtype or dtype not in COMPUTED or not (is_tiny(self) and is_tiny(src)) or src.is_neg():
        return False
    lazy = lazy_storage(src)
    number = lazy.number()
    if number is None or lazy is lazy_storage(self) or lazy.dtype != COMPUTED[dtype] or self.device != src.device:
        return False
    check_writable(self)
    fill(self, number)
    return True


def _copy_out(self: torch.Tensor, src: torch.Tensor) -> None:
    flush.flush([storage_of(src)])
    self.copy_(on_host_to_read(src))


def _copy_in(self: torch.Tensor, src: torch.Tensor) -> None:
    lazy = lazy_storage(self)
    size, stride, offset = geometry(self)
    if src.dtype.is_complex and not self.dtype.is_complex and self.dtype is not torch.bool:
        warn_once(_DISCARDED)
        src = src.real
    src = src.to(self.dtype).resolve_conj().resolve_neg()
    real, parts = element(self.dtype)
    number = src.item() if src.numel() == 1 and self.dtype in COMPUTED else None
    if number is not None and (number == number or struct.pack("d", number) == _NAN):
        assign(self, UOp.const(number, real).expand(size))  # a constant nan has no sign and no other bits
        return
    if layout.covers(size, stride, offset, lazy.nbytes // self.dtype.itemsize) and lazy.nbytes % real.itemsize == 0:
        arranged = torch.empty_strided(size, stride, dtype=self.dtype, device="cpu")
        arranged.copy_(src)
        flat = arranged.as_strided((self.numel(),), (1,))
        lazy.replace(_upload(flat, real, lazy.device), lazy.nbytes)
        return
    shape = (*src.shape, 2) if parts == 2 else tuple(src.shape)
    assign(self, _broadcast(_upload(src, real, lazy.device).reshape(shape), size, parts))


def _broadcast(value: UOp, size: tuple[int, ...], parts: int) -> UOp:
    return value.expand((*size, 2) if parts == 2 else size)


def _same(self: torch.Tensor, src: torch.Tensor) -> bool:
    """Whether both are the same elements of one storage."""
    if storage_of(self) is not storage_of(src):
        return False
    kinds = [(t.dtype, t.is_conj(), t.is_neg(), geometry(t)) for t in (self, src)]
    return kinds[0] == kinds[1]


def _copy_within(self: torch.Tensor, src: torch.Tensor) -> None:
    if src.dtype == self.dtype:
        _, parts = element(self.dtype)
        assign(self, _broadcast(elements(src), tuple(self.size()), parts))
    elif self.dtype in COMPUTED and src.dtype in COMPUTED:
        assign(self, elements(src).expand(tuple(self.size())))
    elif self.dtype.is_complex and src.dtype in COMPUTED:
        real, _ = element(self.dtype)
        pair = elements(src).cast(real).unsqueeze(-1).pad(((0, 0),) * src.dim() + ((0, 1),))
        assign(self, _broadcast(pair, tuple(self.size()), 2))
    elif self.dtype.is_complex and src.dtype.is_complex:
        assign(self, _broadcast(elements(src).cast(element(self.dtype)[0]), tuple(self.size()), 2))
    elif src.dtype.is_complex and self.dtype is torch.bool:  # true if either part is not zero; nothing is discarded
        assign(self, elements(src).ne(0).max(axis=-1).expand(tuple(self.size())))
    elif src.dtype.is_complex and self.dtype in COMPUTED:
        warn_once(_DISCARDED)
        pair = elements(src)
        first = pair.shrink(((None,) * src.dim()) + ((0, 1),)).reshape(tuple(src.size()))
        assign(self, first.expand(tuple(self.size())))
    else:  # float8: converted where torch defines the rounding
        _copy_in(self, to_host([src])[0])
