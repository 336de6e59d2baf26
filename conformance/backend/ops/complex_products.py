"""Products of complex vectors and matrices, computed as real products of their parts.

A product is linear in each factor, so it consists of four real products, two summed for each part.
The real functions choose the dtype of the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tinygrad.uop.ops import UOp

from ..dispatch.registry import ROWS, Context, ValueFunction, complex_value, full_name
from ..dispatch.schema_kernels import FunctionalOverload, find
from ..dispatch.tensors import cast
from . import matmul, pairs  # noqa: F401 - rows used below
from .arithmetic import subtract
from .complex import pair, real_context, real_dtype
from .pairs import Pair, joined, parts


def bilinear(*names: str) -> None:
    """Register products of two tensors as four real products, two summed for each part."""
    for name in names:
        complex_value(name)(_bilinear(ROWS[full_name(name)].function, name == "vdot"))


def _bilinear(function: ValueFunction, conjugates: bool) -> ValueFunction:
    def compute(ctx: Context, a: UOp, b: UOp) -> UOp:
        real = real_context(ctx)
        (ar, ai), (br, bi) = parts(a), parts(b)
        ai = -ai if conjugates else ai
        re = subtract(function(real, ar, br), function(real, ai, bi))
        return joined(Pair(re, function(real, ar, bi) + function(real, ai, br)), ctx.out.size)

    return compute


bilinear("mm", "bmm", "dot", "vdot")


# The CPU's product of conjugate views is itself a conjugate view (aten/src/ATen/native/Blas.cpp); the bit is set alike.
def _dot(name: str) -> Callable[..., Any]:
    kernel = FunctionalOverload(find(name), find(name), ROWS[full_name(name)]).kernel

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        conjugate_result = b.is_conj() and (a.is_conj() if name == "dot" else not a.is_conj())
        return kernel(a.conj(), b.conj()).conj() if conjugate_result else kernel(a, b)

    return call


def _plus_product(product: Callable[[Context, UOp, UOp], UOp]) -> ValueFunction:
    """beta * self + alpha * (a times b)."""

    def compute(ctx: Context, self: UOp, a: UOp, b: UOp, beta: complex = 1, alpha: complex = 1) -> UOp:
        dtype = real_dtype(ctx)
        result = pairs.times(pair(alpha, alpha, dtype), Pair(*(cast(x, dtype) for x in parts(product(ctx, a, b)))))
        if beta != 0:
            result = pairs.plus(pairs.times(pair(beta, beta, dtype), pair(self, ctx.args[0], dtype)), result)
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
    """beta * self + alpha * outer(a, b), of which one vector may be real."""

    def outer(ctx: Context, a: UOp, b: UOp) -> UOp:
        dtype = real_dtype(ctx)
        left = Pair(*(x.unsqueeze(1) for x in pair(a, ctx.args[1], dtype)))
        right = Pair(*(x.unsqueeze(0) for x in pair(b, ctx.args[2], dtype)))
        return joined(pairs.times(left, right), (a.shape[0], b.shape[0]))  # type: ignore[arg-type]

    return _plus_product(outer)(ctx, self, a, b, beta, alpha)


KERNELS: dict[str, Callable[..., Any]] = {"dot": _dot("dot"), "vdot": _dot("vdot")}
