"""Expressions of one value and itself, `f(x) - x`, `x * f(g(x))`: what a compiler merges into one kernel.

The key insight: each of these functions may be right alone and wrong where a compiler has simplified the whole: `x *
exp(x)` at -inf is nan, and a rule that moves the product into the exponential's case distinction makes it -inf. So the
functions take any floats, nan and the infinities too, the second operand is a tensor of the program's own, and a result
mostly takes the name of what it was made from: what somebody can still look at is no part of a fused kernel.
"""

from __future__ import annotations

import functools

import torch

from conformance.program.steps.draw import Situation
from conformance.program.steps.fits import Fits
from conformance.program.steps.op import FUNCTION, LOSSY, tensor
from conformance.program.steps.rows import Given, row

NAME = "fusion"
"""The family."""

MODERATE = 100.0
"""Above it a sine says more of the argument's rounding than of the sine."""


def _precise(t: torch.Tensor) -> bool:
    return t.dtype in (torch.float32, torch.float64) and t.numel() > 0


def _moderate(t: torch.Tensor) -> bool:
    return _precise(t) and bool((t.detach().abs().nan_to_num(0.0, 0.0) <= MODERATE).all())


def _alone(k: Situation, t: torch.Tensor) -> Given:
    return Given([], out=_rebound(k, t))


def _beside(k: Situation, t: torch.Tensor) -> Given | None:
    """What the last step was given, mostly, or another tensor of its size and dtype, itself at times."""

    def fits(u: torch.Tensor) -> bool:
        return u.dtype == t.dtype and u.size() == t.size()

    given = [name for step in k.shadow.steps[-1:] for name in step.names() if fits(k[name]) and k[name] is not t]
    name = given[0] if given and k.chance(3, 4) else k.pick(fits)
    return Given([tensor(name)], out=_rebound(k, t)) if name is not None else None


def _rebound(k: Situation, t: torch.Tensor) -> tuple[str, ...]:
    """The name of the last step's result where this one goes on from it, mostly: then nobody can look at that result,
    and a device need not compute it apart. Otherwise none, for a name of its own."""
    made = [name for step in k.shadow.steps[-1:] for name in step.out if k[name] is t]
    return (made[0],) if made and k.chance(3, 4) else ()


def _latest(k: Situation, fits: Fits) -> str | None:
    """The last step's result, mostly."""
    made = [name for step in k.shadow.steps[-1:] for name in step.out if fits(k[name])]
    return made[-1] if made and k.chance(2, 3) else k.pick(fits)


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
