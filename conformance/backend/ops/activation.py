"""Activation functions and their gradients.

Formulas follow aten/src/ATen/native/cpu/Activation.cpp, and so does the side on which each boundary falls.
"""

from __future__ import annotations

import math

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, pointwise, value
from ..dispatch.tensors import cast
from ..lazy.dtypes import opmath
from . import elementary as e
from .arithmetic import absolute, divide, subtract
from .special import erf

Number = UOp | float  # call arguments arrive as values; defaults stay numbers

SQRT_HALF, SQRT_TWO_OVER_PI, GELU_CUBE = math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715


def relu(x: UOp) -> UOp:
    """max(x, 0); nan stays nan."""
    return (x < 0).where(0, x) if x.dtype is not dtypes.bool else x


def clip(x: UOp, low: Number = -1.0, high: Number = 1.0) -> UOp:
    """x within [low, high]; nan where x or a bound is nan."""
    inside = (x < low).where(low, (x > high).where(high, x))
    for bound in (low, high):
        inside = bound.ne(bound).where(bound, inside) if isinstance(bound, UOp) else inside
    return inside


def _gelu_inner(x: UOp) -> UOp:
    return e.tanh(SQRT_TWO_OVER_PI * (x + GELU_CUBE * x * x * x))


def gelu(x: UOp, approximate: str = "none") -> UOp:
    """x times the cumulative density of the normal distribution, or the tanh approximation of it."""
    if approximate == "tanh":
        return divide(x, 2.0) * (1.0 + _gelu_inner(x))
    return divide(x, 2.0) * (1.0 + erf(x * SQRT_HALF))  # tinygrad moves a factor 0.5 to the end, after an overflow


def gelu_backward(grad: UOp, x: UOp, approximate: str = "none") -> UOp:
    """Gradient of gelu."""
    if approximate == "tanh":
        t = _gelu_inner(x)
        slope = SQRT_TWO_OVER_PI * (1.0 + 3 * GELU_CUBE * x * x)
        return grad * (0.5 * (1.0 + t) + 0.5 * x * subtract(1.0, t * t) * slope)
    density = e.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad * (0.5 * (1.0 + erf(x * SQRT_HALF)) + x * density)


def softplus(x: UOp, beta: Number = 1.0, threshold: Number = 20.0) -> UOp:
    """log(1 + e**(beta x)) / beta; x where beta x is above the threshold."""
    scaled = x * beta
    return (scaled > threshold).where(x, divide(e.log1p(e.exp(scaled)), beta))


def softplus_backward(grad: UOp, x: UOp, beta: UOp, threshold: UOp) -> UOp:
    """Gradient of softplus."""
    scaled = x * beta
    return (scaled > threshold).where(grad, grad * e.sigmoid(scaled))


def mish(x: UOp) -> UOp:
    """x tanh(log(1 + e**x))."""
    return x * e.tanh(_log1p_exp(x))


def _log1p_exp(x: UOp) -> UOp:
    return (x > 30).where(x, e.log1p(e.exp(x)))


def mish_backward(grad: UOp, x: UOp) -> UOp:
    """Gradient of mish: t = tanh(log(1 + e**x)) and 1 - t are quotients of polynomials in e**-|x|."""
    v, positive = e.exp(absolute(x) * -1), x > 0
    numerator = positive.where(1.0 + 2.0 * v, v * (2.0 + v))
    rest = positive.where(2.0 * v * v, 2.0)
    t, to_one = divide(numerator, numerator + rest), divide(rest, numerator + rest)
    s = divide(positive.where(v.const_like(1.0), v), 1.0 + v)
    return grad * (t + x * s * (to_one * (1.0 + t)))


def elu(x: UOp, alpha: Number = 1.0, scale: Number = 1.0, input_scale: Number = 1.0) -> UOp:
    """scale x above 0, otherwise scale alpha (e**(input_scale x) - 1)."""
    return (x < 0).where(e.expm1(x * input_scale) * alpha * scale, x * scale)


def elu_backward(grad: UOp, alpha: UOp, scale: UOp, input_scale: UOp, is_result: UOp, x: UOp) -> UOp:
    """Gradient of elu, from its input or from its result."""
    exponential = e.exp(x * input_scale) * input_scale * alpha * scale
    from_result = (x + alpha * scale) * input_scale
    return (x > 0).where(grad * scale, grad * is_result.ne(0).where(from_result, exponential))


