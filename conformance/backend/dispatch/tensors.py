"""Conversion between torch tensors on the tiny device and lazy values of their elements.

Defines `Spec` (metadata of a result), `Maker` (of new tensors), `read`, `make`, `assign`, the conversions `cast` and
`constant`, and functions that put tensors on storages.

A tensor is only a geometry on a lazy storage, so it needs no operations except read and assign.

This module must not depend on operators.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from ..lazy import access, calls, layout
from ..lazy.addresses import size_class
from ..lazy.dtypes import COMPUTED, PAIRS, element
from ..lazy.storage import LazyStorage, allocate, lazy_storage, own, reserve, storage_of, storage_to_read, view_of
from ..runtime import expressions, memory, torch_compat
from .empty_tensor import Mold, empty_tensor, is_describable


class Spec(NamedTuple):
    """The metadata of one result."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def computed(self) -> DType:
        """The tinygrad dtype of the result's elements."""
        return COMPUTED[self.dtype]


def constant(number: float | int | bool, dtype: DType) -> UOp:
    """A 0-d constant; integers wrap as a C cast does."""
    if dtypes.is_int(dtype):
        whole = int(number) if number == number and abs(number) != float("inf") else 0
        whole &= (1 << dtype.bitsize) - 1
        if not dtypes.is_unsigned(dtype) and whole >> (dtype.bitsize - 1):
            whole -= 1 << dtype.bitsize
        return UOp.const(whole, dtype)
    return UOp.const(bool(number) if dtype is dtypes.bool else float(number), dtype)


def cast(x: UOp, dtype: DType) -> UOp:
    """Convert as torch's CPU does: to bool by comparing with 0, from float to narrow integers through wider ones.

    Floats outside the integer's range convert as on x86. cvttss2si gives 2**31, and a narrow integer keeps its low
    bits; the 64-bit form gives 2**63. A uint64 above 2**63 is computed from the difference to 2**63. A uint8 has the
    low bits of a float64 converted to int64.
    """
    if x.dtype == dtype:
        return x
    if dtypes.is_float(x.dtype) and dtypes.is_float(dtype) and x.dtype.itemsize < dtype.itemsize:
        number = expressions.constant_of(x)
        if number is not None:  # keeps the constant visible: a sum of zeros must not be folded away
            return x.const_like(number, dtype)
    if x.dtype is dtypes.float16 and dtype is dtypes.float32 and _is_rounded(x):
        return _decoded(x)
    if dtype is dtypes.bool:
        return x.ne(0)
    if dtypes.is_float(x.dtype) and dtypes.is_int(dtype):
        x = cast(x, dtypes.float32) if x.dtype.itemsize < 4 else x
        if dtype is dtypes.uint64:
            low, rest = (y.cast(dtypes.int64).cast(dtype) for y in (x, x - 2.0**63))
            return (x.const_like(2.0**63) < x).where(rest + (1 << 63), low)
        if dtype is dtypes.uint32 or (x.dtype is dtypes.float64 and dtype is dtypes.uint8):
            return x.cast(dtypes.int64).cast(dtype)
        if dtype.itemsize < 4:
            return x.cast(dtypes.int32).cast(dtype)
    return x.cast(dtype)


def _is_rounded(x: UOp) -> bool:
    """Whether a half is the rounding of a float within the same kernel, or selects one."""
    waiting, seen = [x], {x}
    while waiting:
        x = waiting.pop()
        if x.op is Ops.CAST and x.src[0].dtype is dtypes.float32:
            return True
        chosen = x.src[:1] if x.op in GroupOp.Movement else x.src[1:] if x.op is Ops.WHERE else ()
        waiting += [source for source in chosen if source not in seen]
        seen.update(chosen)
    return False


