"""Steps with edge-case values, such as ties, signed zeros, nan and infinities.

Other edge cases are numbers that a dtype cannot represent, operands of two dtypes, and probabilities 0 and 1. The rest
are gradients at a corner and more elements than one block. Most wrong kernels are right on finite, distinct numbers. So
a row accepts all values for which PyTorch defines the answer. It defines none if zeros of different sign tie, or if a
sum depends on its order. Such tensors do not fit. Compilers simplify an op followed by its inverse, so the inverse may
follow a step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from conformance.program.steps import predicates
from conformance.program.steps.draw import DrawContext, index_of, tensor_of
from conformance.program.steps.layouts import overlaps_itself
from conformance.program.steps.op import (
    COMPUTE,
    DEFINED,
    FUNCTION,
    GETITEM,
    LOSSY,
    METADATA,
    MOVE,
    Json,
    Op,
    Step,
    dtype_name,
    number,
    tensor,
)
from conformance.program.steps.predicates import Fits
from conformance.program.steps.rows import Given, Rest, decided, row, without_grad

NAME = "edges"
"""Name of the family."""


DTYPES = ("float32", "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8")
"""Dtypes of the programs of this family. A repeated dtype has a higher probability."""

PLAIN = (0.0, 1.0, -1.0, 0.5, 1.5, -0.5, 2.5, -2.5, 3.0, -3.0)
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, math.nan, math.inf, math.nan)
INEXACT = (0.3, -1.7, 0.1, 77.7, 100.0, -1000.0)
"""Three kinds of floats: `PLAIN` whole numbers and halves, `SPECIAL` values of IEEE 754, and `INEXACT` values that
float16 rounds or whose exponential overflows."""

NUMBERS = (0, 1, 0.5, -0.5, 2, -1, 1.5, 2.5, 0)
EXPONENTS = (2, 3, 0.5, -1, 0, 1, 2.0)
LARGE, LONG = 1000.0, (257, 1025, 1031, 2049, 4099)
HALVES, PRECISE = ("float16", "bfloat16"), ("float32", "float32", "float64")
CONVERTED = (*HALVES, *HALVES, "float32", "float64")
INVERSE = {"exp.edge": "log.edge", "log.edge": "exp.edge", "exp.fused": "log", "log": "exp.fused"}
INVERSE |= {"expm1": "log1p", "log1p": "expm1", "square": "sqrt"}
INVERSE |= {"neg.edge": "neg.edge", "reciprocal": "reciprocal", "mul.fused": "sqrt"}
"""Rows with the row that inverts them."""


def values(k: Any, dtype: torch.dtype, count: int) -> list[Json]:
    """Return values of this dtype. Few are distinct, so that many tie."""
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        some: list[Any] = [k.choice(PLAIN) for _ in range(k.choice((2, 1, 3)))]
        some += [k.choice((*SPECIAL, info.max, info.tiny))] if k.chance(3, 4) else []
        some += [k.choice(INEXACT)] if k.chance(1, 2) else []
    else:
        pool: tuple[Any, ...] = (False, True) if dtype is torch.bool else (0, 1, 2, 3, 7)
        if not (dtype is torch.bool or dtype.is_complex):
            limits = torch.iinfo(dtype)
            pool = (*pool, *((-1, -3) if dtype.is_signed else ()), limits.min, limits.max)
        some = [k.choice(pool) for _ in range(k.choice((4, 2, 6)))]
    return [number(k.choice(some)) for _ in range(count)]


def _one_zero(t: torch.Tensor) -> bool:
    """Return whether no zero is negative: PyTorch does not define which of two zeros is the larger."""
    return not (t.is_floating_point() and bool(((t == 0) & t.signbit()).any()))


def _moderate(t: torch.Tensor) -> bool:
    """Return whether no sum or product of a few elements depends on its order."""
    finite = t.detach().abs()
    return _one_zero(t) and (
        not t.is_floating_point() or bool((finite.isinf() | finite.isnan() | (finite <= LARGE)).all())
    )


def _numbers(t: torch.Tensor) -> bool:
    return predicates.number_like(t) and t.numel() > 0


def _floats(t: torch.Tensor) -> bool:
    return predicates.floating(t) and t.numel() > 0


def _signed(t: torch.Tensor) -> bool:
    return predicates.signed(t) and t.numel() > 0


def _selectable(t: torch.Tensor) -> bool:
    return _numbers(t) and _one_zero(t)


def _summable(t: torch.Tensor) -> bool:
    return _floats(t) and _moderate(t)


def _apart(t: torch.Tensor) -> bool:
    return _selectable(t) and not overlaps_itself(t)


def _ordered(t: torch.Tensor) -> bool:
    """Return whether torch defines an order of the elements: it defines none of a nan."""
    return _apart(t) and not bool(t.detach().isnan().any())


def _finite(t: torch.Tensor) -> bool:
    return _floats(t) and bool(t.detach().isfinite().all())


def _has_rows(t: torch.Tensor) -> bool:
    return _numbers(t) and t.dim() > 0


def _dim(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.dim(t)]


def _number(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice(NUMBERS)]


def _exponent(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice(EXPONENTS)]


def _divisor(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice((2, number(-math.inf), 1.5, number(math.inf)) if t.is_floating_point() else (2, 3))]


def _signed_divisor(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice((-2, -3, 2, -1.5)) if t.dtype.is_signed and t.is_floating_point() else k.choice((2, 3))]


def _bounds(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    equal = [float(value) for value in t.detach().flatten()[:3] if value.isfinite()]  # so that elements lie at a bound
    low, high = (k.choice((None, *NUMBERS, *equal)) for _ in range(2))
    if low is None and high is None:
        return [0]
    return [low, high] if low is None or high is None or low <= high else [high, low]


def _beside(k: DrawContext, t: torch.Tensor, takes: Fits) -> list[Json] | None:
    name = k.pick(lambda u: u.dtype == t.dtype and u.size() == t.size() and takes(u))
    return [tensor(name)] if name else None


def _equal_nan(k: DrawContext, t: torch.Tensor) -> Given | None:
    other = _beside(k, t, lambda u: k.shadow.level(u) < 2)
    return Given(other, {"equal_nan": k.chance(2, 3)}) if other else None


def _stable(k: DrawContext, t: torch.Tensor) -> Given:
    return Given([], {"stable": True, "dim": k.dim(t), "descending": k.chance(1, 3)})


def _repeated(k: DrawContext, t: torch.Tensor) -> list[Json]:
    at = k.indices(t.size(0), 3)
    return [index_of(0, tensor_of([*at, at[0]]))]


def _selected(k: DrawContext, t: torch.Tensor) -> list[Json]:
    dim, at = k.along(t)
    return [dim, tensor_of([*at, at[0]])]


def _ones_and_zeros(k: DrawContext, t: torch.Tensor) -> list[Json]:
    bits = [[int(k.chance(1, 2)) for _ in range(2)] for _ in range(t.size(1))]
    return [tensor_of(bits, t.dtype)]


def _searched(k: DrawContext, t: torch.Tensor) -> Given:
    edges = sorted({k.choice((0, 1, 2, 3, 7)) for _ in range(3)})
    return Given(
        [tensor_of(edges, torch.int64 if predicates.category(t.dtype) == 1 else t.dtype)], {"right": k.chance(1, 2)}
    )


def _narrowed(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    options = [name for name in CONVERTED if name in k.dtypes and name != dtype_name(t.dtype)]
    return [{"dtype": k.choice(options)}] if options else None


def _repeated_to(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice(("sum", "amax", "sum", "argmax", "cumsum", "mean", "neg")), k.choice(LONG)]


def _small_halves(t: torch.Tensor) -> bool:
    """Return whether sums of many elements are exact."""
    if t.dtype not in (torch.float32, torch.float64) or not _summable(t):
        return False
    return bool(((2 * t == (2 * t).round()) & (t.abs() <= 8)).all())


def _certainty(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice((1.0, 0.0))]


def _where(k: DrawContext) -> Step | None:
    name = k.pick(_numbers)
    return Step("where.number", (k.mask_for(k[name]), tensor(name), k.choice(NUMBERS))) if name else None


def _joined(k: DrawContext) -> Step | None:
    name = k.pick(_has_rows)
    others = [] if name is None else [dtype for dtype in k.dtypes if dtype != dtype_name(k[name].dtype)]
    if name is None or not others:
        return None
    parts = [tensor(name), k.constant(k[name].size(), getattr(torch, k.choice(others)))]
    return Step("cat.dtypes", (parts[::-1] if k.chance(1, 2) else parts, 0))


def _halved(k: DrawContext) -> Step | None:
    """Draw a conversion to a half that can round."""
    name = k.pick(lambda t: dtype_name(t.dtype) in PRECISE and t.numel() > 0)
    halves = [half for half in HALVES if half in k.dtypes]
    return Step("to.edge", (tensor(name), {"dtype": k.choice(halves)})) if name and halves else None


SELECTIONS: dict[str, Callable[[DrawContext, Json, torch.Tensor], tuple[Json, ...]]] = {
    "where.number": lambda k, x, t: (k.mask_for(t), x, k.choice(NUMBERS)),
    "masked_fill": lambda k, x, t: (x, k.mask_for(t), k.choice(NUMBERS)),
    "stack": lambda k, x, t: ([x, x], 0),
}
"""Rows that select elements, with the rules for their arguments."""


def _selection(k: DrawContext) -> Step | None:
    """Draw a selection of elements of the last conversion's result. Its result takes the name of the conversion's."""
    for step in k.shadow.steps[-1:]:
        if step.op == "to.edge" and step.out:
            name = k.choice(tuple(SELECTIONS))
            return Step(name, SELECTIONS[name](k, tensor(step.out[0]), k[step.out[0]]), out=step.out)
    return None


def _undone(k: DrawContext) -> Step | None:
    """Draw the inverse of the last step, applied to its result. After a selection of a conversion's result, draw the
    inverse of the conversion. After a selection, and otherwise in half of the draws, its result takes the name of its
    operand: a device need not compute a half that is not observable."""
    *earlier, step = k.shadow.steps[-2:] or (None,)
    if step is None or not step.out:
        return None
    conversion = earlier[0] if earlier and step.op in SELECTIONS and earlier[0].out == step.out else step
    if conversion.op == "to.edge":
        source = conversion.names()[0]
        if source not in k.shadow.env:
            return None
        out = step.out if conversion is not step or k.chance(1, 2) else ()
        return Step("to.edge", (tensor(step.out[0]), {"dtype": dtype_name(k[source].dtype)}), out=out)
    if step.op in INVERSE and (step.op != "mul.fused" or len({*step.names()}) == 1):
        return Step(INVERSE[step.op], (tensor(step.out[0]),))
    return None


def _gradient(k: DrawContext) -> Step | None:
    """Draw a backward from the last step's result."""
    names = [
        name
        for step in k.shadow.steps[-1:]
        for name in step.out
        if name in k.shadow.env and predicates.has_graph(k[name])
    ]
    return Step("backward", (tensor(names[-1]), k.constant(k[names[-1]].size(), k[names[-1]].dtype))) if names else None


