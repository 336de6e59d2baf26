"""Two sides of a check: a function on a call, run by the executor on a target, and what happens around the call.

Defines `observed`, which runs a side, and the functions that surround a call: gradients, vmap, autocast, batch splits.
`Guarded` is a target that fences the memory of inputs and results. A check compares two sides, for example the
reference and the operator, or the operator eagerly and compiled.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engine.executor import AnsweredCall, Execution, Executor, Transform
from conformance.engine.loading import load_target
from conformance.engine.target import Target
from conformance.sources.operator.calls import Call
from conformance.standalone.fences import KNOWN, NO_ACCESS, Fence, Fresh, fenced, trespassed
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import map_leaves, tensors
from conformance.standalone.observation import Observation, names_of, versions_of
from conformance.standalone.torch_compat import version_of, with_memory

Function = Callable[..., Any]
Around = Callable[[Function, Call, Mapping[str, Any]], Any]
"""Makes the call of a function on inputs by name."""

SEED = 1234


def plainly(function: Function, call: Call, inputs: Mapping[str, Any]) -> Any:
    """Make the call."""
    args, kwargs = call.arguments(inputs)
    return function(*args, **kwargs)


@dataclass
class Side:
    """The executor's subject: a call of a function."""

    function: Function
    call: Call
    around: Around = plainly
    grad: bool = False

    def inputs(self) -> tuple[dict[str, Any], Collection[int]]:
        """Return the inputs; none stays on the CPU."""
        self.tree = dict(self.call.values)
        if self.grad:
            self.tree = map_leaves(self.tree, _leaf)
        return self.tree, ()

    def begin(self, inputs: dict[str, Any], target: Target, transform: Transform | None) -> AnsweredCall:
        """Begin the call on inputs that lie on the target. The same seed is set on each side."""
        function = self._transformed(transform) if transform else self.function

        def call() -> Any:
            torch.manual_seed(SEED)
            return self.around(function, self.call, inputs)

        return AnsweredCall(id(self.function), inputs, call, self.tree, versions_of(inputs))

    def _transformed(self, transform: Transform) -> Function:
        """Return the transformed function. A target transforms functions of positional arguments."""
        names, count, function = [*self.call.values][self.call.positional :], self.call.positional, self.function

        def by_position(*parts: Any) -> Any:
            return function(*parts[:count], **dict(zip(names, parts[count:])))

        transformed = transform(by_position)
        return lambda *args, **kwargs: transformed(*args, *kwargs.values())


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        return value.detach().requires_grad_()
    return value


@functools.cache
def target_of(spec: str) -> Target:
    """Return a target, loaded once."""
    return load_target(spec)


def execution(
    function: Function, call: Call, target: Target | None = None, around: Around = plainly, grad: bool = False
) -> Execution:
    """Run a side on a target, torch CPU by default."""
    return Executor(target or target_of("cpu")).run(Side(function, call, around, grad))


def observed(
    function: Function, call: Call, target: Target | None = None, around: Around = plainly, grad: bool = False
) -> Observation:
    """Return the observation of a side."""
    return execution(function, call, target, around, grad).last


