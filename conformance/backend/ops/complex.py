"""Operators of complex tensors, in terms of real and imaginary parts.

Defines the complex forms of operators that have a value function already: elementwise ones by their formulas
(`elementwise`), those that treat both parts alike (`linear`) and products (`bilinear`) by the real function itself.

The key insight: a complex tensor is a real value with a last dimension of 2, so copies, views and moves of elements
know nothing of it, and only what mixes the two parts needs a rule. Branch cuts are those of C99's Annex G, by
W. Kahan, Branch Cuts for Complex Elementary Functions, 1987.
Must not know how a complex storage is laid out: `storage` pairs the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..dispatch import Overload, find
from ..dtypes import COMPUTED, PAIRS, opmath
from ..metadata import Refused
from ..rows import ROWS, Context, Declined, Row, ValueFunction, complex_value, full_name, value
from ..tensors import Spec, cast, constant
from . import activation, division, indexing, matmul, norm, reduction, scan, scatter  # noqa: F401 - rows used below
from . import elementary as e
from . import pointwise as _pointwise  # noqa: F401
from . import shape as _shape  # noqa: F401
from .elementary import NAN, divide, subtract


class Pair(NamedTuple):
    """A complex value of any shape as its real and imaginary part."""

    re: UOp
    im: UOp


def parts(x: UOp) -> Pair:
    """The parts of a value whose last dimension is 2."""
    shape = x.shape[:-1]
    whole = [(0, n) for n in shape]
    re, im = (x.shrink((*whole, (i, i + 1))).reshape(shape) for i in (0, 1))
    return Pair(re, im)


def joined(z: Pair, size: tuple[int, ...]) -> UOp:
    """A value with a last dimension of 2 from its parts, which are broadcast to `size`."""
    re, im = (x.expand(size).unsqueeze(-1) if x.shape != size else x.unsqueeze(-1) for x in z)
    return re.cat(im, dim=-1)


def real_dtype(ctx: Context) -> DType:
    """The real dtype in which the call computes: float32 for complex32."""
    promoted = torch.float16
    for x in (*ctx.args, *ctx.outs):
        if isinstance(x, (torch.Tensor, Spec)) and (x.dtype.is_complex or x.dtype.is_floating_point):
            promoted = torch.promote_types(promoted, x.dtype.to_real() if x.dtype.is_complex else x.dtype)
    return opmath(COMPUTED[promoted])


def _is_complex(x: Any) -> bool:
    return isinstance(x, complex) or (isinstance(x, torch.Tensor) and x.dtype.is_complex)


def _pair(x: Any, given: Any, dtype: DType) -> Any:
    """An argument's value as a Pair; what is neither tensor nor number stays as it is."""
    if isinstance(x, UOp):
        if _is_complex(given):
            return Pair(*(cast(part, dtype) for part in parts(x)))
        return Pair(cast(x, dtype), UOp.const(0.0, dtype))
    if isinstance(x, (int, float, complex)):
        return Pair(constant(x.real, dtype), constant(x.imag, dtype))
    return x


def _left(result: Any, spec: Spec) -> UOp:
    return joined(result, spec.size) if isinstance(result, Pair) else result


def elementwise(table: dict[str, Callable[..., Pair | UOp]]) -> None:
    """Register formulas: tensors and numbers arrive as Pairs of one real dtype."""
    for name, formula in table.items():
        _register(name)(_elementwise(formula))


def _register(name: str) -> Callable[[ValueFunction], ValueFunction]:
    """`complex_value`, also for an operator that only complex tensors reach."""
    return complex_value(name) if full_name(name) in ROWS else value(name, takes_complex=True, elementwise=True)


def _elementwise(formula: Callable[..., Pair | UOp]) -> ValueFunction:
    def compute(ctx: Context, *args: Any, **kwargs: Any) -> UOp:
        dtype = real_dtype(ctx)
        pairs = [_pair(x, given, dtype) for x, given in zip(args, ctx.args, strict=False)]
        return _left(formula(*pairs, **{k: _pair(v, v, dtype) for k, v in kwargs.items()}), ctx.out)

    return compute


def linear(*names: str, numbers: str = "factors") -> None:
    """Register operators that do the same to both parts: the real function is applied to each.

    `numbers` says what a number among the arguments is: one of the "factors", which both parts get, or "elements" to be
    taken apart.
    """
    for name in names:
        complex_value(name)(_linear(ROWS[full_name(name)].function, numbers == "elements"))


