"""Layouts, storages and the host: how a tensor lies in memory, and what shares it."""

from __future__ import annotations

import torch


def empty_filled(size: list[int], stride: list[int], dtype: torch.dtype, device: str, start: int) -> torch.Tensor:
    """Return a tensor of `empty_strided` with its whole storage, gaps included, filled from `start` upwards."""
    result = torch.empty_strided(size, stride, dtype=dtype, device=device)
    cells = result.untyped_storage().nbytes() // result.element_size()
    values = torch.arange(start, start + cells).remainder(100).to(dtype)
    result.as_strided((cells,), (1,), 0).copy_(values)
    return result


def resize_filled_(tensor: torch.Tensor, size: list[int]) -> None:
    """Resize in place and fill the new part of the storage with zeros."""
    before = tensor.untyped_storage().nbytes() // tensor.element_size()
    tensor.resize_(size)
    cells = tensor.untyped_storage().nbytes() // tensor.element_size()
    if cells > before:
        torch.as_strided(tensor.detach(), (cells - before,), (1,), before).zero_()


def through_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor made by way of the host."""
    return tensor.detach().cpu().clone().to(tensor.device)


def host_view(host: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """Return a view of a host tensor: transposed, strided or expanded, from `start` of its last dimension."""
    start = min(start, host.size(-1) - 1)
    if kind == "t":
        return host[..., start:].transpose(0, -1)
    return host[..., start::2] if kind == "step" else host[..., start : start + 1].expand(*host.shape[:-1], 3)


def from_host_view(tensor: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """Return a copy on the device of a view on the host."""
    return host_view(tensor.detach().cpu().clone(), start, kind).to(tensor.device, copy=True)


def into_host_view(tensor: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """Write the tensor into a view on the host, and return the view's base on the device."""
    host = torch.zeros(2 * tensor.size(0) + start, *tensor.shape[1:], dtype=tensor.dtype)
    host[start::2].copy_(tensor.detach())
    return (host.t() if kind == "t" and host.dim() == 2 else host).to(tensor.device, copy=True)


def swap_rows_(tensor: torch.Tensor, i: int, j: int) -> None:
    """Swap two rows through a copy of one of them."""
    kept = tensor[i].clone()
    tensor[i] = tensor[j]
    tensor[j] = kept


def set_view_(tensor: torch.Tensor, source: torch.Tensor, offset: int, size: list[int], stride: list[int]) -> None:
    """Make `tensor` a view of the storage of `source`."""
    tensor.set_(source.untyped_storage(), offset, size, stride)


def same_base(tensor: torch.Tensor, other: torch.Tensor) -> list[bool]:
    """Return torch's answers on the relation of two tensors."""
    return [
        tensor.is_set_to(other),
        tensor._is_view(),
        tensor.is_leaf,
        tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and tensor.numel() > 0,
    ]


def shares_memory(first: torch.Tensor, second: torch.Tensor) -> list[bool]:
    """Return whether two names are one tensor, and whether they have one storage."""
    return [first is second, first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()]


def mode_values(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the values of `mode`; PyTorch does not define its indices."""
    return tensor.mode(dim)[0]


def of_many(tensor: torch.Tensor, name: str, count: int) -> torch.Tensor:
    """Return the method's result for `count` elements, which repeat the tensor's."""
    flat = tensor.flatten()
    many = flat.repeat(-(-count // flat.numel()))[:count]
    return getattr(many, name)(0) if name in ("cumsum", "sum", "amax") else getattr(many, name)()
