"""Hazards: two accesses to one storage whose order matters, as a table of four axes.

A compiler reorders accesses, drops copies, and writes inputs after the function has ended. Whether that is right
depends on the kind of the write, on how the cells of the second access relate to the written ones, on a copy between
the two accesses, and on what the caller does with the result. So each combination of the four is a coverage cell
(`CELLS`), and `draw` makes the steps of one cell. `read` and `written` are two views of one input:

    kept = read.clone()     # BETWEEN: nothing, a clone, an operation that changes nothing, another operation
    written.add_(kept)      # ACCESSES, on views whose relation is one of RELATIONS
    return kept             # USES: the caller reads it, writes it, writes the input, or compares their memory
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from conformance.program.steps.draw import Draw, DrawContext, Refused, category, index_of, tensor_of
from conformance.program.steps.layouts import THRESHOLDS, Layout, laid_out, overlap, overlaps_itself
from conformance.program.steps.lists import CUSTOM, LISTS
from conformance.program.steps.op import (
    COMPUTE,
    DEFINED,
    QUERY,
    Json,
    Step,
    decode,
    dtype_name,
    dtype_of,
    tensor,
    tensors,
)
from conformance.program.steps.predicates import number_like
from conformance.program.steps.rows import Rest, another, row
from conformance.program.steps.views import bits_are_defined, reinterprets

NAME = "hazards"
"""Name of the family."""

ACCESSES = ("in place", "copy_", "index_put_", "scatter_", "out=", "foreach", "custom operator", "setitem")
OUTSIDE = "outside"
"""Relation of an input to cells of its storage beside it."""
RELATIONS = ("same", "shifted", "flipped", "transposed", "expanded", "dtype view", "partial overlap", "gap", OUTSIDE)
BETWEEN = ("nothing", "clone", "neutral", "computed")
USES = ("reads", "writes the result", "writes the input", "compares")

Hazard = tuple[str, str, str, str]
"""A cell: the kind of the write, the relation of the two accesses, the step between them, and the caller's use."""

CELLS: tuple[Hazard, ...] = tuple(itertools.product(ACCESSES, RELATIONS, BETWEEN, USES))

NEEDS = {"compares": "shares_memory", OUTSIDE: "as_strided", "custom operator": CUSTOM, "foreach": LISTS}
"""The step or family that a value of an axis needs."""

DTYPES = ("float32", "int64", "float32", "int32", "float64", "float16", "bfloat16", "uint8", "int8", "int16")
"""Dtypes of the programs of hazards. A repeated dtype has a higher probability."""

PER_PROGRAM, PER_FUNCTION = 2, 8
"""Number of hazards of a program, which share their inputs, and of a program that a target compiles. There each hazard
has its own inputs. Eight hazards compile in nearly the time of one."""

STEPS, FUNCTION_STEPS = 20, 48
"""Most number of steps of such programs."""

PLACES = ("contiguous", "contiguous", "contiguous", "window", "permuted", "gaps", "permuted gaps")
"""Layout classes of the inputs. None overlaps itself, since the program writes each of them."""


def draw_layouts(d: Draw, plain: bool = False) -> list[Layout]:
    """Draw the layouts of two inputs of one size. Those of a plain hazard are contiguous, and often fill vectors."""
    if plain:
        vector = (d.choice((16, 32, 16, 8, 3, 5)),)
        full = (d.choice((4, 2, 3)), *vector) if d.chance(3, 4) else vector
        return [laid_out(d, full, "contiguous") for _ in range(2)]
    inner = d.choice(THRESHOLDS) if d.chance(1, 5) else d.choice((4, 2, 3, 5, 6, 8))
    size: tuple[int, ...] = (d.choice((2, 3, 4)) if inner <= 65 else 2, inner)
    size = (2, *size) if inner < 8 and d.chance(1, 5) else size
    return [laid_out(d, size, d.choice(PLACES)) for _ in range(2)]


SMALL = 16
"""Largest number of elements of a constant operand. Longer ones would make scripts unreadable."""

Offer = Callable[[Step], Step | None]
"""Function that offers a step to the shadow, and returns None if it is rejected."""


