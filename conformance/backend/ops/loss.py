"""Losses that torch does not decompose; the others are right and fuse to as few kernels as they are decomposed.

Must not know strides: they are the caller's.
"""

from __future__ import annotations

import math
from typing import Any

from tinygrad.uop.ops import UOp

from ..dispatch import Context, value
from ..dtypes import opmath
from ..tensors import cast, constant

NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def reduce(x: UOp, reduction: int) -> UOp:
    """All elements, their mean or their sum."""
    if reduction == NONE:
        return x
    sizes: Any = x.shape
    total, count = x.sum(dtype=x.dtype), math.prod(sizes)
    return total if reduction == SUM else total * constant(1.0 / count if count else math.nan, x.dtype)


@value("huber_loss")
def huber_loss(ctx: Context, self: UOp, target: UOp, reduction: int = MEAN, delta: float = 1.0) -> UOp:
    """Half the square below delta, delta * (|x| - delta / 2) above."""
    dtype = opmath(ctx.out.computed)
    limit = constant(delta, dtype)
    far = (cast(self, dtype) - cast(target, dtype)).abs()
    return reduce((far <= limit).where(far.square() * 0.5, (far - limit * 0.5) * limit), reduction)
