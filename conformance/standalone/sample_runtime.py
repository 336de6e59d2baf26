"""Runtime of a sample's script, added to `script_runtime.py`: op_db's samples on a device, gradients, processing.

Some variants need more than one function call: gradients are drawn, dual tensors are made, and OpInfo processes results
whose sign or phase is free. All of that happens around the function, so that a compiler receives the function alone.
`gradients`, `derivatives` and `processed` are each a `call` of `script_runtime.compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import map_leaves, storage_key, whole_storage
from conformance.standalone.script_runtime import leaves_by_name, on_host, plain_call
from conformance.standalone.torch_compat import tree_leaves, tree_map

Process = Callable[[Any], Any]
Place = Callable[..., "torch.Tensor | None"]
"""Function that makes a view of a 1-d tensor from a size, strides and an offset."""


def sent(tree: Any, device: str) -> Any:
    """Return the tree on the device, for dense tensors, each with a new storage."""
    return tree_map(
        lambda x: x.detach().to(device, copy=True).requires_grad_(x.requires_grad) if torch.is_tensor(x) else x, tree
    )


def moved(tree: Any, device: str, layout: str = "", stays: Collection[str] = (), place: Place | None = None) -> Any:
    """Return the tree on the device. Whole storages move, so that layout and aliasing stay the same; inputs in `stays`
    do not move. `place` makes views if the device has no `as_strided`.
    """
    copies: dict[int, Any] = {}
    flats: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    kept = {storage_key(leaf) for name, leaf in leaves_by_name(tree).items() if name in stays}

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.device) and leaf == torch.device("cpu", 0):
            return torch.device(device)
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta:
            return leaf
        if leaf.layout is not torch.strided:
            return sent(leaf, device)
        like = laid_out(leaf, layout, kept) if layout else leaf
        if storage_key(like) not in flats:
            where = "cpu" if storage_key(leaf) in kept else device
            # `like` stays alive, so that no other storage gets its key.
            flats[storage_key(like)] = whole_storage(like.detach()).to(where, copy=True), like
        flat, _ = flats[storage_key(like)]
        flat = flat if flat.dtype is like.dtype else flat.view(like.dtype)
        geometry = like.size(), like.stride(), like.storage_offset()
        view = flat.as_strided(*geometry) if place is None else place(flat, *geometry)
        placed = like.detach().to(device) if view is None else view.data
        placed = placed.conj() if like.is_conj() else placed
        placed = torch._neg_view(placed) if like.is_neg() else placed
        return placed.requires_grad_(leaf.requires_grad)

    def once(leaf: Any) -> Any:
        if id(leaf) not in copies:
            copies[id(leaf)] = (one(leaf), leaf)  # keeps the leaf alive, so that its id stays unique
        return copies[id(leaf)][0]

    return map_leaves(tree, once)


def differentiable(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree that require a gradient."""
    return [x for x in tree_leaves(tree) if torch.is_tensor(x) and x.requires_grad]


def draws(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return random numbers for each tensor, drawn on the CPU."""
    return [torch.randn(x.shape, dtype=x.dtype).to(x.device) for x in outputs]


def gradients(program: Any, inputs: dict[str, Any], process: Process = lambda result: result) -> Any:
    """Make the call, then compute the gradients of its inputs."""
    results = program(*inputs.values())
    outputs = differentiable(process(results["result"]))
    torch.manual_seed(1234)
    if outputs:
        torch.autograd.backward(outputs, draws(outputs))
    for x in differentiable(inputs):
        if x.grad is not None and torch._is_zerotensor(x.grad):
            x.grad = x.grad.clone()  # a zero tensor has no memory and cannot be read
    return results


def derivatives(program: Any, inputs: dict[str, Any], process: Process = lambda result: result) -> Any:
    """Return the derivatives of the gradients along drawn tangents, in forward mode."""
    with forward_ad.dual_level():
        duals = {id(x): forward_ad.make_dual(x, draws([x])[0]) for x in differentiable(inputs)}
        outputs = differentiable(
            process(program(*tree_map(lambda x: duals.get(id(x), x), [*inputs.values()]))["result"])
        )
        grads = torch.autograd.grad(outputs, [*duals.values()], draws(outputs), allow_unused=True) if outputs else []
        tangents = [None if grad is None else forward_ad.unpack_dual(grad).tangent for grad in grads]
    return {"result": [x.clone() if x is not None and torch._is_zerotensor(x) else x for x in tangents]}


def processed(program: Any, inputs: dict[str, Any], process: Process, call: Any = plain_call) -> Any:
    """Make the call, and add its result after OpInfo's processing, on the CPU."""
    results = call(program, inputs)
    return {
        **results,
        "processed": process(tree_map(lambda x: on_host(x) if torch.is_tensor(x) else x, results["result"])),
    }


def with_gaps(result: Any, device: str) -> Any:
    """Return out= tensors of the result's sizes, each of every other element of its storage."""
    return tree_map(lambda x: torch.full((*x.shape, 2), 7, device=device).to(x.dtype)[..., 0], result)


def replaced(tree: Any, place: Sequence[Any], new: Any) -> Any:
    """Return the tree with another leaf at this path of keys and indices; tuples and lists keep their types."""
    if not place:
        return new
    first, *rest = place
    if isinstance(tree, dict):
        return {**tree, first: replaced(tree[first], rest, new)}
    parts = [replaced(part, rest, new) if at == first else part for at, part in enumerate(tree)]
    return tuple(parts) if isinstance(tree, tuple) else parts
