"""Elementwise operators: one line each where one line says it.

Arguments arrive broadcastable and in one dtype (see `dispatch.pointwise`); 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch import Context, pointwise, value
from ..tensors import cast, constant

pointwise(
    {
        "add.Tensor": lambda a, b, alpha=None: a + (b if alpha is None else b * alpha),
        "sub.Tensor": lambda a, b, alpha=None: a - (b if alpha is None else b * alpha),
        "rsub.Tensor": lambda a, b, alpha=None: b - (a if alpha is None else a * alpha),
        "rsub.Scalar": lambda a, b, alpha=None: b - (a if alpha is None else a * alpha),
        "mul.Tensor": lambda a, b: a * b,
        "div.Tensor": lambda a, b: a / b,
        "neg": lambda a: -a,
        "relu": lambda a: (a < 0).where(0, a),
        "sqrt": lambda a: a.sqrt(),
        "exp": lambda a: a.exp(),
        "log": lambda a: a.log(),
        "sin": lambda a: a.sin(),
        "cos": lambda a: a.cos(),
        "abs": lambda a: a.abs(),
        "reciprocal": lambda a: a.reciprocal(),
    }
)

pointwise(
    {
        "eq.Tensor": lambda a, b: a.eq(b),
        "eq.Scalar": lambda a, b: a.eq(b),
        "ne.Tensor": lambda a, b: a.ne(b),
        "ne.Scalar": lambda a, b: a.ne(b),
        "lt.Tensor": lambda a, b: a < b,
        "lt.Scalar": lambda a, b: a < b,
        "le.Tensor": lambda a, b: a <= b,
        "le.Scalar": lambda a, b: a <= b,
        "gt.Tensor": lambda a, b: a > b,
        "gt.Scalar": lambda a, b: a > b,
        "ge.Tensor": lambda a, b: a >= b,
        "ge.Scalar": lambda a, b: a >= b,
    },
    promote="common",
)


@value("fill.Scalar", keep_floats=False)
def fill_scalar(ctx: Context, self: UOp, number: float) -> UOp:
    """One constant everywhere."""
    return constant(number, ctx.out.computed)


@value("fill.Tensor")
def fill_tensor(ctx: Context, self: UOp, number: UOp) -> UOp:
    """A 0-d value everywhere."""
    return cast(number, ctx.out.computed)


@value("where.self")
def where(ctx: Context, condition: UOp, a: UOp, b: UOp) -> UOp:
    """Elements of `a` where the condition holds, else of `b`."""
    dtype = ctx.out.computed
    return cast(condition, dtypes.bool).where(cast(a, dtype), cast(b, dtype))


@value("arange.start_step")
def arange(ctx: Context, start: float, end: float, step: float = 1, **_: object) -> UOp:
    """start + i * step, computed as CPU does: in int64 for integers, in double for floats."""
    wide = dtypes.int64 if dtypes.is_int(ctx.out.computed) else dtypes.float64
    count = math.prod(ctx.out.size)
    return UOp.arange(count).cast(wide) * constant(step, wide) + constant(start, wide)
