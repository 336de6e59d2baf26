"""Transforms of torch that targets apply to functions. Scripts carry them, so this module needs torch only."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from conformance.standalone.moving import copied_to_host, map_leaves, map_tensors, rebuild, storage_key
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
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= func._schema.is_mutable
        return func(*args, **(kwargs or {}))


def vmapped(function: Callable[..., Any], position: int | None = None) -> Callable[..., Any]:
    """Return a function that runs `function` under `torch.vmap` on two examples, and answers for the second.

    The second example has the inputs' values, the first has them in reverse order. A batched input has the geometry of
    its input in each example, and inputs that share a storage share one in each example. The batched dimension is at
    `position` modulo the rank plus 1; by default it follows from the inputs' sizes. If the function writes nothing,
    some inputs are not batched. The inputs receive what the function wrote in the second example.
    """

    def call(*inputs: Any) -> Any:
        distinct: dict[int, torch.Tensor] = {}
        map_tensors(inputs, lambda tensor: distinct.setdefault(id(tensor), tensor))
        dims = choose([*distinct.values()], position, writes(function, inputs))
        batch = Examples(distinct.values())
        batched = [t if dim is None else batch.of(t, dim) for t, dim in zip(distinct.values(), dims)]
        plain: list[Any] = []

        def example(_: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            by_id = dict(zip(distinct, tensors))
            leaves: list[Any] = []
            plain.append(map_leaves(function(*map_tensors(inputs, lambda tensor: by_id[id(tensor)])), leaves.append))
            plain.append(leaves)
            return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

        try:
            results = iter(pick(torch.vmap(example, (0, *dims), randomness="same")(torch.zeros(2), *batched), dims))
        finally:
            batch.write_back()
        substitutes = iter([next(results) if isinstance(leaf, torch.Tensor) else leaf for leaf in plain[1]])
        return map_leaves(plain[0], lambda _: next(substitutes))

    return call


def exported(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that exports `function` for its inputs, saves and loads the exported program, and runs it.

    The exported program takes each tensor of the inputs once. Results that the graph does not compute are constants of
    the trace. Without any other result it returns None, since torch 2.13 cannot save a program that returns `()`.
    """

    def call(*inputs: Any) -> Any:
        tensors = unique(inputs)
        plain: list[Any] = []

        def traced(*values: torch.Tensor) -> tuple[Any, ...] | None:
            by_id = {id(tensor): value for tensor, value in zip(tensors, values)}
            leaves: list[Any] = []
            plain[:] = (
                map_leaves(function(*map_tensors(inputs, lambda tensor: by_id[id(tensor)])), leaves.append),
                leaves,
            )
            return tuple(leaf for leaf in leaves if isinstance(leaf, IN_GRAPH)) or None

        program, file = torch.export.export(Traced(traced), tuple(tensors)), io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        results = iter(torch.export.load(file).module()(*tensors) or ())
        substitutes = iter([next(results) if isinstance(leaf, IN_GRAPH) else leaf for leaf in plain[1]])
        return map_leaves(plain[0], lambda _: next(substitutes))

    return call


IN_GRAPH = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of the results that the graph computes."""


class Traced(torch.nn.Module):
    """Module without parameters that calls a function, since torch.export takes modules only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        """Call the function."""
        return self.function(*args)


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
    return seen.seen


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


def flat(tree: Any) -> list[Any]:
    """Return the tree's leaves, in order."""
    result: list[Any] = []
    map_leaves(tree, result.append)
    return result


def copied(tree: Any) -> Any:
    """Return a copy of the tree, with the same geometry, aliasing and `requires_grad`."""
    return rebuild(tree, copied_to_host)


def unique(tree: Any) -> list[torch.Tensor]:
    """Return the tree's tensors, each once."""
    distinct: dict[int, torch.Tensor] = {}
    map_tensors(tree, lambda tensor: distinct.setdefault(id(tensor), tensor))
    return [*distinct.values()]


