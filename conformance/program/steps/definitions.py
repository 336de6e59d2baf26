"""Functions that steps call and torch does not have. A standalone script carries their source: they need torch only."""

from __future__ import annotations

import torch


def empty_filled(size: list[int], stride: list[int], dtype: torch.dtype, device: str, start: int) -> torch.Tensor:
    """`empty_strided`, and then its whole storage, gaps included, counted up from `start`."""
    made = torch.empty_strided(size, stride, dtype=dtype, device=device)
    cells = made.untyped_storage().nbytes() // made.element_size()
    values = torch.arange(start, start + cells).remainder(100).to(dtype)
    made.as_strided((cells,), (1,), 0).copy_(values)
    return made


def resize_filled_(tensor: torch.Tensor, size: list[int]) -> None:
    """`resize_`, and then zeros in the part of the storage that is new and would hold anything."""
    before = tensor.untyped_storage().nbytes() // tensor.element_size()
    tensor.resize_(size)
    cells = tensor.untyped_storage().nbytes() // tensor.element_size()
    if cells > before:
        torch.as_strided(tensor.detach(), (cells - before,), (1,), before).zero_()


def through_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that went to the host and came back."""
    return tensor.detach().cpu().clone().to(tensor.device)


def host_view(host: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """A view of a host tensor that is not dense: transposed, with a step, or expanded; from `start` of its last dim."""
    start = min(start, host.size(-1) - 1)
    if kind == "t":
        return host[..., start:].transpose(0, -1)
    return host[..., start::2] if kind == "step" else host[..., start : start + 1].expand(*host.shape[:-1], 3)


def from_host_view(tensor: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """What a view on the host is once it was moved to the device."""
    return host_view(tensor.detach().cpu().clone(), start, kind).to(tensor.device, copy=True)


def into_host_view(tensor: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """The tensor written into a view on the host, that view's whole base moved to the device."""
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
    """What torch itself says of the relation of two tensors."""
    return [
        tensor.is_set_to(other),
        tensor._is_view(),
        tensor.is_leaf,
        tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and tensor.numel() > 0,
    ]
