"""Operators of complex tensors, in terms of real and imaginary parts.

Defines the complex forms of operators that already have a value function. `elementwise` registers formulas on pairs of
parts. `linear` registers operators that treat both parts alike, and applies the real function to each part.

A complex tensor is a real value with a last dimension of 2. Copies, views and moves of elements need no complex rule;
only operators that mix the two parts do.
The module does not depend on the layout of a complex storage: `access` pairs the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import ROWS, Context, Declined, OperatorRow, ValueFunction, complex_value, full_name, value
from ..dispatch.schema_kernels import FunctionalOverload, find
from ..dispatch.tensors import Spec, cast, constant
from ..lazy.dtypes import COMPUTED, PAIRS, opmath
from ..runtime.loop_kernels import Array, LoopProgram, kernel
from . import activation, division, indexing, norm, pairs, reduction, scan, scatter  # noqa: F401 - rows used below
from . import elementary as e
from . import pointwise as _pointwise  # noqa: F401
from . import shape as _shape  # noqa: F401
from .arithmetic import INF, NAN, absolute, subtract
from .pairs import Pair, joined, parts


def real_dtype(ctx: Context) -> DType:
    """Real dtype of the computation: float32 for complex32."""
    promoted = torch.float16
    for x in (*ctx.args, *ctx.outs):
        if isinstance(x, (torch.Tensor, Spec)) and (x.dtype.is_complex or x.dtype.is_floating_point):
            promoted = torch.promote_types(promoted, x.dtype.to_real() if x.dtype.is_complex else x.dtype)
    return opmath(COMPUTED[promoted])


def _is_complex(x: Any) -> bool:
    return isinstance(x, complex) or (isinstance(x, torch.Tensor) and x.dtype.is_complex)


def pair(x: Any, original: Any, dtype: DType) -> Any:
    """Argument value as a Pair; an argument that is neither a tensor nor a number is returned unchanged."""
    if isinstance(x, UOp):
        if _is_complex(original):
            return Pair(*(cast(part, dtype) for part in parts(x)))
        return Pair(cast(x, dtype), UOp.const(0.0, dtype))
    if isinstance(x, (int, float, complex)):
        return Pair(constant(x.real, dtype), constant(x.imag, dtype))
    return x


def _left(result: Any, spec: Spec) -> UOp:
    return joined(result, spec.size) if isinstance(result, Pair) else result


def elementwise(table: dict[str, Callable[..., Pair | UOp]]) -> None:
    """Register formulas; they receive tensors and numbers as Pairs of one real dtype."""
    for name, formula in table.items():
        _register(name)(_elementwise(formula))


def _register(name: str) -> Callable[[ValueFunction], ValueFunction]:
    """Register as `complex_value`, or as `value` if only complex tensors reach the operator."""
    return complex_value(name) if full_name(name) in ROWS else value(name, takes_complex=True, elementwise=True)


def _elementwise(formula: Callable[..., Pair | UOp]) -> ValueFunction:
    def compute(ctx: Context, *args: Any, **kwargs: Any) -> UOp:
        dtype = real_dtype(ctx)
        pairs = [pair(x, original, dtype) for x, original in zip(args, ctx.args, strict=False)]
        return _left(formula(*pairs, **{k: pair(v, v, dtype) for k, v in kwargs.items()}), ctx.out)

    return compute


def linear(*names: str, numbers: str = "factors") -> None:
    """Register operators that do the same to both parts: the real function is applied to each.

    `numbers` is the role of a number argument: "factors" are passed to both parts, "elements" are split into parts.
    """
    for name in names:
        complex_value(name)(_linear(ROWS[full_name(name)].function, numbers == "elements"))


def _linear(function: ValueFunction, elements: bool) -> ValueFunction:
    def compute(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        if not elements and any(isinstance(x, complex) for x in (*args, *kwargs.values())):
            raise Declined
        listed = ctx.op._schema.arguments
        scalars = [elements and str(a.type) == "number" for a in listed]
        values = [a.name not in POSITIONS for a in listed]
        real = real_context(ctx)
        dtype = COMPUTED[real.out.dtype]
        re, im = (
            function(
                real,
                *(_part(x, g, i, s, v) for x, g, s, v in zip(args, ctx.args, scalars, values, strict=False)),
                **{k: _part(v, v, i, False, True) for k, v in kwargs.items()},
            )
            for i in (0, 1)
        )
        return joined(Pair(cast(re, dtype), cast(im, dtype)), ctx.out.size)

    return compute


def real_context(ctx: Context) -> Context:
    """The call with real results in place of complex ones."""
    outs = [s and s._replace(dtype=s.dtype.to_real() if s.dtype.is_complex else s.dtype) for s in ctx.outs]
    return Context(ctx.op, outs, ctx.index, ctx.args)


POSITIONS = frozenset({"index", "indices", "condition", "mask"})
"""Arguments that select elements, and that both parts therefore use unchanged."""


def _part(x: Any, original: Any, i: int, taken_apart: bool, value: bool) -> Any:
    """The i-th part of a complex argument; a real tensor or number counts as a complex one with imaginary part 0."""
    if isinstance(x, UOp):
        if _is_complex(original):
            return parts(x)[i]
        return x.const_like(0) if i and value else x
    if taken_apart:
        return (x.real, x.imag)[i]
    if isinstance(x, (list, tuple)) and any(isinstance(y, UOp) for y in x):
        return type(x)(_part(y, g, i, False, value) for y, g in zip(x, original, strict=True))
    return x


def _equal(a: Pair, b: Pair) -> UOp:
    return a.re.eq(b.re) & a.im.eq(b.im)


def _either(test: Callable[[UOp], UOp]) -> Callable[[Pair], UOp]:
    return lambda z: test(z.re) | test(z.im)


def _expm1(z: Pair) -> Pair:
    """e**z - 1; nan where the imaginary part of z is infinite, also where e**z is 0."""
    w, endless = pairs.exp(z), absolute(z.im).eq(INF)
    return Pair(endless.where(NAN, subtract(w.re, 1.0)), endless.where(NAN, w.im))


elementwise(
    {
        "add.Tensor": lambda a, b, alpha=None: pairs.plus(a, pairs.scaled(b, alpha)),
        "sub.Tensor": lambda a, b, alpha=None: pairs.less(a, b, alpha),
        "rsub.Tensor": lambda a, b, alpha=None: pairs.less(b, a, alpha),
        "rsub.Scalar": lambda a, b, alpha=None: pairs.less(b, a, alpha),
        "mul.Tensor": pairs.times,
        "div.Tensor": pairs.over,
        "addcmul": lambda a, b, c, value=None: pairs.plus(a, pairs.times(pairs.scaled(b, value), c)),
        "addcdiv": lambda a, b, c, value=None: pairs.plus(a, pairs.over(pairs.scaled(b, value), c)),
        "lerp.Scalar": pairs.lerp,
        "lerp.Tensor": pairs.lerp,
        "neg": pairs.negative,
        "reciprocal": pairs.reciprocal,
        "sgn": pairs.sign,
        "abs": pairs.modulus,
        "angle": pairs.angle,
        "exp": pairs.exp,
        "exp2": lambda z: pairs.exp(pairs.times_real(z, math.log(2))),
        "expm1": _expm1,
        "log": pairs.log,
        "log2": lambda z: pairs.times_real(pairs.log(z), 1 / math.log(2)),
        "log10": lambda z: pairs.times_real(pairs.log(z), 1 / math.log(10)),
        "log1p": lambda z: pairs.log(Pair(1.0 + z.re, z.im)),
        "sqrt": pairs.sqrt,
        "rsqrt": lambda z: pairs.reciprocal(pairs.sqrt(z)),
        "sinh": pairs.sinh,
        "cosh": pairs.cosh,
        "tanh": pairs.tanh,
        "sin": pairs.turned(pairs.sinh),
        "cos": lambda z: pairs.cosh(Pair(-z.im, z.re)),
        "tan": pairs.turned(pairs.tanh),
        "asin": pairs.asin,
        "acos": pairs.acos,
        "acosh": pairs.acosh,
        "atanh": pairs.atanh,
        "asinh": pairs.turned(pairs.asin),
        "atan": pairs.turned(pairs.atanh),
        "sinc": pairs.sinc,
        "sigmoid": pairs.sigmoid,
        "pow.Tensor_Tensor": pairs.power,
        "pow.Scalar": pairs.power,
        "eq.Tensor": _equal,
        "eq.Scalar": _equal,
        "ne.Tensor": lambda a, b: _equal(a, b).logical_not(),
        "ne.Scalar": lambda a, b: _equal(a, b).logical_not(),
        "isnan": _either(lambda x: x.ne(x)),
        "isinf": _either(lambda x: absolute(x).eq(INF)),
        "logical_not": lambda z: z.re.eq(0) & z.im.eq(0),
        "logical_and": lambda a, b: _nonzero(a) & _nonzero(b),
        "logical_or": lambda a, b: _nonzero(a) | _nonzero(b),
        "logical_xor": lambda a, b: _nonzero(a).ne(_nonzero(b)),
    }
)


def _nonzero(z: Pair) -> UOp:
    return z.re.ne(0) | z.im.ne(0)


@value("complex", takes_complex=True)
def make_complex(ctx: Context, re: UOp, im: UOp) -> UOp:
    """Complex number from its parts; raises MetaRejected if the parts differ in dtype."""
    if len({x.dtype for x in ctx.args if isinstance(x, torch.Tensor)}) > 1:
        raise MetaRejected("the parts of a complex number are of one dtype")
    return joined(Pair(re, im), ctx.out.size)


@value("polar", takes_complex=True)
def polar(ctx: Context, length: UOp, angle: UOp) -> UOp:
    """Complex number from its absolute value and its angle."""
    length, angle = (cast(x, opmath(x.dtype)) for x in (length, angle))
    return joined(Pair(length * e.cos(angle), length * e.sin(angle)), ctx.out.size)


linear(
    "sum", "sum.dim_IntList", "cumsum", "where.self", "gather", "index_select", "take",
    "index.Tensor", "_unsafe_index.Tensor", "scatter_add", "index_add", "index_copy", "scatter.src",
    "index_put", "_unsafe_index_put", "_index_put_impl", "put", "masked_scatter",
    "channel_shuffle", "native_channel_shuffle", "pixel_shuffle", "pixel_unshuffle",
)  # fmt: skip
linear("constant_pad_nd", "scatter.value", "index_fill.int_Scalar", "index_fill.int_Tensor", numbers="elements")


@complex_value("nansum")
def nansum(ctx: Context, x: UOp, dim: Any = None, keepdim: bool = False, **_: object) -> Any:
    """Sum of the elements without a nan part, as on CUDA: the CPU supports no complex nansum."""
    both = x.ne(x).max(axis=-1, keepdim=True).expand(x.shape).where(x.const_like(0), x)
    return _linear(ROWS["sum.dim_IntList"].function, False)(ctx, both, dim, keepdim)


@complex_value("mean", "mean.dim")
def mean(ctx: Context, x: UOp, dim: Any = None, keepdim: bool = False, **_: object) -> Any:
    """Sum over the count. The count is a complex number too: it turns the other part of an infinite sum into nan."""
    total = parts(_linear(ROWS["sum.dim_IntList"].function, False)(ctx, x, dim, keepdim))
    count = math.prod(ctx.args[0].shape) / math.prod(ctx.out.size) if 0 not in ctx.out.size else 1.0
    return joined(pairs.over(total, Pair(total.re.const_like(count), total.re.const_like(0.0))), ctx.out.size)


_SHORT: dict[complex, Callable[[Pair], Pair]] = {
    0.0: lambda z: Pair(z.re.const_like(1.0), z.re.const_like(0.0)),
    1.0: lambda z: z,
    0.5: pairs.sqrt,
    2.0: lambda z: pairs.times(z, z),
    3.0: lambda z: pairs.times(pairs.times(z, z), z),
    -0.5: lambda z: pairs.reciprocal(pairs.sqrt(z)),
    -1.0: pairs.reciprocal,
    -2.0: lambda z: pairs.reciprocal(pairs.times(z, z)),
}
"""Exponents for which the CPU does not call pow (at::pow, pow_tensor_scalar_kernel)."""


@complex_value("pow.Tensor_Scalar")
def pow_scalar(ctx: Context, x: UOp, exponent: Any) -> UOp:
    """A power by a number."""
    dtype = real_dtype(ctx)
    z, short = (
        pair(x, ctx.args[0], dtype),
        _SHORT.get(exponent) if isinstance(exponent, (int, float, complex)) else None,
    )
    return joined(short(z) if short else pairs.power(z, pair(exponent, ctx.args[1], dtype)), ctx.out.size)


def _number(z: complex, ctx: Context) -> UOp:
    dtype = PAIRS[ctx.out.dtype]
    return joined(Pair(constant(z.real, dtype), constant(z.imag, dtype)), ctx.out.size)


@complex_value("fill.Scalar")
def fill_scalar(ctx: Context, self: UOp, number: complex) -> UOp:
    """Constant in every element."""
    return _number(complex(number), ctx)


@complex_value("fill.Tensor")
def fill_tensor(ctx: Context, self: UOp, number: UOp) -> UOp:
    """0-d value in every element; into real elements the CPU writes the real part, with a warning."""
    if ctx.out.dtype not in PAIRS:
        raise Declined
    return joined(pair(number, ctx.args[1], PAIRS[ctx.out.dtype]), ctx.out.size)


@complex_value("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(ctx: Context, self: UOp, mask: UOp, number: Any) -> UOp:
    """Number where the mask is true, otherwise the element."""
    dtype = PAIRS[ctx.out.dtype]
    here, new = pair(self, ctx.args[0], dtype), pair(number, ctx.args[2], dtype)
    return joined(Pair(mask.where(new.re, here.re), mask.where(new.im, here.im)), ctx.out.size)


def _multiply(p: LoopProgram, out: Array, x: Array) -> None:
    lines, count, _ = x.shape
    for line in p.loop(lines, independent=True):
        z = p.local(dtypes.float64, 1.0, 0.0)
        for i in p.loop(count):
            here = Pair(*(x[line, i, part].cast(dtypes.float64) for part in range(2)))
            product = pairs.times(Pair(z[0], z[1]), here)
            re = p.keep(product.re)
            z[1] = product.im
            z[0] = re
        for part in range(2):
            out[line, part] = z[part]


@complex_value("prod", "prod.dim_int")
def prod(ctx: Context, x: UOp, dim: int | None = None, keepdim: bool = False, **_: object) -> UOp:
    """Product, multiplied one element after the other."""
    dtype = real_dtype(ctx)
    if 0 in x.shape:
        return joined(Pair(constant(1.0, dtype), constant(0.0, dtype)), ctx.out.size)
    z = cast(x, dtype) if _is_complex(ctx.args[0]) else x.unsqueeze(-1).cast(dtype).pad((*[(0, 0)] * x.ndim, (0, 1)))
    rank = z.ndim - 1
    along = range(rank) if rank == 0 or dim is None else [dim % rank]
    lines = z.permute((*(d for d in range(rank) if d not in along), *along, rank))
    length = math.prod(int(z.shape[d]) for d in along)
    count = math.prod(int(n) for n in z.shape[:-1]) // length
    (result,) = kernel(_multiply, [((count, 2), dtype)], [lines.reshape((count, length, 2))], ctx.device)
    return result.reshape((*ctx.out.size, 2))


@complex_value("any", "any.dim", "any.dims", "all", "all.dim", "all.dims", "count_nonzero.dim_IntList", "count_nonzero")
def of_truth(ctx: Context, x: UOp, *args: Any, **kwargs: Any) -> Any:
    """Reduction over the truth values of the elements (an element is true unless it is 0)."""
    function = ROWS[str(ctx.op).removeprefix("aten.")].function
    return function(ctx, _nonzero(parts(x)), *args, **kwargs)


@complex_value("linalg_vector_norm")
def vector_norm(ctx: Context, x: UOp, *args: Any, **kwargs: Any) -> Any:
    """Norm of the absolute values."""
    dtype = real_dtype(ctx)
    return ROWS["linalg_vector_norm.default"].function(ctx, pairs.modulus(pair(x, ctx.args[0], dtype)), *args, **kwargs)


def _conjugating(name: str) -> Callable[..., Any]:
    of_complex = _elementwise(pairs.conjugate)
    row = OperatorRow(lambda ctx, x: x, keep_floats=False, complex=of_complex, elementwise=True, out_as_new="resized")
    return FunctionalOverload(find(name), find("_conj_physical"), row).kernel


# torch derives the gradient of the functional form from its composite form, which calls this out= kernel.
def _exact_out(name: str) -> Callable[..., Any]:
    kernel = FunctionalOverload(find(f"{name}.out"), find(name), ROWS[full_name(name)]).kernel

    def call(re: torch.Tensor, im: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if out.dtype != torch.promote_types(re.dtype, torch.complex32):
            raise MetaRejected("out= takes no cast")
        return kernel(re, im, out=out)

    return call


KERNELS: dict[str, Callable[..., Any]] = {f"{name}.out": _exact_out(name) for name in ("complex", "polar")}
KERNELS |= {name: _conjugating(name) for name in ("conj_physical.out", "conj_physical_")}