class Guarded(Target):
    """Torch CPU with fences around the memory of inputs and of new tensors (see `standalone/fences.py`)."""

    name = "guarded"

    def __init__(self, at_end: bool = True, protection: int = NO_ACCESS, gaps: int = KNOWN, fresh: int = KNOWN) -> None:
        super().__init__()
        self.at_end, self.protection, self.gaps, self.fresh = at_end, protection, gaps, fresh
        self.fences: list[Fence] = []

    def send(self, tree: Any) -> Any:
        """Return the tree with its tensors on fenced storages; a tensor that occurs twice stays one object."""
        originals = {id(tensor): tensor for tensor in tensors(tree)}
        copies, self.fences = fenced([*originals.values()], self.at_end, self.protection, self.gaps)
        placed = dict(zip(originals, copies, strict=True))
        return map_leaves(tree, lambda leaf: placed.get(id(leaf), leaf))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call, in which new tensors get fenced storages."""
        with Fresh(self.fresh, self.at_end, self.protection) as mode:
            yield
        self.fences += mode.fences

    def trespassed(self) -> str:
        """Return where the last call wrote outside of its tensors; "" if nowhere."""
        return trespassed(self.fences)


def differentiated(
    function: Function, call: Call, inputs: Mapping[str, Any], lay: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Any:
    """Return the gradients of the floating inputs by name, along cotangents that every dtype represents; `lay` changes
    their memory. A result that requires no gradient counts as such. The function gets copies of the leaves; those that
    it writes are results."""
    leaves = {name: tensor for name, tensor in names_of_inputs(inputs).items() if tensor.requires_grad}
    copies = map_leaves(dict(inputs), lambda leaf: leaf.clone() if _differentiable(leaf) else leaf)
    result = plainly(function, call, copies)
    written = [
        tensor for tensor in tensors(copies) if version_of(tensor) and not any(tensor is two for two in tensors(result))
    ]
    differentiable = [
        tensor for tensor in (*tensors(result), *written) if tensor.is_floating_point() or tensor.is_complex()
    ]
    outputs = [tensor for tensor in differentiable if tensor.requires_grad]
    if not outputs:
        return {"requires_grad": False}
    drawn = [(torch.randint(-8, 9, tensor.shape) / 8).to(tensor.dtype) for tensor in differentiable]
    along = [
        lay(grad) if lay else grad for grad, tensor in zip(drawn, differentiable, strict=True) if tensor.requires_grad
    ]
    grads = torch.autograd.grad(outputs, [*leaves.values()], along, allow_unused=True)
    gradients = {f"gradient of {name}": with_memory(grad) for name, grad in zip(leaves, grads, strict=True)}
    return {"requires_grad": True, **gradients}


def along(layout: str, dense: bool) -> Around:
    """Return `differentiated` along cotangents in a layout, or along dense cotangents with the same values."""

    def lay(cotangent: torch.Tensor) -> torch.Tensor:
        grad: torch.Tensor = laid_out(cotangent, layout)
        return grad.clone(memory_format=torch.contiguous_format) if dense else grad

    return functools.partial(differentiated, lay=lay)


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def names_of_inputs(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors among the inputs by name."""
    named = {name: leaf for key, part in inputs.items() for name, leaf in names_of(part, key).items()}
    return {name: leaf for name, leaf in named.items() if isinstance(leaf, torch.Tensor)}


def stacked(call: Call) -> Call:
    """Return the call with a new first dimension of length 2 in each tensor. The second entry has other values."""

    def two(leaf: Any) -> Any:
        return torch.stack([leaf, leaf.flatten().roll(1).view(leaf.shape)]) if isinstance(leaf, torch.Tensor) else leaf

    return call.on(map_leaves(dict(call.values), two))


def mapped(function: Function, call: Call, inputs: Mapping[str, Any]) -> Any:
    """Call the function under `torch.func.vmap`, over the first dimension of each tensor."""
    return torch.func.vmap(lambda *parts: plainly(function, call, _with(inputs, parts)))(*tensors(inputs))


def looped(function: Function, call: Call, inputs: Mapping[str, Any]) -> Any:
    """Call the function on each entry of the first dimension, and stack the results."""
    rows = [plainly(function, call, _with(inputs, parts)) for parts in zip(*tensors(inputs), strict=True)]
    return _joined(rows, torch.stack)


def _with(inputs: Mapping[str, Any], parts: Any) -> dict[str, Any]:
    rest = iter(parts)
    result: dict[str, Any] = map_leaves(
        dict(inputs), lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf
    )
    return result


def _joined(results: list[Any], join: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
    rows = iter([join([*each]) for each in zip(*map(tensors, results), strict=True)])
    return map_leaves(results[0], lambda leaf: next(rows) if isinstance(leaf, torch.Tensor) else leaf)


def under_autocast(function: Function, call: Call, inputs: Mapping[str, Any]) -> Any:
    """Make the call under autocast to bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return plainly(function, call, inputs)


def split(dims: Mapping[str, int]) -> Around:
    """Return a function that makes the call on each entry of these arguments' batch dimensions, and joins the results
    along their first dimension."""

    def parts(function: Function, call: Call, inputs: Mapping[str, Any]) -> Any:
        count = min(inputs[name].shape[dim] for name, dim in dims.items())
        rows = []
        for at in range(count):
            one = {name: inputs[name].narrow(dim, at, 1) for name, dim in dims.items()}
            rows.append(plainly(function, call, {**inputs, **one}))
        return _joined(rows, torch.cat)

    return parts
