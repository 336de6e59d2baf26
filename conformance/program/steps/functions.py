"""Topics of whole functions: programs of calls that a compiler, and no kernel, gets wrong.

A compiler evaluates constants itself, promotes dtypes by rules of its own, drops operations that change nothing, and
applies Python's side effects after the call. A single step on plain inputs shows little of that. So each topic draws
its own inputs and the few steps that belong together (`TOPICS`). A campaign on a target that compiles functions has
programs of these families. Those of `EVERYWHERE` are also for devices.

The name of a row is the topic and the operator, such as `constants:softmax`. The table derives it on lookup.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch

from conformance.program.steps import factories, snippets
from conformance.program.steps.draw import Draw, DrawContext, Refused, tensor_of
from conformance.program.steps.op import (
    COMPUTE,
    DEFINED,
    FUNCTION,
    LOSSY,
    METHOD,
    QUERY,
    Form,
    Json,
    Op,
    Step,
    decode,
    number,
    tensor,
)

CONSTANTS, SCALARS, CONVERSIONS, INDICES = "constants", "scalars", "conversions", "indices"
REARRANGED, REWRITTEN, UNCHANGED = "rearranged", "rewritten", "unchanged"
DERIVATIVES, SIZES, SIDE_EFFECTS, OVERLAPS = "derivatives", "sizes", "side effects", "overlaps"
EXTREMES, MAGNITUDES = "extremes", "magnitudes"
DOMAINS = "domains"
POSITIONS, RESTRIDED, ZEROS, REGIONS = "positions", "restrided", "signs of zeros", "regions"
QUANTIZED, EQUAL_OUTS, MISFITS, GRADIENTS = "quantized", "equal outs", "misfits", "own gradients"
PROMOTION, DTYPES, REFUSALS, TRANSFORMED = "promotion", "dtypes", "refusals", "transformed"
"""Names of the topics, which are step families. The last four take their calls from op_db (`sources/fuzzing`)."""

FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int32", "int64", "int8", "uint8", "int16")
NUMBERS = (*FLOATS, *INTEGERS)

PER_PROGRAM = 14
"""Number of topics of a program. They share the cost of one compilation."""

STEPS = 96
"""Most number of steps of such a program."""

DECIDING = frozenset({"argmax", "argmin", "sort", "argsort", "any", "all", "floor", "ceil", "round", "trunc", "sign",
                      "logical_not", "eq", "gt", "isnan", "isinf", "bool", "long"})  # fmt: skip
"""Operators whose answer a rounding error could change."""

COMPUTING = Op("", "", COMPUTE, lambda k: None, FUNCTION, fits=lambda t: False, may_raise=True)
LOSING = replace(COMPUTING, effect=LOSSY)
ROWS_OF = {
    CONSTANTS: LOSING,
    SCALARS: COMPUTING,
    CONVERSIONS: COMPUTING,
    INDICES: replace(COMPUTING, settled=True),
    REARRANGED: COMPUTING,
    REWRITTEN: replace(COMPUTING, may_raise=False),
    UNCHANGED: COMPUTING,
    OVERLAPS: COMPUTING,
    EXTREMES: replace(COMPUTING, settled=True),
    MAGNITUDES: replace(LOSING, may_raise=False),
    DOMAINS: LOSING,
    POSITIONS: replace(COMPUTING, settled=True, may_raise=False),
    RESTRIDED: replace(COMPUTING, may_raise=False),
    ZEROS: replace(COMPUTING, may_raise=False),
    QUANTIZED: replace(COMPUTING, settled=True, may_raise=False),
    EQUAL_OUTS: replace(COMPUTING, pointwise=True, settled=True),
    MISFITS: LOSING,
    GRADIENTS: replace(COMPUTING, may_raise=False),
    REFUSALS: replace(LOSING, settled=True),
    TRANSFORMED: replace(LOSING, form=DEFINED),
    SIDE_EFFECTS: replace(COMPUTING, form=DEFINED, may_raise=False),
    PROMOTION: replace(LOSING, settled=True),
    DTYPES: replace(LOSING, settled=True),
}
"""The row of each topic whose rows are derived from their names."""

FORMS: dict[str, dict[str, Any]] = {
    "": {},
    "method": {"form": METHOD},
    "inplace": {"form": METHOD, "writes": 0},
    "out": {"writes": "out"},
    "many": {"results": 0},
    "method.many": {"form": METHOD, "results": 0},
}
"""The fields of a row by the form in its name, as in the names of op_db's rows."""


def row_of(name: str, callable_as: Callable[[str, Form], bool]) -> Op | None:
    """Return the row of this name, or None if it names no topic. Raises KeyError for an unknown form, or if
    `callable_as` denies the operator."""
    kind, _, call = name.partition(":")
    topic, _, form = kind.partition(".")
    if topic not in ROWS_OF:
        return None
    if topic == TRANSFORMED and callable_as(call, FUNCTION):
        return replace(ROWS_OF[topic], name=name, family=topic, call=topic)
    if topic == SIDE_EFFECTS and call in snippets.OBJECTS:
        return replace(ROWS_OF[topic], name=name, family=topic, call="reads_object")
    row = replace(ROWS_OF[topic], name=name, family=topic, call=call, **FORMS[form])
    if not callable_as(call, row.form):
        raise KeyError(name)
    if topic == MISFITS:
        row = replace(row, fatal=functools.partial(_ends_the_process, call))
    return replace(row, settled=row.settled or call.rpartition(".")[2].rstrip("_") in DECIDING)


class Wanted(NamedTuple):
    """An input of a topic: its dtype, its size, its values in element order, or a generator of `Storage`, and whether
    it requires grad."""

    dtype: str
    size: tuple[int, ...]
    values: Json = "arange"
    requires_grad: bool = False


class Offer(Protocol):
    """Offers a step to the shadow, and returns it as recorded. Raises Refused if the step is rejected."""

    def __call__(self, step: Step, *, aimed: bool = False) -> Step: ...


class Topic(NamedTuple):
    """A topic: a rule for its inputs, given the dtypes to draw, and a rule for its steps, given the names of the
    inputs. The second rule offers the steps, and returns the caller's steps. Both raise Refused."""

    inputs: Callable[[Draw, Sequence[str]], list[Wanted]]
    draw: Callable[[DrawContext, list[str], Offer], list[Step]]


def _dtype(d: Draw, among: Sequence[str], known: Sequence[str]) -> str:
    names = [name for name in among if name in known]
    if not names:
        raise Refused
    return d.choice(names)


def _plain_size(d: Draw) -> tuple[int, ...]:
    inner = d.choice((3, 2, 4, 8, 17, 33))
    return (inner,) if d.chance(1, 3) else (d.choice((2, 3, 4)), inner)


def _plain(d: Draw, known: Sequence[str]) -> list[Wanted]:
    return [Wanted(_dtype(d, NUMBERS, known), _plain_size(d))]


def _special(d: Draw, known: Sequence[str]) -> list[Wanted]:
    """Draw an input that holds nan, infinities or the ends of its dtype in half of the cases."""
    (source,) = _plain(d, known)
    return [source._replace(values={"special": d.integer(0, 99)}) if d.chance(1, 2) else source]


def _fresh(k: DrawContext, local: bool = False) -> tuple[str, ...]:
    (name,) = k.shadow.fresh(1)
    return (f"_{name}" if local else name,)


def _result(k: DrawContext, offer: Offer, op: str, *args: Json, local: bool = False, **kwargs: Json) -> str:
    """Offer a step with one result, and return the name of the result. Raises Refused."""
    out = _fresh(k, local)
    if offer(Step(op, args, kwargs, out)).raises or out[0] not in k.shadow.env:
        raise Refused
    return out[0]


Rest = Callable[[DrawContext, torch.Tensor], tuple[list[Json], dict[str, Json]]]
"""Rule for the arguments after the first tensor."""


def _none(k: DrawContext, t: torch.Tensor) -> tuple[list[Json], dict[str, Json]]:
    return [], {}


def _dim(k: DrawContext, t: torch.Tensor) -> tuple[list[Json], dict[str, Json]]:
    return [k.dim(t)], {}


