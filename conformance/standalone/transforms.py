"""Transforms of torch that targets apply to functions. Scripts carry them, so this module needs torch only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from conformance.standalone.moving import map_leaves, map_tensors, storage_key
from conformance.standalone.torch_compat import TorchDispatchMode, neg_view


class DecompositionMode(TorchDispatchMode):
    """Mode that calls the decomposition of each operator in `table`, also of operators that a decomposition calls.
    `replaced` counts these calls."""

    def __init__(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.table, self.replaced = table, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.table:
            with self:
                result = self.table[func](*args, **(kwargs or {}))
            if result is not NotImplemented:
                self.replaced += 1
                return result
        return func(*args, **(kwargs or {}))


class WritesSeen(TorchDispatchMode):
    """Mode that records whether an operator whose schema declares a write is called."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= func._schema.is_mutable
        return func(*args, **(kwargs or {}))


def vmapped(function: Callable[..., Any], position: int | None = None) -> Callable[..., Any]:
    """Return a function that runs `function` under `torch.vmap` on two examples, and answers for the second.

    The second example has the inputs' values, the first has them in reverse order. A batched input has the geometry of
    its input in each example, and inputs that share a storage share one in each example. The batched dimension is at
    `position` modulo the rank plus 1; by default it follows from the inputs' sizes. If the function writes nothing,
    some inputs are not batched. The inputs receive what the function wrote in the second example.
    """

    def call(*inputs: Any) -> Any:
        found: dict[int, torch.Tensor] = {}
        map_tensors(inputs, lambda tensor: found.setdefault(id(tensor), tensor))
        dims = choose([*found.values()], position, writes(function, inputs))
        batch = Examples(found.values())
        given = [t if dim is None else batch.of(t, dim) for t, dim in zip(found.values(), dims)]
        plain: list[Any] = []

        def example(_: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            by_id = dict(zip(found, tensors))
            leaves: list[Any] = []
            plain.append(map_leaves(function(*map_tensors(inputs, lambda one: by_id[id(one)])), leaves.append))
            plain.append(leaves)
            return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

        try:
            results = iter(pick(torch.vmap(example, (0, *dims), randomness="same")(torch.zeros(2), *given), dims))
        finally:
            batch.write_back()
        made = iter([next(results) if isinstance(leaf, torch.Tensor) else leaf for leaf in plain[1]])
        return map_leaves(plain[0], lambda _: next(made))

    return call


def choose(tensors: list[torch.Tensor], position: int | None, batched: bool) -> list[int | None]:
    """Return the batched dimension of each tensor, None for a tensor that is not batched; `batched` excludes None."""
    seed = sum(tensor.dim() + sum(tensor.size()) for tensor in tensors)
    dims: list[int | None] = []
    for at, tensor in enumerate(tensors):
        dim = (seed + at if position is None else position) % (tensor.dim() + 1)
        dims.append(dim if batched or (seed + at) % 3 else None)
    return dims


def pick(results: Any, dims: list[int | None]) -> list[torch.Tensor]:
    """Return the second example of each result of a call whose inputs are batched at `dims`."""
    return [result[1] for result in results]


def writes(function: Callable[..., Any], inputs: Any) -> bool:
    """Whether the function, called on copies of the inputs, calls an operator that writes, or raises."""
    with WritesSeen() as seen:
        try:
            function(*map_tensors(inputs, lambda tensor: tensor.detach().clone()))
        except Exception:
            return True
    return seen.found


class Examples:
    """Two examples of tensors in new memory, storage by storage."""

    def __init__(self, tensors: Any) -> None:
        self.memory: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        sharing = [storage_key(tensor) for tensor in tensors]
        for tensor in tensors:
            self.add(tensor, sharing.count(storage_key(tensor)) == 1)

    def add(self, tensor: torch.Tensor, alone: bool) -> None:
        """Copy the tensor's storage twice. In the first example, the floats of a tensor that is `alone` on its storage
        are in reverse order."""
        if storage_key(tensor) in self.memory:
            return
        flat = torch.empty(0, dtype=torch.uint8)
        flat.set_(tensor.untyped_storage(), 0, (tensor.untyped_storage().nbytes(),), (1,))
        memory = torch.zeros(2, max(-(-len(flat) // 16) * 16, 16), dtype=torch.uint8)
        memory[:, : len(flat)] = flat
        self.memory[storage_key(tensor)] = flat, memory
        if alone and (tensor.is_floating_point() or tensor.is_complex()) and not overlapping(tensor):
            with torch.no_grad():
                self.of(tensor.detach(), 0)[0].copy_(tensor.detach().flip(tuple(range(tensor.dim()))))

    def of(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the tensor's examples, batched at `dim`. Those of a tensor that requires grad are a function of it."""
        memory = self.memory[storage_key(tensor)][1]
        size, stride = [*tensor.size()], [*tensor.stride()]
        size.insert(dim, 2)
        stride.insert(dim, memory.size(1) // tensor.element_size())
        both = torch.empty(0, dtype=tensor.dtype)
        both.set_(memory.untyped_storage(), tensor.storage_offset(), size, stride)
        both = both.conj() if tensor.is_conj() else both
        both = neg_view(both) if tensor.is_neg() else both
        if tensor.requires_grad:
            return torch.stack([both.select(dim, 0), tensor], dim)
        return both

    def write_back(self) -> None:
        """Copy the second example to the original storages."""
        with torch.no_grad():
            for flat, memory in self.memory.values():
                flat.copy_(memory[1, : len(flat)])


def overlapping(tensor: torch.Tensor) -> bool:
    """Whether a stride is 0 or too small for the dimensions inside it."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.size())):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False
