"""Factorizations of matrices: Cholesky, LU with partial pivoting, and the solvers that use them.

An elimination is a few nested loops whose turns depend on the turns before. Written as such (`loop_kernels`), a
factorization is one kernel for a whole batch. Arithmetic is in float64. Calls of more than `MOST_STEPS` steps run on
the CPU, and so do complex matrices and the iterative methods (eigenvalues, singular values).
Algorithms: G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, 3.1, 3.4 and 4.2. Results, pivots counted
from 1 and info are LAPACK's (getrf, getrs, potrf, trtrs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import Context, Declined, decomposition, value
from ..dispatch.tensors import cast
from ..runtime.loop_kernels import Array, Index, LoopProgram, kernel
from . import bounds
from .arithmetic import INF, absolute, divide, subtract

# Turns of the innermost loop, about 10 ms. LAPACK works by blocks and is ten times as fast, but needs two copies.
MOST_STEPS = 1 << 23
Results = tuple[UOp, ...]


def affordable(*sizes: int) -> None:
    """Raise Declined if nested loops of these lengths take longer than the CPU."""
    if math.prod(sizes) > MOST_STEPS:
        raise Declined


def batched(x: UOp, lead: Sequence[Any] | None = None, rank: int = 2) -> UOp:
    """x with all dimensions before the last `rank` ones broadcast to `lead` and flattened to one."""
    kept = x.shape[x.ndim - rank :]
    lead = x.shape[: x.ndim - rank] if lead is None else lead
    x = x if x.shape == (*lead, *kept) else x.expand((*lead, *kept))
    return x.reshape((math.prod(lead), *kept))


def wide(x: UOp) -> UOp:
    """Element in float64."""
    return x.cast(dtypes.float64)


def _swap_rows(p: LoopProgram, x: Array, b: Index, i: Index, j: Index) -> None:
    for c in p.loop(x.shape[-1]):
        kept = p.keep(x[b, i, c])
        x[b, i, c] = x[b, j, c]
        x[b, j, c] = kept


def _lu(p: LoopProgram, lu: Array, pivots: Array, info: Array, a: Array, pivot: bool) -> None:
    batch, m, n = a.shape
    for b in p.loop(batch, independent=True):
        info[b] = 0
        for i in p.loop(m):
            for j in p.loop(n):
                lu[b, i, j] = wide(a[b, i, j])
        place, largest = p.local(dtypes.int32, 0), p.local(dtypes.float64, 0.0)
        for k in p.loop(min(m, n)):
            place[0], largest[0] = number(k), -1.0
            for i in p.loop(m if pivot else 0):
                size = absolute(lu[b, i, k])
                size = size.ne(size).where(INF, size)
                better = p.keep((number(i) >= number(k)) & (largest[0] < size))
                place.set(0, number(i), where=better)
                largest.set(0, size, where=better)
            _swap_rows(p, lu, b, k, place[0])
            pivots[b, k] = place[0] + 1
            head = p.keep(lu[b, k, k])
            singular = head.eq(0)
            info.set(b, number(k) + 1, where=singular & info[b].eq(0))
            for i in p.loop(m):
                below, column = number(i) > number(k), lu[b, i, k]
                factor = p.keep(singular.where(0.0, divide(column, singular.where(1.0, head))))
                lu.set((b, i, k), factor, where=below & singular.logical_not())
                for j in p.loop(n):
                    rest = subtract(lu[b, i, j], factor * lu[b, k, j])
                    lu.set((b, i, j), rest, where=below & (number(j) > number(k)))


def number(index: Index) -> UOp:
    """Loop index as a number to store or compare."""
    return index.cast(dtypes.int32) if isinstance(index, UOp) else UOp.const(index, dtypes.int32)


def lu_factor(a: UOp, device: str, pivot: bool = True) -> tuple[UOp, UOp, UOp]:
    """(LU in one matrix in float64, pivots (..., min(m, n)), info (...)) of a matrix (..., m, n)."""
    x = batched(a)
    batch, m, n = (int(s) for s in x.shape)
    least = min(m, n)
    affordable(batch, m, n, least)
    outputs = [((batch, m, n), dtypes.float64), ((batch, least), dtypes.int32), ((batch,), dtypes.int32)]
    lu, pivots, info = kernel(_lu, outputs, [x], device, pivot)
    lead = a.shape[:-2]
    return lu.reshape(a.shape), pivots.reshape((*lead, least)), info.reshape(lead)


class Triangle:
    """Triangular factor in an array, or its transpose: the elements that it reads, and the direction of the solve."""

    def __init__(self, a: Array, upper: bool, unit: bool, transposed: bool = False) -> None:
        self.a, self.upper, self.unit, self.transposed = a, upper != transposed, unit, transposed

    def __call__(self, b: Index, i: Index, j: Index) -> UOp:
        return wide(self.a[b, j, i] if self.transposed else self.a[b, i, j])

    def solve(self, p: LoopProgram, x: Array, b: Index) -> None:
        """Replace the right-hand sides in x by the solutions, row by row."""
        n, k = x.shape[-2:]
        for turn in p.loop(n):
            i = n - 1 - turn if self.upper else turn
            for j in p.loop(n):
                factor, solved = self(b, i, j), (number(j) > number(i)) if self.upper else (number(j) < number(i))
                for c in p.loop(k):
                    x.set((b, i, c), subtract(x[b, i, c], factor * x[b, j, c]), where=solved)
            if not self.unit:
                head = self(b, i, i)
                for c in p.loop(k):
                    x[b, i, c] = divide(x[b, i, c], head)


def begin(p: LoopProgram, x: Array, b: Index, rhs: Array | None) -> None:
    """Fill x with the right-hand sides, or with the identity if there are none."""
    for i in p.loop(x.shape[1]):
        for j in p.loop(x.shape[2]):
            x[b, i, j] = wide(rhs[b, i, j]) if rhs is not None else wide(number(i).eq(number(j)))


def _place(pivots: Array, b: Index, k: Index, n: int) -> UOp:
    """Row that row k was swapped with, clamped so that pivots which LAPACK never returns cannot reach other memory."""
    return (pivots[b, k] - 1).maximum(0).minimum(n - 1)


def _from_triangle(p: LoopProgram, x: Array, a: Array, rhs: Array, upper: bool, unit: bool, transposed: bool) -> None:
    for b in p.loop(len(x), independent=True):
        begin(p, x, b, rhs)
        Triangle(a, upper, unit, transposed).solve(p, x, b)


def _from_cholesky(p: LoopProgram, x: Array, factor: Array, *rest: Any) -> None:
    *rhs, upper = rest
    for b in p.loop(len(x), independent=True):
        begin(p, x, b, *rhs or [None])
        Triangle(factor, upper, unit=False, transposed=upper).solve(p, x, b)
        Triangle(factor, upper, unit=False, transposed=not upper).solve(p, x, b)


def _from_lu(p: LoopProgram, x: Array, lu: Array, pivots: Array, *rest: Any) -> None:
    *rhs, transposed = rest
    n = x.shape[1]
    lower, upper = Triangle(lu, False, True, transposed), Triangle(lu, True, False, transposed)
    for b in p.loop(len(x), independent=True):
        begin(p, x, b, *rhs or [None])
        if transposed:
            upper.solve(p, x, b)
            lower.solve(p, x, b)
        for turn in p.loop(n):
            k = n - 1 - turn if transposed else turn
            _swap_rows(p, x, b, k, _place(pivots, b, k, n))
        if not transposed:
            lower.solve(p, x, b)
            upper.solve(p, x, b)


def _solved(
    ctx: Context, write: Callable[..., None], size: Sequence[int], matrix: UOp, *vectors: UOp, more: Sequence[Any]
) -> UOp:
    """X of this size, in float64: one kernel of a matrix and of `vectors`, broadcast to the leading sizes.

    `vectors` are pivots, with one dimension less than the matrices, and right-hand sides.
    """
    lead, (n, k) = size[:-2], size[-2:]
    affordable(*size, n)
    inputs = [batched(matrix, lead), *(batched(v, lead, 1 if dtypes.is_int(v.dtype) else 2) for v in vectors)]
    (x,) = kernel(write, [((math.prod(lead), n, k), dtypes.float64)], inputs, ctx.device, *more)
    return x.reshape(tuple(size))


def _empty(*numbers: float) -> Results:
    return tuple(UOp.const(n, dtypes.float64) for n in numbers)


def _identity(n: int) -> UOp:
    place = UOp.arange(n)
    return place.reshape((-1, 1)).eq(place).where(UOp.const(1.0, dtypes.float64), 0.0)


def _turned(size: Sequence[int]) -> tuple[int, ...]:
    return (*size[:-2], size[-1], size[-2])


def lu_solve(ctx: Context, lu: UOp, pivots: UOp, b: UOp, size: Sequence[int], left: bool, adjoint: bool) -> UOp:
    """X of this size with A X = B or X A = B, for A or its transpose, from the factorization of A."""
    if left:
        return _solved(ctx, _from_lu, size, lu, pivots, b, more=[adjoint])
    b = b.transpose(-1, -2)
    return _solved(ctx, _from_lu, _turned(size), lu, pivots, b, more=[not adjoint]).transpose(-1, -2)


@value("linalg_lu_factor_ex")
def linalg_lu_factor_ex(ctx: Context, a: UOp, *, pivot: bool = True, check_errors: bool = False) -> Results:
    """LU, pivots, info."""
    if check_errors:
        raise Declined
    return _empty(0, 0, 0) if 0 in a.shape else lu_factor(a, ctx.device, pivot)


def _unpacked(lu: UOp) -> tuple[UOp, UOp]:
    """(L, U) from one matrix that stores both."""
    m, n = (int(s) for s in lu.shape[-2:])
    k, rows, columns = min(m, n), UOp.arange(m).reshape((m, 1)), UOp.arange(n)
    whole = [(0, s) for s in lu.shape[:-2]]
    lower = rows.eq(columns).where(1.0, (columns < rows).where(lu, 0.0)).shrink((*whole, (0, m), (0, k)))
    return lower, (rows <= columns).where(lu, 0.0).shrink((*whole, (0, k), (0, n)))


def _swapped_columns(p: LoopProgram, x: Array, pivots: Array) -> None:
    n = x.shape[1]
    for b in p.loop(len(x), independent=True):
        begin(p, x, b, None)
        for k in p.loop(pivots.shape[1]):
            place = _place(pivots, b, k, n)
            for r in p.loop(n):
                kept = p.keep(x[b, r, k])
                x[b, r, k] = x[b, r, place]
                x[b, r, place] = kept


def _permutation(ctx: Context, pivots: UOp, m: int) -> UOp:
    """P with A = P L U, in the result's dtype: columns of the identity swapped in the order of the pivots."""
    x = batched(pivots, rank=1)
    batch = int(x.shape[0])
    affordable(batch, m, m)
    (p,) = kernel(_swapped_columns, [((batch, m, m), ctx.out.computed)], [x], ctx.device)
    return p.reshape((*pivots.shape[:-1], m, m))


