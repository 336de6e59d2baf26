"""Matrix products: one multiply-and-sum for each, accumulated in the CPU's accumulation dtype.

Defines the products of the mm, bmm, addmm, mv and dot families. Also defines `stored`, which decides whether an operand
is computed once or at each of its uses.

A product reads each operand many times, so an expression that is cheap to fuse elsewhere is expensive.
The module does not depend on strides: the caller handles them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from ..dispatch.registry import Context, operand, value
from ..dispatch.tensors import cast, constant
from ..lazy.dtypes import opmath
from ..runtime import materialization

aten = torch.ops.aten
_COSTLY = frozenset({Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.POW, Ops.CDIV, Ops.CMOD, Ops.INDEX, Ops.RECIPROCAL})
_CHEAP_OPERATIONS = 12
# float32 sums of at most this many products use float64, where the products are exact. The CPU multiplies and adds
# without intermediate rounding, which shows where a few large terms cancel; in longer sums the additions round more.
SHORT = 32
# float32 sums of more products than this add the rounded products in float64. Added one by one in float32, their error
# grows with the count; the error of the CPU, which adds blocks, hardly grows.
LONG = 1024
# In 16 bits, a trilinear product with at most this many turns of its loop rounds after each turn.
TURNS = 64


def stored(x: UOp) -> UOp:
    """`x`, computed once if its expression is costly; cheap expressions are fused into every use."""
    return materialization.materialize(x) if _is_costly(x) else x


def _is_costly(x: UOp) -> bool:
    seen: set[UOp] = set()
    stack = [x]
    while stack:
        node = stack.pop()
        if node in seen or node.op in (Ops.REDUCE, Ops.CONTIGUOUS, Ops.BUFFER, Ops.CONST, Ops.AFTER):
            continue
        seen.add(node)
        if node.op in _COSTLY or sum(n.op in GroupOp.ALU for n in seen) > _CHEAP_OPERATIONS:
            return True
        stack.extend(node.src[:1] if node.op in GroupOp.Movement else node.src)
    return False


def accumulate(ctx: Context) -> DType:
    """Dtype of products and sums: float32 for 16-bit floats, otherwise that of the result."""
    return opmath(ctx.out.computed)


def contract(ctx: Context, a: UOp, b: UOp) -> UOp:
    """(..., m, k) x (..., k, n) -> (..., m, n), batch dimensions alike."""
    rows = stored(a).unsqueeze(-2)  # (..., m, 1, k)
    columns = stored(b).transpose(-1, -2).unsqueeze(-3)  # (..., 1, n, k)
    return summed(rows, columns, accumulate(ctx))


def summed(rows: UOp, columns: UOp, dtype: DType, of_group: UOp | None = None) -> UOp:
    """Sums of products over the last dimension, in `dtype`; with `of_group`, only of the products where it is true."""
    narrow, count = dtype is dtypes.float32, rows.shape[-1]
    factor = dtypes.float64 if narrow and count <= SHORT else dtype
    total = dtypes.float64 if narrow and count > LONG else factor
    products = cast(cast(rows, factor) * cast(columns, factor), total)
    if of_group is not None:
        products = of_group.where(products, products.const_like(0))
    return cast(products.sum(-1, dtype=total), dtype)


def blend(ctx: Context, self: UOp, product: UOp, beta: float, alpha: float) -> UOp:
    """beta * self + alpha * product; for beta = 0 `self` is not read, so its nan and inf do not spread."""
    dtype = accumulate(ctx)
    if alpha == 0 and dtypes.is_float(dtype):  # as data: tinygrad folds x * 0 to 0, which loses nan and inf
        scaled = product * cast(ctx.data(np.zeros(1)).reshape(()), dtype)
    else:
        scaled = product if alpha == 1 else product * operand(ctx, "alpha", alpha, dtype)
    if beta == 0:
        return scaled
    base = cast(self, dtype)
    return scaled + (base if beta == 1 else base * operand(ctx, "beta", beta, dtype))


@value("mm", "bmm", deferrable=True)
def mm(ctx: Context, a: UOp, b: UOp) -> UOp:
    """Matrix product, batched or not."""
    return contract(ctx, a, b)


@value("_int_mm")
def int_mm(ctx: Context, a: UOp, b: UOp) -> UOp:
    """int8 x int8 -> int32."""
    return contract(ctx, a, b)


@value("addmm", "baddbmm", first_is_out=True, deferrable=True)
def addmm(ctx: Context, self: UOp, a: UOp, b: UOp, beta: float = 1, alpha: float = 1) -> UOp:
    """beta * self + alpha * (a @ b)."""
    if ctx.op is aten.addmm.default:
        return _gemm(ctx, self, a, b, beta, alpha)
    return blend(ctx, self, contract(ctx, a, b), beta, alpha)


def _gemm(ctx: Context, self: UOp, a: UOp, b: UOp, beta: float, alpha: float) -> UOp:
    """beta * self + alpha * (a @ b) as by BLAS: alpha multiplies a factor, which shows if it is infinite, and if it is
    0, the factors are not read.
    """
    if ctx.out.computed in (dtypes.float32, dtypes.float64):
        if alpha == 0:
            return blend(ctx, self, constant(0, ctx.out.computed).expand(ctx.out.size), beta, 1)
        if math.isinf(alpha):
            a, alpha = cast(a, ctx.out.computed) * alpha, 1
    return blend(ctx, self, contract(ctx, a, b), beta, alpha)


@value("addbmm", first_is_out=True, deferrable=True)
def addbmm(ctx: Context, self: UOp, a: UOp, b: UOp, beta: float = 1, alpha: float = 1) -> UOp:
    """beta * self + alpha * sum over the batch of a[i] @ b[i]: one product with the batch merged into k.

    16-bit floats are rounded after each product, as in the CPU's loop over the batch.
    """
    batch, m, k = a.shape
    kept, dtype = ctx.out.computed, accumulate(ctx)
    if kept != dtype:
        total = self
        for i in range(batch):  # type: ignore[arg-type]
            product = contract(ctx, *(x.shrink(((i, i + 1), None, None)).squeeze(0) for x in (a, b)))
            total = cast(cast(blend(ctx, total, product, beta if i == 0 else 1, alpha), kept), dtype)
        return total
    rows = a.permute((1, 0, 2)).reshape((m, batch * k))
    return _gemm(ctx, self, rows, b.reshape((batch * k, b.shape[2])), beta, alpha)


@value("addmv", first_is_out=True, deferrable=True)
def addmv(ctx: Context, self: UOp, matrix: UOp, vector: UOp, beta: float = 1, alpha: float = 1) -> UOp:
    """beta * self + alpha * (matrix @ vector)."""
    if alpha == 0 and ctx.out.computed in (dtypes.float32, dtypes.float64):  # BLAS does not read the factors
        return blend(ctx, self, constant(0, ctx.out.computed).expand(ctx.out.size), beta, 1)
    return blend(ctx, self, contract(ctx, matrix, vector.unsqueeze(-1)).squeeze(-1), beta, alpha)


@value("dot", "vdot", deferrable=True)
def dot(ctx: Context, a: UOp, b: UOp) -> UOp:
    """Sum of products of two vectors (real: vdot conjugates nothing)."""
    dtype = accumulate(ctx)
    summed = dtypes.float64 if dtype is dtypes.float32 and a.shape[0] > LONG else dtype
    return cast(cast(cast(a, dtype) * cast(b, dtype), summed).sum(dtype=summed), dtype)


@value("addr", first_is_out=True, deferrable=True)
def addr(ctx: Context, self: UOp, a: UOp, b: UOp, beta: float = 1, alpha: float = 1) -> UOp:
    """beta * self + alpha * outer(a, b); for bool: or of and (aten/src/ATen/native/cpu/LinearAlgebraKernel.cpp)."""
    dtype = accumulate(ctx)
    product = cast(a, dtype).unsqueeze(1) * cast(b, dtype).unsqueeze(0)
    kept = ctx.out.computed
    if kept != dtype:  # the CPU rounds both numbers and each product
        by, of_self = (cast(constant(n, kept), dtype) for n in (alpha, beta))
        first = cast(cast(cast(a, dtype) * by, kept), dtype).unsqueeze(1)
        product = cast(cast(first * cast(b, dtype).unsqueeze(0), kept), dtype)
        return product if beta == 0 else cast(cast(cast(self, dtype) * of_self, kept), dtype) + product
    if dtype is dtypes.bool:
        scaled = product if alpha else product & False
        return (cast(self, dtype) | scaled) if beta else scaled
    return blend(ctx, self, product, beta, alpha)


@value("_trilinear", deferrable=True)
def trilinear(
    ctx: Context,
    a: UOp,
    b: UOp,
    c: UOp,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> UOp:
    """Sum over `sumdim` of a * b * c, each with dimensions of length 1 inserted at its `expand`, as in bilinear layers.

    torch's own formula loops over `unroll_dim`, with a write into a slice at each turn. Dimensions that only the first
    two factors have are summed first. 16-bit floats are rounded where torch rounds: after each sum and each turn.
    """
    for dim in sorted(expand1):
        a = a.unsqueeze(dim)
    for dim in sorted(expand2):
        b = b.unsqueeze(dim)
    for dim in sorted(expand3):
        c = c.unsqueeze(dim)
    dtype, result = accumulate(ctx), ctx.out.computed
    if result is dtypes.float32:  # a product of three float32 may overflow half-way: rounded once, at the end
        dtype = result = dtypes.float64
    in_turns = dtype is not result and unroll_dim in sumdim
    dims = [dim for dim in sumdim if not (in_turns and dim == unroll_dim)]
    early = [dim for dim in dims if dim in expand3]
    product = cast(_sum_of_products(a, b, early, dtype), result)
    total = cast(_sum_of_products(product, c, [dim for dim in dims if dim not in early], dtype), result)
    if in_turns and total.shape[unroll_dim] <= TURNS:
        terms = materialization.materialize(total).split(1, unroll_dim)
        total = functools.reduce(lambda sum_, term: cast(cast(sum_, dtype) + cast(term, dtype), result), terms)
    elif in_turns:
        total = cast(cast(total, dtype).sum(unroll_dim, keepdim=True, dtype=dtype), result)
    return total.reshape(tuple(n for dim, n in enumerate(total.shape) if dim not in sumdim))


def _sum_of_products(a: UOp, b: UOp, dims: Sequence[int], dtype: DType) -> UOp:
    """Sum of a * b over these dimensions, which stay with length 1; both factors have the same number of dimensions."""
    if not dims:
        return cast(a, dtype) * cast(b, dtype)
    shape = tuple(max(m, n) for m, n in zip(a.shape, b.shape, strict=True))
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    flat = (*[shape[dim] for dim in kept], math.prod(shape[dim] for dim in dims))
    rows, columns = (cast(x.expand(shape).permute((*kept, *dims)).reshape(flat), dtype) for x in (a, b))
    total = (rows * columns).sum(-1, dtype=dtype)
    return total.reshape(tuple(1 if dim in dims else n for dim, n in enumerate(shape)))