def log_sigmoid(x: UOp) -> UOp:
    """log(sigmoid(x)) without overflow."""
    return subtract((x < 0).where(x, x.ne(x).where(x, 0.0)), e.log1p(e.exp(-absolute(x))))


def log_sigmoid_backward(grad: UOp, x: UOp, buffer: UOp) -> UOp:
    """Gradient of log_sigmoid; the buffer holds e**-|x|."""
    z = e.exp(-absolute(x))
    negative = x < 0
    return grad * subtract(
        negative.where(x.const_like(1.0), 0.0), negative.where(x.const_like(1.0), -1.0) * divide(z, 1.0 + z)
    )


def within(x: UOp, limit: Number) -> UOp:
    """-limit <= x <= limit, false where either is nan; tinygrad's >= and <= are true for nan, its < and > are not."""
    limit = limit if isinstance(limit, UOp) else x.const_like(limit)
    return ((x < -limit) | (x > limit) | x.ne(x) | limit.ne(limit)).logical_not()


pointwise(
    {
        "relu": relu,
        "hardtanh": clip,
        "hardtanh_backward": lambda grad, x, low, high: ((low < x) & (x < high)).where(grad, 0),
        "threshold": lambda x, limit, instead: ((x < limit) | x.eq(limit)).where(instead, x),
        "threshold_backward": lambda grad, x, limit: ((x < limit) | x.eq(limit)).where(0, grad),
        "leaky_relu": lambda x, slope=0.01: (x > 0).where(x, x * slope),
        "leaky_relu_backward": lambda grad, x, slope, _: (x > 0).where(grad, grad * slope),
        "_prelu_kernel": lambda x, weight: (x > 0).where(x, x * weight),
        "elu": elu,
        "elu_backward": elu_backward,
        "gelu": gelu,
        "gelu_backward": gelu_backward,
        "silu": lambda x: divide(x, 1.0 + e.exp(-x)),
        "silu_backward": lambda grad, x: grad * (s := e.sigmoid(x)) * (1.0 + x * subtract(1.0, s)),
        "mish": mish,
        "mish_backward": mish_backward,
        "softplus": softplus,
        "softplus_backward": softplus_backward,
        "sigmoid_backward": lambda grad, y: grad * (subtract(1.0, y) * y),
        "tanh_backward": lambda grad, y: grad * subtract(1.0, y * y),
        "hardsigmoid": lambda x: clip(x + 3.0, 0.0, 6.0) * (1 / 6),
        "hardsigmoid_backward": lambda grad, x: ((x > -3) & (x < 3)).where(grad * (1 / 6), 0.0),
        "hardswish": lambda x: x * clip(x + 3.0, 0.0, 6.0) * (1 / 6),
        "hardswish_backward": lambda grad, x: ((x < -3) | x.eq(-3)).where(
            0.0, ((x > 3) | x.eq(3)).where(grad, grad * (x * (1 / 3) + 0.5))
        ),
        "hardshrink": lambda x, lam=0.5: within(x, lam).where(0.0, x),
        "hardshrink_backward": lambda grad, x, lam: ((x >= -lam) & (x <= lam)).where(0.0, grad),
        "softshrink": lambda x, lam=0.5: (x > lam).where(subtract(x, lam), (x < -lam).where(x + lam, x * 0.0)),
        "softshrink_backward": lambda grad, x, lam: ((x >= -lam) & (x <= lam)).where(0.0, grad),
        "log_sigmoid_backward": log_sigmoid_backward,
    }
)


@value("log_sigmoid_forward", deferrable=True)
def log_sigmoid_forward(ctx: Context, x: UOp) -> tuple[UOp, UOp]:
    """log(sigmoid(x)) and the buffer e**-|x|."""
    x = cast(x, opmath(ctx.out.computed))
    return log_sigmoid(x), e.exp(-absolute(x))


@value("glu", deferrable=True)
def glu(ctx: Context, x: UOp, dim: int = -1) -> UOp:
    """First half of x along a dimension times the sigmoid of the second half."""
    a, b = cast(x, opmath(ctx.out.computed)).chunk(2, dim)
    return a * e.sigmoid(b)


@value("glu_backward", deferrable=True)
def glu_backward(ctx: Context, grad: UOp, x: UOp, dim: int) -> UOp:
    """Gradient of glu."""
    dtype = opmath(ctx.out.computed)
    (a, b), grad = cast(x, dtype).chunk(2, dim), cast(grad, dtype)
    s = e.sigmoid(b)
    return (grad * s).cat(grad * a * s * subtract(1.0, s), dim=dim)
