"""Tensors on tiny sent between processes, by a queue or a DataLoader's worker, which arrive as copies.

Defines `install`. A process sends a tensor as instructions for its construction. A storage on tiny is memory of one
process. So the sender sends a CPU tensor, which torch puts into shared memory, and the receiver moves it to tiny.
Aliasing is lost: two views of one storage arrive as two tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import reductions
from torch.utils.hooks import warn_if_has_hooks

from ..runtime.lock import locked
from .replacements import replace_on_first_use


def install() -> None:
    """Allow sending tensors and storages on tiny to other processes, once there are any."""
    replace_on_first_use("multiprocessing.reduction:ForkingPickler._extra_reducers", _with_ours)
    replace_on_first_use("torch.storage:UntypedStorage.share_memory_", _refusing_to_share)


def _with_ours(reducers: dict[type, Any]) -> dict[type, Any]:
    ours: dict[type, Any] = {torch.Tensor: _reduce_tensor, torch.nn.Parameter: _reduce_tensor}
    return {**reducers, **ours, torch.UntypedStorage: _reduce_storage}


def _refusing_to_share(share: Callable[..., Any]) -> Callable[..., Any]:
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
        if self.device.type == "tiny":
            raise RuntimeError(
                "tiny: a storage cannot be shared between processes; a tensor that is sent to another process "
                "arrives there as a copy, and `.cpu()` gives a tensor that can be shared"
            )
        return share(self, *args, **kwargs)

    share_memory_.__doc__ = share.__doc__
    return share_memory_


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    of_result = tensor.requires_grad and not tensor.is_leaf  # torch's function refuses these
    if tensor.device.type != "tiny" or tensor.layout is not torch.strided or of_result:
        reduced: Any = reductions.reduce_tensor(tensor)
        return reduced
    warn_if_has_hooks(tensor)
    return _tensor, (type(tensor), tensor.detach().cpu(), tensor.device, tensor.requires_grad)


def _tensor(kind: type, host: torch.Tensor, device: torch.device, requires_grad: bool) -> torch.Tensor:
    tensor = host.to(device)
    return (
        torch.nn.Parameter(tensor, requires_grad)
        if kind is torch.nn.Parameter
        else tensor.requires_grad_(requires_grad)
    )


def _reduce_storage(storage: torch.UntypedStorage) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if storage.device.type != "tiny":
        reduced: Any = reductions.reduce_storage(storage)
        return reduced
    return _storage, (_on_host(storage), storage.device)


@locked
def _on_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage.cpu()


@locked
def _storage(host: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    result = torch.UntypedStorage(host.nbytes(), device=device)
    result.copy_(host)
    return result
