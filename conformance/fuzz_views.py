"""Drawing programs of view and in-place steps: a Hypothesis strategy, and a numbered stream for campaigns.

The key insight: bugs of views and in-place writes are interactions, a write after a view after a write, so each step is
drawn in front of a CPU shadow of the program so far: operands are what exists, later and freshly written storages come
first, and what has no defined meaning is turned down before it runs (and counted), not filtered out afterwards.

    @given(programs(steps=(1, 6)))
    def test_my_backend(program): ...

Hypothesis serves tests: what it draws shrinks. A campaign draws the same rules from a seeded stream, since Hypothesis'
engine varies earlier examples: of 1,000 programs drawn by it 317 were distinct sequences of ops, and a campaign wants
1,000; and program 17 of seed 3 is then the same however many programs, shards and workers there are.

It knows programs and the step table; targets, oracles and reports are not its business.
"""
from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from conformance.program import Input, Program, Storage, fresh_names
from conformance.shadow import Shadow
from conformance.steps.draw import Draw, Situation, Source
from conformance.steps.layouts import LAYOUTS, OFTEN, Layout, layout_class
from conformance.steps.op import Op, dtype_name, dtype_of
from conformance.steps.table import FAMILIES, OPS

DTYPES = ("float32", "int64", "float32", "float32", "int32", "bool", "float64", "complex64", "uint8", "float16",
          "bfloat16", "int8", "int16")
"""dtypes that are drawn, the often drawn ones repeatedly and first."""

FAMILY_WEIGHT = {"view": 10, "setitem": 6, "arithmetic": 5, "copy": 4, "copies": 4, "indexed write": 3, "out=": 3,
                 "metadata in place": 2, "setitem loop": 1, "autograd": 4}
"""How often a family is drawn; 1 where it is not named. Views and writes, whose interaction is the subject, lead."""

STEPS = (1, 8)


class UnknownFamily(ValueError):
    """A family of steps that the table does not have: one sentence naming those that it has."""


@dataclass
class Tally:
    """What drawing did: programs, steps, what was turned down and why, and which cells were reached."""

    programs: int = 0
    steps: int = 0
    avoided: Counter[str] = field(default_factory=Counter)
    cells: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Steps drawn by (family, layout class of the first tensor, its dtype)."""

    def add(self, other: Tally) -> None:
        """Take in another shard's tally."""
        self.programs, self.steps = self.programs + other.programs, self.steps + other.steps
        self.avoided += other.avoided
        self.cells += other.cells


def programs(*, steps: tuple[int, int] = STEPS, only: Collection[str] = (), without: Collection[str] = (),
             dtypes: Collection[str] = DTYPES, tally: Tally | None = None) -> st.SearchStrategy[Program]:
    """A strategy of programs that have a defined meaning on torch CPU.

    steps: the least and most number of steps. only, without: step families (see `FAMILIES`; views are always drawn).
    dtypes: names of the dtypes of inputs and of conversions. tally: counts what was drawn, if given.
    Raises UnknownFamily for a family that does not exist.
    """
    drawing = Drawing(steps, tuple(only), tuple(without), tuple(dtypes))

    @st.composite
    def draw_program(draw: Callable[[st.SearchStrategy[int]], int]) -> Program:
        return drawing.program(lambda low, high: draw(_integers(low, high)), tally)

    return draw_program()


@functools.cache
def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@functools.cache
def _families(only: tuple[str, ...], without: tuple[str, ...], biased: bool) -> dict[str, list[Op]]:
    drawn = {family: [op for op in OPS.values() if op.family == family and op.name not in without
                      for _ in range(op.weight if biased else 1)]
             for family in FAMILIES if (not only or family in only or family == "view") and family not in without}
    return {family: ops for family, ops in drawn.items() if ops}


