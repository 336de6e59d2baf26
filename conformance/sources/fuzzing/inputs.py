"""The inputs of a drawn program: storages, and tensors of drawn layouts on them.

Defines `draw_inputs`. The key insight: bugs depend on the class of a layout, so the draw chooses a class first.
Sometimes two inputs share a storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from conformance.program.model import Input, Program, Storage, fresh_names
from conformance.program.steps import edges, functions, hazards
from conformance.program.steps.draw import Draw
from conformance.program.steps.layouts import LAYOUTS, OFTEN, Layout, cells_of, laid_out
from conformance.program.steps.op import Json, dtype_of
from conformance.record.program_stats import Cell

MOST_SEEDED = 64
"""Largest number of cells with random numbers. A script must list them, and shows a longer range as one call."""


def draw_inputs(d: Draw, dtypes: Sequence[str], autograd: bool, aim: Cell | None = None, kind: str = "") -> Program:
    """Draw one to three inputs, each of a layout class from the catalogue.

    The first input has the class and dtype of `aim`, if given. A later input may be a view of an earlier input's
    storage. An input may require grad. In programs of kind "fusion" all inputs hold special values. In programs of kind
    "edges" they hold few distinct values, with special values among them."""
    storages: list[Storage] = []
    inputs: list[Input] = []
    names = fresh_names({})
    for _ in range(d.choice((1, 2, 1, 2, 3))):
        dtype, layout = d.choice(dtypes), draw_layout(d)
        if aim and not inputs:
            dtype, layout = aim[2], LAYOUTS[aim[1]](d)
        shared = bool(storages) and d.chance(1, 4)
        if shared:
            at = d.integer(0, len(storages) - 1)
            dtype, size, values = storages[at].dtype, max(storages[at].size, layout.cells), storages[at].values
            if isinstance(values, list):
                values = [*values, *edges.values(d, dtype_of(dtype), size - len(values))]
            storages[at] = Storage(dtype, size, values)
        else:
            at = len(storages)
            seeds = [{"seed": d.integer(0, 99)} for _ in range(4)]
            among = {"special": d.integer(0, 99)}
            values = among if kind else d.choice(("arange", *seeds[:2], "arange", "arange", *seeds[2:], among))
            size = layout.cells + d.choice((0, 0, 1, 3))
            values = edges.values(d, dtype_of(dtype), size) if kind == edges.NAME else values
            storages.append(Storage(dtype, size, values))
        often = 3 if kind == edges.NAME else 1
        grad = autograd and not shared and dtype_of(dtype).is_floating_point and d.chance(often, 5)
        inputs.append(Input(next(names), at, dtype, layout.size, layout.stride, layout.offset, grad))
    return Program(tuple(storages), tuple(inputs))


def draw_hazard_inputs(
    d: Draw, dtypes: Sequence[str], aim: Cell | None = None, wider: bool = False, plain: bool = False, first: int = 0
) -> Program:
    """Draw the inputs of hazards: two of one size and dtype, and sometimes the first one again.

    If `aim` is a cell, another input has its layout class and dtype. If `wider`, each storage has cells behind its
    input. The names begin with the name of number `first`."""
    dtype, storages, inputs, names = d.choice(dtypes), list[Storage](), list[Input](), _names(first)
    for at, layout in enumerate(hazards.draw_layouts(d, plain)):
        seeded = d.chance(1, 2) and layout.cells <= MOST_SEEDED
        values: Json = {"seed": d.integer(0, 99)} if seeded else "arange"
        storages.append(Storage(dtype, layout.cells + d.choice((2, 1, 3) if wider else (0, 0, 1, 3)), values))
        inputs.append(Input(next(names), at, dtype, layout.size, layout.stride, layout.offset))
    if d.chance(1, 4):
        inputs.append(replace(inputs[0], name=next(names)))
    if aim:
        layout = LAYOUTS[aim[1]](d)
        inputs.append(Input(next(names), len(storages), aim[2], layout.size, layout.stride, layout.offset))
        storages.append(Storage(aim[2], layout.cells))
    return Program(tuple(storages), tuple(inputs))


def draw_wanted(d: Draw, wanted: Sequence[functions.Wanted], first: int) -> Program:
    """Draw the inputs that a topic wants, each on its own storage. The names begin with the name of number `first`."""
    names = _names(first)
    layouts = [laid_out(d, tensor.size, d.choice(hazards.PLACES)) for tensor in wanted]
    storages = [filled(tensor.dtype, tensor.values, layout) for tensor, layout in zip(wanted, layouts, strict=True)]
    inputs = [
        Input(
            next(names), at, tensor.dtype, layout.size, layout.stride, layout.offset, requires_grad=tensor.requires_grad
        )
        for at, (tensor, layout) in enumerate(zip(wanted, layouts, strict=True))
    ]
    return Program(tuple(storages), tuple(inputs))


def joined(program: Program, own: Program) -> tuple[Program, list[str]]:
    """A program with the inputs of both, whose names differ, and the names of the second one's."""
    moved = tuple(replace(input_, storage=input_.storage + len(program.storages)) for input_ in own.inputs)
    both = replace(program, storages=(*program.storages, *own.storages), inputs=(*program.inputs, *moved))
    return both, [tensor.name for tensor in moved]


def separated(program: Program) -> Program:
    """A program whose inputs have the same geometry and content, each on its own storage."""
    storages = tuple(program.storages[input_.storage] for input_ in program.inputs)
    inputs = tuple(replace(input_, storage=at) for at, input_ in enumerate(program.inputs))
    return replace(program, storages=storages, inputs=inputs)


def _names(first: int) -> Iterator[str]:
    return itertools.islice(fresh_names({}), first, None)


def filled(dtype: str, values: Json, layout: Layout) -> Storage:
    """A storage with these values at the elements of the layout, in their order, or with generated values."""
    if not isinstance(values, (list, tuple)):
        return Storage(dtype, layout.cells, values)
    cells: list[Json] = [values[0] if values else 0] * layout.cells
    places = cells_of(torch.empty(layout.cells, device="meta").as_strided(layout.size, layout.stride, layout.offset))
    for place, value in zip(places, values, strict=False):
        cells[place] = value
    return Storage(dtype, len(cells), cells)


def draw_layout(d: Draw) -> Layout:
    """A layout of one of the catalogue's classes."""
    return LAYOUTS[d.choice(OFTEN) if d.chance(1, 2) else d.choice(tuple(LAYOUTS))](d)
