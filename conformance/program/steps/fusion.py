"""Expressions that a compiler fuses into one kernel, such as `f(x) - x` and `x * f(g(x))`.

Each function may be right alone, and wrong after a compiler simplified the expression. For example, `x * exp(x)` at
-inf is nan; a rule that moves the product into the branches of the exponential returns -inf. So the functions accept
all floats, including nan and infinities, and the second operand is a tensor of the program. A result mostly takes the
name of its operand: a tensor that stays observable cannot be internal to a fused kernel.
"""

from __future__ import annotations

import functools

import torch

from conformance.program.steps.draw import DrawContext
from conformance.program.steps.op import FUNCTION, LOSSY, tensor
from conformance.program.steps.predicates import Fits
from conformance.program.steps.rows import Given, row

NAME = "fusion"
"""Name of the family."""

MODERATE = 100.0
"""Largest argument of sin and cos. Above it, rounding of the argument dominates the result."""


def _precise(t: torch.Tensor) -> bool:
    return t.dtype in (torch.float32, torch.float64) and t.numel() > 0


def _moderate(t: torch.Tensor) -> bool:
    return _precise(t) and bool((t.detach().abs().nan_to_num(0.0, 0.0) <= MODERATE).all())


def _alone(k: DrawContext, t: torch.Tensor) -> Given:
    return Given([], out=_rebound(k, t))


def _beside(k: DrawContext, t: torch.Tensor) -> Given | None:
    """Draw the second operand: mostly an operand of the last step, else any tensor of the same size and dtype."""

    def fits(u: torch.Tensor) -> bool:
        return u.dtype == t.dtype and u.size() == t.size()

    names = [name for step in k.shadow.steps[-1:] for name in step.names() if fits(k[name]) and k[name] is not t]
    name = names[0] if names and k.chance(3, 4) else k.pick(fits)
    return Given([tensor(name)], out=_rebound(k, t)) if name is not None else None


def _rebound(k: DrawContext, t: torch.Tensor) -> tuple[str, ...]:
    """Return mostly the name of the last step's result if `t` is that result, else no name.

    Reusing the name makes the earlier result unobservable, so that a device need not compute it separately."""
    names = [name for step in k.shadow.steps[-1:] for name in step.out if k[name] is t]
    return (names[0],) if names and k.chance(3, 4) else ()


def _latest(k: DrawContext, fits: Fits) -> str | None:
    """Pick mostly the last step's result."""
    names = [name for step in k.shadow.steps[-1:] for name in step.out if fits(k[name])]
    return names[-1] if names and k.chance(2, 3) else k.pick(fits)


fused = functools.partial(row, family=NAME, effect=LOSSY, form=FUNCTION, pick=_latest)
alone = functools.partial(fused, rest=_alone)

ROWS = [
    fused("sub.fused", _beside, _precise, call="sub", weight=4),
    fused("mul.fused", _beside, _precise, call="mul", weight=4),
    fused("add.fused", _beside, _precise, call="add", weight=2),
    fused("div.fused", _beside, _precise, call="div", weight=2),
    fused("maximum.fused", _beside, _precise, call="maximum"),
    alone("exp.fused", fits=_precise, call="exp", weight=2),
    *(alone(name, fits=_precise) for name in ("log", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "sigmoid")),
    *(alone(name, fits=_precise) for name in ("erf", "square", "relu", "atan")),
    *(alone(name, fits=_moderate) for name in ("sin", "cos")),
]
