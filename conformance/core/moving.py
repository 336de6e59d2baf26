"""Moving trees of tensors between devices: each storage once, each tensor rebuilt on its moved storage.

The key insight: layout and aliasing survive a move only when *storages* move. Each storage is copied once, whole, and
every tensor on it is rebuilt with its own size, stride and offset; so a device is asked for one copy a storage, however
many views there are, and bytes outside all views can be compared too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.core.errors import TargetError


def copied_to_host(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the CPU, each with a storage of its own."""
    return [flat.clone() if flat.device.type == "cpu" else flat.cpu() for flat in flats]


def map_tensors(tree: Any, replace: Callable[[torch.Tensor], Any]) -> Any:
    """The tree with each tensor replaced; tuples, named tuples, lists and dicts keep their types."""
    if isinstance(tree, torch.Tensor):
        return replace(tree)
    if isinstance(tree, tuple):
        items = [map_tensors(item, replace) for item in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return type(tree)(items)
    if isinstance(tree, list):
        return [map_tensors(item, replace) for item in tree]
    if isinstance(tree, dict):
        return {key: map_tensors(item, replace) for key, item in tree.items()}
    return tree


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of the tensor's storage: equal exactly for tensors that alias, also when it is empty."""
    return tensor.untyped_storage()._cdata


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """A detached 1-d tensor over all of the tensor's storage: of its dtype, or of bytes when they do not divide."""
    storage = tensor.untyped_storage()
    size, rest = divmod(storage.nbytes(), tensor.element_size())
    if rest:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (size,), (1,))


def rebuild(
    tree: Any,
    move: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
    lay_out: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> Any:
    """The tree with all of its storages moved at once by `move`, and each tensor rebuilt on its moved storage.

    A tensor object that occurs twice stays one object. Size, stride, offset, dtype, `requires_grad` and the conj and
    neg bits are kept; a tensor that was not a leaf becomes one. Tensors that are not strided raise TargetError.
    """
    originals: dict[int, torch.Tensor] = {}
    map_tensors(tree, lambda tensor: originals.setdefault(id(tensor), tensor))
    flats: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for tensor in originals.values():
            if tensor.layout is not torch.strided:
                raise TargetError(f"a tensor of layout {tensor.layout} has no storage to move: only strided tensors do")
            if storage_key(tensor) not in flats:
                flats[storage_key(tensor)] = whole_storage(tensor)
        moved = dict(zip(flats, move(list(flats.values())), strict=True))
        rebuilt = {key: (lay_out or _view_of)(moved[storage_key(tensor)], tensor) for key, tensor in originals.items()}
    for key, tensor in originals.items():
        # torch itself can make an integer that requires grad, and refuses to be asked for one.
        if tensor.requires_grad and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            rebuilt[key].requires_grad_()
    return map_tensors(tree, lambda tensor: rebuilt[id(tensor)])


def _view_of(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    base = torch.empty(0, dtype=like.dtype, device=flat.device)
    base.set_(flat.untyped_storage(), like.storage_offset(), like.size(), like.stride())
    if like.is_conj():
        base = base.conj()
    return torch._neg_view(base) if like.is_neg() else base


def _strided_like(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return flat.as_strided(like.size(), like.stride(), like.storage_offset())
