"""Writes of numbers to many places, replayed on the host into one table.

Defines `replayed`, and `changes`, the numbers of single writes that should not be constants of a kernel.

A loop such as `for i in range(n): a[i] = i` depends only on numbers, so the host can execute it. The result is one
table of the written numbers, and a mask of the written places.

This module must not depend on storages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from ..runtime import expressions, memory
from . import layout
from .dtypes import TORCH
from .layout import Ints

Number = float | int | bool
NumberWrite = tuple[Ints, Ints, int, Number]  # size, stride, offset, and the number for each of its elements


CHANGING = 3  # distinct numbers of writes of one geometry, after which other numbers are data

_seen: dict[tuple[Any, ...], set[str]] = {}


def reset_state() -> None:
    """Treat every number as a constant until it changes again, as in a new process."""
    _seen.clear()


def changes(number: Number, flat: UOp, size: Ints, stride: Ints) -> bool:
    """Whether a number written to `flat` should be data of the kernel, because each new constant needs a new kernel."""
    seen = _seen.setdefault((flat.dtype, flat.shape, size, stride), set())
    if len(seen) < CHANGING:
        seen.add(repr(number))
    return repr(number) not in seen


def replayed(writes: Sequence[NumberWrite], flat: UOp, device: str) -> UOp:
    """`flat` (shape (n,), a dtype that numpy has) after these writes, in order."""
    dtype, (length,) = flat.dtype, flat.shape
    low = min(offset for _, _, offset, _ in writes)
    high = max(offset + layout.plan(size, stride).extent for size, stride, offset, _ in writes)
    old = expressions.constant_of(flat)
    values = torch.full((high - low,), 0 if old is None else old, dtype=TORCH[dtype], device="cpu").numpy()
    written = np.zeros(high - low, dtype=np.bool_)
    for single, group in itertools.groupby(writes, key=lambda write: not write[0]):
        if single:  # one element each, written in one assignment; of equal places the last wins
            _, _, offsets, numbers = zip(*group, strict=True)
            place = np.array(offsets) - low
            values[place] = np.array(numbers, dtype=values.dtype)
            written[place] = True
            continue
        for size, stride, offset, number in group:
            place = layout.positions(size, stride, offset - low)
            values[place] = number
            written[place] = True
    if (old is not None or written.all()) and high - low == length:
        return memory.from_host(values, dtype, device)
    around = ((low, length - high),)
    table = memory.from_host(values, dtype, device).pad(around)
    mask = memory.from_host(written, dtypes.bool, device).pad(around)
    return mask.where(table, flat)


__all__ = ["Number", "NumberWrite", "changes", "replayed", "reset_state"]
