"""QR by Householder reflections: the factors, the orthogonal matrix, and products with it.

A reflection changes all columns to its right, and depends on the reflections to its left, so the loops of the textbook
are the kernel (`loop_kernels`). Signs and tau are LAPACK's (geqrf, orgqr, ormqr): G. H. Golub and C. F. Van Loan,
Matrix Computations, 4th edition, 5.1 and 5.2. Arithmetic is in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import Context, Declined, value
from ..dispatch.schema_kernels import EmptyResult, or_cpu
from ..dispatch.tensors import Spec, elements, make
from ..lazy.layout import contiguous_strides
from ..runtime import memory
from ..runtime.loop_kernels import Array, Index, LoopProgram, kernel
from ..runtime.stats import STATS
from .arithmetic import copy_sign, divide, subtract
from .linalg import affordable, batched, begin, number, wide


def _reflect(p: LoopProgram, x: Array, b: Index, v: Array, k: Index, tau: UOp, first: Index) -> None:
    """Apply the k-th reflector, whose leading 1 is not stored, to the columns of x from `first` on."""
    m, n = x.shape[-2:]
    dot = p.local(dtypes.float64, 0.0)
    for j in p.loop(n):
        dot[0] = 0.0
        for i in p.loop(m):
            component = number(i).eq(number(k)).where(1.0, wide(v[b, i, k]))
            dot.set(0, dot[0] + component * x[b, i, j], where=number(i) >= number(k))
        for i in p.loop(m):
            component = number(i).eq(number(k)).where(1.0, wide(v[b, i, k]))
            rest = subtract(x[b, i, j], tau * dot[0] * component)
            x.set((b, i, j), rest, where=(number(i) >= number(k)) & (number(j) >= number(first)))


def _geqrf(p: LoopProgram, qr: Array, taus: Array, a: Array) -> None:
    batch, m, n = a.shape
    for b in p.loop(batch, independent=True):
        begin(p, qr, b, a)
        square = p.local(dtypes.float64, 0.0)
        for k in p.loop(min(m, n)):
            square[0] = 0.0
            for i in p.loop(m):
                square.set(0, square[0] + qr[b, i, k] * qr[b, i, k], where=number(i) > number(k))
            nothing, alpha = p.keep(square[0].eq(0)), p.keep(qr[b, k, k])
            beta = p.keep(-copy_sign((alpha * alpha + square[0]).sqrt(), alpha))
            tau = p.keep(nothing.where(0.0, divide(subtract(beta, alpha), beta)))
            taus[b, k] = tau
            for i in p.loop(m):
                scaled = divide(qr[b, i, k], subtract(alpha, beta))
                qr.set((b, i, k), scaled, where=(number(i) > number(k)) & nothing.logical_not())
            qr.set((b, k, k), beta, where=nothing.logical_not())
            _reflect(p, qr, b, qr, k, tau, k + 1)


def _product(p: LoopProgram, x: Array, v: Array, taus: Array, *rest: Any) -> None:
    *factor, transposed = rest
    count = taus.shape[1]
    for b in p.loop(len(x), independent=True):
        begin(p, x, b, *factor or [None])
        for turn in p.loop(count):
            k = turn if transposed else count - 1 - turn
            _reflect(p, x, b, v, k, p.keep(wide(taus[b, k])), 0)


def _factored(a: UOp, device: str) -> tuple[UOp, UOp]:
    """(R with the reflectors below it, tau), both in float64 and with all leading dimensions flattened to one."""
    x = batched(a)
    batch, m, n = (int(s) for s in x.shape)
    affordable(batch, m, n, min(m, n))
    qr, taus = kernel(_geqrf, [((batch, m, n), dtypes.float64), ((batch, min(m, n)), dtypes.float64)], [x], device)
    return qr, taus


def _multiplied(
    v: UOp, taus: UOp, size: Sequence[int], device: str, factor: UOp | None = None, transposed: bool = False
) -> UOp:
    """Q or Q^T times a factor of this size, or the first columns of Q without a factor, in float64."""
    lead, (m, n) = size[:-2], size[-2:]
    inputs = [batched(v), batched(taus, rank=1), *([] if factor is None else [batched(factor)])]
    affordable(int(inputs[0].shape[0]), m, n, int(taus.shape[-1]))
    (x,) = kernel(_product, [((int(inputs[0].shape[0]), m, n), dtypes.float64)], inputs, device, transposed)
    return x.reshape((*lead, m, n))


def _geqrf_kernel(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """R with the reflectors below it, in column-major order, and tau; the operator has no meta kernel."""
    if a.ndim < 2 or a.dtype not in (torch.float32, torch.float64):
        raise MetaRejected("the CPU checks what it is given, and knows complex numbers")
    if 0 in a.shape:
        raise EmptyResult
    index, (*lead, m, n) = a.device.index or 0, a.shape
    qr, taus = _factored(elements(a), memory.device_name(index))
    *outer, _, _ = contiguous_strides(a.shape)
    factors, numbers = Spec(a.dtype, tuple(a.shape), (*outer, 1, m)), (*lead, min(m, n))
    STATS.native["aten.geqrf.default"] += 1
    packed = make(factors, qr.reshape(tuple(a.shape)), index)
    return packed, make(Spec(a.dtype, numbers, contiguous_strides(numbers)), taus.reshape(numbers), index)


KERNELS: dict[str, Callable[..., Any]] = {"geqrf": or_cpu(torch.ops.aten.geqrf.default, _geqrf_kernel)}


@value("linalg_qr")
def linalg_qr(ctx: Context, a: UOp, mode: str = "reduced") -> tuple[UOp, UOp]:
    """Q and R; Q is square in mode "complete" and empty in mode "r"."""
    if 0 in a.shape:
        raise Declined
    qr, taus = _factored(a, ctx.device)
    rows, columns = (UOp.arange(int(s)) for s in a.shape[-2:])
    r = (rows.reshape((-1, 1)) <= columns).where(qr, 0.0).reshape(a.shape)
    r = r.shrink(tuple((0, s) for s in ctx.outs[1].size))
    if mode == "r":
        return UOp.const(0.0, dtypes.float64), r
    return _multiplied(qr, taus, ctx.out.size, ctx.device), r


@value("linalg_householder_product", out_as_new="empty")
def householder_product(ctx: Context, v: UOp, taus: UOp) -> UOp:
    """First columns of Q from the reflectors and tau."""
    if 0 in taus.shape:
        rows, columns = (UOp.arange(int(s)) for s in v.shape[-2:])
        return rows.reshape((-1, 1)).eq(columns).cast(dtypes.float64)
    return _multiplied(v, taus, ctx.out.size, ctx.device)


@value("ormqr", out_as_new="empty")
def ormqr(ctx: Context, v: UOp, taus: UOp, other: UOp, left: bool = True, transpose: bool = False) -> UOp:
    """Product of Q or Q^T and a matrix, from the left or from the right."""
    if 0 in taus.shape or 0 in other.shape:
        raise Declined
    size = ctx.out.size
    if left:
        return _multiplied(v, taus, size, ctx.device, other, transpose)
    turned = (*size[:-2], size[-1], size[-2])
    return _multiplied(v, taus, turned, ctx.device, other.transpose(-1, -2), not transpose).transpose(-1, -2)