def _linear(function: ValueFunction, elements: bool) -> ValueFunction:
    def compute(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        if not elements and any(isinstance(x, complex) for x in (*args, *kwargs.values())):
            raise Declined
        scalars = [elements and str(a.type) == "number" for a in ctx.op._schema.arguments]
        real = _real_context(ctx)
        dtype = COMPUTED[real.out.dtype]
        re, im = (
            function(
                real,
                *(_part(x, given, i, s) for x, given, s in zip(args, ctx.args, scalars, strict=False)),
                **{k: _part(v, v, i, False) for k, v in kwargs.items()},
            )
            for i in (0, 1)
        )
        return joined(Pair(cast(re, dtype), cast(im, dtype)), ctx.out.size)

    return compute


def _real_context(ctx: Context) -> Context:
    outs = [s and s._replace(dtype=s.dtype.to_real() if s.dtype.is_complex else s.dtype) for s in ctx.outs]
    return Context(ctx.op, outs, ctx.index, ctx.args)


def _part(x: Any, given: Any, i: int, taken_apart: bool) -> Any:
    """The i-th part of what is complex; of a real tensor or number that stands in its place, itself and zero."""
    if isinstance(x, UOp):
        if _is_complex(given):
            return parts(x)[i]
        return x.const_like(0) if i and dtypes.is_float(x.dtype) else x
    if taken_apart:
        return (x.real, x.imag)[i]
    if isinstance(x, (list, tuple)) and any(isinstance(y, UOp) for y in x):
        return type(x)(_part(y, g, i, False) for y, g in zip(x, given, strict=True))
    return x


def plus(a: Pair, b: Pair) -> Pair:
    """a + b."""
    return Pair(a.re + b.re, a.im + b.im)


def minus(a: Pair, b: Pair) -> Pair:
    """a - b."""
    return Pair(subtract(a.re, b.re), subtract(a.im, b.im))


def times(a: Pair, b: Pair) -> Pair:
    """a b, as the four products."""
    return Pair(subtract(a.re * b.re, a.im * b.im), a.re * b.im + a.im * b.re)


def scaled(z: Pair, factor: Pair | None) -> Pair:
    """z times a factor, or z where there is none."""
    return z if factor is None else times(factor, z)


def negative(z: Pair) -> Pair:
    """-z."""
    return Pair(-z.re, -z.im)


def conjugate(z: Pair) -> Pair:
    """The conjugate."""
    return Pair(z.re, -z.im)


def over(a: Pair, b: Pair) -> Pair:
    """a / b, scaled by the larger part of b (c10/util/complex.h, after R. L. Smith, Algorithm 116, 1962)."""
    larger = e.absolute(b.im) <= e.absolute(b.re)
    p, q = larger.where(b.re, b.im), larger.where(b.im, b.re)
    zero = p.eq(0) & q.eq(0)
    ratio = divide(q, zero.where(1.0, p))
    denominator = p + q * ratio
    re = divide(larger.where(a.re + a.im * ratio, a.re * ratio + a.im), denominator)
    im = divide(larger.where(subtract(a.im, a.re * ratio), subtract(a.im * ratio, a.re)), denominator)
    return Pair(zero.where(divide(a.re, e.absolute(b.re)), re), zero.where(divide(a.im, e.absolute(b.re)), im))


def modulus(z: Pair) -> UOp:
    """|z|."""
    return e.hypot(z.re, z.im)


def angle(z: Pair) -> UOp:
    """The argument."""
    return e.atan2(z.im, z.re)


def exp(z: Pair) -> Pair:
    """e**z; of a real number a real one."""
    length = e.exp(z.re)
    return Pair(length * e.cos(z.im), z.im.eq(0).where(z.im, length * e.sin(z.im)))


def log(z: Pair) -> Pair:
    """The principal logarithm; log |z| near 1 without cancellation."""
    x, y = e.absolute(z.re), e.absolute(z.im)
    larger, smaller = (x < y).where(y, x), (x < y).where(x, y)
    near = 0.5 * e.log1p(subtract(larger, 1.0) * (larger + 1.0) + smaller * smaller)
    close = (larger > 0.5) & (larger < 2.0)
    return Pair(close.where(near, e.log(modulus(z))), angle(z))


def sqrt(z: Pair) -> Pair:
    """The principal square root."""
    size = modulus(z)
    root = (0.5 * (size + e.absolute(z.re))).sqrt()
    other = root.eq(0).where(0.0, divide(z.im, 2.0 * root))
    right = z.re >= 0
    return Pair(right.where(root, e.absolute(other)), right.where(other, e.copy_sign(root, z.im)))


def power(a: Pair, b: Pair) -> Pair:
    """a**b as e**(b log a), in float64; 0**0 is 1."""
    dtype = a.re.dtype
    wide = [Pair(cast(z.re, dtypes.float64), cast(z.im, dtypes.float64)) for z in (a, b)]
    result = exp(times(wide[1], log(wide[0])))
    nothing, one = a.re.eq(0) & a.im.eq(0), b.re.eq(0) & b.im.eq(0)
    re, im = (cast(part, dtype) for part in result)
    of_zero = one.where(1.0, ((b.re > 0) | b.im.ne(0)).where(re.const_like(0.0), NAN))
    return Pair(nothing.where(of_zero, re), (nothing | one).where(0.0, im))


def sinh(z: Pair) -> Pair:
    """The hyperbolic sine."""
    return Pair(e.sinh(z.re) * e.cos(z.im), e.cosh(z.re) * e.sin(z.im))


def cosh(z: Pair) -> Pair:
    """The hyperbolic cosine."""
    return Pair(e.cosh(z.re) * e.cos(z.im), e.sinh(z.re) * e.sin(z.im))


def tanh(z: Pair) -> Pair:
    """The hyperbolic tangent (Kahan's CTANH)."""
    large = e.absolute(z.re) > 20
    x = large.where(0.0, z.re)
    t = e.tan(z.im)
    beta, s = 1.0 + t * t, e.sinh(x)
    rho = (1.0 + s * s).sqrt()
    denominator = 1.0 + beta * s * s
    re, im = divide(beta * rho * s, denominator), divide(t, denominator)
    return Pair(large.where(e.copy_sign(re.const_like(1.0), z.re), re), large.where(0.0, im))


def asin(z: Pair) -> Pair:
    """The inverse sine (Kahan's CASIN)."""
    below, above = sqrt(Pair(subtract(1.0, z.re), -z.im)), sqrt(Pair(1.0 + z.re, z.im))
    re = e.atan2(z.re, subtract(below.re * above.re, below.im * above.im))
    return Pair(re, e.asinh(subtract(below.re * above.im, below.im * above.re)))


def acos(z: Pair) -> Pair:
    """The inverse cosine (Kahan's CACOS)."""
    below, above = sqrt(Pair(subtract(1.0, z.re), -z.im)), sqrt(Pair(1.0 + z.re, z.im))
    return Pair(2.0 * e.atan2(below.re, above.re), e.asinh(subtract(above.re * below.im, above.im * below.re)))


def acosh(z: Pair) -> Pair:
    """The inverse hyperbolic cosine (Kahan's CACOSH)."""
    below, above = sqrt(Pair(subtract(z.re, 1.0), z.im)), sqrt(Pair(z.re + 1.0, z.im))
    return Pair(e.asinh(below.re * above.re + below.im * above.im), 2.0 * e.atan2(below.im, above.re))


def atanh(z: Pair) -> Pair:
    """The inverse hyperbolic tangent, an odd function computed on the right half-plane."""
    x, square = e.absolute(z.re), z.im * z.im
    rest = subtract(1.0, x)
    re = 0.25 * e.log1p(divide(4.0 * x, rest * rest + square))
    return Pair(e.copy_sign(re, z.re), 0.5 * e.atan2(2.0 * z.im, subtract(rest * (1.0 + x), square)))


def _turned(function: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """-i f(i z): sin from sinh, asinh from asin, and so on."""

    def turned(z: Pair) -> Pair:
        w = function(Pair(-z.im, z.re))
        return Pair(w.im, -w.re)

    return turned


def reciprocal(z: Pair) -> Pair:
    """1 / z."""
    return over(Pair(z.re.const_like(1.0), z.im.const_like(0.0)), z)


def sign(z: Pair) -> Pair:
    """z / |z|, and 0 of 0."""
    size = modulus(z)
    zero = size.eq(0)
    return Pair(zero.where(0.0, divide(z.re, size)), zero.where(0.0, divide(z.im, size)))


def _times_real(z: Pair, factor: float) -> Pair:
    return Pair(z.re * factor, z.im * factor)


def _equal(a: Pair, b: Pair) -> UOp:
    return a.re.eq(b.re) & a.im.eq(b.im)


def _either(test: Callable[[UOp], UOp]) -> Callable[[Pair], UOp]:
    return lambda z: test(z.re) | test(z.im)


def sigmoid(z: Pair) -> Pair:
    """1 / (1 + e**-z)."""
    w = exp(negative(z))
    return reciprocal(Pair(1.0 + w.re, w.im))


def lerp(a: Pair, b: Pair, weight: Pair) -> Pair:
    """a + weight (b - a), from the nearer end (ATen/native/Lerp.h)."""
    difference = minus(b, a)
    near = modulus(weight) < 0.5
    first = plus(a, times(weight, difference))
    other = minus(b, times(difference, Pair(subtract(1.0, weight.re), -weight.im)))
    return Pair(near.where(first.re, other.re), near.where(first.im, other.im))


def sinc(z: Pair) -> Pair:
    """sin(pi z) / (pi z), and 1 at 0."""
    w = _times_real(z, math.pi)
    value, zero = over(_turned(sinh)(w), w), z.re.eq(0) & z.im.eq(0)
    return Pair(zero.where(1.0, value.re), zero.where(0.0, value.im))


elementwise(
    {
        "add.Tensor": lambda a, b, alpha=None: plus(a, scaled(b, alpha)),
        "sub.Tensor": lambda a, b, alpha=None: minus(a, scaled(b, alpha)),
        "rsub.Tensor": lambda a, b, alpha=None: minus(b, scaled(a, alpha)),
        "rsub.Scalar": lambda a, b, alpha=None: minus(b, scaled(a, alpha)),
        "mul.Tensor": times,
        "div.Tensor": over,
        "addcmul": lambda a, b, c, value=None: plus(a, times(scaled(b, value), c)),
        "addcdiv": lambda a, b, c, value=None: plus(a, over(scaled(b, value), c)),
        "lerp.Scalar": lerp,
        "lerp.Tensor": lerp,
        "neg": negative,
        "reciprocal": reciprocal,
        "sgn": sign,
        "abs": modulus,
        "angle": angle,
        "exp": exp,
        "exp2": lambda z: exp(_times_real(z, math.log(2))),
        "expm1": lambda z: Pair(subtract(exp(z).re, 1.0), exp(z).im),
        "log": log,
        "log2": lambda z: _times_real(log(z), 1 / math.log(2)),
        "log10": lambda z: _times_real(log(z), 1 / math.log(10)),
        "log1p": lambda z: log(Pair(1.0 + z.re, z.im)),
        "sqrt": sqrt,
        "rsqrt": lambda z: reciprocal(sqrt(z)),
        "sinh": sinh,
        "cosh": cosh,
        "tanh": tanh,
        "sin": _turned(sinh),
        "cos": lambda z: cosh(Pair(-z.im, z.re)),
        "tan": _turned(tanh),
        "asin": asin,
        "acos": acos,
        "acosh": acosh,
        "atanh": atanh,
        "asinh": _turned(asin),
        "atan": _turned(atanh),
        "sinc": sinc,
        "sigmoid": sigmoid,
        "pow.Tensor_Tensor": power,
        "pow.Tensor_Scalar": power,
        "pow.Scalar": power,
        "eq.Tensor": _equal,
        "eq.Scalar": _equal,
        "ne.Tensor": lambda a, b: _equal(a, b).logical_not(),
        "ne.Scalar": lambda a, b: _equal(a, b).logical_not(),
        "isnan": _either(lambda x: x.ne(x)),
        "isinf": _either(lambda x: e.absolute(x).eq(e.INF)),
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
    """A complex number from its parts; Refused where these are of two dtypes."""
    if len({x.dtype for x in ctx.args if isinstance(x, torch.Tensor)}) > 1:
        raise Refused("the parts of a complex number are of one dtype")
    return joined(Pair(re, im), ctx.out.size)


@value("polar", takes_complex=True)
def polar(ctx: Context, length: UOp, angle: UOp) -> UOp:
    """A complex number from its absolute value and its angle."""
    length, angle = (cast(x, opmath(x.dtype)) for x in (length, angle))
    return joined(Pair(length * e.cos(angle), length * e.sin(angle)), ctx.out.size)


linear(
    "sum", "sum.dim_IntList", "mean", "mean.dim", "cumsum", "where.self", "gather", "index_select", "take",
    "index.Tensor", "_unsafe_index.Tensor", "scatter_add", "index_add", "index_copy", "scatter.src",
    "index_put", "_unsafe_index_put", "_index_put_impl", "put", "masked_scatter",
    "channel_shuffle", "native_channel_shuffle",
)  # fmt: skip
linear("constant_pad_nd", "scatter.value", "index_fill.int_Scalar", "index_fill.int_Tensor", numbers="elements")


def _number(z: complex, ctx: Context) -> UOp:
    dtype = PAIRS[ctx.out.dtype]
    return joined(Pair(constant(z.real, dtype), constant(z.imag, dtype)), ctx.out.size)


@complex_value("fill.Scalar")
def fill_scalar(ctx: Context, self: UOp, number: complex) -> UOp:
    """One constant everywhere."""
    return _number(complex(number), ctx)


@complex_value("fill.Tensor")
def fill_tensor(ctx: Context, self: UOp, number: UOp) -> UOp:
    """A 0-d value everywhere; into real elements the CPU writes the real part, with a warning."""
    if ctx.out.dtype not in PAIRS:
        raise Declined
    return joined(_pair(number, ctx.args[1], PAIRS[ctx.out.dtype]), ctx.out.size)


@complex_value("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(ctx: Context, self: UOp, mask: UOp, number: Any) -> UOp:
    """A number where the mask holds."""
    dtype = PAIRS[ctx.out.dtype]
    here, new = _pair(self, ctx.args[0], dtype), _pair(number, ctx.args[2], dtype)
    return joined(Pair(mask.where(new.re, here.re), mask.where(new.im, here.im)), ctx.out.size)


def bilinear(*names: str) -> None:
    """Register products of two tensors: four real products, of which two are summed for each part."""
    for name in names:
        complex_value(name)(_bilinear(ROWS[full_name(name)].function, name == "vdot"))


def _bilinear(function: ValueFunction, conjugates: bool) -> ValueFunction:
    def compute(ctx: Context, a: UOp, b: UOp) -> UOp:
        real = _real_context(ctx)
        (ar, ai), (br, bi) = parts(a), parts(b)
        ai = -ai if conjugates else ai
        re = subtract(function(real, ar, br), function(real, ai, bi))
        return joined(Pair(re, function(real, ar, bi) + function(real, ai, br)), ctx.out.size)

    return compute


bilinear("mm", "bmm", "dot", "vdot")


# What the CPU's products of conjugate views are themselves (aten/src/ATen/native/Blas.cpp), bit by bit.
def _dot(name: str) -> Callable[..., Any]:
    kernel = Overload(find(name), find(name), ROWS[full_name(name)]).kernel

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        conjugate_result = b.is_conj() and (a.is_conj() if name == "dot" else not a.is_conj())
        return kernel(a.conj(), b.conj()).conj() if conjugate_result else kernel(a, b)

    return call


def _plus_product(product: Callable[[Context, UOp, UOp], UOp]) -> ValueFunction:
    """beta * self + alpha * (a times b)."""

    def compute(ctx: Context, self: UOp, a: UOp, b: UOp, beta: complex = 1, alpha: complex = 1) -> UOp:
        dtype = real_dtype(ctx)
        result = times(_pair(alpha, alpha, dtype), Pair(*(cast(x, dtype) for x in parts(product(ctx, a, b)))))
        if beta != 0:
            result = plus(times(_pair(beta, beta, dtype), _pair(self, ctx.args[0], dtype)), result)
        return joined(result, ctx.out.size)

    return compute


def _column(product: ValueFunction) -> Callable[[Context, UOp, UOp], UOp]:
    def compute(ctx: Context, matrix: UOp, vector: UOp) -> UOp:
        size = ctx.out.size
        wide = Context(ctx.op, [ctx.out._replace(size=(*size, 1))], ctx.index, ctx.args)
        return product(wide, matrix, vector.reshape((vector.shape[0], 1, 2))).reshape((*size, 2))

    return compute


_product: Any = ROWS["mm.default"].complex
complex_value("addmm", "baddbmm")(_plus_product(_product))
complex_value("addmv")(_plus_product(_column(_product)))


@complex_value("addr")
def addr(ctx: Context, self: UOp, a: UOp, b: UOp, beta: complex = 1, alpha: complex = 1) -> UOp:
    """beta * self + alpha * outer(a, b)."""

    def outer(ctx: Context, a: UOp, b: UOp) -> UOp:
        left, right = Pair(*(x.unsqueeze(1) for x in parts(a))), Pair(*(x.unsqueeze(0) for x in parts(b)))
        return joined(times(left, right), (a.shape[0], b.shape[0]))  # type: ignore[arg-type]

    return _plus_product(outer)(ctx, self, a, b, beta, alpha)


@complex_value("prod", "prod.dim_int")
def prod(ctx: Context, x: UOp, dim: int | None = None, keepdim: bool = False, **_: object) -> UOp:
    """The product, by halves: each round multiplies one half of the elements by the other."""
    dtype = real_dtype(ctx)
    re, im = (cast(part, dtype) for part in _pair(x, ctx.args[0], dtype))
    if dim is None or re.ndim == 0:
        re, im = re.reshape((-1,)), im.reshape((-1,))
    else:
        re, im = re.transpose(dim, -1), im.transpose(dim, -1)
    z, left = Pair(re, im), int(re.shape[-1])
    whole = [(0, n) for n in re.shape[:-1]]
    while left > 1:
        if left % 2:
            more = [(0, 0)] * len(whole) + [(0, 1)]
            z = Pair(z.re.pad(tuple(more), value=1.0), z.im.pad(tuple(more)))
            left += 1
        low, high = ((*whole, (0, left // 2)), (*whole, (left // 2, left)))
        z = times(Pair(z.re.shrink(low), z.im.shrink(low)), Pair(z.re.shrink(high), z.im.shrink(high)))
        z, left = Pair(z.re.contiguous(), z.im.contiguous()), left // 2
    if left == 0:
        return joined(Pair(constant(1.0, dtype), constant(0.0, dtype)), ctx.out.size)
    if dim is not None and z.re.ndim > 1:
        z = Pair(z.re.transpose(dim, -1), z.im.transpose(dim, -1))
    return joined(Pair(z.re.reshape(ctx.out.size), z.im.reshape(ctx.out.size)), ctx.out.size)


@complex_value("any", "any.dim", "any.dims", "all", "all.dim", "all.dims", "count_nonzero.dim_IntList", "count_nonzero")
def of_truth(ctx: Context, x: UOp, *args: Any, **kwargs: Any) -> Any:
    """A reduction of whether elements are 0."""
    function = ROWS[str(ctx.op).removeprefix("aten.")].function
    return function(ctx, _nonzero(parts(x)), *args, **kwargs)


@complex_value("linalg_vector_norm")
def vector_norm(ctx: Context, x: UOp, *args: Any, **kwargs: Any) -> Any:
    """The norm of the absolute values."""
    dtype = real_dtype(ctx)
    return ROWS["linalg_vector_norm.default"].function(ctx, modulus(_pair(x, ctx.args[0], dtype)), *args, **kwargs)


def _conjugating(name: str) -> Callable[..., Any]:
    row = Row(lambda ctx, x: x, keep_floats=False, complex=_elementwise(conjugate), elementwise=True)
    overload = Overload(find(name), find("_conj_physical"), row)
    overload.structured = True  # an empty out= gets the input's order of dimensions
    return overload.kernel


KERNELS: dict[str, Callable[..., Any]] = {"dot": _dot("dot"), "vdot": _dot("vdot")}
# torch derives the gradient of the functional form from its composite form, which ends here.


def _exact_out(name: str) -> Callable[..., Any]:
    kernel = Overload(find(f"{name}.out"), find(name), ROWS[full_name(name)]).kernel

    def call(re: torch.Tensor, im: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if out.dtype != torch.promote_types(re.dtype, torch.complex32):
            raise Refused("out= takes no cast")
        return kernel(re, im, out=out)

    return call


KERNELS |= {f"{name}.out": _exact_out(name) for name in ("complex", "polar")}
KERNELS |= {name: _conjugating(name) for name in ("conj_physical.out", "conj_physical_")}
