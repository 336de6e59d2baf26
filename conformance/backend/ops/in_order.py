"""Many writes by index, one after another, as one loop kernel.

Defines `are_many` and `written`. The tables of `scatter` take dozens of bytes of host memory for each write, and most
of their time goes into NumPy's sort. A loop takes an index and an element per write, and its order is the CPU's.
A GPU would run the loop in one lane, so only devices in host memory use it.
The module depends neither on operators nor on the way in which writes to one position combine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context
from ..runtime import memory
from ..runtime.loop_kernels import Array, LoopProgram, kernel

MANY = 1 << 18  # least number of writes for which a loop is worth the values in memory that it reads
Combination = Callable[[UOp, UOp], UOp]


def are_many(ctx: Context, place: np.ndarray) -> bool:
    """Whether these writes run as a loop."""
    return len(place) >= MANY and memory.host_addressable(ctx.device)


def written(
    ctx: Context,
    base: UOp,
    place: np.ndarray,
    source: UOp,
    combine: Combination | None = None,
    neutral: float | None = None,
) -> UOp:
    """`base` (n, ...) after base[place[i]] = source[i] for each i in order, or = combine(base[place[i]], source[i]).

    `place` (k,) holds integers in [0, n), and `source` (k, ...) has the dtype of `base`. Written positions start with
    `neutral` if it is a number, otherwise with their old values.
    """
    count, writes, inner = int(base.shape[0]), len(place), int(math.prod(base.shape[1:]))
    index = ctx.data(place.astype(np.int32 if count < 1 << 31 else np.int64, copy=False))
    arrays = [base.reshape((count, inner)), index, source.reshape((writes, inner))]
    outputs = kernel(_writes, [((count, inner), base.dtype)], arrays, ctx.device, combine, neutral)
    return outputs[0].reshape(base.shape)


def _writes(
    p: LoopProgram,
    new: Array,
    old: Array,
    index: Array,
    source: Array,
    combine: Combination | None,
    neutral: float | None,
) -> None:
    count, inner = new.shape
    for row in p.loop(count, independent=True):
        for column in p.loop(inner, independent=True):
            new[row, column] = old[row, column]
    if neutral is not None:
        for write in p.loop(len(index)):
            for column in p.loop(inner, independent=True):
                new[index[write], column] = neutral
    for write in p.loop(len(index)):
        for column in p.loop(inner, independent=True):
            at, value = (index[write], column), source[write, column]
            new[at] = value if combine is None else combine(new[at], value)