def _mixed(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    others = [name for name in k.dtypes if name != dtype_name(t.dtype)]
    size = k.choice((t.size(), torch.Size(()), t.size()[-1:]))
    return [k.constant(size, getattr(torch, k.choice(others)))] if others else None


def _whole(t: torch.Tensor) -> bool:
    return predicates.category(t.dtype) == 1 and t.numel() > 0


def _itself(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [tensor(k.name_of(t))]


WRAPPING: dict[str, Rest] = {
    "add.twice": _itself,
    "mul.whole": lambda k, t: [k.choice((2, 3))],
    "add.whole": lambda k, t: [k.choice((1, 2, 5))],
    "neg.whole": lambda k, t: [],
}
"""Rules for integer operations that wrap at the ends of the dtype."""

AFTER_WRAPPING: dict[str, Rest] = {
    "floor_divide.whole": lambda k, t: [k.choice((2, 3, 7))],
    "remainder.whole": lambda k, t: [k.choice((2, 3, 7))],
    "gt.whole": lambda k, t: [k.choice((0, 1))],
    "div.floor": lambda k, t: Given([k.choice((2, 3))], {"rounding_mode": k.choice(("floor", "trunc"))}),
    "abs.whole": lambda k, t: [],
}
"""Rules for operations that differ if an earlier one did not wrap."""


def _wrapped(k: DrawContext) -> Step | None:
    """Draw a division or comparison of the last step's result, if that step can wrap."""
    names = [name for step in k.shadow.steps[-1:] if step.op in WRAPPING for name in step.out if _whole(k[name])]
    if not names:
        return None
    name = k.choice(tuple(AFTER_WRAPPING))
    drawn = AFTER_WRAPPING[name](k, k[names[-1]])
    arguments = drawn if isinstance(drawn, Given) else Given(drawn or [])
    return Step(name, (tensor(names[-1]), *arguments.args), arguments.kwargs)


def _distinct(t: torch.Tensor) -> bool:
    return t.dim() > 0 and 0 < t.numel() == t.detach().unique().numel() and not bool(t.isnan().any())


def _least(k: DrawContext, t: torch.Tensor) -> Given:
    dim = k.dim(t)
    return Given([k.integer(1, t.size(dim)), dim], {"largest": k.chance(1, 3)})


def _counted(k: DrawContext, t: torch.Tensor) -> Given:
    return Given([], {"return_inverse": True, "return_counts": True})


def _weighed(k: DrawContext, t: torch.Tensor) -> Given:
    """Draw two matrices and their factors; with `beta=0` the tensor's values, nan included, must not count."""
    return Given(k.factors(t), {"beta": k.choice((0, 0, 1, 2)), "alpha": k.choice((1, 2))})


HALVED = Op("halved", NAME, MOVE, _halved)
SELECTION = Op("selection", NAME, MOVE, _selection, FUNCTION)
UNDONE = Op("undone", NAME, LOSSY, _undone, FUNCTION)
GRADIENT = Op("gradient", NAME, METADATA, _gradient, may_raise=True)
FOLLOWERS = (UNDONE, SELECTION, GRADIENT, Op("wrapped", NAME, COMPUTE, _wrapped, FUNCTION))
"""Rules for a step that directly follows another one. They are not rows of the table: they draw steps of other rows."""

KINKED = ("clamp.number", "maximum", "minimum")
"""Rows whose gradient has a step at equal numbers, which they draw often."""

edge = functools.partial(row, family=NAME, effect=COMPUTE)
lossy = functools.partial(edge, effect=LOSSY)
moved = functools.partial(edge, effect=MOVE)


def _pair(name: str, takes: Fits, effect: str = COMPUTE, **options: Any) -> Op:
    return edge(
        f"{name}.edge", lambda k, t: _beside(k, t, takes), takes, effect=effect, form=FUNCTION, call=name, **options
    )


ROWS = [
    moved("neg.edge", fits=_signed, call="neg", weight=2),
    moved("abs.edge", fits=_signed, call="abs"),
    *(edge(f"{name}.edge", fits=_floats, call=name) for name in ("floor", "ceil", "trunc", "sign")),
    edge("round.edge", fits=_floats, call="round", weight=2),
    edge("relu.edge", fits=_selectable, call="relu"),
    *(_pair(name, _selectable) for name in ("maximum", "minimum")),
    *(_pair(name, _summable) for name in ("remainder", "fmod", "floor_divide")),
    _pair("atan2", _floats, LOSSY),
    _pair("logaddexp", _summable, LOSSY),
    lossy("mul.number", _number, _numbers, call="mul", weight=4),
    lossy("exp.edge", fits=_floats, call="exp", weight=3),
    lossy("log.edge", fits=_floats, call="log"),
    lossy("add.number", _number, _numbers, call="add"),
    lossy("pow.number", _exponent, _floats, call="pow", weight=4),
    edge("clamp.number", _bounds, _selectable, call="clamp", weight=4),
    edge("floor_divide.number", _divisor, _summable, call="floor_divide", pick=decided),
    edge("remainder.number", _signed_divisor, lambda t: _numbers(t) and _moderate(t), call="remainder", pick=decided),
    *(edge(f"{name}.number", _number, _numbers, call=name, pick=decided) for name in ("eq", "lt", "ge")),
    edge("isclose.edge", _equal_nan, _floats, call="isclose", pick=decided, weight=3),
    *(edge(f"{name}.edge", _dim, _selectable, call=name) for name in ("amax", "amin")),
    *(edge(f"{name}.edge", _dim, _selectable, call=name, pick=decided) for name in ("argmax", "argmin")),
    *(edge(f"{name}.ties", _dim, _selectable, call=name, pick=decided, results=2) for name in ("max", "min")),
    edge("max.whole", fits=_selectable, call="amax"),
    moved("sort.stable", _stable, _selectable, call="sort", pick=decided, results=2, weight=3),
    *(edge(name, rest, _whole, call=name.partition(".")[0], weight=2) for name, rest in WRAPPING.items()),
    *(edge(name, rest, _whole, call=name.partition(".")[0], pick=decided) for name, rest in AFTER_WRAPPING.items()),
    _pair("hypot", _floats, LOSSY),
    moved("topk.least", _least, lambda t: _selectable(t) and _distinct(t), call="topk", pick=decided, results=2),
    moved("unique.counted", _counted, _ordered, call="unique", pick=decided, results=3),
    lossy("addmm.edge", _weighed, lambda t: _floats(t) and t.dim() == 2, call="addmm", weight=2),
    moved("median.edge", fits=_apart, call="median", pick=decided),
    edge("mode_values", _dim, _ordered, form=DEFINED, pick=decided),
    edge("bucketize.edge", _searched, _selectable, form=FUNCTION, call="bucketize", pick=decided),
    lossy("logsumexp.edge", _dim, _summable, call="logsumexp"),
    lossy("softmax.edge", _dim, _summable, call="softmax"),
    lossy("matmul.edge", _ones_and_zeros, lambda t: _summable(t) and t.dim() == 2, call="matmul", weight=2),
    moved("getitem.repeated", _repeated, _has_rows, form=GETITEM, call="", weight=2),
    moved("index_select.repeated", _selected, _has_rows, call="index_select"),
    moved("to.edge", _narrowed, _floats, call="to", weight=5),
    lossy("of_many", _repeated_to, _small_halves, form=DEFINED, weight=5),
    edge("bernoulli.certain", _certainty, _floats, form=FUNCTION, call="bernoulli"),
    edge("bernoulli_.certain", _certainty, lambda t: _floats(t) and not t.requires_grad, call="bernoulli_", writes=0,
         constant=True, may_raise=True),
    lossy("dropout.all", lambda k, t: [1.0], _finite, form=FUNCTION, call="nn.functional.dropout"),
    *(lossy(f"{name}.mixed", _mixed, _numbers, form=FUNCTION, call=name, weight=2) for name in ("add", "mul", "div")),
    *(
        lossy(f"{name}.mixed", _mixed, _apart, pick=without_grad, call=name, writes=0, may_raise=True)
        for name in ("add_", "mul_")
    ),
    Op("where.number", NAME, MOVE, _where, FUNCTION, "where"),
    Op("cat.dtypes", NAME, MOVE, _joined, FUNCTION, "cat", fits=_has_rows),
]  # fmt: skip
