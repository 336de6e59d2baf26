"""Rows of the step table, and the one rule by which their arguments are drawn.

Defines `row`, and what rows of several families say: how the tensor is picked, and what is drawn beside it. The key
insight: nearly every step is drawn alike, a tensor is picked and the other arguments follow from it, so a family of
steps is a table, and a row of it says only what is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.program.steps.draw import Situation
from conformance.program.steps.fits import Fits, always, wants_grad
from conformance.program.steps.op import Json, Op, Step, tensor


class Given(NamedTuple):
    """What is drawn beside the tensor that a step starts from, and the names of several results."""

    args: list[Json]
    kwargs: dict[str, Json] = {}  # noqa: RUF012 - never written
    out: tuple[str, ...] = ()


Rest = Callable[[Situation, torch.Tensor], list[Json] | Given | None]
Pick = Callable[[Situation, Fits], str | None]


def nothing(k: Situation, t: torch.Tensor) -> list[Json]:
    """No further arguments."""
    return []


def row(
    name: str,
    rest: Rest = nothing,
    fits: Fits | None = always,
    *,
    family: str,
    effect: str,
    pick: Pick = Situation.pick,
    **options: Any,
) -> Op:
    """A row whose rule picks a tensor that `fits`, and draws the rest from it (None: there is nothing to be drawn).
    Without `fits` the row is drawn whatever the program holds; `options` are fields of `Op`."""

    def rule(k: Situation) -> Step | None:
        start = pick(k, fits or always)
        drawn = None if start is None else rest(k, k[start])
        if start is None or drawn is None:
            return None
        args, kwargs, out = drawn if isinstance(drawn, Given) else Given(drawn)
        return Step(name, (tensor(start), *args), kwargs, out)

    return Op(name, family, effect, rule, fits=fits, **options)


# Ways to pick one.


def decided(k: Situation, fits: Fits) -> str | None:
    """For an answer that would turn on a rounding error: only where nothing was rounded."""
    name = k.pick(fits)
    return name if name is not None and k.shadow.level(k[name]) < 2 else None


def without_grad(k: Situation, fits: Fits) -> str | None:
    """One that does not require grad."""
    return k.pick(lambda t: fits(t) and not t.requires_grad)


def beside_no_grad(k: Situation, fits: Fits) -> str | None:
    """For several views at once, not beside autograd: once their base is written, torch refuses even to say whether
    such a view requires grad, so that it cannot be observed."""
    return None if k.holds(wants_grad) else k.pick(fits)


# What is drawn beside it.


def a_dim(k: Situation, t: torch.Tensor) -> list[Json]:
    """A dimension."""
    return [k.dim(t)]


def two_dims(k: Situation, t: torch.Tensor) -> list[Json]:
    """Two dimensions, at times the same."""
    return [k.dim(t), k.dim(t)]


def a_number(k: Situation, t: torch.Tensor) -> list[Json]:
    """A number of the tensor's dtype."""
    return [k.number(t.dtype)]


def an_operand(k: Situation, t: torch.Tensor) -> list[Json]:
    """A tensor that broadcasts."""
    return [k.operand(t.size(), t.dtype)]


def near_diagonal(k: Situation, t: torch.Tensor) -> list[Json]:
    """The main diagonal, or one beside it."""
    return [k.integer(-1, 1)]


def masked(k: Situation, t: torch.Tensor) -> list[Json]:
    """A mask that broadcasts, and a number."""
    return [k.mask_for(t), k.number(t.dtype)]
