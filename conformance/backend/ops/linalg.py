"""Factorizations of small matrices: Cholesky, LU with partial pivoting, and what is solved by them.

The key insight: the step of an elimination is the same few kernels whichever row it is at, so long as the row's number
reaches them as data; a matrix of n rows then costs n times those kernels and compiles them once. Each step is stored:
fused, the last one would compute all before it again. Arithmetic is in float64. Matrices of more than `LARGEST` rows,
and complex ones, are the CPU's, as are the iterative methods (eigenvalues, singular values) and QR.
Algorithms: G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, 3.1, 3.4 and 4.2. Results, pivots counted
from 1 and info are LAPACK's (getrf, getrs, potrf, trtrs).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from .. import engine
from ..metadata import Refused
from ..rows import Context, Declined, decomposition, value
from ..tensors import cast
from . import order
from .elementary import absolute, divide, subtract

LARGEST = 32
Results = tuple[UOp, ...]


@functools.lru_cache(maxsize=LARGEST * 4)
def _number(k: int, device: str) -> UOp:
    """A number as data, so that kernels do not depend on it."""
    return engine.from_host(np.array([k], dtype=np.int32), dtypes.int32, device).reshape(())


def _matrix(x: UOp) -> UOp:
    """A matrix to factor, in float64 and stored; Declined where it is too large."""
    if max(x.shape[-2:]) > LARGEST:  # type: ignore[type-var]
        raise Declined
    return cast(x, dtypes.float64).contiguous()


def _rows(x: UOp) -> UOp:
    return UOp.arange(x.shape[-2]).cast(dtypes.int32).reshape((-1, 1))  # type: ignore[arg-type]


def _columns(x: UOp) -> UOp:
    return UOp.arange(x.shape[-1]).cast(dtypes.int32)  # type: ignore[arg-type]


def _row(x: UOp, k: UOp) -> UOp:
    """Row k of each matrix, as (..., 1, columns)."""
    return _rows(x).eq(k).where(x, 0.0).sum(-2, keepdim=True)


def _column(x: UOp, k: UOp) -> UOp:
    """Column k of each matrix, as (..., rows, 1)."""
    return _columns(x).eq(k).where(x, 0.0).sum(-1, keepdim=True)


def _empty(*numbers: float) -> Results:
    return tuple(UOp.const(n, dtypes.float64) for n in numbers)


def lu_factor(a: UOp, device: str, pivot: bool = True) -> tuple[UOp, UOp, UOp]:
    """(LU in one matrix, pivots (..., min(m, n)), info (...)) of (..., m, n)."""
    steps = min(int(a.shape[-2]), int(a.shape[-1]))
    rows, columns = _rows(a), _columns(a)
    pivots, info = [], None
    for step in range(steps):
        k = _number(step, device)
        column = _column(a, k)
        if pivot:
            size = (rows < k).where(-1.0, absolute(column))
            place = order.first_extreme(size, size.ndim - 2, largest=True)[1].cast(dtypes.int32).contiguous()
            top, here = _row(a, place), _row(a, k)
            column = rows.eq(k).where(_row(column, place), rows.eq(place).where(_row(column, k), column))
            a = rows.eq(k).where(top, rows.eq(place).where(here, a))
        else:
            place = (_row(column, k) * 0.0).cast(dtypes.int32) + k
            top = _row(a, k)
        head = _column(top, k).contiguous()
        singular = head.eq(0)
        factor = (singular | (rows <= k)).where(0.0, divide(column, singular.where(1.0, head)))
        below = (rows > k).where(factor * (columns > k).where(top, 0.0), 0.0)
        kept = subtract(a, below)
        a = ((rows > k) & columns.eq(k)).where(singular.where(column, factor), kept).contiguous()
        pivots.append(place.squeeze(-1) + 1)
        failed = singular.squeeze(-1).squeeze(-1).where(k + 1, 0)
        info = failed if info is None else info.eq(0).where(failed, info)
    assert info is not None
    return a, pivots[0].cat(*pivots[1:], dim=-1).contiguous(), info.contiguous()


def solve_triangular(a: UOp, b: UOp, upper: bool, unit: bool, device: str) -> UOp:
    """X with a X = b, of (..., n, n) and (..., n, k), from the first row on, or from the last."""
    n, solved = int(a.shape[-1]), b.const_like(0.0)
    for step in range(n)[:: -1 if upper else 1]:
        k = _number(step, device)
        row = _row(a, k).contiguous()
        others = _columns(a)
        used = ((others > k) if upper else (others < k)).where(row, 0.0).transpose(-1, -2)
        rest = subtract(_row(b, k), (used * solved).sum(-2, keepdim=True))
        rest = rest if unit else divide(rest, _column(row, k))
        solved = _rows(b).eq(k).where(rest, solved).contiguous()
    return solved


def permuted(b: UOp, pivots: UOp, device: str, inverse: bool = False) -> UOp:
    """The rows of b swapped as the pivots say, in order, or back."""
    n = int(pivots.shape[-1])
    for step in range(n)[:: -1 if inverse else 1]:
        k = _number(step, device)
        place = _columns(pivots).eq(k).where(pivots, 0).sum(-1).reshape((*pivots.shape[:-1], 1, 1))
        place = place.cast(dtypes.int32) - 1
        rows = _rows(b)
        b = rows.eq(k).where(_row(b, place), rows.eq(place).where(_row(b, k), b)).contiguous()
    return b


def _identity(n: int) -> UOp:
    place = UOp.arange(n)
    return place.reshape((-1, 1)).eq(place).where(UOp.const(1.0, dtypes.float64), 0.0)


def lu_solve(lu: UOp, pivots: UOp, b: UOp, device: str, transposed: bool = False) -> UOp:
    """X with A X = b, or A^T X = b, from the factorization of A."""
    if transposed:
        lu = lu.transpose(-1, -2)
        half = solve_triangular(lu, b, upper=False, unit=False, device=device)
        return permuted(solve_triangular(lu, half, upper=True, unit=True, device=device), pivots, device, inverse=True)
    half = solve_triangular(lu, permuted(b, pivots, device), upper=False, unit=True, device=device)
    return solve_triangular(lu, half, upper=True, unit=False, device=device)


def _spread(b: UOp, size: tuple[int, ...]) -> UOp:
    return cast(b, dtypes.float64).expand((*size[:-2], *b.shape[-2:])).contiguous()


@value("linalg_lu_factor_ex")
def linalg_lu_factor_ex(ctx: Context, a: UOp, *, pivot: bool = True, check_errors: bool = False) -> Results:
    """LU, pivots, info."""
    if check_errors:
        raise Declined
    return _empty(0, 0, 0) if 0 in a.shape else lu_factor(_matrix(a), ctx.device, pivot)


def _unpacked(lu: UOp) -> tuple[UOp, UOp]:
    """(L, U) of the two in one matrix."""
    m, n = (int(s) for s in lu.shape[-2:])
    k, rows, columns = min(m, n), _rows(lu), _columns(lu)
    whole = [(0, s) for s in lu.shape[:-2]]
    lower = rows.eq(columns).where(1.0, (columns < rows).where(lu, 0.0)).shrink((*whole, (0, m), (0, k)))
    return lower, (rows <= columns).where(lu, 0.0).shrink((*whole, (0, k), (0, n)))


def _permutation(pivots: UOp, m: int, device: str) -> UOp:
    """P with A = P L U."""
    identity = _identity(m).expand((*pivots.shape[:-1], m, m)).contiguous()
    return permuted(identity, pivots, device).transpose(-1, -2)


@value("lu_unpack")
def lu_unpack(ctx: Context, lu: UOp, pivots: UOp, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    """P, L, U; what is not asked for is empty."""
    m = int(lu.shape[-2])
    if m > LARGEST:
        raise Declined
    p = _permutation(pivots, m, ctx.device) if unpack_pivots and 0 not in (*lu.shape[:-2], m) else _empty(0)[0]
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
    lu, pivots, _ = lu_factor(_matrix(a), ctx.device, pivot)
    return (_permutation(pivots, int(a.shape[-2]), ctx.device) if pivot else _empty(0)[0], *_unpacked(lu))


@value("linalg_lu_solve")
def linalg_lu_solve(ctx: Context, lu: UOp, pivots: UOp, b: UOp, *, left: bool = True, adjoint: bool = False) -> UOp:
    """X with A X = B, or X A = B, of a factored A or its transpose."""
    if not left:
        size = (*ctx.out.size[:-2], ctx.out.size[-1], ctx.out.size[-2])
        b = _spread(b.transpose(-1, -2), size)
        return lu_solve(_matrix(lu), pivots, b, ctx.device, not adjoint).transpose(-1, -2)
    return lu_solve(_matrix(lu), pivots, _spread(b, ctx.out.size), ctx.device, adjoint)


@value("_linalg_solve_ex")
def linalg_solve_ex(ctx: Context, a: UOp, b: UOp, *, left: bool = True, check_errors: bool = False) -> Results:
    """X, LU, pivots, info; a vector b is one whose shape lacks the last dimension."""
    if check_errors:
        raise Declined
    if 0 in a.shape or 0 in b.shape:
        return _empty(0, 0, 0, 0) if 0 in a.shape else (b, *lu_factor(_matrix(a), ctx.device))
    size = ctx.out.size
    vector = b.ndim == 1 or (b.ndim + 1 == a.ndim and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if vector else b
    lu, pivots, info = lu_factor(_matrix(a), ctx.device)
    if left:
        x = lu_solve(lu, pivots, _spread(b, (*size, 1) if vector else size), ctx.device)
        return (x.squeeze(-1) if vector else x), lu, pivots, info
    turned = _spread(b.transpose(-1, -2), (*size[:-2], size[-1], size[-2]))
    return lu_solve(lu, pivots, turned, ctx.device, transposed=True).transpose(-1, -2), lu, pivots, info


@value("linalg_inv_ex")
def linalg_inv_ex(ctx: Context, a: UOp, *, check_errors: bool = False) -> Results:
    """The inverse, and info."""
    if check_errors:
        raise Declined
    if 0 in a.shape:
        return _empty(0, 0)
    lu, pivots, info = lu_factor(_matrix(a), ctx.device)
    n = int(a.shape[-1])
    return lu_solve(lu, pivots, _identity(n).expand(a.shape).contiguous(), ctx.device), info


def _diagonal(x: UOp) -> UOp:
    return _rows(x).eq(_columns(x)).where(x, 0.0).sum(-1)


def _parity(pivots: UOp) -> UOp:
    """-1 where an odd number of rows were swapped, else 1."""
    swaps = pivots.ne(_columns(pivots) + 1).cast(dtypes.int32).sum(-1)
    return (swaps & 1).ne(0).where(UOp.const(-1.0, dtypes.float64), 1.0)


def _as_factored(ctx: Context, a: UOp) -> UOp:
    """The matrix whose LU the CPU returns beside a determinant: of a contiguous one the transpose, to save a copy.

    The gradient's formula asks whether the matrix was contiguous and takes the LU accordingly (BatchLinearAlgebra.cpp).
    """
    return _matrix(a.transpose(-1, -2) if ctx.args[0].is_contiguous() else a)


@value("_linalg_det")
def linalg_det(ctx: Context, a: UOp) -> Results:
    """The determinant, LU, pivots."""
    if 0 in a.shape:
        return _empty(1, 0, 0)
    lu, pivots, _ = lu_factor(_as_factored(ctx, a), ctx.device)
    return _parity(pivots) * _diagonal(lu).prod(-1), lu, pivots


@value("_linalg_slogdet")
def linalg_slogdet(ctx: Context, a: UOp) -> Results:
    """The determinant's sign, the logarithm of its absolute value, LU, pivots."""
    if 0 in a.shape:
        return _empty(1, 0, 0, 0)
    lu, pivots, _ = lu_factor(_as_factored(ctx, a), ctx.device)
    diagonal = _diagonal(lu).contiguous()
    sign = ((diagonal > 0).cast(dtypes.float64) - (diagonal < 0).cast(dtypes.float64)).prod(-1)
    return _parity(pivots) * sign, absolute(diagonal).log2().sum(-1) * float(np.log(2)), lu, pivots


