"""One step of a drawn program: which row of the step table, and on which tensors.

Defines `draw_step`, `draw_aimed` and `offer`. Bugs of views and in-place writes are interactions, such as a write after
a view after a write. So the family of a step depends on the family of the step before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from conformance.program.shadow import ROUNDED
from conformance.program.steps import stateful, states
from conformance.program.steps.draw import DrawContext
from conformance.program.steps.layouts import layout_class
from conformance.program.steps.op import COMPUTE, LOSSY, Op, Step, dtype_name
from conformance.program.steps.table import OPS
from conformance.record.program_stats import Cell
from conformance.run.campaign.drawing_counts import Tally

FAMILY_WEIGHT = {
    "view": 10,
    "setitem": 6,
    "arithmetic": 5,
    "copy": 4,
    "copies": 4,
    "indexed write": 3,
    "out=": 3,
    "metadata in place": 2,
    "setitem loop": 1,
    "autograd": 4,
    "layers": 3,
}
"""Weight of each family in drawing; 1 for families not listed. Views and writes have the largest weights, since their
interaction is the subject."""

WRITES = ("setitem", "arithmetic", "copy", "indexed write", "out=")
READS = ("copies", "out of place", "reduction", "questions")
FOLLOWS = {
    "view": (*WRITES, *WRITES),
    **dict.fromkeys(WRITES, ("view", "view", *READS)),
    **dict.fromkeys(READS, ("view", *WRITES)),
}
"""Families that may follow the family of the preceding step. They apply to half of the steps, and favor interactions: a
write after a view after a write, or a read of a tensor that was viewed before."""


def draw_aimed(k: DrawContext, ops: Sequence[Op], aim: Cell, tally: Tally) -> bool:
    """Draw a step of `ops`, the rows of the cell's family, whose first tensor is in the cell. Return False if no row
    fits a tensor of the cell now."""
    k.only = lambda t: dtype_name(t.dtype) == aim[2] and layout_class(t) == aim[1]
    fitting = list(dict.fromkeys(op for op in ops if op.fits is not None and k.holds(op.fits)))
    if fitting:
        offer(k, k.choice(fitting), tally)
    k.only = None
    return bool(fitting)


def draw_step(
    k: DrawContext,
    by_family: dict[str, list[Op]],
    tally: Tally,
    weights: Mapping[str, int] = FAMILY_WEIGHT,
    follows: bool = True,
    computes: bool = True,
) -> None:
    """Draw one step and offer it to the shadow. If no step fits, the caller draws another one. `follows` means that the
    family of the preceding step affects the choice, `computes` that the step may compute with rounded values."""
    before = k.shadow.steps[-1:] if k.biased and follows else []
    following = FOLLOWS.get(OPS[before[0].op].family, ()) if before else ()
    families = [family for family in following if family in by_family]
    if not families or not k.chance(1, 2):
        families = [family for family in by_family for _ in range(weights.get(family, 1) if k.biased else 1)]
    op = choose(k, by_family, families)
    again = [OPS[step.op] for step in k.shadow.steps if not step.body and OPS[step.op].family in by_family]
    if k.biased and follows and again and k.chance(1, 12):
        second = k.choice(again)  # some bugs need a second call of one kind, such as a second gradient
        op = second if second.fits is None or k.holds(second.fits) else op
    offer(k, op, tally, computes)


def offer(k: DrawContext, op: Op, tally: Tally, computes: bool = True, under: tuple[str, ...] = ()) -> Step | None:
    """Draw a step of this row, offer it to the shadow under these states, and return it as recorded; None if it is
    rejected. Without `computes`, a step that would compute with rounded values is rejected. Rounded values of a network
    layer may cancel, so that a correct result consists of rounding errors only."""
    step = op.draw(k)
    if step is None:
        k.shadow.avoided["nothing fits: " + op.family] += 1
        return None
    if step.op in k.once and any(earlier.op == step.op for earlier in k.shadow.steps):
        k.shadow.avoided[f"a second {step.op}"] += 1
        return None
    if (
        not computes
        and op.effect in (COMPUTE, LOSSY)
        and any(k.shadow.level(k[name]) == ROUNDED for name in step.names())
    ):
        k.shadow.avoided["computed with rounded values"] += 1
        return None
    if under:
        step = replace(step, under=states.ordered((*step.under, *stateful.promising(step, under))))
    names = [name for name in step.names() if name in k.shadow.env]
    cell = cell_of(op, k[names[0]]) if names else None
    offered = k.shadow.offer(step)
    if offered is not None and (cell or offered.out):
        tally.cells[cell or cell_of(op, k[offered.out[0]])] += 1
    return offered


def choose(k: DrawContext, by_family: dict[str, list[Op]], families: list[str]) -> Op:
    """A row that fits some tensor of the program: draw a family, then one of its rows, until one fits. If no row fits,
    `clone`."""
    while families:
        family = k.choice(families)
        ops = by_family[family]
        while ops:
            op = k.choice(ops)
            if op.fits is None or k.holds(op.fits):
                return op
            ops = [other for other in ops if other is not op]
        families = [other for other in families if other != family]
    return OPS["clone"]


def cell_of(op: Op, first: torch.Tensor) -> Cell:
    """Return the coverage cell of a step: its family, and the layout class and dtype of its first tensor."""
    return op.family, layout_class(first), dtype_name(first.dtype)
