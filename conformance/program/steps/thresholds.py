"""Calls at sizes where devices change their ways: vector widths, tiles, blocks and grids.

    x.sum(1)              # x of 65 columns: a tile of 32 or 64 loses its remainder
    x + row               # wrong from column 64 on
    mask.nonzero()        # cut off at 1,024 elements

A kernel is right on small tensors, and wrong from a size on, at its multiples, or one beside it. So each case makes one
kind of call on tensors with at least one such length (`LENGTHS`), and its inputs have drawn layouts. The calls are
those of op_db's rows. To add a case, add a row to `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from conformance.program.steps.draw import Draw, Refused
from conformance.program.steps.functions import Wanted
from conformance.program.steps.op import Json, Step, dtype_of, tensor

NAME = "sizes at thresholds"
"""Name of the kind of programs."""

LENGTHS = (16, 32, 64, 128, 256, 1024, 2048, 4096)
"""Vector widths, tiles, blocks and grids of common devices."""

MOST = 3 * LENGTHS[-1]
"""Largest number of elements of a tensor, so that programs stay fast."""

FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")
PRECISE = ("float32", "float32", "float64")
NUMBERS = ("float32", "float32", "int64", "int32", "float64", "uint8", "int8", "int16", "bfloat16")
SUMMED = ("float32", "float32", "int64", "float64", "int32")


class SizedCall(NamedTuple):
    """The inputs of a case, and its steps on tensors named `#0`, `#1` and so on."""

    inputs: list[Wanted]
    steps: list[Step]


Case = Callable[[Draw, Sequence[str]], SizedCall]
"""Draws a case from the dtypes of a drawing. Raises Refused if it needs others."""


def draw_length(d: Draw, most: int = LENGTHS[-1]) -> int:
    """Draw a threshold of at most `most`, a length one beside it, or a multiple."""
    at = d.choice([length for length in LENGTHS if length <= most])
    return d.choice((at + 1, at, at - 1, at + 1, 2 * at, 3 * at))


def draw_shape(d: Draw, most: int = LENGTHS[-1]) -> tuple[int, ...]:
    """Draw a size with at least one threshold: a row, a matrix of two, or one with few other elements."""
    form = d.choice(("row", "last", "first", "both", "last"))
    if form == "row":
        return (draw_length(d, most),)
    if form == "both":
        return draw_tiles(d)
    length = draw_length(d, min(most, 2048))
    few = d.choice([n for n in (2, 3, 5, 1) if n * length <= MOST])
    return (few, length) if form == "last" else (length, few)


def draw_tiles(d: Draw) -> tuple[int, int]:
    """Draw the size of a matrix with a threshold in both dimensions."""
    return draw_length(d, 64), draw_length(d, 64)


def _dtype(d: Draw, among: Sequence[str], known: Sequence[str]) -> str:
    names = [name for name in among if name in known]
    if not names:
        raise Refused
    return d.choice(names)


def _one(d: Draw, dtype: str, size: tuple[int, ...]) -> Wanted:
    """Return a tensor of whole numbers and halves, whose sums are exact in any order. Those of a range are short in a
    script, and repeat after 100 elements."""
    return Wanted(dtype, size, "arange" if d.chance(1, 2) else {"seed": d.integer(0, 99)})


def _factor(d: Draw, dtype: str, size: tuple[int, ...]) -> Wanted:
    """Return a tensor of small halves, so that sums of products are exact in any order."""
    return Wanted(dtype, size, {"seed": d.integer(0, 99)})


def _smooth(d: Draw, dtype: str, size: tuple[int, ...]) -> Wanted:
    """Return a tensor of distinct numbers of at most 1, for functions that round."""
    return Wanted(dtype, size, {"random": d.integer(0, 99), "low": -1, "high": 1})


def _call(name: str, *args: Json, results: int = 1, **kwargs: Json) -> Step:
    """Return the step that calls torch's function of this name on the inputs."""
    form = "op_db" if results == 1 else "op_db.many"
    return Step(f"{form}:{name}", (tensor("#0"), *args), kwargs, ("",) * results)


