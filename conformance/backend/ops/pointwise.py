"""Elementwise arithmetic, comparisons, logic, rounding and selection, mostly one line for each operator.

Arguments arrive broadcastable and in one dtype (see `registry.pointwise`); 16-bit floats are computed in float32.
Rules for nan, signed zeros and integers are those of ATen's CPU kernels (aten/src/ATen/native/cpu/BinaryOpsKernel.cpp,
UnaryOpsKernel.cpp); transcendental functions are in `elementary` and `special`.
The module does not depend on strides or in-place forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import ROWS, Context, pointwise, round_number, value
from ..dispatch.schema_kernels import FunctionalOverload, find
from ..dispatch.tensors import cast, constant
from ..lazy.dtypes import opmath
from ..runtime import expressions
from . import elementary as e
from .arithmetic import INF, NAN, absolute, add, bits_dtype, divide, multiply, rint, sign_bit, subtract


def is_float(x: UOp) -> bool:
    """Whether a value has a float dtype."""
    return dtypes.is_float(x.dtype)


def is_nan(x: UOp) -> UOp:
    """Mask of the nan elements; all false for integers."""
    return x.ne(x) if is_float(x) else x.const_like(False, dtypes.bool)


def minus(a: UOp, b: UOp) -> UOp:
    """a - b in any dtype."""
    return subtract(a, b) if is_float(a) else a - b


def _with_sign(x: UOp, sign: UOp) -> UOp:
    """x with the sign bit of another value, also for nan, which a product with -1 would not change."""
    dtype = bits_dtype(x.dtype)
    bits = (x.bitcast(dtype) & dtype.max) | (sign.bitcast(dtype) & dtype.min)
    return bits.bitcast(x.dtype)


def less_equal(a: UOp, b: UOp) -> UOp:
    """a <= b, false where either is nan."""
    return (a < b) | a.eq(b) if is_float(a) else a <= b


def greater(a: UOp, b: UOp) -> UOp:
    """b where it is larger, else a, also of two zeros; nan where either is nan (at::maximum)."""
    return (is_nan(b) | (a < b)).where(b, a)


def smaller(a: UOp, b: UOp) -> UOp:
    """b where it is smaller, else a, also of two zeros; nan where either is nan (at::minimum)."""
    return (is_nan(b) | (b < a)).where(b, a)


def scaled(a: UOp, factor: UOp | None) -> UOp:
    """a times a factor; without a multiplication if the factor is None or 1."""
    return a if factor is None or expressions.constant_of(factor) == 1 else multiply(factor, a)


def plus_scaled(a: UOp, b: UOp, alpha: UOp | None) -> UOp:
    """a + alpha b."""
    return add(a, scaled(b, alpha))


def minus_scaled(a: UOp, b: UOp, alpha: UOp | None) -> UOp:
    """a - alpha b."""
    return minus(a, scaled(b, alpha))


def clamp(x: UOp, low: UOp | None = None, high: UOp | None = None) -> UOp:
    """min(max(x, low), high), nan where any of them is nan."""
    if low is not None:
        x = greater(x, low)
    return x if high is None else smaller(x, high)


def lerp(a: UOp, b: UOp, weight: UOp) -> UOp:
    """a + weight (b - a), from the nearer end (ATen/native/Lerp.h)."""
    difference = subtract(b, a)
    near = absolute(weight) < 0.5
    return near.where(a + weight * difference, subtract(b, difference * subtract(1.0, weight)))


def xlogy(x: UOp, y: UOp, logarithm: Callable[[UOp], UOp]) -> UOp:
    """x log(y), 0 where x is 0, nan where y is nan."""
    return is_nan(y).where(NAN, x.eq(0).where(0.0, x * logarithm(y)))


pointwise(
    {
        "add.Tensor": lambda a, b, alpha=None: plus_scaled(a, b, alpha),
        "sub.Tensor": lambda a, b, alpha=None: minus_scaled(a, b, alpha),
        "rsub.Tensor": lambda a, b, alpha=None: minus_scaled(b, a, alpha),
        "rsub.Scalar": lambda a, b, alpha=None: minus_scaled(b, a, alpha),
        "mul.Tensor": multiply,
        "div.Tensor": divide,
        "neg": lambda a: a * -1,
        "reciprocal": lambda a: divide(a.const_like(1.0), a),
        "sqrt": lambda a: a.sqrt(),
        "rsqrt": lambda a: divide(a.const_like(1.0), a.sqrt()),
        "maximum": greater,
        "minimum": smaller,
        "fmax": lambda a, b: (is_nan(a) | (a < b)).where(b, a),
        "fmin": lambda a, b: (is_nan(a) | (b < a)).where(b, a),
        "clamp": clamp,
        "clamp.Tensor": clamp,
        "clamp_min": clamp,
        "clamp_min.Tensor": clamp,
        "clamp_max": lambda x, high: clamp(x, None, high),
        "clamp_max.Tensor": lambda x, high: clamp(x, None, high),
        "addcmul": lambda a, b, c, value=None: add(a, multiply(scaled(b, value), c)),
        "addcdiv": lambda a, b, c, value=None: add(a, divide(scaled(b, value), c)),
        "lerp.Scalar": lerp,
        "lerp.Tensor": lerp,
        "sign": lambda x: x if x.dtype is dtypes.bool else (x > 0).cast(x.dtype) - (x < 0).cast(x.dtype),
        "sgn": lambda x: x if x.dtype is dtypes.bool else (x > 0).cast(x.dtype) - (x < 0).cast(x.dtype),
        "abs": lambda x: absolute(x) if is_float(x) else x if dtypes.is_unsigned(x.dtype) else (x < 0).where(-x, x),
        "angle": lambda x: is_nan(x).where(x, (x < 0).where(x.const_like(math.pi), 0.0)),
        "atan2": e.atan2,
        "hypot": e.hypot,
        "copysign.Tensor": _with_sign,
        "copysign.Scalar": _with_sign,
        "logaddexp": e.logaddexp,
        "heaviside": lambda x, zero: x.eq(0).where(zero, (x > 0).cast(x.dtype)),
        "exp": e.exp,
        "exp2": lambda x: x.exp2(),
        "expm1": e.expm1,
        "log": e.log,
        "log2": e.log2,
        "log10": e.log10,
        "log1p": e.log1p,
        "sin": e.sin,
        "cos": e.cos,
        "tan": e.tan,
        "sinh": e.sinh,
        "cosh": e.cosh,
        "tanh": e.tanh,
        "asinh": e.asinh,
        "acosh": e.acosh,
        "atanh": e.atanh,
        "asin": e.asin,
        "acos": e.acos,
        "atan": e.atan,
        "sigmoid": e.sigmoid,
        "deg2rad": lambda x: x * (math.pi / 180),
        "rad2deg": lambda x: x * (180 / math.pi),
        "sinc": lambda x: x.eq(0).where(1.0, divide(e.sin(x * math.pi), x * math.pi)),
        "xlogy.Tensor": lambda x, y: xlogy(x, y, e.log),
        "xlogy.Scalar_Self": lambda x, y: xlogy(x, y, e.log),
        "xlogy.Scalar_Other": lambda x, y: xlogy(x, y, e.log),
        "special_xlog1py": lambda x, y: xlogy(x, y, e.log1p),
        "special_xlog1py.self_scalar": lambda x, y: xlogy(x, y, e.log1p),
        "special_xlog1py.other_scalar": lambda x, y: xlogy(x, y, e.log1p),
        "special_entr": lambda x: is_nan(x).where(x, (x > 0).where(x * -e.log(x), x.eq(0).where(0.0, -INF))),
        "logaddexp2": e.logaddexp2,
    }
)


COMPARISONS: dict[str, Callable[[UOp, UOp], UOp]] = {
    "eq": lambda a, b: a.eq(b),
    "ne": lambda a, b: a.ne(b),
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
    "le": less_equal,
    "ge": lambda a, b: less_equal(b, a),
}
pointwise(
    {f"{name}.{kind}": f for name, f in COMPARISONS.items() for kind in ("Tensor", "Scalar")}
    | {
        "logical_and": lambda a, b: a.ne(0) & b.ne(0),
        "logical_or": lambda a, b: a.ne(0) | b.ne(0),
        "logical_xor": lambda a, b: a.ne(0).ne(b.ne(0)),
        "logical_not": lambda a: a.eq(0),
        "isnan": is_nan,
        "isinf": lambda a: absolute(a).eq(INF) if is_float(a) else a.const_like(False, dtypes.bool),
        "isposinf": lambda a: a.eq(INF) if is_float(a) else a.const_like(False, dtypes.bool),
        "isneginf": lambda a: a.eq(-INF) if is_float(a) else a.const_like(False, dtypes.bool),
        "signbit": lambda a: sign_bit(a) if is_float(a) else a.const_like(False, dtypes.bool)
        if a.dtype is dtypes.bool else a < 0,
    },
    promote="common",
)  # fmt: skip


# Rounding leaves integers unchanged.
def _whole(function: Callable[[UOp], UOp]) -> Callable[[UOp], UOp]:
    return lambda x: function(x) if is_float(x) else x


pointwise(
    {
        "floor": _whole(lambda x: x.floor()),
        "ceil": _whole(lambda x: x.ceil()),
        "trunc": _whole(lambda x: x.trunc()),
        "round": _whole(rint),
        "frac": lambda x: subtract(x, x.trunc()),
    }
)


@value("logit", deferrable=True)
def logit(ctx: Context, x: UOp, eps: float | None = None) -> UOp:
    """log(x / (1 - x)); with eps, x is clamped to [eps, 1 - eps]; each step rounds to the tensor's own dtype."""
    dtype = opmath(ctx.out.computed)
    kept = ctx.out.computed
    x = cast(cast(x, kept), dtype)
    if eps is not None:
        eps = round_number(eps, kept)
        most = round_number(1 - eps, kept)
        x = (x < eps).where(eps, (x > most).where(most, x))
    rest = cast(cast(subtract(1.0, x), kept), dtype)
    return e.log(cast(cast(divide(x, rest), kept), dtype))


