"""Reductions: sums, products, extremes, moments, norms and the softmax family.

The meta kernel already gives the result's size. A reduction only computes with all dimensions kept, and the result is
then reshaped to that size.
Sums of 16-bit floats are computed in float32, sums of integers in the result's dtype, so they wrap as on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from ..dispatch.registry import Context, decomposition, value
from ..dispatch.tensors import cast, constant
from ..lazy.dtypes import opmath
from ..runtime import materialization
from ..runtime.counters import COUNTERS
from ..runtime.warn import warn
from . import elementary as e
from . import order
from .arithmetic import INF, absolute, divide, subtract

aten = torch.ops.aten


# Largest number of operations in an expression that a reduction may unroll; copies of longer ones compile for seconds.
LONGEST_UNROLLED = 32
# Largest number of terms for which a float32 sum is computed in float32.
SUMMED_NARROW = 16


def materialize_if_costly(x: UOp) -> UOp:
    """A value for a kernel that reads each element many times or unrolls; a long expression is computed first."""
    nodes = x.toposort(gate=lambda node: node.op not in (Ops.REDUCE, Ops.CONTIGUOUS))
    return materialization.materialize(x) if sum(node.op in GroupOp.ALU for node in nodes) > LONGEST_UNROLLED else x


def along(x: UOp, dim: int | Sequence[int] | None) -> tuple[UOp, tuple[int, ...]]:
    """(x, dims), where a 0-d x becomes a vector and dims count from 0; no dimension means all dimensions."""
    x = materialize_if_costly(x)
    if x.ndim == 0:
        x = x.reshape((1,))
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return x, tuple(range(x.ndim))
    axes = (dim,) if isinstance(dim, int) else dim
    return x, tuple(d % x.ndim for d in axes)


def count(x: UOp, dims: Sequence[int]) -> int:
    """Number of elements that are reduced to one result."""
    return math.prod(int(x.shape[d]) for d in dims)


def from_zero(x: UOp) -> UOp:
    """0 + x, the sum of one term: -0 becomes 0, as in every sum of the CPU, which begins with 0. tinygrad drops both a
    reduction of one element and the addition."""
    return x.eq(0).where(0, x) if dtypes.is_float(x.dtype) else x


def total(x: UOp, dims: Sequence[int], dtype: DType | None = None) -> UOp:
    """Sum along `dims`, which stay with size 1, in `dtype` (default: x's own); 0 for an empty sum.

    The CPU sums float32 by pairs, whose error hardly grows with the count. Sequential addition needs float64 to match.
    """
    x = x if dtype is None else cast(x, dtype)
    if 0 in x.shape:
        return UOp.const(0, x.dtype).expand(tuple(1 if d in dims else n for d, n in enumerate(x.shape)))
    if count(x, dims) == 1:
        return from_zero(x)
    if x.dtype is dtypes.float32 and count(x, dims) > SUMMED_NARROW:
        return x.cast(dtypes.float64).sum(tuple(dims), keepdim=True).cast(x.dtype)
    return x.sum(tuple(dims), keepdim=True, dtype=x.dtype)


@value("sum", "sum.dim_IntList", "nansum", deferrable=True)
def sum_(ctx: Context, x: UOp, dim: Sequence[int] | None = None, keepdim: bool = False, **_: object) -> UOp:
    """Sum of the elements; nansum ignores nans."""
    x, dims = along(x, dim)
    if ctx.op is aten.nansum.default and dtypes.is_float(x.dtype):
        x = x.ne(x).where(0.0, x)
    return total(x, dims, opmath(ctx.out.computed)).reshape(ctx.out.size)


@value("mean", "mean.dim", deferrable=True)
def mean(ctx: Context, x: UOp, dim: Sequence[int] | None = None, keepdim: bool = False, **_: object) -> UOp:
    """Sum divided by the count; nan without elements."""
    x, dims = along(x, dim)
    return divide(total(x, dims, opmath(ctx.out.computed)), float(count(x, dims))).reshape(ctx.out.size)


@value("prod", "prod.dim_int", deferrable=True)
def prod(ctx: Context, x: UOp, dim: int | None = None, keepdim: bool = False, **_: object) -> UOp:
    """Product of the elements; 1 without elements."""
    x, dims = along(x, dim)
    dtype = opmath(ctx.out.computed)
    if 0 in x.shape:
        return constant(1, dtype)
    if dtype is dtypes.bool:
        return x.ne(0).prod(dims).reshape(ctx.out.size)
    return cast(x, dtype).prod(dims, keepdim=True, dtype=dtype).reshape(ctx.out.size)


@value("amax", "max", deferrable=True)
def amax(ctx: Context, x: UOp, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> UOp:
    """The largest element."""
    x, dims = along(x, dim)
    return order.extreme(x, dims, largest=True).reshape(ctx.out.size)


@value("amin", "min", deferrable=True)
def amin(ctx: Context, x: UOp, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> UOp:
    """The smallest element."""
    x, dims = along(x, dim)
    return order.extreme(x, dims, largest=False).reshape(ctx.out.size)


@value("aminmax", deferrable=True)
def aminmax(ctx: Context, x: UOp, *, dim: int | None = None, keepdim: bool = False) -> tuple[UOp, UOp]:
    """The smallest and the largest element."""
    return amin(ctx, x, dim), amax(ctx, x, dim)


@value("max.dim", deferrable=True)
def max_dim(ctx: Context, x: UOp, dim: int, keepdim: bool = False) -> tuple[UOp, ...]:
    """The largest element along a dimension and its first index."""
    x, (d,) = along(x, dim)
    return tuple(r.reshape(ctx.out.size) for r in order.first_extreme(x, d, largest=True))


@value("min.dim", deferrable=True)
def min_dim(ctx: Context, x: UOp, dim: int, keepdim: bool = False) -> tuple[UOp, ...]:
    """The smallest element along a dimension and its first index."""
    x, (d,) = along(x, dim)
    return tuple(r.reshape(ctx.out.size) for r in order.first_extreme(x, d, largest=False))


def _index_of_extreme(ctx: Context, x: UOp, dim: int | None, largest: bool) -> UOp:
    x, dims = along(x if dim is not None else x.reshape((math.prod(x.shape),)), dim)
    return order.first_extreme(x, dims[0], largest)[1].reshape(ctx.out.size)


@value("argmax", deferrable=True)
def argmax(ctx: Context, x: UOp, dim: int | None = None, keepdim: bool = False) -> UOp:
    """First index of the largest element, of the flattened tensor if dim is None."""
    return _index_of_extreme(ctx, x, dim, largest=True)


@value("argmin", deferrable=True)
def argmin(ctx: Context, x: UOp, dim: int | None = None, keepdim: bool = False) -> UOp:
    """First index of the smallest element, of the flattened tensor if dim is None."""
    return _index_of_extreme(ctx, x, dim, largest=False)


@value("any", "any.dim", "any.dims", deferrable=True)
def any_(ctx: Context, x: UOp, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> UOp:
    """Whether some element is nonzero; `any.dims` with an empty list reduces nothing."""
    x, dims = along(x, dim)
    if ctx.op is aten.any.dims and not isinstance(dim, int) and dim is not None and len(dim) == 0:
        return x.ne(0).reshape(ctx.out.size)
    if 0 in x.shape:
        return constant(False, dtypes.bool)
    return x.ne(0).max(dims, keepdim=True).reshape(ctx.out.size)


@value("all", "all.dim", "all.dims", deferrable=True)
def all_(ctx: Context, x: UOp, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> UOp:
    """Whether every element is nonzero; `all.dims` with an empty list reduces nothing."""
    x, dims = along(x, dim)
    if ctx.op is aten.all.dims and not isinstance(dim, int) and dim is not None and len(dim) == 0:
        return x.ne(0).reshape(ctx.out.size)
    if 0 in x.shape:
        return constant(True, dtypes.bool)
    return x.eq(0).max(dims, keepdim=True).reshape(ctx.out.size).logical_not()


@value("count_nonzero.dim_IntList", "count_nonzero", deferrable=True)
def count_nonzero(ctx: Context, x: UOp, dim: int | Sequence[int] | None = None) -> UOp:
    """Number of elements that are not 0; a nan counts."""
    x, dims = along(x, dim)
    return total(x.ne(0), dims, dtypes.int64).reshape(ctx.out.size)


def _moments(x: UOp, dims: Sequence[int], correction: float) -> tuple[UOp, UOp]:
    """(variance, mean) in two passes; the variance's divisor is at least 0, and a divisor of 0 gives nan or inf."""
    n = count(x, dims)
    average = divide(total(x, dims), float(n))
    deviation = subtract(x, average)
    return divide(total(deviation * deviation, dims), float(max(0, n - correction))), average


def _moment_row(ctx: Context, x: UOp, dim: Sequence[int] | None, correction: float | None) -> tuple[UOp, UOp]:
    dtype = opmath(ctx.out.computed)
    # For large numbers a sum of squares overflows float32 but its root does not; the CPU sums and divides in float64.
    x, dims = along(cast(x, dtypes.float64 if dtype is dtypes.float32 else dtype), dim)
    if count(x, dims) <= (1 if correction is None else correction):
        said = f"{ctx.op._schema.name.removeprefix('aten::')}(): degrees of freedom is <= 0. {_CORRECTION}"
        warn(said)
        COUNTERS.warned += 1
    return _moments(x, dims, 1 if correction is None else correction)


_CORRECTION = "Correction should be strictly less than the reduction factor (input numel divided by output numel)."


@value("var.correction", "std.correction", deferrable=True)
def var(ctx: Context, x: UOp, dim: Sequence[int] | None = None, *, correction: float | None = None,
        keepdim: bool = False) -> UOp:  # fmt: skip
    """Variance, or its square root, with a correction of the divisor."""
    variance, _ = _moment_row(ctx, x, dim, correction)
    return (variance.sqrt() if ctx.op is aten.std.correction else variance).reshape(ctx.out.size)


@value("var_mean.correction", "std_mean.correction", deferrable=True)
def var_mean(ctx: Context, x: UOp, dim: Sequence[int] | None = None, *, correction: float | None = None,
             keepdim: bool = False) -> tuple[UOp, UOp]:  # fmt: skip
    """Variance, or its square root, and the mean."""
    variance, average = _moment_row(ctx, x, dim, correction)
    spread = variance.sqrt() if ctx.op is aten.std_mean.correction else variance
    return spread.reshape(ctx.out.size), average.reshape(ctx.out.size)


def norm(x: UOp, ord: float, dims: Sequence[int]) -> UOp:
    """(sum |x|**ord) ** (1/ord) along `dims`, which stay with size 1, with its limits at 0, inf and -inf."""
    x = absolute(x)
    if math.isinf(ord):
        return order.extreme(x, dims, largest=ord > 0)
    if ord == 0:
        return total(x.ne(0), dims, x.dtype)
    if ord == 1:
        return total(x, dims)
    if ord == 2:
        return total(x * x, dims).sqrt()
    powers = materialize_if_costly(e.power(x, x.const_like(float(ord))))
    return e.power(total(powers, dims), UOp.const(1 / ord, x.dtype))


@value("linalg_vector_norm", deferrable=True)
def vector_norm(ctx: Context, x: UOp, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False,
                **_: object) -> UOp:  # fmt: skip
    """Vector norm along dimensions (torch.linalg.vector_norm)."""
    x, dims = along(cast(x, opmath(ctx.out.computed)), dim)
    lone = all(x.shape[d] == 1 for d in dims) and not (ctx.args[0].dim() == 0 and dim)
    # A single element is not raised to a power, which may overflow; a 0-d tensor along dimension 0 is.
    norms = absolute(x) if lone and ord != 0 else norm(x, ord, dims)
    return norms.reshape(ctx.out.size)


@decomposition("norm.ScalarOpt_dim")
def norm_dim(x: torch.Tensor, p: float | None, dim: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """Old name of the vector norm."""
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim)


@decomposition("norm.ScalarOpt_dim_dtype")
def norm_dim_dtype(
    x: torch.Tensor, p: float | None, dim: Sequence[int], keepdim: bool, *, dtype: torch.dtype
) -> torch.Tensor:
    """Old name of the vector norm, computed in a given dtype."""
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim, dtype=dtype)


