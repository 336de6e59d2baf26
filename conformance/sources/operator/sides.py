"""Two sides of a check: a function on a call, run by the executor on a target, and what happens around the call.

Defines `observed`, which runs a side, and the functions that surround a call: gradients, vmap, autocast, batch splits.
`Guarded` is a target that fences the memory of inputs and results. A check compares two sides, for example the
reference and the operator, or the operator eagerly and compiled.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engine.executor import AnsweredCall, Execution, Executor, Transform
from conformance.engine.loading import load_target
from conformance.engine.target import Target
from conformance.sources.operator.calls import DrawnCall
from conformance.sources.operator.subject import by_finding_name
from conformance.standalone.fences import KNOWN, NO_ACCESS, Fence, Fresh, fenced, trespassed
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import map_leaves, tensors
from conformance.standalone.observation import Observation, tensors_by_name, versions_of
from conformance.standalone.torch_compat import version_of, with_memory

Function = Callable[..., Any]
Around = Callable[[Function, DrawnCall, Mapping[str, Any]], Any]
"""Makes the call of a function on inputs by name."""

SEED = 1234


def plainly(function: Function, call: DrawnCall, inputs: Mapping[str, Any]) -> Any:
    """Make the call."""
    args, kwargs = call.arguments(inputs)
    return function(*args, **kwargs)


@dataclass
class Side:
    """The executor's subject: a call of a function."""

    function: Function
    call: DrawnCall
    around: Around = plainly

    def inputs(self) -> tuple[dict[str, Any], Collection[int]]:
        """Return the inputs; none stays on the CPU."""
        return self.call.values, ()

    def begin(self, inputs: dict[str, Any], target: Target, transform: Transform | None) -> AnsweredCall:
        """Begin the call on inputs that lie on the target. The same seed is set on each side."""
        function = self._transformed(transform) if transform else self.function

        def call() -> Any:
            torch.manual_seed(SEED)
            return self.around(function, self.call, inputs)

        return AnsweredCall(
            id(self.function), by_finding_name(inputs), call, by_finding_name(self.call.values), versions_of(inputs)
        )

    def _transformed(self, transform: Transform) -> Function:
        """Return the transformed function. A target transforms functions of positional arguments."""
        names, count, function = [*self.call.values][self.call.positional :], self.call.positional, self.function

        def by_position(*parts: Any) -> Any:
            return function(*parts[:count], **dict(zip(names, parts[count:])))

        transformed = transform(by_position)
        return lambda *args, **kwargs: transformed(*args, *kwargs.values())


@functools.cache
def target_of(spec: str) -> Target:
    """Return a target, loaded once."""
    return load_target(spec)


def execution(function: Function, call: DrawnCall, target: Target | None = None, around: Around = plainly) -> Execution:
    """Run a side on a target, torch CPU by default."""
    return Executor(target or target_of("cpu")).run(Side(function, call, around))


def observed(
    function: Function, call: DrawnCall, target: Target | None = None, around: Around = plainly
) -> Observation:
    """Return the observation of a side."""
    return execution(function, call, target, around).last


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
    function: Function,
    call: DrawnCall,
    inputs: Mapping[str, Any],
    lay: Callable[[torch.Tensor], torch.Tensor] = lambda cotangent: cotangent,
) -> Any:
    """Return the gradients of the floating inputs by name, along cotangents that every dtype represents; `lay` changes
    their memory. A result that requires no gradient counts as such. The function gets copies of the leaves; those that
    it writes are results."""
    inputs = map_leaves(inputs, lambda leaf: leaf.detach().requires_grad_() if is_differentiable(leaf) else leaf)
    leaves = {name: tensor for name, tensor in tensors_by_name(by_finding_name(inputs)).items() if tensor.requires_grad}
    copies = map_leaves(inputs, lambda leaf: leaf.clone() if is_differentiable(leaf) else leaf)
    returned = tensors(plainly(function, call, copies))
    written = [each for each in tensors(copies) if version_of(each) and not any(each is other for other in returned)]
    results = [tensor for tensor in (*returned, *written) if is_differentiable(tensor)]
    drawn = [(torch.randint(-8, 9, tensor.shape) / 8).to(tensor.dtype) for tensor in results]
    pairs = [(tensor, lay(grad)) for tensor, grad in zip(results, drawn, strict=True) if tensor.requires_grad]
    if not pairs:
        return {"requires_grad": False}
    outputs, cotangents = zip(*pairs)
    grads = torch.autograd.grad(outputs, [*leaves.values()], cotangents, allow_unused=True)
    gradients = {f"gradient of {name}": with_memory(grad) for name, grad in zip(leaves, grads, strict=True)}
    return {"requires_grad": True, **gradients}


def is_differentiable(leaf: Any) -> bool:
    """Whether a leaf of the inputs or results is a floating or complex tensor."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def along(layout: str, dense: bool) -> Around:
    """Return `differentiated` along cotangents in a layout, or along dense cotangents with the same values."""

    def lay(cotangent: torch.Tensor) -> torch.Tensor:
        grad: torch.Tensor = laid_out(cotangent, layout)
        return grad.clone(memory_format=torch.contiguous_format) if dense else grad

    return functools.partial(differentiated, lay=lay)


def stacked(call: DrawnCall) -> DrawnCall:
    """Return the call with a new first dimension of length 2 in each tensor. The second entry has other values."""
    pairs = [torch.stack([leaf, leaf.flatten().roll(1).view(leaf.shape)]) for leaf in tensors(call.values)]
    return call.on(with_tensors(call.values, pairs))


def mapped(function: Function, call: DrawnCall, inputs: Mapping[str, Any]) -> Any:
    """Call the function under `torch.func.vmap`, over the first dimension of each tensor."""
    return torch.func.vmap(lambda *parts: plainly(function, call, with_tensors(inputs, parts)))(*tensors(inputs))


def looped(function: Function, call: DrawnCall, inputs: Mapping[str, Any]) -> Any:
    """Call the function on each entry of the first dimension, and stack the results."""
    rows = zip(*tensors(inputs), strict=True)
    return _joined([plainly(function, call, with_tensors(inputs, parts)) for parts in rows], torch.stack)


def with_tensors(tree: Any, parts: Iterable[torch.Tensor]) -> Any:
    """Return the tree with its tensors replaced by these, in order."""
    rest = iter(parts)
    return map_leaves(tree, lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf)


def _joined(results: Sequence[Any], join: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
    return with_tensors(results[0], [join([*each]) for each in zip(*map(tensors, results), strict=True)])


def under_autocast(function: Function, call: DrawnCall, inputs: Mapping[str, Any]) -> Any:
    """Make the call under autocast to bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return plainly(function, call, inputs)


def split(dims: Mapping[str, int]) -> Around:
    """Return a function that makes the call on each entry of these arguments' batch dimensions, and joins the results
    along their first dimension."""

    def parts(function: Function, call: DrawnCall, inputs: Mapping[str, Any]) -> Any:
        count = min(inputs[name].shape[dim] for name, dim in dims.items())
        entries = [{name: inputs[name].narrow(dim, at, 1) for name, dim in dims.items()} for at in range(count)]
        return _joined([plainly(function, call, {**inputs, **entry}) for entry in entries], torch.cat)

    return parts