LARGEST_EXPONENT = 308
"""Exponent of the largest power of ten in float64."""


@value("round.decimals", deferrable=True)
def round_decimals(ctx: Context, x: UOp, *, decimals: int = 0) -> UOp:
    """Scale by a power of ten, round, scale back (round_decimals_kernel)."""
    dtype = opmath(ctx.out.computed)
    x = cast(x, dtype)
    if not dtypes.is_float(dtype):
        return x
    ten = constant(10.0 ** abs(decimals) if abs(decimals) <= LARGEST_EXPONENT else math.inf, dtype)
    if decimals == 0:
        return rint(x)
    if decimals < 0:
        return multiply(rint(divide(x, ten)), ten)
    return divide(rint(multiply(x, ten)), ten)


@value("nextafter")
def nextafter(ctx: Context, x: UOp, y: UOp) -> UOp:
    """Next number after x towards y, from its bits."""
    dtype = ctx.out.computed
    x, y = cast(x, dtype), cast(y, dtype)
    bits = x.bitcast(bits_dtype(dtype))
    smallest = x.const_like(0.0).bitcast(bits.dtype) + (y < 0).where(bits.const_like(bits.dtype.min + 1), 1)
    away = (x < y).ne(x < 0)
    stepped = x.eq(0).where(smallest, bits + away.where(bits.const_like(1), -1)).bitcast(dtype)
    return (is_nan(x) | is_nan(y)).where(NAN, x.eq(y).where(y, stepped))