def _decoded(half: UOp) -> UOp:
    """half -> float32 by its bits: tinygrad drops a cast to half that is cast back, and the rounding with it."""
    bits = half.bitcast(dtypes.uint16).cast(dtypes.uint32)
    magnitude = (bits & 0x7FFF) << 13
    finite = magnitude.bitcast(dtypes.float32) * float(2**112)  # the exponents' biases differ by 112
    special = (magnitude | 0x7F800000).bitcast(dtypes.float32)  # inf and nan
    value = (magnitude < 0x7C00 << 13).where(finite, special).bitcast(dtypes.uint32)
    return (value | ((bits & 0x8000) << 16)).bitcast(dtypes.float32)


def is_tiny(x: Any) -> bool:
    """Whether `x` is a tensor on the tiny device."""
    return isinstance(x, torch.Tensor) and x.device.type == "tiny"


def geometry(t: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(size, stride, storage offset) in elements."""
    return tuple(t.size()), tuple(t.stride()), int(t.storage_offset())


def read(t: torch.Tensor) -> UOp:
    """The elements of a tensor as a lazy value of its shape (complex: with a last dimension of 2).

    All queued calls run first: a write between the reads of one operator's operands would change the earlier ones.
    """
    if t.device.type != "tiny":
        return _read_host(t)
    calls.settle()
    return access.read(storage_of(t), t.dtype, *geometry(t))


def peek(t: torch.Tensor) -> UOp:
    """The elements of one tensor on tiny that no queued call writes; the queue is unchanged."""
    return access.read(storage_to_read(t), t.dtype, *geometry(t))


def elements(t: torch.Tensor) -> UOp:
    """The elements of a tensor as a lazy value, with conjugate and negative bits applied."""
    return _unread(t, read(t))


def _unread(t: torch.Tensor, x: UOp) -> UOp:
    """Apply a tensor's conjugate and negative bits to a value; the same function reads and writes, as it is an
    involution.
    """
    if t.is_conj():
        imaginary = UOp.arange(2).reshape((1,) * (x.ndim - 1) + (2,)).expand(x.shape) > 0
        x = imaginary.where(-x, x)
    return -x if t.is_neg() else x


def _read_host(t: torch.Tensor) -> UOp:
    """A 0-dim CPU tensor, which every operator accepts: read on the host, no copy to the device."""
    if t.dim() or not (t.dtype in COMPUTED or t.dtype in PAIRS):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found tiny and {t.device}")
    if t.dtype in PAIRS:
        number, real = t.resolve_conj().item(), PAIRS[t.dtype]
        return UOp.arange(2).eq(0).where(constant(number.real, real), constant(number.imag, real))
    return constant(t.item(), COMPUTED[t.dtype])


def content_of(spec: Spec) -> tuple[DType, int]:
    """The dtype in which a new tensor's storage holds its elements, and its size in bytes."""
    return element(spec.dtype)[0], layout.plan(spec.size, spec.stride).extent * spec.dtype.itemsize


class Maker:
    """Maker of new tensors with one metadata, each on a new storage, which reads as zeros."""

    __slots__ = ("_device", "_index", "_mold", "_nbytes", "_real", "_size_class", "_spec")

    def __init__(self, spec: Spec, index: int, device: str) -> None:
        """`device` is tinygrad's name of `tiny:index`."""
        self._spec, self._index, self._device = spec, index, device
        self._real, self._nbytes = content_of(spec)
        self._size_class = size_class(self._nbytes)
        self._mold = Mold(spec.dtype, spec.size, spec.stride, index) if is_describable(spec.dtype) else None

    def make(self) -> tuple[torch.Tensor, LazyStorage]:
        """A new tensor, and the content of its storage."""
        nbytes, held = self._nbytes, self._size_class
        if self._mold is None:
            spec, store = self._spec, allocate(nbytes, self._index, self._real)
            t = SET(empty_tensor(spec.dtype, self._index), store, 0, spec.size, spec.stride)
            return t, storage_of(t)
        address = reserve(nbytes, held, self._device)
        t = self._mold.tensor_at(address)
        lazy = LazyStorage(nbytes, self._device, self._real)
        own(t.untyped_storage(), lazy, address, held)
        return t, lazy


maker = functools.lru_cache(maxsize=8192)(Maker)


def new_tensor(spec: Spec, index: int) -> torch.Tensor:
    """A tensor of this metadata on `tiny:index` with a new storage; it reads as zeros."""
    return maker(spec, index, memory.device_name(index)).make()[0]


def tensor_on(store: Any, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A tensor with exactly this geometry on an existing storage."""
    return SET(empty_tensor(dtype, store.device.index or 0), store, offset, size, stride)


def tensor_on_content(
    lazy: LazyStorage, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """A temporary tensor with this geometry on the content of a torch storage, which may be gone; for reading only."""
    return tensor_on(view_of(lazy), dtype, size, stride, offset)


CPU = torch_compat.CPU_KEY
SET = functools.partial(torch.ops.aten.set_.source_Storage_storage_offset._op_dk, CPU)


def _stored_as(result: UOp, dtype: torch.dtype, real: DType) -> UOp:
    return cast(result, real) if dtype in COMPUTED or dtype in PAIRS else result


def make(spec: Spec, result: UOp, index: int) -> torch.Tensor:
    """A new tensor with this metadata and these elements."""
    t, lazy = maker(spec, index, memory.device_name(index)).make()
    place(lazy, spec, result)
    return t


def place(lazy: LazyStorage, spec: Spec, result: UOp) -> None:
    """Let a new storage hold these elements in the geometry of this metadata."""
    if 0 in spec.size:
        return
    real, parts = element(spec.dtype)
    size, stride = spec.size, spec.stride
    if parts == 2:
        size, stride, _ = access.paired(size, stride, 0)
    result = _stored_as(result, spec.dtype, real)
    result = result.expand(size) if result.shape != size else result
    p = layout.plan(size, stride)
    if p.dense and not p.expanded:
        access.hold(lazy, size, stride, result)
    else:
        access.write(lazy, spec.dtype, spec.size, spec.stride, 0, result)


def assign(target: torch.Tensor, result: UOp) -> None:
    """Write elements into an existing tensor, with its geometry, dtype, and conjugate or negative bit."""
    real, _ = element(target.dtype)
    store(
        lazy_storage(target), target.dtype, *geometry(target), _unread(target, _stored_as(result, target.dtype, real))
    )


def store(
    lazy: LazyStorage, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int, result: UOp
) -> None:
    """Write elements to a view of a storage, in its dtype."""
    real, parts = element(dtype)
    shape = (*size, 2) if parts == 2 else size
    result = _stored_as(result, dtype, real)
    result = result.expand(shape) if result.shape != shape else result
    access.write(lazy, dtype, size, stride, offset, result)
    lazy.mark_dirty()


def fill(target: torch.Tensor, number: float | int | bool) -> None:
    """Write a number that the target's (real) dtype can hold to all of its elements, even if these share memory."""
    size, stride, offset = geometry(target)
    real = COMPUTED[target.dtype]
    if target.is_neg():
        assign(target, constant(number, real))
    elif 0 not in size:
        fill_storage(lazy_storage(target), target.dtype, size, stride, offset, number)


def fill_storage(
    lazy: LazyStorage, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int,
    number: float | int | bool,
) -> None:  # fmt: skip
    """Write a number that the (real) dtype can hold to a view of a storage."""
    real = COMPUTED[dtype]
    kind = bool if real is dtypes.bool else float if dtypes.is_float(real) else int
    access.fill(lazy, real, size, stride, offset, kind(number))


OVERLAP = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


def check_writable(t: torch.Tensor) -> None:
    """Raise torch's own error for a write to a tensor with stride 0 (at::assert_no_internal_overlap)."""
    if t.numel() and layout.plan(tuple(t.size()), tuple(t.stride())).expanded:
        raise RuntimeError(OVERLAP)


def check_written(targets: Iterable[torch.Tensor]) -> None:
    """Raise torch's error for a tensor on the CPU that a call on the device would write.

    The metadata of such a call must not be asked for: torch CPU would run it on the tensor itself.
    """
    if any(x.device.type == "cpu" for x in targets):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, tiny and cpu!"
        )
