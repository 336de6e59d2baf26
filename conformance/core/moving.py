"""Moving trees of tensors between devices: each storage once, each tensor rebuilt on its moved storage.

The key insight: layout and aliasing survive a move only when *storages* move. Each storage is copied once, whole, and
every tensor on it is rebuilt with its own size, stride and offset; so a device is asked for one copy a storage, however
many views there are, and bytes outside all views can be compared too. A sparse tensor travels as the strided tensors
that it consists of, and a tensor that a call wants on the CPU stays there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from conformance.core.input_layout import lay_out
from conformance.core.torch_compat import coo_parts, storage_id


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
    return storage_id(tensor.untyped_storage())


def whole_storage(tensor: torch.Tensor, by_set: bool = True) -> torch.Tensor:
    """A detached 1-d tensor over all of the tensor's storage: of its dtype, or of bytes when they do not divide. Where
    not `by_set`, with `as_strided`, for a device without `set_`."""
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
"""Lays a tensor over moved memory: the 1-d tensor that is that memory, the tensor as it was, and whether it is the only
one there."""


def _over_storage(flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
    return lay_out(flat, like)


def rebuild(
    tree: Any,
    move: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
    place: LayOut = _over_storage,
    flatten: Callable[[torch.Tensor], torch.Tensor] = whole_storage,
) -> Any:
    """The tree with all of its storages moved at once by `move`, and each tensor rebuilt on its moved storage.

    A tensor object that occurs twice stays one object. Size, stride, offset, dtype, `requires_grad` and the conj and
    neg bits are kept; a tensor that was not a leaf becomes one. Raises TypeError for tensors that are not strided, and
    LayoutUnavailable.
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
        # torch itself can make an integer that requires grad, and refuses to be asked for one.
        if tensor.requires_grad and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            rebuilt[key].requires_grad_()
    return map_tensors(tree, lambda tensor: rebuilt[id(tensor)])


MARKER = torch.device("cpu", 0)
"""Stands in a tree for the device under test; it equals no device that a caller leaves out."""


def map_leaves(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """The tree with each leaf replaced; tuples, named tuples, lists and dicts keep their types."""
    if isinstance(tree, tuple) and not isinstance(tree, torch.Size):
        items = [map_leaves(item, replace) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, list):
        return [map_leaves(item, replace) for item in tree]
    if isinstance(tree, dict):
        return {key: map_leaves(item, replace) for key, item in tree.items()}
    return replace(tree)


def leaves(tree: Any) -> list[Any]:
    """The tree's leaves, in order."""
    found: list[Any] = []
    map_leaves(tree, found.append)
    return found


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tree's tensors, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a sparse tensor consists of: indices, then values."""
    if tensor.layout is torch.sparse_coo:
        return coo_parts(tensor)
    if tensor.layout not in _COMPRESSED:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be taken apart")
    return [*(getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]), tensor.values()]


def _assembled(like: torch.Tensor, pieces: list[Any]) -> torch.Tensor:
    made: Any
    if like.layout is torch.sparse_coo:
        made = torch.sparse_coo_tensor(
            pieces[0], pieces[1], like.shape, is_coalesced=like.is_coalesced(), check_invariants=False
        )
    else:
        made = torch.sparse_compressed_tensor(
            pieces[0], pieces[1], pieces[2], like.shape, layout=like.layout, check_invariants=False
        )
    return made.requires_grad_(like.requires_grad)


Send = Callable[[Any], Any]
"""Moves a tree of strided tensors to a device, with their layout and aliasing."""


def moved(tree: Any, send: Send, device: torch.device, kept: Collection[int] = ()) -> Any:
    """The tree where it is to be called: strided tensors as `send` moves them, sparse ones by their parts; tensors on a
    storage of `kept` are copied on the CPU, meta tensors (of inputs that must raise) are left as they are, and `MARKER`
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
    """The tree with each sparse tensor as a dict of its layout, size and parts, so that all of it can be observed."""

    def apart(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            return {"layout": str(leaf.layout), "size": tuple(leaf.shape), "parts": parts(leaf)}
        return leaf

    return map_leaves(tree, apart)


def observable(tree: Any, given: Any) -> Any:
    """The inputs as they are observed after a call: `tree` where it was called, `given` as it was on the CPU. Only
    tensors can be written to; other inputs, such as the device, rightly differ, and meta tensors of `given` hold
    nothing."""
    originals = iter(leaves(given))

    def seen(leaf: Any) -> Any:
        original = next(originals)
        return leaf if isinstance(original, torch.Tensor) and not original.is_meta else None

    return taken_apart(map_leaves(tree, seen))