@value("frexp.Tensor")
def frexp(ctx: Context, x: UOp) -> tuple[UOp, UOp]:
    """x as a mantissa in [0.5, 1) times a power of two."""
    dtype = opmath(ctx.out.computed)
    x = cast(x, dtype)
    _, mantissa_bits = dtypes.finfo(dtype)
    bias = 126 if dtype is dtypes.float32 else 1022
    subnormal = absolute(x) < math.ldexp(1.0, 1 - bias - 1)
    bits = subnormal.where(x * float(1 << mantissa_bits), x).bitcast(bits_dtype(dtype))
    stored = (bits >> mantissa_bits) & (2 * bias + 3)
    exponent = stored - bias - subnormal.where(bits.const_like(mantissa_bits), 0)
    kept = bits ^ (stored << mantissa_bits) ^ (bias << mantissa_bits)
    plain = x.eq(0) | is_nan(x) | absolute(x).eq(INF)
    return plain.where(x, kept.bitcast(dtype)), plain.where(0, exponent)


def shift_left(a: UOp, b: UOp) -> UOp:
    """a << b; 0 for a count outside the width (ATen lshift_kernel)."""
    width = a.dtype.bitsize
    outside = (b < 0) | (b >= width)
    return outside.where(0, a << outside.where(0, b))


