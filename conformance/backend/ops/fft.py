"""Discrete Fourier transforms: products with the matrix of roots of unity, split by the length's factors.

Defines the three kernels that every torch.fft function calls: complex to complex, real to complex, complex to real.

Multiplication by a complex number is a 2 by 2 matrix on the pair of parts. A transform of all parts is therefore one
multiply-and-sum over positions and parts together: one kernel. In two such stages a length N = A B costs A + B products
per element instead of N (J. W. Cooley and J. W. Tukey, An algorithm for the machine calculation of complex Fourier
series, 1965). The twiddle factors between the stages are one more operand of the second stage. Sums are computed in
float64, so that sums of some hundred terms are as exact as a radix-2 transform.
The norms of torch.fft arrive as numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from ..dispatch.registry import Context, Declined, value
from ..runtime import memory

DIRECT = 48  # lengths up to this one are not split
LONGEST_PRIME = 1024  # the matrix of a longer prime factor costs more than the CPU's transform


def _matrices(outer: int, inner: int, period: int, sign: int) -> np.ndarray:
    """Matrices of e**(sign 2 pi i k n / period), of shape (k < outer, part out, n < inner, part in)."""
    turns = np.outer(np.arange(outer), np.arange(inner)) % period * (2 * math.pi / period)
    cos, sin = np.cos(turns), sign * np.sin(turns)
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], 1)


def _data(matrices: np.ndarray, device: str) -> UOp:
    flat = memory.from_host(np.ascontiguousarray(matrices).reshape(-1), dtypes.float64, device)
    return flat.reshape(matrices.shape)


@functools.lru_cache(maxsize=128)
def _roots(outer: int, inner: int, period: int, sign: int, device: str) -> UOp:
    """`_matrices` on the device."""
    return _data(_matrices(outer, inner, period, sign), device)


@functools.lru_cache(maxsize=128)
def _halves(n: int, half: int, device: str) -> UOp:
    """Matrices that give n real results from half the terms: mirrored terms count twice."""
    position = np.arange(half).reshape((half, 1))
    weights = np.where((position == 0) | (2 * position == n), 1.0, 2.0)
    return _data(_matrices(n, half, n, 1)[:, :1] * weights, device)


def _divisor(n: int) -> int:
    """Largest divisor up to the square root."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _check(n: int) -> None:
    """Raise Declined for a length with a long prime factor."""
    if n > DIRECT:
        d = _divisor(n)
        if d == 1 and n > LONGEST_PRIME:
            raise Declined
        if d > 1:
            _check(d)
            _check(n // d)


_CHEAP = GroupOp.Movement | {Ops.CAST}


def _stored(z: UOp) -> UOp:
    """A value stored in memory, because each of its elements is read for each result."""
    memory = z
    while memory.op in _CHEAP:
        memory = memory.src[0]
    return z if memory.op in (Ops.BUFFER, Ops.CONTIGUOUS, Ops.AFTER) else z.contiguous()


def _stage(z: UOp, roots: UOp, twiddle: UOp | None = None) -> UOp:
    """Sum over positions n and parts r, q of roots[k, p, n, r] (twiddle[..., n, r, q]) z[..., n, q], for each k, p.

    A real z has one part.
    """
    z = _stored(z).cast(dtypes.float64)
    whole = [None] * 3
    z, parts = z.unsqueeze(-3).unsqueeze(-3), (0, int(z.shape[-1]))
    if twiddle is None:
        return (z * roots.shrink((*whole, parts))).sum((-2, -1))
    return (z.unsqueeze(-2) * twiddle.unsqueeze(-4).unsqueeze(-4) * roots.unsqueeze(-1)).sum((-3, -2, -1))


def _transformed(z: UOp, sign: int, device: str, twiddle: UOp | None = None) -> UOp:
    """Transform along the second to last dimension; the last dimension holds the parts."""
    *lead, n, parts = (int(s) for s in z.shape)
    first = 1 if n <= DIRECT else _divisor(n)
    if first == 1:
        return _stage(z, _roots(n, n, n, sign, device), twiddle)
    rest = n // first
    z = z.reshape((*lead, first, rest, parts)).transpose(-2, -3)
    if twiddle is not None:
        twiddle = twiddle.reshape((*twiddle.shape[:-3], first, rest, 2, 2)).transpose(-3, -4)
    z = _transformed(z, sign, device, twiddle).transpose(-2, -3)
    between = _roots(first, rest, n, sign, device).transpose(1, 2)
    return _transformed(z, sign, device, between).transpose(-2, -3).reshape((*lead, n, 2))


def _along(z: UOp, dims: Sequence[int], sign: int, device: str) -> UOp:
    for d in dims:
        z = _transformed(z.transpose(d, -2), sign, device).transpose(d, -2)
    return z


def _norm(mode: int, sizes: Sequence[int]) -> float:
    """Factor of a normalization (aten/src/ATen/native/SpectralOpsUtils.h): 1, 1 / sqrt(count) or 1 / count."""
    count = math.prod(sizes)
    return (1.0, 1 / math.sqrt(count), 1 / count)[mode]


@value("_fft_c2c", takes_complex=True)
def c2c(ctx: Context, x: UOp, dim: Sequence[int], normalization: int, forward: bool) -> UOp:
    """Complex to complex."""
    sizes = [ctx.out.size[d] for d in dim]
    for n in sizes:
        _check(n)
    z = _along(x, [d % len(ctx.out.size) for d in dim], -1 if forward else 1, ctx.device)
    return z * _norm(normalization, sizes)


@value("_fft_r2c", takes_complex=True)
def r2c(ctx: Context, x: UOp, dim: Sequence[int], normalization: int, onesided: bool) -> UOp:
    """Real to complex; `onesided` returns the first half of the last dimension, which determines the other half."""
    sizes = [int(x.shape[d]) for d in dim]
    for n in sizes:
        _check(n)
    z = _along(x.unsqueeze(-1), [d % x.ndim for d in dim[::-1]], -1, ctx.device)
    return z.shrink((*((0, n) for n in ctx.out.size), None)) * _norm(normalization, sizes)


@value("_fft_c2r", takes_complex=True)
def c2r(ctx: Context, x: UOp, dim: Sequence[int], normalization: int, last_dim_size: int) -> UOp:
    """Complex to real: the second half of the last dimension is the mirrored conjugate of the first half."""
    *others, last = (d % len(ctx.out.size) for d in dim)
    sizes = [*(int(x.shape[d]) for d in others), last_dim_size]
    for n in sizes:
        _check(n)
    z = _along(x, others, 1, ctx.device).transpose(last, -2)
    n, half = last_dim_size, last_dim_size // 2 + 1
    z = z.shrink((*[None] * (z.ndim - 2), (0, half), None))
    if n <= DIRECT or _divisor(n) == 1:
        z = _stage(z, _halves(n, half, ctx.device))
    else:
        z = _transformed(_mirrored(z, n), 1, ctx.device).shrink((*[None] * (z.ndim - 1), (0, 1)))
    return z.squeeze(-1).transpose(last, -1) * _norm(normalization, sizes)


def _mirrored(z: UOp, n: int) -> UOp:
    """All n terms of a real signal's transform, from the first half."""
    sign = UOp.arange(2).eq(0).where(UOp.const(1.0, z.dtype), -1.0)
    rest = z.shrink((*[None] * (z.ndim - 2), (1, n - int(z.shape[-2]) + 1), None)).flip(-2) * sign
    return z.cat(rest, dim=-2)