class InputPart(NamedTuple):
    """A part of an input: the input's name, a basic index of it or None, and calls on the indexed view."""

    base: str
    index: Json = None
    calls: tuple[tuple[str, tuple[Json, ...]], ...] = ()


# Two parts of an input with a relation: the written part and the read part.


def _ends(k: DrawContext, parts: Sequence[Json], x: str, dim: int) -> tuple[InputPart, InputPart]:
    """Return two slices of a dimension, in a drawn order."""
    written, read = parts if k.chance(1, 2) else reversed(parts)
    return InputPart(x, index_of(dim, written)), InputPart(x, index_of(dim, read))


def _long(k: DrawContext, t: torch.Tensor) -> int:
    """Draw a dimension of at least two elements. Raises Refused if there is none."""
    dims = [dim for dim, n in enumerate(t.size()) if n > 1]
    if not dims:
        raise Refused
    return k.choice(dims)


def _slice(*parts: int | None) -> Json:
    return {"slice": [*parts, *([None] * (3 - len(parts)))]}


def _same(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    return InputPart(x), InputPart(x, k.choice(({"ellipsis": 0}, None)))


def _shifted(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    dim = _long(k, k[x])
    n = k[x].size(dim)
    shift = k.choice((1, 1, n // 2))
    return _ends(k, (_slice(shift), _slice(None, n - shift)), x, dim)


def _forwards(places: tuple[InputPart, InputPart]) -> tuple[InputPart, InputPart]:
    """Return the two slices of `_shifted` with the later one as the written part: a loop over ascending addresses that
    lost a copy reads what it has written."""
    written, _ = places
    return places if written.index["tuple"][-1]["slice"][0] is not None else places[::-1]


def _flipped(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    dim = _long(k, k[x])
    order = k.permutation(k[x].size(dim)) if k[x].size(dim) <= SMALL else None
    moves: list[tuple[str, tuple[Json, ...]]] = [("flip", ([dim],)), ("roll", (1, dim))]
    if order is not None and order != sorted(order):
        moves.append(("getitem.index", (index_of(dim, tensor_of(order)),)))
    return InputPart(x), InputPart(x, None, (k.choice(moves),))


def _transposed(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    t = k[x]
    if t.dim() < 2:
        raise Refused
    side = min(t.size()[-2:])
    square = index_of(t.dim() - 2, _slice(None, side))
    square["tuple"].append(_slice(None, side))
    index = None if t.size(-1) == t.size(-2) else square
    parts = InputPart(x, index), InputPart(x, index, (("transpose", (-2, -1)),))
    return parts if k.chance(2, 3) else parts[::-1]


def _expanded(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    dim = _long(k, k[x])
    at = k.integer(0, k[x].size(dim) - 1)
    parts = InputPart(x), InputPart(x, index_of(dim, _slice(at, at + 1)), (("expand", (list(k[x].size()),)),))
    return parts[::-1] if swaps and k.chance(1, 2) else parts


def _of_dtype(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    t = k[x]
    names = [name for name in dict.fromkeys(k.dtypes) if category(dtype_of(name)) == 1]
    names = [name for name in names if reinterprets(t, dtype_of(name))]
    if not names or not bits_are_defined(k, t):
        raise Refused
    dim = _long(k, t)
    part = k.choice((None, index_of(dim, _slice(1)), index_of(dim, _slice(None, t.size(dim) - 1))))
    return InputPart(x, part), InputPart(x, None, (("view.dtype", ({"dtype": k.choice(names)},)),))


def _crossing(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    t = k[x]
    dim = _long(k, t)
    options = [(InputPart(x, index_of(dim, _slice(None, None, 2))), InputPart(x, index_of(dim, _slice(None, 2))))]
    if t.dim() > 1:
        options.append((InputPart(x, 0), InputPart(x, index_of(1, 0))))
        options.append((InputPart(x, k.choice((0, -1))), InputPart(x, None, (("diagonal", (0, 0, 1)),))))
    if t.is_contiguous() and t.numel() > 3:
        for count, size, stride in (2, [2], [1]), (3, [2], [2]), (4, [2, 2], [1, 2]):
            start = int(t.storage_offset()) + k.integer(0, t.numel() - count)
            options.append(
                (InputPart(x, k.choice((0, None))), InputPart(x, None, (("as_strided", (size, stride, start)),)))
            )
    return k.choice(options)


def _interleaved(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    dim = _long(k, k[x])
    even = k[x].size(dim) // 2 * 2
    return _ends(k, (_slice(0, even, 2), _slice(1, even, 2)), x, dim)


def _outside(k: DrawContext, x: str, swaps: bool) -> tuple[InputPart, InputPart]:
    """Return the input, and cells of its storage that lie, at least in part, before or behind it."""
    t = k[x]
    begin, cells = int(t.storage_offset()), t.untyped_storage().nbytes() // t.element_size()
    end = begin + 1 + sum((n - 1) * step for n, step in zip(t.size(), t.stride(), strict=True))
    count = k.choice((2, 1, 3))
    starts = [at for at in range(cells - count + 1) if at < begin or at + count > end]
    if not starts:
        raise Refused
    part = InputPart(x, None, (("as_strided", ([count], [1], k.choice(starts))),))
    whole = InputPart(x, k.choice((None, 0)))
    return (part, whole) if k.chance(2, 3) else (whole, part)


PLACED: dict[str, Callable[[DrawContext, str, bool], tuple[InputPart, InputPart]]] = {
    "same": _same,
    "shifted": _shifted,
    "flipped": _flipped,
    "transposed": _transposed,
    "expanded": _expanded,
    "dtype view": _of_dtype,
    "partial overlap": _crossing,
    "gap": _interleaved,
    OUTSIDE: _outside,
}
"""Rules for the written and the read part by relation. The last argument allows to write an expanded part."""


# The write. Each rule returns the step, given the written view, an operand of its size and dtype, and a free tensor.


def _in_place(k: DrawContext, name: str, value: Json, free: str) -> Step:
    return Step(k.choice(("add_", "mul_", "sub_")), (tensor(name), value))


def _copied(k: DrawContext, name: str, value: Json, free: str) -> Step:
    return Step("copy_", (tensor(name), value))


def _put(k: DrawContext, name: str, value: Json, free: str) -> Step:
    if not k[name].dim():
        raise Refused
    order = k.permutation(k[name].size(0))
    return Step("index_put_", (tensor(name), {"tuple": [tensor_of(order)]}, value))


def _scattered(k: DrawContext, name: str, value: Json, free: str) -> Step:
    """Scatter along the first dimension, in the first columns of a large tensor."""
    t = k[name]
    if not t.dim():
        raise Refused
    order = torch.tensor(k.permutation(t.size(0))).view(-1, *([1] * (t.dim() - 1)))
    size = [t.size(0), *(min(n, 4) for n in t.size()[1:])]
    return Step("scatter_", (tensor(name), 0, tensor_of(order.expand(size).tolist()), value))


def _out(k: DrawContext, name: str, value: Json, free: str) -> Step:
    op, *args = k.choice((("add.out", 1), ("mul.out", 2), ("add.out", 5)))
    return Step(op, (value, *args), {"out": tensor(name)})


def _foreach(k: DrawContext, name: str, value: Json, free: str) -> Step:
    op = k.choice(("_foreach_add_", "_foreach_copy_", "_foreach_mul_", "_foreach_sub_"))
    if "t" in value and overlap(k[value["t"]], k[free]):
        return Step(op, (tensors([name]), [value]))
    other = value if _suits(k, value, free) else k.constant((), k[free].dtype)
    return Step(op, (tensors([name, free]), [value, other]))


def _custom(k: DrawContext, name: str, value: Json, free: str) -> Step:
    op = k.choice(("add_to", "add_to_all", "exchange"))
    if op == "exchange" and "t" in value:
        return Step(op, (tensors([name, value["t"]]),))
    if op == "add_to_all":
        return Step(op, (tensors([name, free]) if _suits(k, value, free) else tensors([name]), value))
    return Step("add_to", (tensor(name), value))


def _suits(k: DrawContext, value: Json, free: str) -> bool:
    """Return whether the operand can be written to the free tensor as well."""
    t = k[value["t"]] if "t" in value else None
    return t is not None and t.size() == k[free].size() and not overlap(t, k[free])


def _set(k: DrawContext, name: str, value: Json, free: str) -> Step:
    return Step("setitem", (tensor(name), {"ellipsis": 0}, value))


WRITES: dict[str, Callable[[DrawContext, str, Json, str], Step]] = {
    "in place": _in_place,
    "copy_": _copied,
    "index_put_": _put,
    "scatter_": _scattered,
    "out=": _out,
    "foreach": _foreach,
    "custom operator": _custom,
    "setitem": _set,
}

Call = tuple[str, tuple[Json, ...]]


NEUTRAL: dict[str, Callable[[torch.Tensor], list[Json]]] = {
    "mul": lambda t: [1],
    "add": lambda t: [tensor_of(0, t.dtype)],
    "sub": lambda t: [0],
    "pow": lambda t: [1],
    "flip": lambda t: [[]],
    "repeat": lambda t: [1] * max(t.dim(), 1),
    "masked_fill": lambda t: [tensor_of(False, torch.bool), 0],
}
"""Rules for the arguments of operations that change nothing, by method."""


def _neutral(k: DrawContext, t: torch.Tensor) -> Call:
    """Draw an operation whose result is a new tensor, equal to its operand."""
    return k.choice([(f"{name}.neutral", tuple(rest(t))) for name, rest in NEUTRAL.items()])


def _computed(k: DrawContext, t: torch.Tensor) -> Call:
    return k.choice((("add", (1,)), ("mul", (2,)), ("mul", (3,)), ("add", (5,))))


KEPT: dict[str, Callable[[DrawContext, torch.Tensor], Call] | None] = {
    "nothing": None,
    "clone": lambda k, t: ("clone", ()),
    "neutral": _neutral,
    "computed": _computed,
}
"""Rules for the step between the two accesses."""


class _Hazard:
    """The steps of one cell on the input `x`, offered to the shadow as they are drawn.

    `same` is another name of the input's memory, or the input, and `free` an input of the same size on other memory.
    A plain hazard reads only what its cell reads, because a further use of a value can keep a compiler from a wrong
    rewrite. The value between the accesses may be rewritten, and returned as a view."""

    def __init__(self, k: DrawContext, cell: Hazard, offer: Offer, x: str, same: str, free: str, plain: bool) -> None:
        self.k, self.offer, self.x, self.same, self.free, self.plain = k, offer, x, same, free, plain
        self.access, self.relation, self.between, self.use = cell

    def step(self, op: str, *args: Json, local: bool) -> str:
        """Offer a step with one result, and return the result's name."""
        (name,) = self.k.shadow.fresh(1)
        name = f"_{name}" if local else name
        self.do(Step(op, args, {}, (name,)))
        return name

    def do(self, step: Step) -> None:
        """Offer a step. Raises Refused."""
        offered = self.offer(step)
        if offered is None or offered.raises or any(name not in self.k.shadow.env for name in offered.out):
            raise Refused

    def view(self, place: InputPart, local: bool = True) -> str:
        """Return the name of this part of an input."""
        calls: list[Call] = [("getitem", (place.index,))] if place.index is not None else []
        calls += place.calls
        name = place.base
        for at, (op, args) in enumerate(calls, 1):
            name = self.step(op, tensor(name), *args, local=local or at < len(calls))
        return name

    def draw(self) -> list[Step]:
        """Offer the steps inside the function, and return the caller's steps. Raises Refused."""
        k = self.k
        written, read = PLACED[self.relation](k, self.x, self.access in ("in place", "setitem"))
        if self.plain and self.relation == "shifted" and k.chance(1, 2):
            written, read = _forwards((written, read))
        rule = KEPT[self.between]
        unneeded = self.use == "reads" or (self.plain and self.use == "writes the input")
        returned = not unneeded or rule is None or k.chance(1, 2)
        viewed = self.plain and returned and rule is not None and self.use == "reads" and k.chance(1, 2)
        seen = kept = self.view(read._replace(base=self.same), local=rule is not None or not returned)
        if rule is not None:
            op, args = rule(k, k[seen])
            kept = self.step(op, tensor(seen), *args, local=not returned or viewed)
            if self.plain and k.chance(1, 3):
                self.do(Step(k.choice(("sub_", "add_", "mul_")), (tensor(kept), k.choice((5, 2, 3)))))
        self.write(written, kept)
        if viewed:
            op, args = k.choice(list(self.views_of(k[kept])))
            self.step(op, tensor(kept), *args, local=False)
        elif not self.plain and k.chance(1, 3):
            self.step("add", tensor(k.choice((seen, self.x, kept))), 1, local=False)
        return list(self.caller(kept))

    def views_of(self, t: torch.Tensor) -> Iterator[Call]:
        """Yield views of a whole tensor."""
        dtype = self.k[self.x].dtype
        yield "getitem", ({"ellipsis": 0},)
        if t.dim() > 1:
            yield "transpose", (0, -1)
        if reinterprets(t, dtype):
            yield "view.dtype", ({"dtype": dtype_name(dtype)},)

    def write(self, place: InputPart, kept: str) -> None:
        """Write the part: by setitem on the input itself if it is an index, else on a view of it."""
        k = self.k
        if self.access == "setitem" and not place.calls:
            index = {"ellipsis": 0} if place.index is None else place.index
            to = k[place.base].detach()[decode(index, {}, torch.device("cpu"))]
            self.do(Step("setitem", (tensor(place.base), index, self.value(place, to, kept))))
            return
        name = self.view(place)
        if overlaps_itself(k[name]):
            number = k.number(k[name].dtype)
            self.do(Step("fill_", (tensor(name), number)) if self.access == "in place" else _set(k, name, number, ""))
            return
        self.do(WRITES[self.access](k, name, self.value(place, k[name], kept), self.free))

    def value(self, place: InputPart, to: torch.Tensor, kept: str) -> Json:
        """Draw the operand of the write: mostly the kept value if it fits, else the same part of the free tensor."""
        k, t = self.k, self.k[kept]
        fits = t.size() == to.size() and t.dtype == to.dtype and not overlap(t, to)
        if fits and (self.plain or k.chance(3, 4)):
            return tensor(kept)
        if to.numel() <= SMALL and k.chance(1, 3):
            return k.constant(to.size(), to.dtype)
        return tensor(self.view(place._replace(base=self.free)))

    def caller(self, kept: str) -> Iterator[Step]:
        """Yield the calls that the caller makes after the return."""
        k, number = self.k, self.k.choice((1, 2))
        match self.use:
            case "writes the result":
                op = "fill_" if overlaps_itself(k[kept]) else "add_"
                yield Step(op, (tensor(kept), number), after=True)
            case "writes the input":
                yield Step(k.choice(("add_", "fill_", "mul_")), (tensor(self.x), number + 1), after=True)
            case "compares":
                yield Step("shares_memory", (tensor(kept), tensor(self.x)), after=True)


def draw(
    k: DrawContext, cell: Hazard, offer: Offer, same: Sequence[str], free: str, plain: bool = False
) -> list[Step] | None:
    """Offer the steps of a cell, and return the steps that its caller makes at the end; None if some step is rejected.

    `same` are the inputs with the same memory: the cell's accesses use the first of them, and sometimes another one for
    the read part. `free` is an input of their size and dtype on other memory."""
    try:
        return _Hazard(k, cell, offer, same[0], k.choice(same), free, plain).draw()
    except Refused:
        return None


def _unchanged(rest: Callable[[torch.Tensor], list[Json]]) -> Rest:
    return lambda k, t: rest(t)


ROWS = [
    *(
        row(f"{name}.neutral", _unchanged(rest), number_like, family=NAME, effect=COMPUTE, call=name)
        for name, rest in NEUTRAL.items()
    ),
    row("shares_memory", another, None, family=NAME, effect=QUERY, form=DEFINED),
]
