"""A loop whose turns depend on earlier turns, `for i in range(1, n): a[i] = a[i - 1] * 2`, as one kernel.

Defines `recurrence`.

As nodes of a graph, the last value of n turns is an expression of depth n. It has to be cut into several kernels, and
each write is a select over the whole storage. As a loop, it is a kernel of one turn's size, which reads its earlier
results.

This module must not depend on torch or storages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..runtime.loop_kernels import Array, LoopProgram, kernel

Steps = tuple[tuple[Any, ...], ...]


def recurrence(
    begins: Sequence[UOp], operands: Sequence[UOp], steps: Steps, turns: int, down: bool, device: str
) -> UOp:
    """The values of a loop, in the order of memory: one row for each turn and for each of the first values.

    `begins` are the values of the first turns. `steps` are the steps of one turn, in order: ("compute", op, dtype, arg,
    *places), ("earlier", turns ago), or any other for the next of the `operands`. Operands have a row for each turn, or
    one row, and a column for each element, or one column. Rows are in the order of memory; with `down` the loop runs in
    reverse order.
    """
    count = int(math.prod(begins[0].shape))
    inlined = [x.op is Ops.CONST for x in operands]
    operand, program = iter(operands), list[tuple[Any, ...]]()
    for step in steps:
        if step[0] in ("compute", "earlier"):
            program.append(step)
        else:
            x = next(operand)
            program.append(("number", x) if x.op is Ops.CONST else ("operand",))
    arrays = [x.reshape((count,)) for x in begins] + [x for x, n in zip(operands, inlined, strict=True) if not n]
    output = ((turns + len(begins), count), begins[0].dtype)
    return kernel(_recurrence, [output], arrays, device, tuple(program), turns, len(begins), down)[0]


def _recurrence(p: LoopProgram, rows: Array, *rest: Any) -> None:
    *arrays, steps, turns, first, down = rest
    begins, operands = arrays[:first], arrays[first:]

    def row(turn: Any) -> Any:
        return (len(rows) - 1) - turn if down else turn

    for element in p.loop(rows.shape[1], independent=True):
        for place, begin in enumerate(begins):
            rows[row(place), element] = begin[element]
    for turn in p.loop(turns):
        for element in p.loop(rows.shape[1], independent=True):
            operand, done = iter(operands), list[UOp]()
            for kind, *of in steps:
                if kind == "compute":
                    done.append(UOp(of[0], of[1], tuple(done[i] for i in of[3:]), of[2]))
                elif kind == "earlier":
                    done.append(rows[row(turn + (first - of[0])), element])
                elif kind == "number":
                    done.append(of[0])
                else:
                    x = next(operand)
                    at = (turns - 1) - turn if down else turn
                    done.append(x[at if len(x) > 1 else 0, element if x.shape[1] > 1 else 0])
            rows[row(turn + first), element] = done[-1]