def cholesky_factor(a: UOp, device: str) -> tuple[UOp, UOp]:
    """(L, info) of (..., n, n), of which the lower triangle is read."""
    n, info = int(a.shape[-1]), None
    lower = a.const_like(0.0)
    rows, columns = _rows(a), _columns(a)
    for step in range(n):
        k = _number(step, device)
        row = _row(lower, k).contiguous()
        rest = subtract(_column(a, k), (lower * row).sum(-1, keepdim=True)).contiguous()
        square = _row(rest, k).contiguous()
        root = square.sqrt()
        found = (rows < k).where(0.0, rows.eq(k).where(root, divide(rest, root)))
        lower = columns.eq(k).where(found, lower).contiguous()
        failed = (square > 0).squeeze(-1).squeeze(-1).where(0, k + 1)
        info = failed if info is None else info.eq(0).where(failed, info)
    assert info is not None
    return lower, info.contiguous()


@value("linalg_cholesky_ex")
def linalg_cholesky_ex(ctx: Context, a: UOp, *, upper: bool = False, check_errors: bool = False) -> Results:
    """The factor, lower or upper, and info."""
    if check_errors:
        raise Declined
    if 0 in a.shape:
        return _empty(0, 0)
    lower, info = cholesky_factor(_matrix(a.transpose(-1, -2) if upper else a), ctx.device)
    return (lower.transpose(-1, -2) if upper else lower), info


