"""Fences around memory: protected pages beside each storage, known bytes in every gap, and fills of new memory.

Defines `fenced`, `trespassed` and `Fresh`, and `padded`, `changed_outside` and `Filled` for devices, whose memory has
no such pages. A storage gets pages of its own, and ends or begins exactly at a protected
page. A read or a write beyond it ends the process instead of answering by luck. Known bytes in the gaps of a view show
writes that stay on the page. `Fresh` fills the memory that an operator allocates, so that unwritten elements show.
Scripts carry the source of this module. Pages are protected for CPU tensors, on systems with `mprotect`.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from conformance.standalone.torch_compat import (
    DispatchKey,
    DispatchKeySet,
    TorchDispatchMode,
    key_of_device,
    storage_id,
)

NO_ACCESS = 0
READ_ONLY = 1
"""Protections of the pages beside a storage, as `mprotect` numbers them."""

KNOWN = 0xA5
"""Usual byte of gaps, and of the rest of a page."""


class Fence(NamedTuple):
    """Memory with protected pages: the mapping, the first byte and the number of bytes inside, and the byte that fills
    everything else. `gaps` are the bytes inside that belong to no tensor."""

    memory: Any
    start: int
    size: int
    fill: int
    gaps: torch.Tensor


def fence(count: int, at_end: bool, protection: int, fill: int) -> tuple[torch.Tensor, Fence]:
    """Return `count` bytes that end, or begin, at a protected page, and their fence."""
    body = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, body + 2 * mmap.PAGESIZE)
    memory[:] = bytes([fill]) * len(memory)
    start = mmap.PAGESIZE + (body - count if at_end else 0)
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=count, offset=start)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    first = flat.data_ptr() - start
    for page in (first, first + mmap.PAGESIZE + body):
        if protect(page, mmap.PAGESIZE, protection):
            raise OSError(ctypes.get_errno(), "a page cannot be protected")
    return flat, Fence(memory, start, count, fill, torch.empty(0, dtype=torch.int64))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the positions of the tensor's bytes in its storage."""
    cells = torch.tensor([tensor.storage_offset()])
    for n, stride in zip(tensor.shape, tensor.stride()):
        cells = (cells.unsqueeze(-1) + torch.arange(n) * stride).flatten()
    width = tensor.element_size()
    return (cells.unsqueeze(-1) * width + torch.arange(width)).flatten()


def by_storage(tensors: Sequence[torch.Tensor]) -> dict[int, list[torch.Tensor]]:
    """Return the tensors of each storage."""
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(storage_id(tensor.untyped_storage()), []).append(tensor)
    return groups


def fenced(
    tensors: Sequence[torch.Tensor], at_end: bool = True, protection: int = NO_ACCESS, fill: int = KNOWN
) -> tuple[list[torch.Tensor], list[Fence]]:
    """Return CPU tensors with the same geometry on fenced storages, and the fences. Tensors that share a storage still
    do. Each storage holds the bytes from the first to the last one in use; the bytes of gaps are `fill`."""
    places: dict[int, tuple[torch.UntypedStorage, int]] = {}
    fences = []
    for key, group in by_storage(tensors).items():
        used = torch.cat([bytes_of(tensor) for tensor in group])
        if not used.numel():
            continue
        first = int(used.min()) // 16 * 16
        flat, region = fence(int(used.max()) + 1 - first, at_end, protection, fill)
        whole = torch.empty(0, dtype=torch.uint8).set_(group[0].detach().untyped_storage())
        gaps = torch.ones(region.size, dtype=torch.bool).index_fill_(0, used - first, False).nonzero().flatten()
        flat.copy_(whole[first : first + region.size]).index_fill_(0, gaps, fill)
        places[key] = flat.untyped_storage(), first
        fences.append(region._replace(gaps=gaps))
    return [_on_fence(tensor, places) for tensor in tensors], fences


def _on_fence(tensor: torch.Tensor, places: dict[int, tuple[torch.UntypedStorage, int]]) -> torch.Tensor:
    empty, key = torch.empty(0, dtype=tensor.dtype), storage_id(tensor.untyped_storage())
    if key not in places:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    storage, first = places[key]
    offset = int(tensor.storage_offset()) - first // tensor.element_size()
    return empty.set_(storage, offset, tensor.shape, tensor.stride()).requires_grad_(tensor.requires_grad)


def trespassed(fences: Sequence[Fence]) -> str:
    """Return where a byte outside of the tensors has changed, "" if none has."""
    for fence in fences:
        body = fence.memory[mmap.PAGESIZE : len(fence.memory) - mmap.PAGESIZE]
        start = fence.start - mmap.PAGESIZE
        outside = {"before its first byte": body[:start], "behind its last byte": body[start + fence.size :]}
        inside = bytes(body[start + at] for at in fence.gaps.tolist())
        for place, content in {**outside, "in the gaps between its elements": inside}.items():
            changed = sum(byte != fence.fill for byte in content)
            if changed:
                return f"{changed} bytes {place}"
    return ""