def shift_right(a: UOp, b: UOp) -> UOp:
    """a >> b, arithmetic; a count outside the width shifts by the largest possible count (ATen rshift_kernel)."""
    largest = a.dtype.bitsize - (0 if dtypes.is_unsigned(a.dtype) else 1)
    outside = (b < 0) | (b >= largest)
    if dtypes.is_unsigned(a.dtype):
        return outside.where(0, a >> outside.where(0, b))
    return a >> outside.where(largest, b)


pointwise(
    {f"bitwise_{name}.{kind}": f
     for name, f in {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}.items()
     for kind in ("Tensor",)}
    | {f"bitwise_{way}_shift.Tensor": f for way, f in {"left": shift_left, "right": shift_right}.items()}
    | {f"__{way}shift__.{kind}": f for way, f in {"l": shift_left, "r": shift_right}.items()
       for kind in ("Tensor", "Scalar")}
    | {"bitwise_not": lambda a: ~a}
)  # fmt: skip


@value("fill.Scalar", keep_floats=False)
def fill_scalar(ctx: Context, self: UOp, number: float) -> UOp:
    """Constant in every element."""
    return constant(number, ctx.out.computed)


@value("fill.Tensor")
def fill_tensor(ctx: Context, self: UOp, number: UOp) -> UOp:
    """0-d value in every element."""
    return cast(number, ctx.out.computed)


@value("where.self", elementwise=True, deferrable=True)
def where(ctx: Context, condition: UOp, a: UOp, b: UOp) -> UOp:
    """Elements of `a` where the condition holds, otherwise of `b`."""
    dtype = ctx.out.computed
    return cast(condition, dtypes.bool).where(cast(a, dtype), cast(b, dtype))


@value("nan_to_num", deferrable=True)
def nan_to_num(
    ctx: Context, x: UOp, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> UOp:
    """Replace nan by 0 and the infinities by the dtype's largest numbers, or by the arguments."""
    dtype = ctx.out.computed
    if not dtypes.is_float(dtype):
        return x
    limit = torch.finfo(ctx.out.dtype).max
    numbers = (
        (x.ne(x), nan, 0.0), (x.eq(INF), posinf, limit), (x.eq(-INF), neginf, -limit),
    )  # fmt: skip
    for matches, replacement, default in numbers:
        x = matches.where(constant(default if replacement is None else replacement, dtype), x)
    return x


@value("arange.start_step")
def arange(ctx: Context, start: float, end: float, step: float = 1, **_: object) -> UOp:
    """start + i * step, computed as on the CPU: in int64 for integers, in double for floats."""
    wide = dtypes.int64 if dtypes.is_int(ctx.out.computed) else dtypes.float64
    count = math.prod(ctx.out.size)
    return UOp.arange(count).cast(wide) * constant(step, wide) + constant(start, wide)


def where_out(condition: torch.Tensor, self: Any, other: Any, *, out: torch.Tensor) -> torch.Tensor:
    """aten::where.self_out; attention masks call it with two numbers, which the meta kernel treats as doubles."""
    a, b = (x if isinstance(x, torch.Tensor) else torch.tensor(x, device="cpu") for x in (self, other))
    return _WHERE_OUT(condition, a, b, out=out)


_WHERE_OUT = FunctionalOverload(find("where.self_out"), find("where.self"), ROWS["where.self"]).kernel
KERNELS: dict[str, Callable[..., Any]] = {"where.self_out": where_out}
