"""Rows for calls of objects: `op_db.entry:NAME` calls an entry of op_db, which often has no public name, and
`object:NAME` any Python object, such as a module, an optimizer, or a call that measures itself.

Defines `ROWS_OF_ENTRIES`. The operands of an entry are whole argument trees: the input, the positional and the keyword
arguments, and the tensors of out=. An object may return a dict of named results, if its step names none. Only the
function under test goes through a target's transform: for `op_db.backward`, a compiler gets the call of the entry, and
the cotangents are drawn outside. A row sets the seed that its step has, so that both sides, a script, and a replay of
one sample draw the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy
import torch
from torch.autograd import forward_ad

from conformance.program.steps.op import LOSSY, QUERY, Form, Op
from conformance.standalone.moving import map_leaves, tensors
from conformance.standalone.torch_compat import with_memory

FAMILY, ENTRY, BACKWARD = "op_db entries", "op_db.entry", "op_db.backward"
FORWARD_OVER_BACKWARD = "op_db.entry.forward_over_backward"
OBJECT = "object"

Process = Callable[[Any], Any]
"""OpInfo's conversion of a result whose sign or phase is free."""


class Runner(Protocol):
    """The part of a running program that these rows need."""

    device: torch.device

    def apply(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function under test as the target transforms it."""

    def settle(self) -> None:
        """Wait for the device."""

    def constant(self, leaf: Any) -> Any:
        """Return a constant of the call as this run needs it: in float64, a floating dtype is torch.float64."""

    def draw(self, likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a direction of derivation for each tensor, from random numbers drawn on the CPU."""


def set_seed(seed: int, device: torch.device | None = None) -> None:
    """Seed the generators that op_db's samplers and operators draw from, and the generators of `device`.

    `torch.manual_seed` also queues a call, with a formatted traceback, for each kind of device that was never used.
    That costs more than a millisecond each time, without any use here.
    """
    random.seed(seed)
    numpy.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    module: Any = getattr(torch, device.type, None) if device is not None else None
    if hasattr(module, "manual_seed_all"):
        module.manual_seed_all(seed)


def function_of(entry: Callable[..., Any], with_out: bool = False) -> Callable[..., Any]:
    """Return the function under test: the call of an entry on its argument trees, `with_out` also on out= tensors."""

    def call(input: Any, args: Any, kwargs: Any) -> Any:
        return entry(input, *args, **kwargs)

    def call_into(input: Any, args: Any, kwargs: Any, out: Any) -> Any:
        return entry(input, *args, **kwargs, out=out)

    return call_into if with_out else call


def _call(runner: Runner, args: list[Any], kwargs: dict[str, Any]) -> Any:
    entry, *operands = args
    set_seed(kwargs["seed"], runner.device)
    return runner.apply(function_of(entry, with_out=len(operands) > 3))(*operands)


def _differentiable(result: Any, process: Process | None) -> list[torch.Tensor]:
    processed = result if process is None else process(result)
    return [tensor for tensor in tensors(processed) if tensor.requires_grad]


def _backward(runner: Runner, args: list[Any], kwargs: dict[str, Any]) -> None:
    result, process, *operands = args
    outputs = _differentiable(result, process)
    if outputs:
        set_seed(kwargs["seed"])
        torch.autograd.backward(outputs, runner.draw(outputs))
        for tensor in tensors(operands):
            tensor.grad = with_memory(tensor.grad)


def _forward_over_backward(runner: Runner, args: list[Any], kwargs: dict[str, Any]) -> list[torch.Tensor | None]:
    entry, process, *operands = args
    primals = [tensor for tensor in tensors(operands) if tensor.requires_grad]
    set_seed(kwargs["seed"], runner.device)
    tangents = runner.draw(primals)
    with forward_ad.dual_level():
        duals = list(map(forward_ad.make_dual, primals, tangents))
        left = iter(duals)

        def dual(leaf: Any) -> Any:
            return next(left) if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf

        outputs = _differentiable(runner.apply(function_of(entry))(*map_leaves(operands, dual)), process)
        if not outputs:
            return []
        gradients = torch.autograd.grad(outputs, duals, runner.draw(outputs), allow_unused=True)
        return [with_memory(forward_ad.unpack_dual(g).tangent if g is not None else None) for g in gradients]


def _call_object(runner: Runner, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call an object, which passes to the transform only the function that a compiler gets. A call within a script of
    the user has no seed, since the generators are the script's."""
    call, *parts = args
    if "seed" in kwargs:
        set_seed(kwargs["seed"], runner.device)
    return call(runner, *parts)


def _row(name: str, run: Callable[..., Any], effect: str = LOSSY) -> Op:
    return Op(name, FAMILY, effect, lambda k: None, Form(run, lambda name, args, kwargs: name, by_runner=True))


ROWS_OF_ENTRIES = {
    ENTRY: _row(ENTRY, _call),
    FORWARD_OVER_BACKWARD: _row(FORWARD_OVER_BACKWARD, _forward_over_backward),
    BACKWARD: _row(BACKWARD, _backward, QUERY),
    OBJECT: _row(OBJECT, _call_object),
}
"""Rows by the kind of the step."""
