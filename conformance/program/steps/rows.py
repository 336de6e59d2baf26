"""Constructor of table rows with the common drawing rule, and argument rules that several families share.

Nearly all steps share one rule: it picks a tensor, then draws the other arguments to fit it. So a family of steps is a
table, and each row states only its differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.program.steps.draw import DrawContext
from conformance.program.steps.op import Json, Op, Step, tensor
from conformance.program.steps.predicates import Fits, always, wants_grad


class Given(NamedTuple):
    """Drawn arguments after the first tensor of a step, and names for its results if the rule chooses them."""

    args: list[Json]
    kwargs: dict[str, Json] = {}  # noqa: RUF012 - never written
    out: tuple[str, ...] = ()


Rest = Callable[[DrawContext, torch.Tensor], list[Json] | Given | None]
Pick = Callable[[DrawContext, Fits], str | None]


def nothing(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """No further arguments."""
    return []


def row(
    name: str,
    rest: Rest = nothing,
    fits: Fits | None = always,
    *,
    family: str,
    effect: str,
    pick: Pick = DrawContext.pick,
    **options: Any,
) -> Op:
    """Return a row whose rule picks a tensor that `fits`, and then draws the other arguments with `rest`.

    `rest` returns None if no arguments suit the tensor. A row with `fits` None suits every program.
    `options` are fields of `Op`."""

    def rule(k: DrawContext) -> Step | None:
        start = pick(k, fits or always)
        drawn = None if start is None else rest(k, k[start])
        if start is None or drawn is None:
            return None
        args, kwargs, out = drawn if isinstance(drawn, Given) else Given(drawn)
        return Step(name, (tensor(start), *args), kwargs, out)

    return Op(name, family, effect, rule, fits=fits, **options)


# Rules that pick the tensor.


def decided(k: DrawContext, fits: Fits) -> str | None:
    """Pick a tensor without rounding errors, or none, for answers that a rounding error could change."""
    name = k.pick(fits)
    return name if name is not None and k.shadow.level(k[name]) < 2 else None


def without_grad(k: DrawContext, fits: Fits) -> str | None:
    """Pick a tensor that does not require grad."""
    return k.pick(lambda t: fits(t) and not t.requires_grad)


def beside_no_grad(k: DrawContext, fits: Fits) -> str | None:
    """Pick a tensor for a call that returns several views, but none if some tensor of the program requires grad.

    After a write to their base, torch raises if `requires_grad` of such a view is read, so it cannot be observed."""
    return None if k.holds(wants_grad) else k.pick(fits)


# Rules that draw the other arguments.


def a_dim(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a dimension."""
    return [k.dim(t)]


def two_dims(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw two dimensions, sometimes the same."""
    return [k.dim(t), k.dim(t)]


def another(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    """Draw another tensor; None if there is none."""
    other = k.pick()
    return [tensor(other)] if other else None


def a_number(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a number of the tensor's dtype."""
    return [k.number(t.dtype)]


def an_operand(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw an operand that broadcasts to the tensor."""
    return [k.operand(t.size(), t.dtype)]


def near_diagonal(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw the main diagonal or one next to it."""
    return [k.integer(-1, 1)]


def masked(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a mask that broadcasts, and a number."""
    return [k.mask_for(t), k.number(t.dtype)]