@dataclass(frozen=True)
class Drawing:
    """What programs may be made of, as in `programs`; picklable, so that it travels to workers. Without `biased` every
    family and operand is drawn alike, which is there to be compared with.

    Raises UnknownFamily for a family that does not exist."""

    steps: tuple[int, int] = STEPS
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    biased: bool = True

    def __post_init__(self) -> None:
        unknown = ({*self.only} - {*FAMILIES}) | ({*self.without} - {*FAMILIES, *OPS})
        if unknown:
            raise UnknownFamily(f"unknown step family {min(unknown)!r}: choose from {', '.join(FAMILIES)}")

    @property
    def families(self) -> dict[str, list[Op]]:
        """The rows to draw from, by family; a row of weight n occurs n times."""
        return _families(self.only, self.without, self.biased)

    def numbered(self, seed: int, number: int, tally: Tally | None = None) -> Program:
        """Program `number` of this seed: the same on every machine, for one version of this package."""
        return self.program(random.Random(f"{seed}:{number}").randint, tally)

    def program(self, source: Source, tally: Tally | None = None) -> Program:
        """A program whose every choice comes from the source."""
        d = Draw(source)
        known = [name for name in DTYPES if name in self.dtypes] or list(self.dtypes)
        program = draw_inputs(d, known, "autograd" in self.families)
        shadow = Shadow(program)
        k = Situation(source, shadow, tuple(dict.fromkeys(known)), self.biased)
        weighted = [family for family in self.families
                    for _ in range(FAMILY_WEIGHT.get(family, 1) if self.biased else 1)]
        least, most = self.steps
        for _ in range(4 * most):
            drawn = len(shadow.steps)
            if drawn >= most or (drawn >= least and d.integer(0, most) == 0):
                break
            draw_step(k, self.families, weighted, tally)
        if tally is not None:
            tally.programs += 1
            tally.steps += len(shadow.steps)
            tally.avoided += shadow.avoided
        return program.with_steps(tuple(shadow.steps))


def draw_step(k: Situation, by_family: dict[str, list[Op]], weighted: Sequence[str], tally: Tally | None) -> None:
    """Draw one step and offer it to the shadow; where nothing fits, another is drawn by the caller."""
    op = k.choice(by_family[k.choice(weighted)])
    step = op.draw(k)
    if step is None:
        k.shadow.avoided["nothing fits: " + op.family] += 1
        return
    names = [name for name in step.names() if name in k.shadow.env]
    cell = _cell(op, k[names[0]]) if names else None
    offered = k.shadow.offer(step)
    if offered is not None and tally is not None and (cell or offered.out):
        tally.cells[cell or _cell(op, k[offered.out[0]])] += 1


def _cell(op: Op, first: torch.Tensor) -> tuple[str, str, str]:
    return op.family, layout_class(first), dtype_name(first.dtype)


def draw_inputs(d: Draw, dtypes: Sequence[str], autograd: bool) -> Program:
    """One to three inputs, each of a layout class from the catalogue; a later one may be a view of an earlier one's
    storage; at times one requires grad."""
    storages: list[Storage] = []
    inputs: list[Input] = []
    names = fresh_names({})
    for _ in range(d.choice((1, 2, 1, 2, 3))):
        dtype = d.choice(dtypes)
        layout = draw_layout(d)
        shared = bool(storages) and d.chance(1, 4)
        if shared:
            at = d.integer(0, len(storages) - 1)
            dtype = storages[at].dtype
            storages[at] = Storage(dtype, max(storages[at].size, layout.cells), storages[at].values)
        else:
            at = len(storages)
            values = {"seed": d.integer(0, 99)} if d.chance(1, 2) else "arange"
            storages.append(Storage(dtype, layout.cells + d.choice((0, 0, 1, 3)), values))
        grad = autograd and not shared and dtype_of(dtype).is_floating_point and d.chance(1, 5)
        inputs.append(Input(next(names), at, dtype, layout.size, layout.stride, layout.offset, grad))
    return Program(tuple(storages), tuple(inputs))


def draw_layout(d: Draw) -> Layout:
    """A layout of one of the classes of the catalogue."""
    return LAYOUTS[d.choice(OFTEN) if d.chance(1, 2) else d.choice(tuple(LAYOUTS))](d)