def _cholesky_solved(lower: UOp, b: UOp, device: str) -> UOp:
    half = solve_triangular(lower, b, upper=False, unit=False, device=device)
    return solve_triangular(lower.transpose(-1, -2), half, upper=True, unit=False, device=device)


@decomposition("cholesky")
def cholesky(a: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """The factor; the CPU words the error of a matrix that has none."""
    if not a.numel():  # the CPU returns before LAPACK's column-major order
        return torch.empty_like(a, memory_format=torch.contiguous_format)
    factor, info = torch.ops.aten.linalg_cholesky_ex.default(a, upper=upper)
    if bool(info.any()):
        raise Refused("the matrix is not positive definite")
    return factor


@value("_cholesky_solve_helper")
def cholesky_solve(ctx: Context, b: UOp, factor: UOp, upper: bool) -> UOp:
    """X with A X = b, from the factor of A."""
    lower = _matrix(factor.transpose(-1, -2) if upper else factor)
    return _cholesky_solved(lower, _spread(b, ctx.out.size), ctx.device)


@value("cholesky_inverse")
def cholesky_inverse(ctx: Context, factor: UOp, upper: bool = False) -> UOp:
    """The inverse of A, from its factor."""
    lower = _matrix(factor.transpose(-1, -2) if upper else factor)
    identity = _identity(int(factor.shape[-1])).expand(factor.shape).contiguous()
    return _cholesky_solved(lower, identity, ctx.device)


@value("linalg_solve_triangular")
def linalg_solve_triangular(
    ctx: Context, a: UOp, b: UOp, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> UOp:
    """X with A X = B, or X A = B."""
    if left:
        return solve_triangular(_matrix(a), _spread(b, ctx.out.size), upper, unitriangular, ctx.device)
    size = (*ctx.out.size[:-2], ctx.out.size[-1], ctx.out.size[-2])
    turned = _spread(b.transpose(-1, -2), size)
    a = _matrix(a.transpose(-1, -2))
    return solve_triangular(a, turned, not upper, unitriangular, ctx.device).transpose(-1, -2)


@value("triangular_solve")
def triangular_solve(
    ctx: Context, b: UOp, a: UOp, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Results:
    """X with A X = b, and a copy of A."""
    if 0 in a.shape or 0 in b.shape:
        return _empty(0)[0], a
    matrix = _matrix(a.transpose(-1, -2) if transpose else a)
    b = _spread(b, ctx.out.size)
    return solve_triangular(matrix, b, upper != transpose, unitriangular, ctx.device), a
