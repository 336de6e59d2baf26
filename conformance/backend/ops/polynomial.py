"""Orthogonal polynomials whose degree is a tensor: Chebyshev's four kinds, Hermite's two, Laguerre's and Legendre's.

Each is a three-term recurrence with the CPU's own first terms and special cases (aten/src/ATen/native/Math.h).

The degree differs from element to element. The recurrence runs to the largest degree, which is read on the host, and
each element stops changing when its degree is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, Declined, value
from ..dispatch.tensors import cast
from ..lazy.dtypes import opmath
from . import elementary as e
from .arithmetic import NAN, absolute, divide, subtract
from .bounds import read_on_host

LARGEST_DEGREE = 64  # the recurrence is unrolled; beyond this, compilation takes longer than the CPU's computation


class Polynomials(NamedTuple):
    """Family of polynomials: degree 1, the step from degrees k - 1 and k to k + 1, and special points."""

    first: Callable[[UOp], UOp]
    step: Callable[[UOp, int, UOp, UOp], UOp]  # of x, k, p of degree k - 1, q of degree k
    special: Callable[[UOp, UOp, UOp], UOp]  # of x, the degree, the recurrence's value


def _odd(n: UOp) -> UOp:
    return (n & 1).ne(0)


def _degree(n: UOp, dtype: Any) -> UOp:
    return n.cast(dtype)


def _chebyshev(
    constant: int,
    at_one: Callable[[UOp], UOp],
    at_minus_one: Callable[[UOp], UOp],
    least: int,
    angular: Callable[[UOp, UOp], UOp],
    shifted: bool,
) -> Polynomials:
    """Degree 1 is scale x + constant; exact at -1 and 1, from angles in between for degrees above `least`."""
    kind = 1 if angular is _cos_of_multiple else 2

    def argument(x: UOp) -> UOp:
        return subtract(x + x, 1.0) if shifted else x

    def first(x: UOp) -> UOp:
        y = argument(x)
        return (y if kind == 1 else y + y) + float(constant)

    def step(x: UOp, k: int, p: UOp, q: UOp) -> UOp:
        y = argument(x)
        return subtract((y + y) * q, p)

    def special(x: UOp, n: UOp, usual: UOp) -> UOp:
        y = argument(x)
        inside = (n > least) & (absolute(y) < 1)
        usual = inside.where(angular(inside.where(y, 0.0), _degree(n, x.dtype)), usual)
        return absolute(y).eq(1).where((y > 0).where(at_one(n), at_minus_one(n)).cast(x.dtype), usual)

    return Polynomials(first, step, special)


def _cos_of_multiple(x: UOp, n: UOp) -> UOp:
    return e.cos(n * e.acos(x))


def _second(x: UOp, n: UOp) -> UOp:
    angle = e.acos(x)
    return divide(e.sin((n + 1.0) * angle), e.sin(angle))


def _third(x: UOp, n: UOp) -> UOp:
    angle = e.acos(x)
    return divide(e.cos((n + 0.5) * angle), e.cos(angle * 0.5))


def _fourth(x: UOp, n: UOp) -> UOp:
    angle = e.acos(x)
    return divide(e.sin((n + 0.5) * angle), e.sin(angle * 0.5))


def _one(n: UOp) -> UOp:
    return n.const_like(1)


def _signed(magnitude: Callable[[UOp], UOp]) -> Callable[[UOp], UOp]:
    return lambda n: _odd(n).where(-magnitude(n), magnitude(n))


def _kinds(shifted: bool) -> dict[str, Polynomials]:
    return {
        "t": _chebyshev(0, _one, _signed(_one), 6, _cos_of_multiple, shifted),
        "u": _chebyshev(0, lambda n: n + 1, _signed(lambda n: n + 1), 6 if shifted else 8, _second, shifted),
        "v": _chebyshev(-1, _one, _signed(lambda n: n + n + 1), 6 if shifted else 8, _third, shifted),
        "w": _chebyshev(1, lambda n: n + n + 1, _signed(_one), 4 if shifted else 8, _fourth, shifted),
    }


def _unchanged(x: UOp, n: UOp, usual: UOp) -> UOp:
    return usual


def _hermite_limit(x: UOp, n: UOp, usual: UOp) -> UOp:
    return (n > (512 if x.dtype is dtypes.float64 else 128)).where(NAN, usual)


FAMILIES = {
    **{f"special_chebyshev_polynomial_{k}": p for k, p in _kinds(shifted=False).items()},
    **{f"special_shifted_chebyshev_polynomial_{k}": p for k, p in _kinds(shifted=True).items()},
    "special_hermite_polynomial_h": Polynomials(
        lambda x: x + x, lambda x, k, p, q: subtract((x + x) * q, p * float(2 * k)), _hermite_limit
    ),
    "special_hermite_polynomial_he": Polynomials(
        lambda x: x, lambda x, k, p, q: subtract(x * q, p * float(k)), _hermite_limit
    ),
    "special_laguerre_polynomial_l": Polynomials(
        lambda x: subtract(1.0, x),
        lambda x, k, p, q: divide(subtract((2.0 * k + subtract(1.0, x)) * q, p * float(k)), float(k + 1)),
        lambda x, n, found: x.eq(0).where(1.0, found),
    ),
    "special_legendre_polynomial_p": Polynomials(
        lambda x: x,
        lambda x, k, p, q: divide(subtract(x * float(2 * k + 1) * q, p * float(k)), float(k + 1)),
        lambda x, n, found: absolute(x).eq(1).where(((x < 0) & _odd(n)).where(-1.0, found.const_like(1.0)), found),
    ),
}  # fmt: skip


def _largest(n: Any) -> int:
    """Largest degree among the elements, on the host."""
    if not isinstance(n, torch.Tensor):
        return int(n)
    host = read_on_host(n)
    return int(host.to(torch.float64).nan_to_num(0.0).max()) if host.numel() else 0


def _evaluated(family: Polynomials) -> Callable[..., UOp]:
    def compute(ctx: Context, x: Any, n: Any) -> UOp:
        largest = _largest(ctx.args[1])
        if largest > LARGEST_DEGREE:
            raise Declined
        dtype = opmath(ctx.out.computed)
        x, n = (cast(v, dtype) if isinstance(v, UOp) else UOp.const(float(v), dtype) for v in (x, n))
        n = n.cast(dtypes.int64)
        x, n = x.expand(ctx.out.size), n.expand(ctx.out.size)
        # In float64: terms cancel, and the CPU's compiler may fuse a product and a difference, which rounds only once.
        wide = cast(x, dtypes.float64)
        p, q = wide.const_like(1.0), family.first(wide)
        value = n.eq(0).where(p, q)
        for k in range(1, largest):
            p, q = q, family.step(wide, k, p, q)
            value = (n > k).where(q, value)
        return (n < 0).where(0.0, family.special(x, n, cast(value, dtype)))

    return compute


for _name, _family in FAMILIES.items():
    value(_name, f"{_name}.x_scalar", f"{_name}.n_scalar", elementwise=True)(_evaluated(_family))