@value("renorm")
def renorm(ctx: Context, x: UOp, p: float, dim: int, maxnorm: float) -> UOp:
    """Slices along a dimension; those with a p-norm above a limit are scaled to it (ATen's renorm_scale_factor)."""
    x = cast(x, opmath(ctx.out.computed))
    others = tuple(d for d in range(x.ndim) if d != dim % x.ndim)
    length = norm(x, p, others)
    factor = (length > maxnorm).where(divide(length.const_like(float(maxnorm)), length + 1e-7), 1.0)
    return x * factor


@decomposition("equal")
def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same size and elements."""
    return a.size() == b.size() and bool(torch.eq(a, b).all().item())


@value("logsumexp", deferrable=True)
def logsumexp(ctx: Context, x: UOp, dim: Sequence[int], keepdim: bool = False) -> UOp:
    """log sum e**x, shifted by the maximum if that is finite."""
    x, dims = along(cast(x, opmath(ctx.out.computed)), dim)
    if 0 in x.shape:
        return constant(-INF, x.dtype)
    largest = x.max(dims, keepdim=True)
    shift = absolute(largest).eq(INF).where(0.0, largest)
    return (e.log(total(subtract(x, shift).exp(), dims)) + shift).reshape(ctx.out.size)


def _shifted(x: UOp, dim: int) -> tuple[UOp, UOp]:
    """(x - max x, sum of its exponentials).

    tinygrad's own exponential is sufficient: its error grows with the argument, and only arguments near 0 matter here.
    """
    x, dims = along(x, dim)
    shifted = subtract(x, x.max(dims, keepdim=True))
    return shifted, total(shifted.exp(), dims)


@value("_softmax", deferrable=True)
def softmax(ctx: Context, x: UOp, dim: int, half_to_float: bool) -> UOp:
    """e**(x - max) divided by its sum along a dimension."""
    shifted, s = _shifted(cast(x, opmath(ctx.out.computed)), dim)
    return divide(shifted.exp(), s).reshape(ctx.out.size)


@value("_log_softmax", deferrable=True)
def log_softmax(ctx: Context, x: UOp, dim: int, half_to_float: bool) -> UOp:
    """x - max - log sum e**(x - max) along a dimension.

    Along the last dimension the CPU rounds the sum and its logarithm to the tensor's dtype
    (vec_log_softmax_lastdim_kernel).
    """
    dtype = opmath(ctx.out.computed)
    last = dim % max(x.ndim, 1) == max(x.ndim, 1) - 1
    shifted, s = _shifted(cast(x, dtype), dim)
    kept = ctx.out.computed if last else dtype
    logarithm = cast(cast(e.log(cast(cast(s, kept), dtype)), kept), dtype)
    return subtract(shifted, logarithm).reshape(ctx.out.size)


@value("_softmax_backward_data", deferrable=True)
def softmax_backward(ctx: Context, grad: UOp, output: UOp, dim: int, input_dtype: object) -> UOp:
    """(grad - sum(grad * output)) * output."""
    dtype = opmath(output.dtype)
    (grad, dims), (output, _) = along(cast(grad, dtype), dim), along(cast(output, dtype), dim)
    return (subtract(grad, total(grad * output, dims)) * output).reshape(ctx.out.size)


@value("_log_softmax_backward_data", deferrable=True)
def log_softmax_backward(ctx: Context, grad: UOp, output: UOp, dim: int, input_dtype: object) -> UOp:
    """grad - e**output * sum(grad)."""
    dtype = opmath(output.dtype)
    (grad, dims), (output, _) = along(cast(grad, dtype), dim), along(cast(output, dtype), dim)
    return subtract(grad, e.exp(output) * total(grad, dims)).reshape(ctx.out.size)