def _check_pivots(lu: torch.Tensor, pivots: torch.Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> None:
    """Raise RuntimeError for pivots of another number than the factors have; torch CPU writes beyond its memory."""
    wanted = (*lu.shape[:-2], min(lu.shape[-2:]) if lu.dim() > 1 else 0)
    if unpack_pivots and lu.dim() > 1 and lu.numel() and pivots.numel() != math.prod(wanted):
        raise RuntimeError(f"lu_unpack: expected pivots of size {list(wanted)}, but found {list(pivots.shape)}")


@value("lu_unpack", check=_check_pivots)
def lu_unpack(ctx: Context, lu: UOp, pivots: UOp, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    """P, L, U; results that are not requested are empty."""
    m = int(lu.shape[-2])
    p = _permutation(ctx, pivots, m) if unpack_pivots and 0 not in (*pivots.shape, m) else _empty(0)[0]
    if 0 in lu.shape:
        n = max(m, 1)
        return (_identity(n) if m and unpack_pivots else p), *_identities(ctx)
    return (p, *_unpacked(cast(lu, dtypes.float64))) if unpack_data else (p, *_empty(0, 0))


def _identities(ctx: Context) -> Results:
    return tuple(_identity(max(s.size[-1], 1)).shrink(((0, max(s.size[-2], 1)), (0, max(s.size[-1], 1))))
                 if len(s.size) > 1 and s.size[-1] >= s.size[-2] else _empty(0)[0] for s in ctx.outs[1:])  # fmt: skip


@value("linalg_lu")
def linalg_lu(ctx: Context, a: UOp, *, pivot: bool = True) -> Any:
    """P, L, U with A = P L U; without pivoting P is empty."""
    if 0 in a.shape:
        raise Declined
    lu, pivots, _ = lu_factor(a, ctx.device, pivot)
    return (_permutation(ctx, pivots, int(a.shape[-2])) if pivot else _empty(0)[0], *_unpacked(lu))


@value("linalg_lu_solve")
def linalg_lu_solve(ctx: Context, lu: UOp, pivots: UOp, b: UOp, *, left: bool = True, adjoint: bool = False) -> UOp:
    """X with A X = B, or X A = B, for a factored A or its transpose."""
    return lu_solve(ctx, lu, pivots, b, ctx.out.size, left, adjoint)


@value("_linalg_solve_ex")
def linalg_solve_ex(ctx: Context, a: UOp, b: UOp, *, left: bool = True, check_errors: bool = False) -> Results:
    """X, LU, pivots, info; b is a vector if its shape lacks the last dimension of a."""
    if check_errors:
        raise Declined
    if 0 in a.shape or 0 in b.shape:
        return _empty(0, 0, 0, 0) if 0 in a.shape else (b, *lu_factor(a, ctx.device))
    size = ctx.out.size
    vector = b.ndim == 1 or (b.ndim + 1 == a.ndim and b.shape == a.shape[:-1])
    lu, pivots, info = lu_factor(a, ctx.device)
    if vector:
        x = lu_solve(ctx, lu, pivots, b.unsqueeze(-1), (*size, 1), True, False).squeeze(-1)
    else:
        x = lu_solve(ctx, lu, pivots, b, size, left, False)
    return x, lu, pivots, info


@value("linalg_inv_ex")
def linalg_inv_ex(ctx: Context, a: UOp, *, check_errors: bool = False) -> Results:
    """The inverse, and info."""
    if check_errors:
        raise Declined
    if 0 in a.shape:
        return _empty(0, 0)
    lu, pivots, info = lu_factor(a, ctx.device)
    return _solved(ctx, _from_lu, ctx.out.size, lu, pivots, more=[False]), info


def _diagonal(x: UOp) -> UOp:
    n = int(x.shape[-1])
    place = UOp.arange(n)
    return place.reshape((n, 1)).eq(place).where(x, 0.0).sum(-1)


def _parity(pivots: UOp) -> UOp:
    """-1 if an odd number of rows were swapped, otherwise 1."""
    places = UOp.arange(pivots.shape[-1]).cast(dtypes.int32)
    swaps = pivots.ne(places + 1).cast(dtypes.int32).sum(-1)
    return (swaps & 1).ne(0).where(UOp.const(-1.0, dtypes.float64), 1.0)


def _as_factored(ctx: Context, a: UOp) -> UOp:
    """Matrix whose LU the CPU returns with a determinant: the transpose of a contiguous matrix, to save a copy.

    The gradient's formula checks whether the matrix was contiguous and uses the LU accordingly
    (BatchLinearAlgebra.cpp).
    """
    return a.transpose(-1, -2) if ctx.args[0].is_contiguous() else a


@value("_linalg_det")
def linalg_det(ctx: Context, a: UOp) -> Results:
    """Determinant, LU, pivots."""
    if 0 in a.shape:
        return _empty(1, 0, 0)
    lu, pivots, _ = lu_factor(_as_factored(ctx, a), ctx.device)
    return _parity(pivots) * _diagonal(lu).prod(-1), lu, pivots


@value("_linalg_slogdet")
def linalg_slogdet(ctx: Context, a: UOp) -> Results:
    """Sign of the determinant, logarithm of its absolute value, LU, pivots."""
    if 0 in a.shape:
        return _empty(1, 0, 0, 0)
    lu, pivots, _ = lu_factor(_as_factored(ctx, a), ctx.device)
    diagonal = _diagonal(lu)
    sign = ((diagonal > 0).cast(dtypes.float64) - (diagonal < 0).cast(dtypes.float64)).prod(-1)
    return _parity(pivots) * sign, absolute(diagonal).log2().sum(-1) * float(np.log(2)), lu, pivots


def _cholesky(p: LoopProgram, factor: Array, info: Array, a: Array, upper: bool) -> None:
    n = a.shape[1]
    rest = p.local(dtypes.float64, 0.0)

    def element(b: Index, i: Index, j: Index) -> tuple[Index, Index, Index]:
        return (b, j, i) if upper else (b, i, j)

    for b in p.loop(len(a), independent=True):
        info[b] = 0
        for j in p.loop(n):
            for i in p.loop(n):  # the diagonal element is computed before those below, which are divided by it
                rest[0] = wide(a[element(b, i, j)])
                for k in p.loop(n):
                    product = factor[element(b, i, k)] * factor[element(b, j, k)]
                    rest.set(0, subtract(rest[0], product), where=number(k) < number(j))
                below, on_diagonal = number(i) > number(j), number(i).eq(number(j))
                here = on_diagonal.where(rest[0].sqrt(), divide(rest[0], factor[element(b, j, j)]))
                failed = on_diagonal & (rest[0] > 0).logical_not() & info[b].eq(0)
                info.set(b, number(j) + 1, where=failed)
                factor[element(b, i, j)] = (below | on_diagonal).where(here, 0.0)


@value("linalg_cholesky_ex")
def linalg_cholesky_ex(ctx: Context, a: UOp, *, upper: bool = False, check_errors: bool = False) -> Results:
    """Lower or upper factor, and info."""
    if check_errors:
        raise Declined
    if 0 in a.shape:
        return _empty(0, 0)
    x = batched(a)
    batch, n, _ = (int(s) for s in x.shape)
    affordable(batch, n, n, n)
    outputs = [((batch, n, n), dtypes.float64), ((batch,), dtypes.int32)]
    factor, info = kernel(_cholesky, outputs, [x], ctx.device, upper)
    return factor.reshape(a.shape), info.reshape(a.shape[:-2])


@decomposition("cholesky", torch_versions="<2.14")
def cholesky(a: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Cholesky factor; if there is none, the CPU raises its own error."""
    if not a.numel():  # the CPU returns before it chooses LAPACK's column-major order
        return torch.empty_like(a, memory_format=torch.contiguous_format)
    factor, info = torch.ops.aten.linalg_cholesky_ex.default(a, upper=upper)
    if bool(info.any()):
        raise MetaRejected("the matrix is not positive definite")
    return factor


@value("_cholesky_solve_helper")
def cholesky_solve(ctx: Context, b: UOp, factor: UOp, upper: bool) -> UOp:
    """X with A X = b, from the factor of A."""
    return _solved(ctx, _from_cholesky, ctx.out.size, factor, b, more=[upper])


@value("cholesky_inverse", out_as_new="empty")
def cholesky_inverse(ctx: Context, factor: UOp, upper: bool = False) -> UOp:
    """Inverse of A from its factor; for a factor with a zero on the diagonal the CPU raises its error."""
    if bool(bounds.read_on_host(ctx.args[0]).diagonal(dim1=-2, dim2=-1).eq(0).any()):
        raise MetaRejected("the factor has a zero on its diagonal")
    return _solved(ctx, _from_cholesky, ctx.out.size, factor, more=[upper])


def _check_triangular(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise RuntimeError for two dtypes; torch CPU reads the memory of B as A's dtype."""
    if a.dtype != b.dtype and (a.is_floating_point() or a.is_complex()):
        raise RuntimeError(
            f"linalg.solve_triangular: expected A and B to have the same dtype, but found {a.dtype} and {b.dtype}"
        )


@value("linalg_solve_triangular", out_as_new="resized", check=_check_triangular)
def linalg_solve_triangular(
    ctx: Context, a: UOp, b: UOp, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> UOp:
    """X with A X = B, or X A = B."""
    size = ctx.out.size
    if left:
        return _solved(ctx, _from_triangle, size, a, b, more=[upper, unitriangular, False])
    b = b.transpose(-1, -2)
    return _solved(ctx, _from_triangle, _turned(size), a, b, more=[upper, unitriangular, True]).transpose(-1, -2)


@value("triangular_solve")
def triangular_solve(
    ctx: Context, b: UOp, a: UOp, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Results:
    """X with A X = b, and a copy of A."""
    if 0 in a.shape or 0 in b.shape:
        return _empty(0)[0], a
    return _solved(ctx, _from_triangle, ctx.out.size, a, b, more=[upper, unitriangular, transpose]), a
