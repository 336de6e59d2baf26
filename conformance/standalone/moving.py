"""Move trees of tensors between devices: copy each storage once, and rebuild each tensor on its moved storage.

Layout and aliasing survive a move only if *storages* move. Each storage is copied once and whole, and every tensor on
it is rebuilt with its size, stride and offset. So a device makes one copy per storage, however many views there are,
and bytes outside all views can be compared too. A sparse tensor moves as the strided tensors that it consists of. A
tensor that a call needs on the CPU stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from conformance.standalone.input_layout import lay_out
from conformance.standalone.torch_compat import coo_parts, storage_id


def copied_to_host(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors to the CPU, each into a new storage."""
    return [flat.clone() if flat.device.type == "cpu" else flat.cpu() for flat in flats]


def map_tensors(tree: Any, replace: Callable[[torch.Tensor], Any]) -> Any:
    """Return the tree with each tensor replaced; tuples, named tuples, lists and dicts keep their types."""
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
    """Return the identity of the tensor's storage: equal exactly for tensors that alias, also if the storage is
    empty."""
    return storage_id(tensor.untyped_storage())


def whole_storage(tensor: torch.Tensor, by_set: bool = True) -> torch.Tensor:
    """Return a detached 1-d tensor over the tensor's whole storage: of the tensor's dtype, or uint8 if the storage is
    no whole number of elements. With `by_set` False, use `as_strided`, for a device without `set_`."""
    storage = tensor.untyped_storage()
    size, rest = divmod(storage.nbytes(), tensor.element_size())
    if not by_set:
        plain = tensor.detach()
        plain = plain.conj() if plain.is_conj() else plain  # memory has no lazy bits, and as_strided keeps them
        plain = torch.ops.aten._neg_view(plain) if plain.is_neg() else plain
        plain = plain.view(torch.uint8) if rest else plain
        return plain.as_strided((size if not rest else storage.nbytes(),), (1,), 0)
    if rest:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (size,), (1,))


LayOut = Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]
"""Function that lays a tensor over moved memory. Arguments: the 1-d tensor of that memory, the original tensor, and
whether no other tensor uses the memory."""