PAD = 256
"""Known bytes before and behind the memory of a tensor on a device. Kernels may rely on addresses that are multiples of
it."""


def byte_of(dtype: torch.dtype, fill: int) -> int:
    """Return a byte that fills memory of a dtype; one that a bool may hold, since a device may correct others."""
    return fill & 1 if dtype is torch.bool else fill


def padded(tensors: Sequence[torch.Tensor], fill: int = KNOWN) -> list[torch.Tensor]:
    """Return CPU tensors with the same geometry, each storage with PAD more bytes at both ends. Tensors that share a
    storage still do. All bytes outside of the tensors are `fill`, and 0 or 1 beside those of dtype bool."""
    places: dict[int, tuple[torch.UntypedStorage, int]] = {}
    for key, group in by_storage(tensors).items():
        used = torch.cat([bytes_of(tensor) for tensor in group])
        if used.numel():
            first, last = int(used.min()) // 16 * 16, int(used.max()) // 16 * 16 + 16
            whole = torch.empty(0, dtype=torch.uint8).set_(group[0].detach().untyped_storage())
            flat = torch.full((PAD + last - first + PAD,), byte_of(group[0].dtype, fill), dtype=torch.uint8)
            flat[PAD + used - first] = whole[used]
            places[key] = flat.untyped_storage(), first - PAD
    return [_on_fence(tensor, places) for tensor in tensors]


def changed_outside(tensors: Sequence[torch.Tensor], fill: int = KNOWN) -> str:
    """Return where a byte outside of padded tensors has changed, "" if none has."""
    for group in by_storage(tensors).values():
        used = torch.cat([bytes_of(tensor) for tensor in group])
        if not used.numel():
            continue
        whole = torch.empty(0, dtype=torch.uint8).set_(group[0].detach().untyped_storage())
        changed = (whole != byte_of(group[0].dtype, fill)).index_fill_(0, used, False)
        low, high = int(used.min()), int(used.max()) + 1
        places = {"before its first byte": changed[:low], "behind its last byte": changed[high:]}
        for place, part in {**places, "in the gaps between its elements": changed[low:high]}.items():
            if count := int(part.sum()):
                return f"{count} bytes {place}"
    return ""


class Watched(TorchDispatchMode):
    """Notes the full names of the operators that are called on this type of devices, also inside an operator of a
    library."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.key, self.names = key_of_device(device), dict[str, None]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name] = None
        with self:
            if func.namespace != "aten":
                return func.redispatch(DispatchKeySet(self.key), *args, **(kwargs or {}))
            # Inside an operator of a library, autograd no longer takes apart `softmax` and the like.
            parts = func.decompose(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if parts is NotImplemented else parts


class Fresh(TorchDispatchMode):
    """Puts memory that torch's `empty` functions return on fenced storages filled with one byte. Calls inside an
    operator of a library are seen too. `bool` tensors get 0 or 1."""

    key = DispatchKey.CPU
    """Dispatch key of the kernels below an operator of a library."""

    def __init__(self, fill: int, at_end: bool = True, protection: int = NO_ACCESS) -> None:
        super().__init__()
        self.fill, self.at_end, self.protection = fill, at_end, protection
        self.fences: list[Fence] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "aten":
            with self:
                return func.redispatch(DispatchKeySet(self.key), *args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::").removeprefix("new_")
        if name.partition("_")[0] != "empty" or not result.numel() or result.layout is not torch.strided:
            return result
        return self.renew(result, byte_of(result.dtype, self.fill))

    def renew(self, result: torch.Tensor, fill: int) -> torch.Tensor:
        """Return a tensor in place of a new one, whose bytes are `fill`."""
        flat, region = fence(result.untyped_storage().nbytes(), self.at_end, self.protection, fill)
        self.fences.append(region)
        return torch.empty(0, dtype=result.dtype).set_(flat.untyped_storage(), 0, result.shape, result.stride())


class Filled(Fresh):
    """Fills memory that torch's `empty` functions return on a device of this type with one byte. If the device has
    `as_strided`, the memory has PAD more bytes at both ends, and `made` are the tensors."""

    def __init__(self, fill: int, device: str, pads: bool) -> None:
        super().__init__(fill)
        self.key, self.pads = key_of_device(device), pads
        self.made: list[torch.Tensor] = []

    def renew(self, result: torch.Tensor, fill: int) -> torch.Tensor:
        """Return a tensor with the same geometry, filled."""
        width = result.element_size()
        number = torch.full((width,), fill, dtype=torch.uint8).view(result.dtype).item()
        if not self.pads:
            return result.fill_(number)
        count, pad = result.untyped_storage().nbytes() // width, PAD // width
        memory = torch.full((pad + count + pad,), number, dtype=result.dtype, device=result.device)
        self.made.append(memory.as_strided(result.shape, result.stride(), pad))
        return self.made[-1]