def _dim_to(k: DrawContext, t: torch.Tensor) -> tuple[list[Json], dict[str, Json]]:
    """Draw a dimension and the dtype of the result."""
    return [k.dim(t)], {"dtype": {"dtype": _dtype(k, (*FLOATS, "int64", "int32"), k.dtypes)}} if k.chance(2, 3) else {}


def _args(*args: Json) -> Rest:
    return lambda k, t: ([*args], {})


# Constants: a factory, pointwise operators, and mostly a reduction or scan.

POINTWISE: dict[str, Rest] = {
    **dict.fromkeys(("log2", "acosh", "log", "exp", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "square"), _none),
    **dict.fromkeys(("tanh", "sigmoid", "relu", "expm1", "log1p", "atan", "erf", "sign", "floor", "round"), _none),
    **dict.fromkeys(("logical_not", "isnan", "isinf", "nn.functional.gelu", "nn.functional.softplus"), _none),
    "add": lambda k, t: ([k.choice((1, 0.5, -1, number(math.inf)))], {}),
    "mul": lambda k, t: ([k.choice((0, 2, -1, 0.5, number(math.nan)))], {}),
    "div": lambda k, t: ([k.choice((2, 0.5, 3.0))], {}),
    "pow": lambda k, t: ([k.choice((2, 0.5, 0, 3))], {}),
    "clamp": lambda k, t: ([k.choice((0, -1)), k.choice((0.5, 2, number(math.inf)))], {}),
    "eq": lambda k, t: ([k.choice((0, 1))], {}),
    "gt": lambda k, t: ([k.choice((0, 0.5))], {}),
}
PARTIAL = ("log2", "acosh", "log", "sqrt", "rsqrt", "log1p")
"""Operators that are nan outside of a part of the numbers."""

MAKERS = [op for op in factories.ROWS if op.name.endswith(".new")]

TO_DTYPES = ("cumsum", "cumprod", "sum", "prod")
LAST: dict[str, Rest] = {
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp", "argmax", "amax", "any", "all", "cummax"), _dim),
    **dict.fromkeys(TO_DTYPES, _dim_to),
    **dict.fromkeys(("mean", "var", "norm"), _none),
    "flip": lambda k, t: ([[k.dim(t)]], {}),
    "repeat_interleave": _args(2),
    "tril": _none,
}
ORDERED = ("softmax", "log_softmax", "logsumexp")
"""Operators of `LAST` that search the largest element. A compiler that computes with constants must not order nan."""

PAIRS = frozenset({"cummax"})
"""Operators of `LAST` with two results."""


def _constants(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((3, 4, 2))):
        step, out = k.choice(MAKERS).draw(k), _fresh(k, local=True)
        if step is None or offer(replace(step, out=out)).raises:
            raise Refused
        name, count = out[0], k.integer(0, 3)
        ends = count == 0 or k.chance(3, 4)
        for at in range(count):
            op = k.choice(PARTIAL) if k.chance(1, 2) else k.choice(tuple(POINTWISE))
            args, kwargs = POINTWISE[op](k, k[name])
            local = at < count - 1 or (ends and k.chance(2, 3))
            name = _result(k, offer, f"{CONSTANTS}:{op}", tensor(name), *args, local=local, **kwargs)
        if ends:
            op = k.choice(TO_DTYPES) if k.chance(1, 3) else k.choice(tuple(LAST))
            if k[name].isnan().any() and k.chance(1, 2):
                op = k.choice(ORDERED)
            args, kwargs = LAST[op](k, k[name])
            form, results = (".many", k.shadow.fresh(2)) if op in PAIRS else ("", _fresh(k))
            offer(Step(f"{CONSTANTS}{form}:{op}", (tensor(name), *args), kwargs, results))
    return []


# Scalars: Python numbers at the ends of a dtype, beyond, and between its numbers.

BETWEEN = (0.1, 1 / 3, 2049.0, -0.7, 1e-3, 2.0**24 + 1)
"""Numbers that narrow dtypes round. The rounded number and the number differ where a kernel computes in a wider one."""


def _draw_rounded(d: Draw, known: Sequence[str]) -> list[Wanted]:
    """Draw an input that in a third of the cases holds the rounded numbers of `BETWEEN`."""
    (source,) = _special(d, known)
    if source.dtype not in FLOATS or not d.chance(1, 3):
        return [source]
    return [source._replace(values=[d.choice(BETWEEN) for _ in range(math.prod(source.size))])]


def _scalar(k: DrawContext, dtype: torch.dtype, divides: bool = False) -> Json:
    if dtype.is_floating_point:
        floats = torch.finfo(dtype)
        ends = (floats.max, floats.min, floats.tiny, 1e39, -1e39, 1e300, 65520.0, 3.4e38)
        return number(k.choice((*ends, *BETWEEN, math.nan, math.inf, -math.inf, -0.0, 2**31, 0, 1)))
    info = torch.iinfo(dtype)
    whole = (info.max, info.min, info.max + 1, info.min - 1, 2 * info.max + 2, 256, 300, -129, 2**31, 2**40, 2**63 - 1)
    if divides:  # the least integer by -1, and anything by 0, end the process
        return k.choice([n for n in whole if n > 1 and n % (2 * info.max + 2) not in (0, 2 * info.max + 1)])
    return number(k.choice((*whole, -(2**63), 1.5, -0.5, 1e10, math.nan, math.inf, 0, 1)))


SCALED: dict[str, Callable[[Json], tuple[list[Json], dict[str, Json]]]] = {
    **dict.fromkeys(("add", "sub", "mul", "rsub", "eq", "ne", "lt", "gt", "le", "ge"), lambda n: ([n], {})),
    **dict.fromkeys(("clamp_min", "clamp_max", "fmod", "remainder", "floor_divide", "div"), lambda n: ([n], {})),
    "clamp": lambda n: ([], {"max": n}),
    "clip": lambda n: ([n], {}),
    "nn.functional.threshold": lambda n: ([n, 0], {}),
    "nn.functional.hardtanh": lambda n: ([], {"max_val": n}),
    "nn.functional.pad": lambda n: ([[1, 1], "constant", n], {}),
    "nan_to_num": lambda n: ([], {"nan": n}),
    "full_like": lambda n: ([n], {}),
    "masked_fill": lambda n: ([tensor_of(True, torch.bool), n], {}),
    "xlogy": lambda n: ([n], {}),
    "copysign": lambda n: ([n], {}),
}
"""Arguments after the tensor for one Python number, by function."""

FILLED = ("add_", "mul_", "fill_", "clamp_max_", "sub_")
DIVIDING = ("fmod", "remainder", "floor_divide", "div")