def _over_storage(flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
    return lay_out(flat, like)


def rebuild(
    tree: Any,
    move: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
    place: LayOut = _over_storage,
    flatten: Callable[[torch.Tensor], torch.Tensor] = whole_storage,
) -> Any:
    """Return the tree with all its storages moved in one call of `move`, and each tensor rebuilt on its moved storage.

    A tensor object that occurs twice stays one object. Size, stride, offset, dtype, `requires_grad` and the conj and
    neg bits stay the same; a tensor that was not a leaf becomes one. Raises TypeError for tensors that are not strided,
    and LayoutUnavailable.
    """
    originals: dict[int, torch.Tensor] = {}
    map_tensors(tree, lambda tensor: originals.setdefault(id(tensor), tensor))
    flats: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for tensor in originals.values():
            if tensor.layout is not torch.strided:
                raise TypeError(f"a tensor of layout {tensor.layout} has no storage to move: only strided tensors do")
            if storage_key(tensor) not in flats:
                flats[storage_key(tensor)] = flatten(tensor)
        moved = dict(zip(flats, move(list(flats.values())), strict=True))
        sharing = Counter(storage_key(tensor) for tensor in originals.values())
        rebuilt = {}
        for key, tensor in originals.items():
            storage = storage_key(tensor)
            rebuilt[key] = place(moved[storage], tensor, sharing[storage] == 1)
    for key, tensor in originals.items():
        # torch itself can create an integer tensor that requires grad, but `requires_grad_()` refuses to.
        if tensor.requires_grad and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            rebuilt[key].requires_grad_()
    return map_tensors(tree, lambda tensor: rebuilt[id(tensor)])


MARKER = torch.device("cpu", 0)
"""Placeholder in a tree for the device under test. It differs from `torch.device("cpu")`, the usual device argument of
a call."""


def map_leaves(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """Return the tree with each leaf replaced; tuples, named tuples, lists and dicts keep their types."""
    if isinstance(tree, tuple) and not isinstance(tree, torch.Size):
        items = [map_leaves(item, replace) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, list):
        return [map_leaves(item, replace) for item in tree]
    if isinstance(tree, dict):
        return {key: map_leaves(item, replace) for key, item in tree.items()}
    return replace(tree)


def leaves(tree: Any) -> list[Any]:
    """Return the tree's leaves, in order."""
    result: list[Any] = []
    _append_leaves(tree, result)
    return result


def _append_leaves(tree: Any, result: list[Any]) -> None:
    """Append the leaves of a tree to `result`, without a copy of the tree: samplers call this for every call."""
    if isinstance(tree, (tuple, list)) and not isinstance(tree, torch.Size):
        for item in tree:
            _append_leaves(item, result)
    elif isinstance(tree, dict):
        for item in tree.values():
            _append_leaves(item, result)
    else:
        result.append(tree)


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tree's tensors, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the strided tensors that a sparse tensor consists of: indices, then values."""
    if tensor.layout is torch.sparse_coo:
        return coo_parts(tensor)
    if tensor.layout not in _COMPRESSED:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be taken apart")
    return [*(getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]), tensor.values()]


def _assembled(like: torch.Tensor, pieces: list[Any]) -> torch.Tensor:
    tensor: Any
    if like.layout is torch.sparse_coo:
        tensor = torch.sparse_coo_tensor(
            pieces[0], pieces[1], like.shape, is_coalesced=like.is_coalesced(), check_invariants=False
        )
    else:
        tensor = torch.sparse_compressed_tensor(
            pieces[0], pieces[1], pieces[2], like.shape, layout=like.layout, check_invariants=False
        )
    return tensor.requires_grad_(like.requires_grad)


Send = Callable[[Any], Any]
"""Function that moves a tree of strided tensors to a device, with their layout and aliasing."""


def send_tree(tree: Any, send: Send, device: torch.device, kept: Collection[int] = ()) -> Any:
    """Return the tree where the call will run. `send` moves strided tensors, and sparse tensors by their parts. Tensors
    on a storage in `kept` are copied on the CPU. Meta tensors (of inputs that must raise) stay unchanged, and `MARKER`
    becomes `device`."""
    here: list[torch.Tensor] = []
    there: list[torch.Tensor] = []

    def collect(leaf: Any) -> None:
        if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
            stays = leaf.layout is torch.strided and storage_key(leaf) in kept
            (here if stays else there).extend([leaf] if leaf.layout is torch.strided else parts(leaf))

    map_leaves(tree, collect)
    on_host, on_device = iter(rebuild(here, copied_to_host)), iter(send(there))

    def place(leaf: Any) -> Any:
        if isinstance(leaf, torch.device) and leaf == MARKER:
            return device
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta:
            return leaf
        if leaf.layout is not torch.strided:
            return _assembled(leaf, [next(on_device) for _ in parts(leaf)])
        return next(on_host) if storage_key(leaf) in kept else next(on_device)

    return map_leaves(tree, place)


def taken_apart(tree: Any) -> Any:
    """Return the tree with each sparse tensor as a dict of its layout, size and parts, so that all of it can be
    observed."""

    def apart(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            return {"layout": str(leaf.layout), "size": tuple(leaf.shape), "parts": parts(leaf)}
        return leaf

    return map_leaves(tree, apart)


def observable(tree: Any, inputs: Any) -> Any:
    """Return the inputs to observe after a call. `tree` holds them on the target, `inputs` as they were on the CPU.
    Only tensors can be written to. Other inputs, such as the device, rightly differ, and meta tensors hold no values,
    so both become None."""
    originals = iter(leaves(inputs))

    def seen(leaf: Any) -> Any:
        original = next(originals)
        return leaf if isinstance(original, torch.Tensor) and not original.is_meta else None

    return taken_apart(map_leaves(tree, seen))