SECOND, THIRD = tensor("#1"), tensor("#2")


def _draw_pointwise(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    dtype, size = _dtype(d, NUMBERS, dtypes), draw_shape(d)
    name = d.choice(("add", "mul", "sub", "maximum", "minimum", "eq", "lt"))
    return SizedCall([_one(d, dtype, size), _one(d, dtype, size)], [_call(name, SECOND)])


def _draw_unary(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    dtype, size = _dtype(d, FLOATS, dtypes), draw_shape(d)
    name = d.choice(("exp", "neg", "sigmoid", "tanh", "abs", "relu", "sin", "nn.functional.gelu", "square", "isnan"))
    return SizedCall([_smooth(d, dtype, size)], [_call(name)])


def _draw_in_place(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    dtype, size = _dtype(d, NUMBERS, dtypes), draw_shape(d)
    name = d.choice(("add_", "mul_", "copy_", "sub_"))
    return SizedCall(
        [_one(d, dtype, size), _one(d, dtype, size[d.choice((0, 0, 1)) :])],
        [Step(f"op_db.inplace:{name}", (tensor("#0"), SECOND))],
    )


def _draw_broadcast(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    """A matrix and a row, a column, or an outer product of both."""
    dtype, (rows, columns) = _dtype(d, NUMBERS, dtypes), (d.choice((2, 3, 17, 33)), draw_length(d, 256))
    first = d.choice(((rows, columns), (rows, columns), (rows, 1), (columns, rows)))
    row = d.choice(((columns,), (1, columns), (columns,))) if first[-1] in (1, columns) else (columns, 1)
    name = d.choice(("add", "mul", "sub", "maximum", "ge"))
    steps = [_call(name, SECOND)]
    if dtype_of(dtype).is_floating_point and d.chance(1, 4):
        steps = [_call("div", SECOND)]
    return SizedCall([_one(d, dtype, first), _one(d, dtype, row)], steps)


def _draw_select(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    """`where` and `masked_fill` with a mask that may broadcast."""
    dtype, size = _dtype(d, NUMBERS, dtypes), draw_shape(d)
    _dtype(d, ("bool",), dtypes)
    mask = _mask(d, size[d.choice((0, 0, 1)) :] or size)
    if d.chance(1, 2):
        return SizedCall([mask, _one(d, dtype, size), _one(d, dtype, size)], [_call("where", SECOND, THIRD)])
    return SizedCall([_one(d, dtype, size), mask], [_call("masked_fill", SECOND, 3)])


def _draw_reduce(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    name = d.choice(("sum", "sum", "mean", "amax", "amin", "var", "logsumexp", "any", "all", "count_nonzero"))
    dtype = _dtype(d, PRECISE if name in ("mean", "var", "logsumexp") else SUMMED, dtypes)
    size = draw_shape(d)
    dim = d.choice((-1, -1, 0))
    return SizedCall([(_smooth if name == "logsumexp" else _one)(d, dtype, size)], [_call(name, dim)])


def _draw_reduce_all(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    return SizedCall([_one(d, _dtype(d, SUMMED, dtypes), draw_shape(d))], [_call(d.choice(("sum", "amax", "amin")))])


def _draw_select_one(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    """Indices of distinct elements."""
    size, dim = draw_shape(d, 2048), d.choice((-1, -1, 0))
    name = d.choice(("argmax", "argmin", "max", "sort", "topk", "argmax", "kthvalue", "min", "argsort"))
    few = (min(size[dim], d.choice((1, 2, 3))),) if name in ("topk", "kthvalue") else ()
    return SizedCall(
        [_smooth(d, _dtype(d, PRECISE, dtypes), size)],
        [_call(name, *few, dim, results=1 if name.startswith("arg") else 2)],
    )


def _draw_scan(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    name = d.choice(("cumsum", "cumsum", "logcumsumexp", "diff"))
    dtype = _dtype(d, PRECISE if name.startswith("log") else SUMMED, dtypes)
    drawn = _smooth if name == "logcumsumexp" else _one
    return SizedCall([drawn(d, dtype, draw_shape(d))], [_call(name, dim=d.choice((-1, -1, 0)))])


def _draw_normalize(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    size = (*d.choice(((2,), (3,), ())), draw_length(d))
    name = d.choice(("softmax", "log_softmax", "nn.functional.layer_norm", "nn.functional.rms_norm"))
    shape = [size[-1]] if "norm" in name else -1
    return SizedCall([_smooth(d, _dtype(d, PRECISE, dtypes), size)], [_call(name, shape)])


def _draw_product(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    """A product of matrices with a threshold inside or outside."""
    few = d.choice((2, 3, 5))
    sizes = (few, draw_length(d, 1024), 3), (draw_length(d, 256), few, 3), (2, few, draw_length(d, 256)), (17, 33, 65)
    dtype, name = _dtype(d, PRECISE, dtypes), d.choice(("mm", "bmm", "mv", "nn.functional.linear", "matmul"))
    rows, inner, columns = d.choice(sizes[:2] if name == "mv" else sizes)
    lead = (2,) if name == "bmm" else ()
    second = (inner,) if name == "mv" else (columns, inner) if name.endswith("linear") else (*lead, inner, columns)
    return SizedCall([_factor(d, dtype, (*lead, rows, inner)), _factor(d, dtype, second)], [_call(name, SECOND)])


def _draw_attention(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    dtype, width = _dtype(d, PRECISE, dtypes), d.choice((8, 16, 4))
    keys = draw_length(d, 128)
    queries = d.choice((keys, 3, draw_length(d, 64)))
    causal = {"is_causal": True} if d.chance(1, 3) else {}
    sizes = [(1, 2, length, width) for length in (queries, keys, keys)]
    attended = _call("nn.functional.scaled_dot_product_attention", SECOND, THIRD, **causal)
    # PyTorch's kernels of attention differ in the strides of the result, so only a dense copy of it is observed.
    copied = Step("contiguous", (tensor("_attended"),), {}, ("",))
    return SizedCall([_smooth(d, dtype, size) for size in sizes], [replace(attended, out=("_attended",)), copied])


def _mask(d: Draw, size: tuple[int, ...]) -> Wanted:
    return Wanted("bool", size, {"random": d.integer(0, 99), "low": 0, "high": 1})


def _draw_masked(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    """The elements where a mask is true, or their places."""
    size, dtype = draw_shape(d), _dtype(d, NUMBERS, dtypes)
    if "bool" not in dtypes or d.chance(1, 3):
        return SizedCall([_one(d, dtype, size)], [_call(d.choice(("nonzero", "argwhere")))])
    if d.chance(1, 4):
        return SizedCall([_mask(d, size)], [_call("nonzero")])
    steps = [_call("masked_select", SECOND), Step("getitem.index", (tensor("#0"), SECOND), {}, ("",))]
    return SizedCall([_one(d, dtype, size), _mask(d, size)], [d.choice(steps)])


def _draw_indexed(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    """Elements at indices of a long dimension."""
    dtype, size, dim = _dtype(d, NUMBERS, dtypes), draw_shape(d), d.choice((-1, 0))
    _dtype(d, ("int64",), dtypes)
    name, generated = d.choice(("index_select", "gather", "take", "flip", "roll", "index_fill")), d.integer(0, 99)
    if name in ("flip", "roll"):
        arguments = ([dim],) if name == "flip" else (d.choice((1, 16, -3)), dim)
        return SizedCall([_one(d, dtype, size)], [_call(name, *arguments)])
    count = size if name == "gather" else (draw_length(d, 64),)
    below = size[0] * (size[-1] if len(size) > 1 else 1) if name == "take" else size[dim]
    at = Wanted("int64", count, {"random": generated, "low": 0, "high": below - 1})
    arguments = (SECOND,) if name == "take" else (dim, SECOND)
    return SizedCall([_one(d, dtype, size), at], [_call(name, *arguments, *([5] if name == "index_fill" else []))])


def _draw_written(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    """Sums at repeated indices of a long dimension."""
    dtype, length = _dtype(d, SUMMED, dtypes), draw_length(d, 1024)
    _dtype(d, ("int64",), dtypes)
    count = d.choice((length, draw_length(d, 256)))
    at = Wanted("int64", (count,), {"random": d.integer(0, 99), "low": 0, "high": length - 1})
    name = d.choice(("index_add", "scatter_add", "index_put"))
    inputs = [_one(d, dtype, (length,)), at, _one(d, dtype, (count,))]
    if name == "index_put":
        return SizedCall(inputs, [_call(name, {"tuple": [SECOND]}, THIRD, accumulate=True)])
    return SizedCall(inputs, [_call(name, 0, SECOND, THIRD)])


def _draw_copied(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    """Copies of a matrix, transposed or not."""
    dtype = _dtype(d, (*NUMBERS, "bool", "complex64"), dtypes)
    size = draw_tiles(d) if d.chance(1, 2) else draw_shape(d)
    view = [Step("transpose", (tensor("#0"), 0, -1), {}, ("t",))] if d.chance(2, 3) else []
    copied = tensor("t") if view else tensor("#0")
    name = d.choice(("clone", "contiguous", "flatten", "tril"))
    step = Step(f"op_db.method:{name}" if name == "contiguous" else f"op_db:{name}", (copied,), {}, ("",))
    return SizedCall([_one(d, dtype, size)], [*view, step])


def _draw_joined(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    dtype, size, dim = _dtype(d, NUMBERS, dtypes), draw_shape(d, 1024), d.choice((-1, 0))
    parts = [_one(d, dtype, size) for _ in range(d.choice((2, 3)))]
    names = [tensor(f"#{at}") for at in range(len(parts))]
    return SizedCall(parts, [Step(f"op_db:{d.choice(('cat', 'stack'))}", (names, dim), {}, ("",))])


def _draw_converted(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    dtype, to = _dtype(d, NUMBERS, dtypes), _dtype(d, FLOATS, dtypes)
    return SizedCall([_one(d, dtype, draw_shape(d))], [Step("to", (tensor("#0"), {"dtype": to}), {}, ("",))])


def _draw_convolved(d: Draw, dtypes: Sequence[str]) -> SizedCall:
    dtype, length, channels = _dtype(d, PRECISE, dtypes), draw_length(d, 1024), d.choice((1, 3, 16, 33))
    if channels * length > MOST:
        length = draw_length(d, 128)
    weight = (d.choice((2, 17)), channels, d.choice((1, 3)))
    sizes = [(1, channels, length), weight]
    return SizedCall([_factor(d, dtype, size) for size in sizes], [_call("nn.functional.conv1d", SECOND)])


CASES: dict[str, Case] = {
    "pointwise": _draw_pointwise,
    "unary": _draw_unary,
    "in place": _draw_in_place,
    "broadcast": _draw_broadcast,
    "select": _draw_select,
    "reduce": _draw_reduce,
    "reduce all": _draw_reduce_all,
    "select one": _draw_select_one,
    "scan": _draw_scan,
    "normalize": _draw_normalize,
    "product": _draw_product,
    "attention": _draw_attention,
    "masked": _draw_masked,
    "indexed": _draw_indexed,
    "written": _draw_written,
    "copied": _draw_copied,
    "joined": _draw_joined,
    "converted": _draw_converted,
    "convolved": _draw_convolved,
}
"""The cases by name. A program has some of them, and each has its turn before any has another."""
