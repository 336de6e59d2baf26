"""Discrete Fourier transforms: products with the matrix of roots of unity, split by the length's factors.

Defines the three kernels that every torch.fft function ends in: complex to complex, real to complex, complex to real.

The key insight: a length N = A B costs A + B products an element instead of N (J. W. Cooley and J. W. Tukey, An
algorithm for the machine calculation of complex Fourier series, 1965), and each stage is one multiply-and-sum. Sums are
taken in float64, so that lengths which are sums of some hundred terms come out as exact as a radix-2 transform.
Must not know torch.fft's norms by name: they arrive as numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from .. import engine
from ..rows import Context, Declined, value
from ..tensors import cast
from .complex import Pair, joined, parts, times
from .elementary import subtract

DIRECT = 48  # lengths up to this one are not split
LONGEST_PRIME = 1024  # a longer prime factor's matrix costs more than it is worth


@functools.lru_cache(maxsize=128)
def _roots(rows: int, columns: int, period: int, sign: int, device: str) -> Pair:
    """e**(sign 2 pi i r c / period), for r < rows and c < columns, as data on the device."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % period * (2 * math.pi / period)
    made = [engine.from_host(np.ascontiguousarray(t).reshape(-1), dtypes.float64, device)
            for t in (np.cos(turns), sign * np.sin(turns))]  # fmt: skip
    return Pair(*(flat.reshape((rows, columns)) for flat in made))


def _divisor(n: int) -> int:
    """The largest divisor up to the square root."""
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


def _transformed(z: Pair, sign: int, device: str) -> Pair:
    """The transform along the last dimension."""
    n = int(z.re.shape[-1])
    first = 1 if n <= DIRECT else _divisor(n)
    if first == 1:
        roots = _roots(n, n, n, sign, device)
        re, im = z.re.unsqueeze(-2), z.im.unsqueeze(-2)
        products = Pair(subtract(re * roots.re, im * roots.im), re * roots.im + im * roots.re)
        return Pair(*(x.sum(-1).contiguous() for x in products))
    rest = n // first
    shape = z.re.shape[:-1]
    z = Pair(*(x.reshape((*shape, first, rest)).transpose(-1, -2) for x in z))
    z = times(_transformed(z, sign, device), _roots(rest, first, n, sign, device))
    z = _transformed(Pair(*(x.transpose(-1, -2).contiguous() for x in z)), sign, device)
    return Pair(*(x.transpose(-1, -2).reshape((*shape, n)) for x in z))


def _along(z: Pair, dims: Sequence[int], sign: int, device: str) -> Pair:
    for d in dims:
        z = Pair(*(x.transpose(d, -1) for x in _transformed(Pair(*(x.transpose(d, -1) for x in z)), sign, device)))
    return z


def _norm(mode: int, sizes: Sequence[int]) -> float:
    """The factor of a normalization (aten/src/ATen/native/SpectralOpsUtils.h): none, by the root, by the count."""
    count = math.prod(sizes)
    return (1.0, 1 / math.sqrt(count), 1 / count)[mode]


def _wide(z: Pair) -> Pair:
    return Pair(*(cast(x, dtypes.float64).contiguous() for x in z))


@value("_fft_c2c", takes_complex=True)
def c2c(ctx: Context, x: UOp, dim: Sequence[int], normalization: int, forward: bool) -> UOp:
    """Complex to complex."""
    for n in ctx.out.size:
        _check(n)
    sizes = [ctx.out.size[d] for d in dim]
    z = _along(_wide(parts(x)), dim, -1 if forward else 1, ctx.device)
    factor = _norm(normalization, sizes)
    return joined(Pair(z.re * factor, z.im * factor), ctx.out.size)


@value("_fft_r2c", takes_complex=True)
def r2c(ctx: Context, x: UOp, dim: Sequence[int], normalization: int, onesided: bool) -> UOp:
    """Real to complex; `onesided` gives the first half of the last dimension, which determines the other."""
    sizes = [int(x.shape[d]) for d in dim]
    for n in sizes:
        _check(n)
    real = cast(x, dtypes.float64).contiguous()
    z = _along(Pair(real, real.const_like(0.0)), dim[::-1], -1, ctx.device)
    factor = _norm(normalization, sizes)
    kept = tuple((0, n) for n in ctx.out.size)
    return joined(Pair(*(part.shrink(kept) * factor for part in z)), ctx.out.size)


@value("_fft_c2r", takes_complex=True)
def c2r(ctx: Context, x: UOp, dim: Sequence[int], normalization: int, last_dim_size: int) -> UOp:
    """Complex to real: the other half of the last dimension is the conjugate of the first, mirrored."""
    sizes = [*(int(x.shape[d]) for d in dim[:-1]), last_dim_size]
    for n in sizes:
        _check(n)
    z = _along(_wide(parts(x)), dim[:-1], 1, ctx.device)
    half = last_dim_size // 2 + 1
    z = Pair(*(part.transpose(dim[-1], -1) for part in z))
    kept = (*((0, n) for n in z.re.shape[:-1]), (0, half))
    roots = _roots(last_dim_size, half, last_dim_size, 1, ctx.device)
    position = UOp.arange(half)
    alone = position.eq(0) | (position * 2).eq(last_dim_size)
    weight = alone.where(UOp.const(1.0, dtypes.float64), 2.0)
    re, im = (part.shrink(kept).unsqueeze(-2) for part in z)
    result = (weight * subtract(re * roots.re, im * roots.im)).sum(-1).transpose(dim[-1], -1)
    return result * _norm(normalization, sizes)
