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
    return [tensor.is_set_to(other), tensor._is_view(), tensor.is_leaf,
            tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and tensor.numel() > 0]
