"""Tensors after Python has copied, saved or collected them."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import torch


def pickled(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor after saving and loading."""
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def pickled_together(tensor: torch.Tensor, other: torch.Tensor) -> Any:
    """Save and load two tensors together, or one and a view of it. Shared memory stays shared."""
    file = io.BytesIO()
    torch.save((tensor, other.detach() if other is tensor else other), file)
    file.seek(0)
    return torch.load(file)


def deepcopied(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's deep copy."""
    return copy.deepcopy(tensor)


def deepcopied_together(tensor: torch.Tensor, other: torch.Tensor) -> Any:
    """Return the deep copies of two tensors, or of one and a view of it. Shared memory stays shared."""
    return copy.deepcopy((tensor, other.detach() if other is tensor else other))


def collected(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor, after the collection of a reference cycle with a view and a result."""
    cycle: list[Any] = [tensor.detach().view_as(tensor), tensor.detach().clone()]
    cycle.append(cycle)
    del cycle
    gc.collect(1)  # the young generations
    return tensor.clone()