def differentiated(function: Callable[..., Any], derive: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the results of `function`, and with gradients from `derive`.

    `derive` receives the function, its inputs, and the numbers of the results to differentiate. It returns the results,
    and a function of cotangents, by number of a result, that returns the gradients of the inputs that require grad.
    """

    def call(*inputs: Any) -> Any:
        wanted = [tensor for tensor in unique(inputs) if tensor.requires_grad]
        state, twin, saved = torch.get_rng_state(), copied(inputs), copied(inputs)
        plain = flat(function(*twin)) if wanted else []
        numbers = [at for at, value in enumerate(plain) if isinstance(value, torch.Tensor) and value.requires_grad]
        torch.set_rng_state(state)
        if not numbers:
            return function(*inputs)
        outcome = derive(function, inputs, numbers)[0]
        roots = [tensor for tensor in unique(twin) if tensor.requires_grad and tensor.is_leaf]

        def pull(cotangents: Any) -> list[torch.Tensor | None]:
            """Return the gradients; None for an input that autograd does not reach, as without the transform."""
            known = {at: cotangent for at, cotangent in zip(numbers, cotangents) if cotangent is not None}
            ends = [plain[at] for at in known]
            seen = torch.autograd.grad(ends, roots, [*known.values()], allow_unused=True, retain_graph=True)
            torch.set_rng_state(state)
            gradients = derive(function, copied(saved), [*known])[1](known)
            return [None if tensor is None else gradient for tensor, gradient in zip(seen, gradients)]

        every = flat(outcome)
        linked = dict(zip(numbers, Linked.apply(pull, [every[at] for at in numbers], *wanted)))
        substitutes = iter([linked.get(at, value) for at, value in enumerate(every)])
        return map_leaves(outcome, lambda _: next(substitutes))

    return call


class Linked(torch.autograd.Function):
    """Node of the autograd graph whose gradients are those of a function of the cotangents."""

    @staticmethod
    def forward(ctx: Any, pull: Any, results: list[torch.Tensor], *wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.pull = pull
        ctx.set_materialize_grads(False)
        return tuple(result.detach().clone() for result in results)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> Any:
        return (None, None, *ctx.pull(cotangents))


def by_vjp(function: Any, inputs: Any, numbers: list[int]) -> tuple[Any, Any]:
    """Differentiate with `torch.func.vjp`. Inputs that do not require grad are copied into it and written back."""
    wanted = [tensor for tensor in unique(inputs) if tensor.requires_grad]
    others = [tensor for tensor in unique(inputs) if not tensor.requires_grad]
    kept: list[Any] = []

    def pure(*values: torch.Tensor) -> Any:
        own = [tensor.clone() for tensor in others]
        by_id = dict(zip(map(id, (*wanted, *others)), (*values, *own)))
        kept.append(function(*map_tensors(inputs, lambda tensor: by_id[id(tensor)])))
        every = flat(kept[0])
        rest = [value for at, value in enumerate(every) if isinstance(value, torch.Tensor) and at not in numbers]
        return tuple(every[at] for at in numbers), (rest, own)

    results, pull, (rest, written) = torch.func.vjp(  # type: ignore[misc]
        pure, *[tensor.detach() for tensor in wanted], has_aux=True
    )
    with torch.no_grad():
        for real, value in zip(others, written):
            if not torch.equal(real, value):
                real.copy_(value)
    by_number, left = dict(zip(numbers, results)), iter(rest)
    every = [
        by_number[at] if at in by_number else next(left) if isinstance(leaf, torch.Tensor) else leaf
        for at, leaf in enumerate(flat(kept[0]))
    ]
    substitutes = iter(every)
    return map_leaves(kept[0], lambda _: next(substitutes)), lambda known: pull(tuple(known[at] for at in numbers))


def by_jvp(function: Any, inputs: Any, numbers: list[int]) -> tuple[Any, Any]:
    """Differentiate with forward-mode derivatives along each element of each input that requires grad."""
    saved, state = copied(inputs), torch.get_rng_state()
    shapes = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in unique(inputs) if tensor.requires_grad]

    def run(tree: Any, tangents: list[torch.Tensor]) -> Any:
        leaf = [tensor for tensor in unique(tree) if tensor.requires_grad]
        duals = {id(tensor): forward_ad.make_dual(tensor.detach(), t) for tensor, t in zip(leaf, tangents)}
        return function(*map_tensors(tree, lambda tensor: duals.get(id(tensor), tensor)))

    def along(tangents: list[torch.Tensor], cotangents: dict[int, torch.Tensor]) -> float:
        torch.set_rng_state(state)
        with forward_ad.dual_level():
            results = flat(run(copied(saved), tangents))
            moved = {at: forward_ad.unpack_dual(results[at]).tangent for at in cotangents}
            pairs = [(cotangents[at].conj() * moved[at]) for at in cotangents if moved[at] is not None]
            return sum(float(pair.sum(dtype=wide(pair)).real) for pair in pairs)

    def pull(cotangents: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        result = []
        for at, shape in enumerate(shapes):
            gradient = shape.clone()
            for index in range(shape.numel()):
                for unit in (1, 1j) if shape.is_complex() else (1,):
                    tangents = [other.clone() for other in shapes]
                    tangents[at].view(-1)[index] = torch.tensor(unit, dtype=shape.dtype)
                    gradient.view(-1)[index] += torch.tensor(unit * along(tangents, cotangents), dtype=gradient.dtype)
            result.append(gradient)
        return result

    def primal(leaf: Any) -> Any:
        return forward_ad.unpack_dual(leaf).primal if isinstance(leaf, torch.Tensor) else leaf

    with forward_ad.dual_level():
        return map_leaves(run(inputs, [shape + 1 for shape in shapes]), primal), pull


def wide(tensor: torch.Tensor) -> torch.dtype:
    """Return complex128 or float64."""
    return torch.complex128 if tensor.is_complex() else torch.float64
