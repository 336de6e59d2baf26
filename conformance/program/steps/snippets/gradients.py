"""Functions with gradients of their own: `torch.autograd.Function` in the forms that its documentation describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def gradient_functions() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return functions of a tensor by kind. The gradient of each differs from the derivative of its values, so an
    answer that autograd computes without the function's own `backward` is wrong."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: int) -> torch.Tensor:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            return grad * (ctx.factor + 1), None

    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, x + 3

        @staticmethod
        def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return first * 5 + (second + 1)  # of a result that is not used, the gradient is zeros

    class BarePair(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.set_materialize_grads(False)
            return x * 2, x + 3

        @staticmethod
        def backward(ctx: Any, first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
            if first is None or second is None:
                used = second if first is None else first
                return None if used is None else used * 7
            return first + second

    class Needs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return x + other * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
            first, second = ctx.needs_input_grad
            return grad * (3 if second else 4) if first else None, grad * (5 if first else 6) if second else None

    class Written(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 3

    class SavesResult(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            result = x * 2 + 1
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (result,) = ctx.saved_tensors
            return grad * result

    class SavesBoth(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            ctx.save_for_backward(inputs[0], output, None)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            x, result, nothing = ctx.saved_tensors
            return grad * (x + result) if nothing is None else grad

    class Sorted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, positions = x.sort(-1)
            ctx.mark_non_differentiable(positions)
            ctx.save_for_backward(positions)
            return values, positions

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(grad).scatter(-1, ctx.saved_tensors[0], grad * 2)

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 4

    def written(x: torch.Tensor) -> torch.Tensor:
        base = x + 1
        result = Written.apply(base)
        return result + base * 2  # `base` is the result by now

    def without_grad(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scaled = Scaled.apply(x, 3)
        return scaled + x

    def placed(x: torch.Tensor) -> torch.Tensor:
        values, positions = Sorted.apply(x)
        return values * 2 + positions

    return {
        "scaled": lambda x: Scaled.apply(x, 2),
        "scaled twice": lambda x: Scaled.apply(x, 2) + Scaled.apply(x * 2, 3),
        "first of a pair": lambda x: Pair.apply(x)[0],
        "second of a pair": lambda x: Pair.apply(x)[1],
        "first of a bare pair": lambda x: BarePair.apply(x)[0],
        "needs the first": lambda x: Needs.apply(x, x.detach()),
        "needs the second": lambda x: Needs.apply(x.detach(), x),
        "needs both": lambda x: Needs.apply(x, x * 2),
        "written": written,
        "saves its result": SavesResult.apply,
        "saves both": SavesBoth.apply,
        "placed": placed,
        "same": lambda x: Same.apply(x) + x,
        "without grad": without_grad,
    }


GRADIENT_FUNCTIONS = gradient_functions()


def own_gradient(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Return the result of a function that has a gradient of its own."""
    return GRADIENT_FUNCTIONS[kind](tensor)