def _scalars(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    name = names[0]
    for _ in range(k.choice((3, 4, 2))):
        if k.chance(1, 4):
            op = k.choice(FILLED)
            offer(Step(f"{SCALARS}.inplace:{op}", (tensor(name), _scalar(k, k[name].dtype))), aimed=True)
            continue
        op = k.choice(tuple(SCALED))
        args, kwargs = SCALED[op](_scalar(k, k[name].dtype, op in DIVIDING))
        offer(Step(f"{SCALARS}:{op}", (tensor(name), *args), kwargs, _fresh(k)), aimed=True)
    return []


# Arithmetic on infinities, nan and the ends of a dtype. C++ computes with wider integers than torch, and floors itself.

DIVISORS = (2, 3, 7, 10, -2, -3)
"""Integers to divide by. The least integer by -1, and anything by 0, end the process."""

DIVISIONS: dict[str, dict[str, Json]] = {
    "floor_divide": {},
    "remainder": {},
    "fmod": {},
    "div": {"rounding_mode": "floor"},
    "div.trunc": {"rounding_mode": "trunc"},
    "div.true": {},
}
"""Keyword arguments by operator and kind."""

COMPARISONS = ("gt", "lt", "ge", "le", "eq", "ne")
EXACT = (*COMPARISONS, "maximum", "minimum", "copysign", "heaviside", "fmax", "fmin")
"""Operators with two operands that round nothing."""

WRAPPING = ("add", "sub", "mul", "neg", "abs", "square", "bitwise_not", "bitwise_xor", "bitwise_left_shift")
"""Operators whose results on integers wrap."""

WITH_ONE = ("neg", "abs", "square", "bitwise_not", "floor", "ceil", "trunc", "sign", "isnan", "isfinite", "signbit")


def _extremes(d: Draw, known: Sequence[str]) -> list[Wanted]:
    """Draw two inputs. Half of them have few elements, which a compiler computes one by one and not as vectors."""
    dtype = _dtype(d, (*NUMBERS, "int32", "int64"), known)
    size = (d.choice((2, 1, 3)),) if d.chance(1, 2) else _plain_size(d)
    return [Wanted(dtype, size, {"special": d.integer(0, 99)}) for _ in range(2)]


def _divided(k: DrawContext, name: str, other: str) -> tuple[str, list[Json], dict[str, Json]]:
    """Draw a division: floats by the other tensor, integers by a number."""
    kind = k.choice(tuple(DIVISIONS))
    divisor = tensor(other) if k[name].is_floating_point() else k.choice(DIVISORS)
    if k[name].dtype == torch.uint8 and isinstance(divisor, int):
        divisor = abs(divisor)
    return kind.partition(".")[0], [tensor(name), divisor], DIVISIONS[kind]


def _compared(k: DrawContext, name: str, other: str) -> tuple[str, list[Json], dict[str, Json]]:
    op = k.choice((*EXACT, *WITH_ONE))
    operand = k.choice((tensor(other), 0, 1)) if op in COMPARISONS else tensor(other)
    return op, [tensor(name), *([] if op in WITH_ONE else [operand])], {}


def _short_expressions(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    """Draw short expressions. Those on integers wrap first. Those on floats round nothing before the last operator."""
    for _ in range(k.choice((3, 4, 2))):
        name, other = names if k.chance(1, 2) else names[::-1]
        whole = not k[name].is_floating_point()
        if whole and k.chance(1, 2):
            other = name  # a result that wraps is compared with its own operand
        for _ in range(k.choice((1, 2)) if whole else 0):
            op = k.choice(WRAPPING)
            operand: Json = k.choice((tensor(other), tensor(name), k.choice((1, 2, 3))))
            args = [] if op in WITH_ONE else [k.choice((1, 3))] if op.endswith("shift") else [operand]
            name = _result(k, offer, f"{EXTREMES}:{op}", tensor(name), *args, local=k.chance(3, 4))
        op, args, kwargs = (_divided if k.chance(1, 2) else _compared)(k, name, other)
        offer(Step(f"{EXTREMES}:{op}", tuple(args), kwargs, _fresh(k)))
    return []


# Magnitudes: functions of numbers of all magnitudes. A formula may overflow, cancel or leave its series before the
# function does. The elements of short inputs are computed one by one, those of longer ones as vectors.

OF_ONE = (
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sqrt", "rsqrt", "reciprocal", "square", "sigmoid", "logit", "erf"),
    *("erfc", "erfinv", "lgamma", "digamma", "sinc", "i0", "special.i0e", "special.i1", "special.i1e", "special.ndtr"),
    *("special.log_ndtr", "special.ndtri", "special.erfcx", "special.entr", "special.bessel_j0", "special.bessel_j1"),
    *("nn.functional.softplus", "nn.functional.logsigmoid", "nn.functional.gelu", "nn.functional.silu"),
    *("nn.functional.mish", "nn.functional.elu", "nn.functional.selu", "nn.functional.tanhshrink"),
)
OF_TWO = (
    *("hypot", "logaddexp", "logaddexp2", "atan2", "div", "pow", "fmod", "remainder", "xlogy", "special.xlog1py"),
    *("mul", "nextafter", "copysign", "float_power", "floor_divide"),
)


def _draw_magnitudes(d: Draw, known: Sequence[str]) -> list[Wanted]:
    """Draw two inputs of all magnitudes of a dtype."""
    dtype = _dtype(d, FLOATS, known)
    size = (d.choice((17, 3, 1, 33, 64)),)
    return [Wanted(dtype, size, [_draw_magnitude(d, dtype) for _ in range(size[0])]) for _ in range(2)]


def _draw_magnitude(d: Draw, dtype: str) -> float:
    """Draw a number: one of any exponent, one whose exponential is near the largest or least number, or a small one."""
    info = torch.finfo(getattr(torch, dtype))
    kind, sign = d.integer(0, 2), d.choice((1.0, -1.0))
    if kind == 0:
        return sign * d.integer(0, 40) / 8
    if kind == 1:
        end = d.choice((math.log(info.max), -math.log(info.smallest_normal)))
        return sign * (end + d.integer(-12, 12) / 8) * d.choice((1.0, 1.0, 0.5))
    least, largest = (round(math.log2(one)) for one in (info.smallest_normal * info.eps, info.max))
    return sign * (1 + d.integer(0, 15) / 16) * 2.0 ** d.integer(least, largest - 1)


def _of_all_magnitudes(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((3, 4, 2))):
        x, y = names if k.chance(1, 2) else names[::-1]
        if k.chance(1, 4):
            x = _result(k, offer, f"{MAGNITUDES}:{k.choice(('neg', 'abs'))}", tensor(x), local=True)
        two = k.chance(1, 4)
        op = k.choice(OF_TWO if two else OF_ONE)
        _result(k, offer, f"{MAGNITUDES}:{op}", tensor(x), *([tensor(y)] if two else []))
    return []


# Domains: values and parameters that an operator refuses, among accepted ones. Random operators have no other topic.

OUTSIDE_UNIT = (1.5, -0.5, 2.0, -1.0)
IN_DOMAIN: dict[str, Callable[[Json], tuple[list[Json], dict[str, Json]]]] = {
    **dict.fromkeys(("bernoulli", "poisson"), lambda n: ([], {})),
    "nn.functional.binary_cross_entropy": lambda n: ([tensor_of([0.5, 0.5])], {}),
    "multinomial": lambda n: ([1], {}),
    "normal": lambda n: ([tensor_of([n, 0.5])], {}),
    **dict.fromkeys(
        ("nn.functional.dropout", "nn.functional.alpha_dropout", "nn.functional.celu"), lambda n: ([n], {})
    ),
    "nn.functional.rrelu": lambda n: ([0.5, n, True], {}),
}
"""Arguments after the tensor for one number, by function. The tensor holds numbers inside and outside of the unit."""
IN_PLACE: dict[str, Callable[[Json], list[Json]]] = {
    **dict.fromkeys(("bernoulli_", "exponential_", "geometric_"), lambda n: [n]),
    **dict.fromkeys(("normal_", "cauchy_", "log_normal_"), lambda n: [0.0, n]),
}
"""Methods that fill a tensor with random numbers, with their parameters for one number."""


def _around_unit(d: Draw, known: Sequence[str]) -> list[Wanted]:
    return [Wanted(_dtype(d, ("float32", "float64"), known), (2,), [0.5, d.choice(OUTSIDE_UNIT)])]


def _refuses(call: str, t: torch.Tensor, args: Sequence[Json], kwargs: dict[str, Json]) -> bool:
    """Whether torch CPU refuses the call of a function, or of a method, on a copy of the tensor."""
    home: Any = torch.Tensor if call in IN_PLACE else torch
    function: Any = functools.reduce(getattr, call.split("."), home)
    with torch.random.fork_rng(devices=[]):
        try:
            function(t.detach().clone(), *decode([*args], {}, t.device), **kwargs)
        except (RuntimeError, ValueError):
            return True
    return False


def _domains(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    """Draw calls that torch CPU refuses. Those that it accepts may draw random numbers."""
    name, count = names[0], 0
    for _ in range(12):
        n, fills = k.choice((0.0, -0.5, 1.5, -1.0)), k.chance(1, 3)
        op = k.choice(tuple(IN_PLACE if fills else IN_DOMAIN))
        args, kwargs = (IN_PLACE[op](n), {}) if fills else IN_DOMAIN[op](n)
        if count < 3 and _refuses(op, k[name], args, kwargs):
            out = () if fills else _fresh(k)
            offer(Step(f"{DOMAINS}{'.inplace' * fills}:{op}", (tensor(name), *args), kwargs, out), aimed=True)
            count += 1
    if not count:
        raise Refused
    return []


# Conversions of floats outside of an integer's range. A kernel wraps: it converts to int32 first.

OUTSIDE = (300.0, -300.0, 128.0, -129.5, 255.9, 256.0, 40000.0, -40000.0, 70000.5, 1e6, -1e6, -1.5, 3.5)
SMALL_INTEGERS = ("int8", "uint8", "int16")


def _outside(d: Draw, known: Sequence[str]) -> list[Wanted]:
    if not {*SMALL_INTEGERS} & {*known}:
        raise Refused
    size = (d.choice((40, 3, 17, 64, 33)),)
    return [Wanted(_dtype(d, ("float32", "float64"), known), size, [d.choice(OUTSIDE) for _ in range(size[0])])]


def _conversions(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    name = names[0]
    if k.chance(1, 3):
        name = _result(k, offer, f"{CONVERSIONS}:{k.choice(('neg', 'abs'))}", tensor(name), local=True)
    to = {"dtype": _dtype(k, SMALL_INTEGERS, k.dtypes)}
    op = k.choice(("to", "to", "type"))
    converted = _result(k, offer, f"{CONVERSIONS}.method:{op}", tensor(name), to)
    if k.chance(1, 3):
        args: tuple[Json, ...] = ({"dtype": "int64"},)
        _result(k, offer, f"{CONVERSIONS}.method:to", tensor(converted), *args)
    return []


# Indices: negative ones, and ones out of range. torch CPU accepts some and refuses others.


def _indexed_inputs(d: Draw, known: Sequence[str]) -> list[Wanted]:
    return [Wanted(_dtype(d, ("float32", "int64"), known), (d.choice((3, 4, 5)), d.choice((2, 3))))]


def _indices(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    """Draw calls with an index that is negative or out of range."""
    name = names[0]
    t = k[name]
    n, columns = t.size(0), t.size(1)
    at = [*k.indices(n, 1), k.choice((-1, -n, -n - 1, n, n + 7))]
    flat = tensor_of(at)
    grid = tensor_of([[index] * columns for index in at])
    rows = k.constant((2, columns), t.dtype)
    calls: dict[str, tuple[Json, ...]] = {
        "index_add": (0, flat, rows),
        "index_copy": (0, flat, rows),
        "index_fill": (0, flat, 1),
        "index_select": (0, flat),
        "index_reduce": (0, flat, rows, "amax"),
        "gather": (0, grid),
        "scatter": (0, grid, rows),
        "scatter_add": (0, grid, rows),
        "scatter_reduce": (0, grid, rows, "sum"),
        "take": (flat,),
        "take_along_dim": (grid, 0),
        "index_put": ({"tuple": [flat]}, rows),
        "select": (0, at[1]),
        "narrow": (0, at[1], 1),
        "unflatten": (0, [at[1], 1]),
        "roll": (at[1], 0),
        "diagonal": (at[1],),
        "tril": (at[1],),
    }
    for op in {k.choice(tuple(calls)): None for _ in range(2)}:
        offer(Step(f"{INDICES}:{op}", (tensor(name), *calls[op]), {}, _fresh(k)), aimed=True)
    return []


# Rearranged products: a sum of products, then operators that move elements.

MOVES: dict[str, Rest] = {
    "t": _none,
    "flatten": _none,
    "ravel": _none,
    "repeat_interleave": lambda k, t: ([2], {} if k.chance(1, 2) else {"dim": k.dim(t)}),
    "flip": lambda k, t: ([[k.dim(t)]], {}),
    "roll": lambda k, t: ([1, k.dim(t)], {}),
    "cumsum": _dim,
    "sum": _dim,
    "unsqueeze": lambda k, t: ([k.integer(0, t.dim())], {}),
    "reshape": lambda k, t: ([[-1]] if k.chance(1, 2) else [[*reversed(t.size())]], {}),
    "permute": lambda k, t: ([k.permutation(t.dim())], {}),
    "nn.functional.pad": lambda k, t: ([[1, 1]], {}),
    "narrow": lambda k, t: ([0, t.size(0) // 2, t.size(0) - t.size(0) // 2], {}),
    "tile": _args([2]),
    "diagonal": _none,
    "tril": _none,
    "amax": _dim,
    "index_select": lambda k, t: ([0, tensor_of(k.indices(t.size(0), 3))], {}),
    "contiguous": _none,
}
INDEXED = ("repeat_interleave", "flip", "roll", "index_select", "tile", "nn.functional.pad", "narrow")
"""Operators of `MOVES` that read elements at other places than views do."""

METHODS = frozenset({"contiguous"})
"""Operators of `MOVES` that only tensors have."""


def _factors(d: Draw, known: Sequence[str]) -> list[Wanted]:
    dtype, rows, inner = _dtype(d, ("float32", "float64", "int64"), known), d.choice((4, 8, 3)), d.choice((6, 2, 5))
    columns = rows if d.chance(1, 2) else d.choice((2, 7))
    seeds = [{"seed": d.integer(0, 99)} for _ in range(3)]
    return [Wanted(dtype, (rows, inner), seeds[0]), *(Wanted(dtype, (inner, columns), seed) for seed in seeds[1:])]


def _rearranged(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    x, *others = names
    products = [_result(k, offer, f"{REARRANGED}:mm", tensor(x), tensor(other), local=True) for other in others]
    name = _result(k, offer, f"{REARRANGED}:add", *map(tensor, products), local=True)
    if k.chance(2, 3):
        name = _result(k, offer, f"{REARRANGED}:t", tensor(name), local=True)
        name = _result(k, offer, f"{REARRANGED}:flatten", tensor(name), local=True)
    summed = name
    for _ in range(k.choice((2, 1))):
        name, count = summed, k.integer(2, 4)
        for at in range(count):
            if k[name].dim():
                op = k.choice(INDEXED) if k.chance(2, 3) else k.choice(tuple(MOVES))
                args, kwargs = MOVES[op](k, k[name])
                form = f"{REARRANGED}.method" if op in METHODS else REARRANGED
                name = _result(k, offer, f"{form}:{op}", tensor(name), *args, local=at < count - 1, **kwargs)
    return []


# Rewritten: a tensor is written with a rearrangement of itself, twice.

SELVES: dict[str, Rest] = {
    "flip": lambda k, t: ([[k.dim(t)]], {}),
    "roll": lambda k, t: ([1, k.dim(t)], {}),
    "add": _args(1),
    "mul": _args(2),
    "neg": _none,
    "cumsum": _dim,
    "rot90": lambda k, t: ([2], {}),
    "index_select": lambda k, t: ([0, tensor_of(k.permutation(t.size(0)))], {}),
    "maximum": lambda k, t: ([k.constant(t.size()[-1:], t.dtype)], {}),
}
SELF_WRITES: dict[str, Callable[[DrawContext, torch.Tensor, Json], list[Json]]] = {
    "index_put_": lambda k, t, value: [{"tuple": [tensor_of(k.permutation(t.size(0)))]}, value],
    "index_copy_": lambda k, t, value: [0, tensor_of(k.permutation(t.size(0))), value],
    "index_add_": lambda k, t, value: [0, tensor_of(k.permutation(t.size(0))), value],
    **dict.fromkeys(("add_", "copy_", "mul_", "sub_"), lambda k, t, value: [value]),
}


def _self_inputs(d: Draw, known: Sequence[str]) -> list[Wanted]:
    size = (d.choice((3, 2, 4)), d.choice((5, 3, 16, 2, 33)))
    return [
        Wanted(_dtype(d, ("float32", "int64", "float64", "int32", "float16"), known), size, {"seed": d.integer(0, 99)})
    ]


def _rewritten(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    (name,) = names
    if k.chance(1, 4):  # an intermediate result is written in place of an input
        name = _result(k, offer, f"{REWRITTEN}:add", tensor(name), 1)
    for _ in range(k.choice((2, 2, 3))):
        op, written = k.choice(tuple(SELVES)), k.choice(tuple(SELF_WRITES))
        args, kwargs = SELVES[op](k, k[name])
        value = _result(k, offer, f"{REWRITTEN}:{op}", tensor(name), *args, local=True, **kwargs)
        offer(Step(f"{REWRITTEN}.inplace:{written}", (tensor(name), *SELF_WRITES[written](k, k[name], tensor(value)))))
    return []


# Unchanged: operations that change nothing, whose result the caller writes.


def _as(value: float) -> Rest:
    return lambda k, t: ([tensor_of(value if t.is_floating_point() else int(value), t.dtype)], {})


NOTHING: dict[str, Rest] = {
    "mul": lambda k, t: k.choice((_as(1.0), _args(1)))(k, t),
    "add": lambda k, t: k.choice((_as(0.0), _args(0)))(k, t),
    "sub": lambda k, t: k.choice((_as(0.0), _args(0)))(k, t),
    "div": _args(1),
    "pow": _args(1),
    "reshape": lambda k, t: ([[*t.size()]], {}),
    "cat": lambda k, t: ([], {}),
    "tile": lambda k, t: ([[1] * t.dim()], {}),
    "roll": lambda k, t: ([0, 0], {}),
    "flip": _args([]),
    "clamp": lambda k, t: (
        [],
        {"min": number(-math.inf)} if t.is_floating_point() else {"min": torch.iinfo(t.dtype).min},
    ),
    "where": lambda k, t: ([], {}),
    "masked_fill": lambda k, t: ([tensor_of(False, torch.bool), 0], {}),
    "lerp": lambda k, t: ([k.constant(t.size(), t.dtype), 0.0], {}),
    "nn.functional.pad": _args([0, 0]),
    "nn.functional.dropout": lambda k, t: ([0.0], {"training": True}),
    "index_select": lambda k, t: ([0, tensor_of([*range(t.size(0))])], {}),
    "narrow": lambda k, t: ([0, 0, t.size(0)], {}),
    "permute": lambda k, t: ([[*range(t.dim())]], {}),
    "expand_copy": lambda k, t: ([[*t.size()]], {}),
    "view_copy": lambda k, t: ([[*t.size()]], {}),
    "squeeze_copy": _none,
    "repeat_interleave": _args(1, 0),
    "diff": _args(0),
    "to": lambda k, t: ([{"dtype": str(t.dtype).removeprefix("torch.")}], {}),
    "type_as": lambda k, t: ([k.constant((1,), t.dtype)], {}),
    "contiguous": _none,
    "clone": _none,
}
NOTHING_METHODS = frozenset({"to", "type_as", "contiguous"})
RESIZED: dict[str, Rest] = {
    "nn.functional.interpolate": lambda k, t: (
        [[*t.size()[2:]]],
        k.choice(({}, {"mode": "linear"}, {"mode": "linear", "align_corners": True}, {"mode": "area"})),
    ),
    "nn.functional.adaptive_avg_pool1d": lambda k, t: ([t.size(2)], {}),
    "nn.functional.adaptive_max_pool1d": lambda k, t: ([t.size(2)], {}),
    **dict.fromkeys(("nn.functional.avg_pool1d", "nn.functional.max_pool1d"), _args(1)),
}
"""Operators of batches with channels that change nothing if the size stays."""


def _unchanged(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    start = name = names[0]
    if k.chance(1, 3):
        start = name = _result(k, offer, f"{UNCHANGED}:add", tensor(name), 1)
    for _ in range(k.choice((1, 1, 2))):
        if k[name].is_floating_point() and k.chance(1, 8):
            while k[name].dim() < 3:
                name = _result(k, offer, f"{UNCHANGED}:unsqueeze", tensor(name), 0, local=k.chance(1, 2))
            op = k.choice(tuple(RESIZED))
            args, kwargs = RESIZED[op](k, k[name])
            name = _result(k, offer, f"{UNCHANGED}:{op}", tensor(name), *args, **kwargs)
            continue
        op = k.choice(tuple(NOTHING))
        args, kwargs = NOTHING[op](k, k[name])
        operands: list[Json] = [tensor(name), *args]
        if op == "cat":
            operands = [[tensor(name)]]
        elif op == "where":
            operands = [tensor_of(True, torch.bool), tensor(name), k.constant(k[name].size(), k[name].dtype)]
        form = f"{UNCHANGED}.method" if op in NOTHING_METHODS else UNCHANGED
        name = _result(k, offer, f"{form}:{op}", *operands, **kwargs)
    written = k.choice((name, name, start))
    return [Step(k.choice(("add_", "mul_", "fill_")), (tensor(written), 2), after=True)]


# Overlaps: a tensor is written with a part of itself that lies elsewhere, which torch refuses.

OVERLAPPING: dict[str, Callable[[Json, Json], tuple[list[Json], dict[str, Json]]]] = {
    **dict.fromkeys(("copy_", "add_", "mul_", "sub_", "gt_"), lambda to, read: ([to, read], {})),
    "lerp_": lambda to, read: ([to, read, 0.5], {}),
    "addcmul_": lambda to, read: ([to, to, read], {}),
    **dict.fromkeys(("index_add_", "index_copy_"), lambda to, read: ([to, 0, tensor_of([0]), read], {})),
    **dict.fromkeys(("add", "maximum", "sub"), lambda to, read: ([read, read], {"out": to})),
}
"""Arguments of a write whose operand lies in the written memory, at other places."""


def _blocks(d: Draw, known: Sequence[str]) -> list[Wanted]:
    n = d.choice((2, 3, 5))
    return [Wanted(_dtype(d, NUMBERS, known), (d.choice((2, 3)), n, n))]


def _overlaps(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    (name,) = names
    if not k[name].is_contiguous():  # torch accepts overlapping memory with gaps, and the answer is undefined
        name = _result(k, offer, f"{OVERLAPS}.method:contiguous", tensor(name), local=True)
    blocks, (count, n, _) = tensor(name), k[name].size()
    for _ in range(k.choice((1, 2))):
        at = k.integer(0, count - 1)
        block = tensor(_result(k, offer, "select", blocks, 0, at, local=True))
        index: Json = {"tuple": [at]}
        if k.chance(1, 2):
            written, read = block, _result(k, offer, "t", block, local=True)
        else:
            low, high = (_result(k, offer, "narrow", block, 0, first, n - 1, local=True) for first in (0, 1))
            ends = [(high, low, [1, None, None]), (low, high, [None, n - 1, None])]
            to, read, rows = k.choice(ends)
            written, index = tensor(to), {"tuple": [at, {"slice": rows}]}
        known = [op for op in OVERLAPPING if op != "lerp_" or k[name].is_floating_point()]
        op = k.choice(("setitem", "setitem", "setitem", *known))
        if op == "setitem":
            offer(Step(op, (blocks, index, tensor(read))), aimed=True)
            continue
        if op.startswith("index_"):
            read = _result(k, offer, "narrow", tensor(read), 0, 0, 1, local=True)
        args, kwargs = OVERLAPPING[op](written, tensor(read))
        offer(Step(f"{OVERLAPS}.{'out' if kwargs else 'inplace'}:{op}", tuple(args), kwargs), aimed=True)
    return []


# Positions: where the elements of a rearranged tensor are. A compiler that fuses the two may count in the wrong order.

REORDERED: dict[str, Rest] = {
    "t": _none,
    "flip": lambda k, t: ([[k.dim(t)]], {}),
    "roll": lambda k, t: ([1, k.dim(t)], {}),
    "permute": lambda k, t: ([k.permutation(t.dim())], {}),
    "reshape": lambda k, t: ([[-1]] if k.chance(1, 2) else [[*reversed(t.size())]], {}),
    "narrow": lambda k, t: ([0, t.size(0) // 2, t.size(0) - t.size(0) // 2], {}),
    "index_select": lambda k, t: ([0, tensor_of(k.permutation(t.size(0)))], {}),
    "rot90": _none,
    "unsqueeze": lambda k, t: ([k.integer(0, t.dim())], {}),
    "neg": _none,
}
POSITIONED: dict[str, tuple[str, Rest]] = {
    **dict.fromkeys(("argmax", "argmin"), ("", lambda k, t: ([k.dim(t)] if k.chance(2, 3) else [], {}))),
    "argsort": ("", _dim),
    **dict.fromkeys(("max", "min", "sort", "cummax", "cummin", "median"), (".many", _dim)),
    "topk": (".many", lambda k, t: ([1, k.dim(t)], {"largest": k.chance(1, 2)})),
    "kthvalue": (".many", lambda k, t: ([1, k.dim(t)], {})),
}
"""The form and the arguments after the tensor, by operator. Each returns positions."""


def _distinct(d: Draw, known: Sequence[str]) -> list[Wanted]:
    """Draw an input whose elements are distinct, so that every position is defined."""
    size = (d.choice((3, 2, 4)), d.choice((4, 3, 8, 17)))
    dtype = _dtype(d, ("float32", "int64", "float64", "int32", "float16"), known)
    return [Wanted(dtype, size, d.permutation(size[0] * size[1]))]


def _positions(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((2, 1, 3))):
        (name,) = names
        for _ in range(k.choice((1, 1, 2))):
            op = k.choice(tuple(REORDERED))
            if (op == "rot90" and k[name].dim() != 2) or (op == "t" and k[name].dim() > 2):
                op = "flip"
            args, kwargs = REORDERED[op](k, k[name])
            name = _result(k, offer, f"{POSITIONS}:{op}", tensor(name), *args, local=k.chance(2, 3), **kwargs)
        op = k.choice(tuple(POSITIONED))
        form, rest = POSITIONED[op]
        args, kwargs = rest(k, k[name])
        out = tuple(k.shadow.fresh(2)) if form else _fresh(k)
        offer(Step(f"{POSITIONS}{form}:{op}", (tensor(name), *args), kwargs, out))
    return []


# Restrided: `as_strided` of an intermediate result, whose memory a compiler may never make.

INTERMEDIATE: dict[str, Rest] = {
    "add": _args(1),
    "mul": _args(2),
    "neg": _none,
    "t": _none,
    "flip": lambda k, t: ([[k.dim(t)]], {}),
    "cumsum": _dim,
    "tile": _args([2]),
    "nn.functional.pad": lambda k, t: ([[1, 1]], {}),
}
READS_STRIDED: dict[str, Rest] = {"add": _args(1), "sum": _none, "neg": _none, "flip": MOVES["flip"], "clone": _none}


def _strided(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a size, strides and an offset within the elements of a dense tensor."""
    count, offset = t.numel(), k.choice((0, 1, 2))
    if count < 4:
        return [[count], [1], 0]
    step = k.choice((1, 2, max((count - offset) // 2, 1)))
    rows = max(min((count - offset - 1) // step + 1, 3), 1)
    columns = max(min(count - offset - (rows - 1) * step, k.choice((2, 3))), 1)
    geometry = [(rows, step), (columns, 1)] if k.chance(1, 2) else [(columns, 1), (rows, step)]
    return [[size for size, _ in geometry], [stride for _, stride in geometry], offset]


def _restrided(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((2, 1))):
        name, op = _result(k, offer, f"{RESTRIDED}:add", tensor(names[0]), 1, local=k.chance(1, 2)), "add"
        if k.chance(2, 3):
            op = k.choice(tuple(INTERMEDIATE))
            args, kwargs = INTERMEDIATE[op](k, k[name])
            name = _result(k, offer, f"{RESTRIDED}:{op}", tensor(name), *args, local=k.chance(1, 2), **kwargs)
        view = _result(k, offer, "as_strided", tensor(name), *_strided(k, k[name]), local=k.chance(1, 2))
        if op != "t" and k.chance(1, 3):  # torch.compile refuses a write to `as_strided` of a view
            offer(Step(f"{RESTRIDED}.inplace:{k.choice(('mul_', 'add_', 'fill_'))}", (tensor(view), 3)))
            _result(k, offer, f"{RESTRIDED}:clone", tensor(name))
        op = k.choice(tuple(READS_STRIDED))
        args, kwargs = READS_STRIDED[op](k, k[view])
        _result(k, offer, f"{RESTRIDED}:{op}", tensor(view), *args, **kwargs)
    return []


# Signed zeros: a compiler that folds `x * 0` or `x + 0` loses the sign of a zero, which a later operator shows.

KEEPS_ZEROS: dict[str, Rest] = {
    "mul": lambda k, t: ([k.choice((0, -1, number(-0.0), 2, 0.0))], {}),
    "add": lambda k, t: ([k.choice((0, number(-0.0), 0.0))], {}),
    "sub": lambda k, t: ([k.choice((0, number(-0.0), 0.0))], {}),
    "div": lambda k, t: ([k.choice((-1, 2, number(-math.inf)))], {}),
    "fmod": _args(1),
    **dict.fromkeys(("neg", "abs", "floor", "ceil", "trunc", "round"), _none),
}
SHOWS_SIGN: dict[str, Rest] = {
    "signbit": _none,
    "reciprocal": _none,
    "copysign": lambda k, t: ([], {}),
    "atan2": lambda k, t: ([], {}),
}
"""Operators that show the sign of a zero. Two of them have the tensor as an operand of a constant."""


def _zeros(d: Draw, known: Sequence[str]) -> list[Wanted]:
    count = d.choice((6, 3, 17, 2, 33))
    values = [number(d.choice((0.0, -0.0, 1.0, -1.0, -0.5, 0.5, -0.0, 2.0))) for _ in range(count)]
    return [Wanted(_dtype(d, ("float32", "float64", "float16", "bfloat16"), known), (count,), values)]


def _signed_zeros(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((2, 3, 1))):
        name = names[0]
        for _ in range(k.choice((1, 2, 3))):
            op = k.choice(tuple(KEEPS_ZEROS))
            args, kwargs = KEEPS_ZEROS[op](k, k[name])
            name = _result(k, offer, f"{ZEROS}:{op}", tensor(name), *args, local=True, **kwargs)
        op, dtype = k.choice(tuple(SHOWS_SIGN)), k[name].dtype
        one, before = k.constant(k[name].size(), dtype), [tensor(name)]
        operands = (
            [one, *before] if op == "copysign" else [*before, tensor_of(-1.0, dtype)] if op == "atan2" else before
        )
        _result(k, offer, f"{ZEROS}:{op}", *operands)
    return []


# Regions: functions that are compiled once, and called under two guards.

KINDS_OF_REGIONS = ("nested", "nested twice", "cond", "nested without grad")
KINDS_OF_LOOPS = ("while", "while twice", "while beside", "scan", "scan backwards", "map")
REGION_CALLS = ("add", "mul", "neg", "flip", "sum", "double")
LOOP_CALLS = ("add", "mul", "neg", "flip")
"""Calls of a region that repeats: sums would leave the numbers that are exact."""


def _regions(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((1, 2))):
        loops = k.chance(2, 5)
        kind, more = (KINDS_OF_LOOPS, LOOP_CALLS) if loops else (KINDS_OF_REGIONS, REGION_CALLS)
        calls = [k.choice(("add", "mul", "neg")), *(k.choice(more) for _ in range(k.choice((0, 1, 2))))]
        offer(Step("region", (tensor(names[0]), k.choice(kind), calls), {}, _fresh(k)))
    return []


# Gradients of `autograd.Function`: the caller derives the result, so a compiler must keep the function's own backward.

KINDS_OF_GRADIENTS = tuple(snippets.GRADIENT_FUNCTIONS)


def _leaf(d: Draw, known: Sequence[str]) -> list[Wanted]:
    size = (d.choice((2, 3)), d.choice((3, 4, 2)))
    values = d.permutation(size[0] * size[1])
    return [Wanted(_dtype(d, ("float32", "float64", "float32", "bfloat16"), known), size, values, True)]


def _own_gradients(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    if any(step.op == "backward" for step in k.shadow.steps):  # a compiler has no second backward of one function
        raise Refused
    sums = ""
    for _ in range(k.choice((2, 1, 3))):
        made = _result(k, offer, "own_gradient", tensor(names[0]), k.choice(KINDS_OF_GRADIENTS), local=k.chance(1, 2))
        sums = _result(k, offer, f"{GRADIENTS}:add", tensor(sums), tensor(made), local=True) if sums else made
    result = _result(k, offer, f"{GRADIENTS}:mul", tensor(sums), 2)
    return [Step("backward", (tensor(result), k.constant(k[result].size(), k[result].dtype)), after=True)]


# Quantized: a tensor whose memory has another order than its elements is rounded to integers. Scales are powers of two,
# so the quotients are exact.

SCALES, ZEROS_OF_SCALES = (0.5, 1.0, 0.25, 2.0), (0, 3, 1, 7)
PERMUTED: dict[str, Rest] = {
    "permute": lambda k, t: ([k.permutation(t.dim())], {}),
    "transpose": lambda k, t: ([0, -1], {}),
    "flip": lambda k, t: ([[k.dim(t)]], {}),
    "narrow": lambda k, t: ([0, t.size(0) // 2, t.size(0) - t.size(0) // 2], {}),
    "unsqueeze": lambda k, t: ([0], {}),
    "mul": _args(2),
}
QUANTIZING = ("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine")
QUANTIZED_DTYPES = ("quint8", "qint8", "qint32")
QUANTIZED_CALLS = ("quantized_integers", "quantized_channels", "requantized")
"""Calls that make a quantized tensor, which few devices have: only compilers get them."""


def _halves(d: Draw, known: Sequence[str]) -> list[Wanted]:
    size = (d.choice((2, 3, 1)), d.choice((3, 2, 4)), d.choice((4, 3, 17, 2)))[: d.choice((3, 2, 3))]
    values = [number(part / 2) for part in d.permutation(math.prod(size))]
    return [Wanted(_dtype(d, ("float32", "float64", "float32", "float16"), known), size, values)]


def _quantized(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((2, 1, 3))):
        (name,) = names
        for _ in range(k.choice((1, 2))):
            op = k.choice(("permute", "transpose", *PERMUTED))
            args, kwargs = PERMUTED[op](k, k[name])
            name = _result(k, offer, f"{QUANTIZED}:{op}", tensor(name), *args, local=k.chance(2, 3), **kwargs)
        axis = k.dim(k[name])
        count = k[name].size(axis)
        scales = [k.choice(SCALES) for _ in range(count)]
        zeros = [k.choice(ZEROS_OF_SCALES) for _ in range(count)]
        bounds = k.choice(((0, 255), (-128, 127), (0, 15)))
        if k.compiled and k[name].dtype is torch.float32 and k.chance(1, 2):
            op, dtype = k.choice(QUANTIZED_CALLS), {"dtype": k.choice(QUANTIZED_DTYPES)}
            by_channel = op == "quantized_channels"
            rest: list[Json] = [scales, zeros, axis % k[name].dim()] if by_channel else [scales[0], zeros[0]]
            _result(k, offer, op, tensor(name), *rest, dtype)
            continue
        op = k.choice(QUANTIZING)
        rest = [scales[0], zeros[0]]
        if op == QUANTIZING[1]:
            rest = [tensor_of(scales, torch.float32), tensor_of(zeros, torch.int32), axis % k[name].dim()]
            bounds = (0, 255) if bounds[0] < 0 else bounds
        _result(k, offer, f"{QUANTIZED}:{op}", tensor(name), *rest, *bounds)
    return []


# Equal outs: `out=` is an operand of the call, which the operators of in-place methods allow and others refuse.


def _order(k: DrawContext, t: torch.Tensor) -> Json:
    return tensor_of(k.permutation(t.size(0)))


def _places(k: DrawContext, n: int) -> Json:
    return tensor_of([k.permutation(n) for _ in range(n)])


OUT_OF_ITSELF: dict[str, Callable[[DrawContext, torch.Tensor, Json], list[Json]]] = {
    **dict.fromkeys(("neg", "square", "abs", "sign"), lambda k, t, own: [own]),
    **dict.fromkeys(("add", "mul", "sub", "maximum"), lambda k, t, own: [own, own]),
    **dict.fromkeys(("cumsum", "cumprod"), lambda k, t, own: [own, k.dim(t)]),
    **dict.fromkeys(("tril", "triu"), lambda k, t, own: [own, k.integer(-1, 1)]),
    "addmm": lambda k, t, own: [own, k.constant(t.size(), t.dtype), k.constant(t.size(), t.dtype)],
    "addcmul": lambda k, t, own: [own, own, k.constant(t.size(), t.dtype)],
    "clamp": lambda k, t, own: [own, 1, 4],
    **dict.fromkeys(
        ("index_add", "index_copy"), lambda k, t, own: [own, 0, _order(k, t), k.constant(t.size(), t.dtype)]
    ),
    **dict.fromkeys(
        ("scatter", "scatter_add"), lambda k, t, own: [own, 0, _places(k, t.size(0)), k.constant(t.size(), t.dtype)]
    ),
    "where": lambda k, t, own: [k.mask(t.size()), own, k.constant(t.size(), t.dtype)],
    # What torch refuses.
    "gather": lambda k, t, own: [own, 0, _places(k, t.size(0))],
    "index_select": lambda k, t, own: [own, 0, _order(k, t)],
    "take_along_dim": lambda k, t, own: [own, _places(k, t.size(0)), 0],
    **dict.fromkeys(("cat", "stack"), lambda k, t, own: [[own, own] if k.chance(1, 2) else [own]]),
}
"""Arguments of a call whose `out=` is the square matrix `own`."""
WITH_POSITIONS: dict[str, Callable[[DrawContext, torch.Tensor], list[Json]]] = {
    **dict.fromkeys(("sort", "cummax", "cummin"), lambda k, t: [k.dim(t)]),
    "topk": lambda k, t: [t.size(0), k.dim(t)],
}
"""Arguments after the tensor of a call that returns values and positions, by operator."""


def _square(d: Draw, known: Sequence[str]) -> list[Wanted]:
    """Draw a square matrix of distinct elements, and one for positions."""
    n = d.choice((3, 2, 4))
    dtype = _dtype(d, ("float32", "int64", "float64", "int32"), known)
    return [Wanted(dtype, (n, n), d.permutation(n * n)), Wanted(_dtype(d, ("int64",), known), (n, n))]


def _equal_outs(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((3, 2, 4))):
        name, positions = names
        if k.chance(1, 2):
            name = _result(k, offer, f"{EQUAL_OUTS}:{k.choice(('add', 'mul'))}", tensor(name), 1, local=k.chance(1, 2))
        if k.chance(1, 3):
            name = _result(k, offer, "t", tensor(name), local=k.chance(1, 2))
        own = tensor(name)
        if k.chance(1, 4):
            op, outs = k.choice(tuple(WITH_POSITIONS)), {"tuple": [own, tensor(positions)]}
            offer(Step(f"{EQUAL_OUTS}.out:{op}", (own, *WITH_POSITIONS[op](k, k[name])), {"out": outs}), aimed=True)
            continue
        op = k.choice(tuple(OUT_OF_ITSELF))
        offer(Step(f"{EQUAL_OUTS}.out:{op}", tuple(OUT_OF_ITSELF[op](k, k[name], own)), {"out": own}), aimed=True)
    return []


# Misfits: cells and layers of recurrent networks with an operand whose size does not fit, which torch refuses.

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}
"""Gates of a cell by its name. The weights have as many rows for each hidden number."""
MISFIT = ("hidden", "batch", "one batch", "gates", "features", "bias", "state", "weights")
CHECKED = ("hidden", "batch", "one batch", "gates", "features", "weights", "state")
"""What does not fit: all, and what a cell checks on every device. Many devices lack the kernel behind the check."""


def _ends_the_process(cell: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether torch CPU (2.13) reads beyond the operands of a layer, which it does not check as a cell's."""
    if cell not in GATES or len(args) < 3 or not all(isinstance(one, torch.Tensor) for one in args[2]):
        return False
    if cell == "lstm" and args[0].dtype is not torch.float64:
        return True  # oneDNN checks no sizes
    rows = {len(one) for one in args[2] if one.dim()}
    return any(len(torch.empty(count).chunk(GATES[cell])) < GATES[cell] for count in rows)


def _recurrent(d: Draw, known: Sequence[str]) -> list[Wanted]:
    """Draw the input of a cell. The other operands are constants, since their sizes depend on what does not fit."""
    return [Wanted(_dtype(d, ("float32", "float64"), known), (d.choice((2, 3)), d.choice((3, 2))))]


def _misfits(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    (name,) = names
    batch, features = k[name].size()
    dtype = k[name].dtype

    def part(*size: int) -> Json:
        count = math.prod(size)
        return tensor_of(torch.arange(count).remainder(7).sub(3).div(8).reshape(size).tolist(), dtype)

    for _ in range(k.choice((2, 1, 3))):
        wrong, layer, hidden = k.choice(MISFIT if k.compiled else CHECKED), k.chance(1, 3), k.choice((4, 3, 1))
        cell = "lstm" if wrong == "state" else k.choice(tuple(GATES))
        layer &= k.compiled and (cell != "lstm" or dtype is torch.float64)
        gates, lead = GATES[cell] * hidden, (1,) if layer else ()
        rows = gates + (1 if wrong == "gates" else 0)
        state_size = (*lead, {"batch": batch + 1, "one batch": 1}.get(wrong, batch), hidden + (wrong == "hidden"))
        states = [part(*state_size)]
        if cell == "lstm":
            other = (*lead, batch, hidden + (wrong == "state"))
            states = [states[0], part(*other)]
        inner = features + (wrong == "features")
        weights = [part(rows, inner), part(rows - (wrong == "weights"), hidden)]
        biases = [part(rows + (wrong == "bias")), part(rows)]
        given: Json = {"tuple": states} if cell == "lstm" else states[0]
        if layer:
            rest = [given, [*weights, *biases], True, 1, 0.0, False, False, False]
            x = tensor(_result(k, offer, f"{MISFITS}:unsqueeze", tensor(name), 0, local=True))
            op, results = cell, 3 if cell == "lstm" else 2
        else:
            rest, x, op, results = [given, *weights, *biases], tensor(name), f"{cell}_cell", 2 if cell == "lstm" else 1
        form = f"{MISFITS}.many" if results > 1 else MISFITS
        offer(Step(f"{form}:{op}", (x, *rest), {}, tuple(k.shadow.fresh(results))), aimed=True)
    return []


# Derivatives inside the function.

TRANSFORMS = ("jacfwd", "jacrev", "grad", "vmap", "jvp", "vjp", "hessian", "vmap(grad)", "jacfwd", "jacrev")
REDUCED = ("prod", "sum", "mean", "amax")
CALLS = ("mm", "mul", "sin", "exp", "tanh", "cumsum", "softmax")


def _small(d: Draw, known: Sequence[str]) -> list[Wanted]:
    n = d.choice((3, 2))
    values = [(at + 1) / 10 for at in d.permutation(n * n)]
    dtype = _dtype(d, ("float32", "float16", "float64", "bfloat16", "float16"), known)
    return [Wanted(dtype, (n, n), values)]


def _derivatives(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((2, 1, 3))):
        calls = [k.choice(REDUCED) if k.chance(2, 3) else k.choice(CALLS)]
        calls += ["mm" if k.chance(1, 2) else k.choice(CALLS) for _ in range(k.choice((2, 1, 3)))]
        transform = k.choice(TRANSFORMS)
        if transform.startswith("vmap"):  # its function receives rows
            calls = [call for call in calls if call != "mm"] or ["sin"]
        offer(Step("derived", (tensor(names[0]), transform, calls), {}, _fresh(k)))
    return []


MODES = ("jvp", "grad", "jvp(jvp)", "jvp(grad)", "grad(grad)", "jvp(jvp)")
"""Derivatives along a line: each transform of `torch.func`, outermost first. The topic takes its calls from op_db.
`grad(jvp)` is not among them: under a dispatch mode it ends the process."""


# Python code: sizes, and side effects that the caller sees.

READS_SIZE = (
    *("Tensor", "FloatTensor", "LongTensor", "BoolTensor", "new", "numbers", "tensor", "stride", "full"),
    *("new_full", "arange", "rows", "half", "product", "pieces", "unpacked", "compared", "concatenated", "mean"),
)
RECORDS = tuple(snippets.RECORDERS[0])


def _matrix(d: Draw, known: Sequence[str]) -> list[Wanted]:
    return [Wanted(_dtype(d, ("float32",), known), (d.choice((2, 3, 4)), d.choice((3, 2, 5))))]


def _sizes(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((2, 1, 3))):
        offer(Step("sized", (tensor(names[0]), k.choice(READS_SIZE)), {}, _fresh(k)))
    return []


def _side_effects(k: DrawContext, names: list[str], offer: Offer) -> list[Step]:
    for _ in range(k.choice((1, 2, 3))):
        offer(Step("note", (tensor(names[0]), k.choice(RECORDS), k.integer(3, 99)), {}, _fresh(k)))
    return [Step("noted", after=True)]


TOPICS: dict[str, Topic] = {
    CONSTANTS: Topic(lambda d, known: [], _constants),
    SCALARS: Topic(_draw_rounded, _scalars),
    CONVERSIONS: Topic(_outside, _conversions),
    EXTREMES: Topic(_extremes, _short_expressions),
    MAGNITUDES: Topic(_draw_magnitudes, _of_all_magnitudes),
    INDICES: Topic(_indexed_inputs, _indices),
    REARRANGED: Topic(_factors, _rearranged),
    REWRITTEN: Topic(_self_inputs, _rewritten),
    UNCHANGED: Topic(_plain, _unchanged),
    OVERLAPS: Topic(_blocks, _overlaps),
    DOMAINS: Topic(_around_unit, _domains),
    POSITIONS: Topic(_distinct, _positions),
    RESTRIDED: Topic(_plain, _restrided),
    ZEROS: Topic(_zeros, _signed_zeros),
    REGIONS: Topic(_matrix, _regions),
    GRADIENTS: Topic(_leaf, _own_gradients),
    QUANTIZED: Topic(_halves, _quantized),
    EQUAL_OUTS: Topic(_square, _equal_outs),
    MISFITS: Topic(_recurrent, _misfits),
    DERIVATIVES: Topic(_small, _derivatives),
    SIZES: Topic(_matrix, _sizes),
    SIDE_EFFECTS: Topic(_plain, _side_effects),
}
"""The topics whose calls are tables of this module."""

NAMES = (*TOPICS, PROMOTION, DTYPES, REFUSALS, TRANSFORMED)
"""All topics."""

EVERYWHERE = (QUANTIZED, EQUAL_OUTS, MISFITS, OVERLAPS)
"""Topics that devices get wrong, too."""

MOST_CONVERTED = {PROMOTION: 4, DTYPES: 4, REFUSALS: 4, TRANSFORMED: 1}
"""Largest number of calls of the topics with calls of op_db."""

ROWS = [
    Op("derived", DERIVATIVES, LOSSY, lambda k: None, DEFINED, fits=lambda t: False),
    Op("region", REGIONS, COMPUTE, lambda k: None, DEFINED, fits=lambda t: False),
    Op("own_gradient", GRADIENTS, COMPUTE, lambda k: None, DEFINED, fits=lambda t: False),
    *(
        Op(name, QUANTIZED, COMPUTE, lambda k: None, DEFINED, settled=True, fits=lambda t: False)
        for name in QUANTIZED_CALLS
    ),
    Op("sized", SIZES, COMPUTE, lambda k: None, DEFINED, fits=lambda t: False),
    Op("note", SIDE_EFFECTS, COMPUTE, lambda k: None, DEFINED, fits=lambda t: False),
    Op("noted", SIDE_EFFECTS, QUERY, lambda k: None, DEFINED, fits=lambda t: False),
]
