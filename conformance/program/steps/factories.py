"""Steps that make new tensors inside the program: constants, ranges, and random operators.

A compiler evaluates operations on constants itself, by rules of its own. So the constants include values at which such
rules fail: nan, infinities, negative numbers, the ends of a dtype. Random numbers differ between devices, so only the
dtype, the shape and the strides of a random operator's result are compared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from conformance.program.steps.draw import DrawContext, category
from conformance.program.steps.op import COMPUTE, DEFINED, FUNCTION, Json, Op, Step, dtype_of, number
from conformance.program.steps.predicates import always
from conformance.program.steps.rows import Given, row

NAME = "factories"
"""Name of the family."""

RANDOM = ("rand", "randn", "randint", "randperm", "bernoulli", "dropout", "rand_like", "uniform_", "random_")

FLOATS = (0.5, 1.0, -1.0, 0.0, 2.0, math.nan, math.inf, -math.inf, -0.0)


def _size(k: DrawContext) -> list[int]:
    return [k.choice((2, 3, 1, 4, 17)), *([k.choice((2, 3, 16))] if k.chance(1, 2) else [])]


def _number(k: DrawContext, name: str) -> Json:
    """Draw a number of this dtype, also one at its end."""
    dtype = dtype_of(name)
    if dtype.is_floating_point:
        return number(k.choice(FLOATS))
    if category(dtype) != 1:
        return k.number(dtype)
    return k.choice((k.number(dtype), torch.iinfo(dtype).min, torch.iinfo(dtype).max))


def _dtype(k: DrawContext) -> str:
    return k.choice([name for name in k.dtypes if not dtype_of(name).is_complex] or list(k.dtypes))


def _full(k: DrawContext, dtype: str) -> list[Json]:
    return [_size(k), _number(k, dtype)]


def _sized(k: DrawContext, dtype: str) -> list[Json]:
    return [_size(k)]


def _range(k: DrawContext, dtype: str) -> list[Json]:
    if dtype == "bool":
        return [0, 1]
    return k.choice(([k.integer(1, 20)], [k.integer(0, 3), k.integer(4, 20)], [1, k.integer(4, 20), k.integer(1, 3)]))


def _square(k: DrawContext, dtype: str) -> list[Json]:
    return [k.integer(1, 4), *([k.integer(1, 4)] if k.chance(1, 2) else [])]


def new(name: str, arguments: Callable[[DrawContext, str], list[Json]], weight: int = 1) -> Op:
    """Return a row that makes a new tensor of a drawn dtype on the program's device."""

    def rule(k: DrawContext) -> Step | None:
        dtype = _dtype(k)
        return Step(f"{name}.new", tuple(arguments(k, dtype)), {"dtype": {"dtype": dtype}, "device": {"device": 0}})

    return Op(f"{name}.new", NAME, COMPUTE, rule, FUNCTION, name, weight=weight)


def _random(k: DrawContext) -> Step:
    return Step("random_zeros", (k.choice(RANDOM), _size(k), {"device": 0}))


def _like(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.number(t.dtype)]


def _other_dtype(k: DrawContext, t: torch.Tensor) -> Given | None:
    names = [name for name in k.dtypes if category(dtype_of(name)) in (1, 2)]
    names = [name for name in names if not t.is_floating_point() or dtype_of(name).is_floating_point]
    return Given([k.dim(t)], {"dtype": {"dtype": k.choice(names)}}) if names else None


def _exact(t: torch.Tensor) -> bool:
    return not t.is_complex() and t.dim() > 0 and t.numel() > 0 and bool((t.detach().double().abs() <= 100).all())


factory = functools.partial(row, family=NAME, effect=COMPUTE)

ROWS = [
    new("full", _full, 3),
    new("ones", _sized, 2),
    new("zeros", _sized, 2),
    new("arange", _range, 2),
    new("eye", _square),
    factory("full_like", _like, always, form=FUNCTION),
    factory("ones_like", fits=always, form=FUNCTION),
    factory("cumsum.dtype", _other_dtype, _exact, call="cumsum", weight=2),
    factory("sum.dtype", _other_dtype, _exact, call="sum", weight=2),
    Op("random_zeros", NAME, COMPUTE, _random, DEFINED, weight=2),
]
