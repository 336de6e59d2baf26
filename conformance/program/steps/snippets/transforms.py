"""Transforms of torch.func of small functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from conformance.standalone.torch_compat import tree_leaves, tree_map, with_memory


def forward_over_backward(function: Any, tangents: Any, cotangents: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the derivatives in forward mode of the gradients of a function, one for each operand that requires grad.

    The operands move along `tangents`, and the gradients are taken with `cotangents`, one for each differentiable
    result. An operand whose gradient does not depend on the operands has no derivative, and is left out."""
    mode, along = torch.autograd.forward_ad, iter(tangents)
    duals: list[Any] = []

    def dual(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            duals.append(value := mode.make_dual(value, next(along)))
        return value

    with mode.dual_level():
        args, kwargs = tree_map(dual, (args, kwargs))
        outputs = [part for part in tree_leaves(function(*args, **kwargs)) if getattr(part, "requires_grad", False)]
        gradients = torch.autograd.grad(outputs, duals, cotangents, allow_unused=True)
        moved = [mode.unpack_dual(part).tangent for part in gradients if part is not None]
        return [part for part in map(with_memory, moved) if part is not None]


def derived(tensor: torch.Tensor, transform: str, calls: list[str]) -> Any:
    """Return a transform of torch.func of a small function at the tensor. `calls` are the function's operations."""

    def function(x: torch.Tensor) -> torch.Tensor:
        result = x
        for call in calls:
            if call in ("sum", "prod", "mean", "amax"):
                result = getattr(x, call)() + result
            elif call == "mm":
                result = result @ (x.sum() + x)
            elif call == "mul":
                result = result * x
            elif call in ("cumsum", "softmax"):
                result = getattr(result, call)(-1)
            else:
                result = getattr(result, call)()
        return result

    def scalar(x: torch.Tensor) -> torch.Tensor:
        return function(x).sum()

    if transform in ("grad", "hessian"):
        return getattr(torch.func, transform)(scalar)(tensor)
    if transform == "vmap(grad)":
        return torch.func.vmap(torch.func.grad(scalar))(tensor)
    if transform == "jvp":
        return torch.func.jvp(function, (tensor,), (torch.ones_like(tensor),))[1]
    if transform == "vjp":
        pulled = torch.func.vjp(function, tensor)
        return pulled[1](torch.ones_like(pulled[0]))[0]
    return getattr(torch.func, transform)(function)(tensor)


def transformed(name: str, mode: str, start: float, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return a derivative of torch's function along a line through its floating-point operands, at `start` of the line.

    `mode` names a transform of `torch.func` for each order of the derivative, outermost first. "autograd" in place of a
    transform is plain autograd."""
    function: Any = functools.reduce(getattr, name.split("."), torch)

    def wave(like: torch.Tensor, phase: float) -> torch.Tensor:
        steps = torch.arange(like.numel(), dtype=torch.float64).reshape(like.shape)
        return torch.cos(steps * 2.3 + phase).to(like.dtype)

    def value(at: torch.Tensor) -> torch.Tensor:
        def moved(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(moved(part) for part in value)
            floats = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.detach() + at.to(value.dtype) * wave(value, 0.5) if floats else value

        result = function(*map(moved, args), **kwargs)
        parts = result if isinstance(result, (tuple, list)) else (result,)
        sums = [(part * wave(part, 1.1)).sum() for part in parts if part.is_floating_point()]
        return torch.stack(sums).sum()

    def derivative(
        of: Callable[[torch.Tensor], torch.Tensor], transform: str
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        if transform == "jvp":
            return lambda at: torch.func.jvp(of, (at,), (torch.ones_like(at),))[1]
        if transform == "grad":
            return torch.func.grad(of)

        def by_autograd(at: torch.Tensor) -> torch.Tensor:
            at = at if at.requires_grad else at.detach().requires_grad_()
            result = of(at)
            if not result.requires_grad:  # constant along the line
                return torch.zeros_like(at)
            return torch.autograd.grad(result, at, create_graph=True, materialize_grads=True)[0]

        return by_autograd

    wanted: Callable[..., torch.Tensor] = value
    for transform in reversed(mode.rstrip(")").split("(")):
        wanted = derivative(wanted, transform)
    return wanted(torch.tensor(start, dtype=torch.float64)).detach()


def region(tensor: torch.Tensor, kind: str, calls: list[str]) -> torch.Tensor:
    """Return what a region makes of a tensor: a function that a compiler compiles once and the program calls twice.

    `calls` are the operations of the function. "nested" is a region that is called with tensors of one kind, "nested
    twice" one that is called with other sizes, strides and dtypes, "nested without grad" one that is called in both
    modes of autograd. "cond" chooses between two regions by an element. "while" repeats a region, "while twice" does so
    for other sizes and dtypes and for no turn, and "while beside" reads a tensor from outside of the region. "map"
    calls the region for each row, and "scan" and "scan backwards" pass a state from row to row."""

    def function(x: torch.Tensor) -> torch.Tensor:
        result = x
        for call in calls:
            if call == "flip":
                result = result.flip(-1)
            elif call == "sum":
                result = result + result.sum()
            elif call == "double":
                result = result + result
            else:
                result = {"add": result + 1, "mul": result * 2, "neg": -result}[call]
        return result

    def negated(x: torch.Tensor) -> torch.Tensor:
        return -function(x)

    def branch(x: torch.Tensor) -> torch.Tensor:
        decides = x.flatten()[0] > 0
        if torch.compiler.is_compiling():  # outside of a compiler, torch.cond starts one
            return torch.cond(decides, function, negated, (x,))
        return function(x) if decides else negated(x)

    def repeated(turns: int, x: torch.Tensor) -> torch.Tensor:
        beside = x.flip(-1)

        def is_left(left: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return left > 0

        def turn(left: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            after = function(state)
            return left - 1, after + beside if kind == "while beside" else after + 1

        state = torch.tensor(turns, device=x.device), x
        if torch.compiler.is_compiling():  # outside of a compiler, torch.while_loop starts one
            return torch.while_loop(is_left, turn, state)[1]
        while is_left(*state):
            state = turn(*state)
        return state[1]

    def scan_rows(rows: torch.Tensor, backwards: bool) -> list[torch.Tensor]:
        def pass_state(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            after = state + function(row)
            return after, after * 2

        state = rows[0] + 1
        if torch.compiler.is_compiling():  # outside of a compiler, scan starts one
            return [*torch._higher_order_ops.scan(pass_state, state, rows, reverse=backwards)]
        made = []
        for row in reversed(rows.unbind()) if backwards else rows.unbind():
            state, result = pass_state(state, row)
            made.append(result)
        return [state, torch.stack(made[::-1] if backwards else made)]

    def map_rows(rows: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():  # outside of a compiler, map starts one
            return torch._higher_order_ops.map(lambda row, *_: function(row), rows)
        return torch.stack([function(row) for row in rows.unbind()])

    x = tensor.detach()
    if kind == "map" or kind.startswith("scan"):
        parts = [map_rows(x)] if kind == "map" else scan_rows(x, kind == "scan backwards")
        return torch.cat([part.flatten() for part in parts])
    if kind == "cond":
        return branch(x).sum() + 2 * branch(-1 - x.abs()).sum()
    if kind.startswith("while"):
        x = x.contiguous()  # a turn must return the strides that it gets
        results = [repeated(2, x), repeated(1, x + 1)]
        if kind == "while twice":
            results += [repeated(3, x[:1]), repeated(2, x.mT.contiguous()), repeated(1, x.double()), repeated(0, x)]
        return torch.stack([(result * at).sum().double() for at, result in enumerate(results, 1)])
    called = torch.compiler.nested_compile_region(function)
    results = [called(x), called(x + 1)]
    if kind == "nested twice":
        results += [called(x[:1]), called(x.mT), called(x.double())]
    if kind == "nested without grad":
        with torch.no_grad():
            results += [called(x), called(x[:1])]
        results += [called(x[:1])]
    return torch.stack([(result * at).sum().double() for at, result in enumerate(results, 1)])
