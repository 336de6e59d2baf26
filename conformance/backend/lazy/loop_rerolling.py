"""Writes of a loop rolled back into one: `for i in range(n): a[i] += b[i] * i` becomes one write of n elements.

Defines `Loop`, writes to one flat value that have not been applied yet, and `Write`, one of them.

The key insight: the values that a loop writes are one expression whose reads and constants move on by equal steps, so n
of them are that expression over n times as many elements. What is equal and what moves is seen when a value arrives,
in time of the expression's size; applied one by one each write would be a select over the whole storage.
Must not know torch or storages.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from . import layout
from .layout import Ints

# Expressions of more nodes are not looked through: they cost more than the write.
LARGEST = 64
# Writes that belong to no common loop are applied when there are more of them.
MANY_RUNS = 4

# Strided reads, by their value: the flat value that was read, and the geometry.
_READS: weakref.WeakKeyDictionary[UOp, tuple[UOp, Ints, Ints, int]] = weakref.WeakKeyDictionary()

Number = float | int | bool
Table = Callable[[list[Number], Any], UOp]  # the numbers as a realized value of a dtype


def strided_read(flat: UOp, size: Ints, stride: Ints, offset: int) -> UOp:
    """The elements of a view of a flat value, which a loop recognizes when it reads the next such view."""
    value = layout.read(flat, size, stride, offset)
    if not layout.plan(size, stride).dense:
        _READS[value] = flat, size, stride, offset
    return value


class Expression(NamedTuple):
    """A value as elementwise work on reads of flat values."""

    steps: tuple[tuple[Any, ...], ...]  # in order; operands by their places. Equal for two turns of a loop
    starts: tuple[int, ...]  # of the reads
    numbers: tuple[Number, ...]  # the constants


class _TooLarge(Exception):
    """An expression of more than LARGEST nodes."""


def _expression(value: UOp, count: int) -> Expression | None:
    """`value`, of `count` elements, None where it is too large or its operands do not have one or `count` elements."""
    steps: list[tuple[Any, ...]] = []
    starts: list[int] = []
    numbers: list[Number] = []
    places: dict[UOp, int] = {}

    def visit(node: UOp) -> int:
        if node in places:
            return places[node]
        size = math.prod(node.shape)
        if len(steps) > LARGEST or size not in (1, count):
            raise _TooLarge
        read = _READS.get(node)
        if read is not None:
            starts.append(read[3])
            step: tuple[Any, ...] = ("read", *read[:3])
        elif node.op is Ops.CONST and node.dtype not in dtypes.weaks:
            numbers.append(node.val)  # type: ignore[arg-type]
            step = ("number", node.dtype)
        elif node.op is Ops.SHRINK and node.src[0].ndim == 1:
            starts.append(int(node.marg[0][0]))
            step = ("read", node.src[0], (size,), (1,))
        elif node.op in (Ops.RESHAPE, Ops.EXPAND) and math.prod(node.src[0].shape) in (1, size):
            return visit(node.src[0])  # row-major order stays
        elif node.op in GroupOp.ALU or node.op is Ops.CAST or (node.op is Ops.BITCAST and _same_size(node)):
            step = ("compute", node.op, node.dtype, node.arg, *[visit(s) for s in node.src])
        else:
            step = ("same", node)
        places[node] = len(steps)
        steps.append(step)
        return places[node]

    try:
        visit(value)
    except _TooLarge:
        return None
    return Expression(tuple(steps), tuple(starts), tuple(numbers))


def _same_size(bitcast: UOp) -> bool:
    return bitcast.dtype.itemsize == bitcast.src[0].dtype.itemsize


class Write(NamedTuple):
    """An assignment to a view of a flat value."""

    size: Ints
    stride: Ints
    offset: int
    value: UOp

    @property
    def extent(self) -> int:
        """Elements from the first to one past the last that it reaches."""
        return layout.plan(self.size, self.stride).extent


class _Run:
    """Writes of one geometry at equal distances, whose values are one expression; or one write of any value."""

    def __init__(self, first: Write) -> None:
        self.first = first
        turn = _expression(first.value, math.prod(first.size))
        self.turns = [] if turn is None else [turn]
        self.last = first.offset
        self.step = 0  # from turn to turn
        self.moves = (0,) * len(turn.starts if turn else ())  # of each read, from turn to turn

    def extend(self, write: Write) -> bool:
        """Take a further write; False where it is not the next."""
        turn = _expression(write.value, math.prod(write.size)) if write[:2] == self.first[:2] and self.turns else None
        if turn is None or turn.steps != self.turns[-1].steps:
            return False
        step = write.offset - self.last
        moves = tuple(b - a for a, b in zip(self.turns[-1].starts, turn.starts, strict=True))
        # Strides are not negative: reads have to move as the writes do, or stay.
        if any(m * step < 0 for m in moves) or (self.step and (step, moves) != (self.step, self.moves)):
            return False
        self.step, self.moves, self.last = step, moves, write.offset
        self.turns.append(turn)
        return True

    def rolled(self, table: Table) -> Write:
        """One write that does what all of them do."""
        if len(self.turns) < 2:
            return self.first
        turns = self.turns[::-1] if self.step < 0 else self.turns
        shape = (len(turns), math.prod(self.first.size))
        starts = iter(zip(turns[0].starts, self.moves, strict=True))
        numbers = zip(*[t.numbers for t in turns], strict=True)
        done: list[UOp] = []
        for kind, *of in turns[0].steps:
            if kind == "number":
                found = list(next(numbers))
                equal = all(repr(x) == repr(found[0]) for x in found)
                x = UOp.const(found[0], of[0]) if equal else table(found, of[0]).reshape((len(turns), 1))
            elif kind == "read":
                start, move = next(starts)
                x = layout.read(of[0], (len(turns), *of[1]), (abs(move), *of[2]), start).reshape((len(turns), -1))
            elif kind == "same":
                x = of[0].reshape((1, math.prod(of[0].shape)))
            else:
                x = UOp(of[0], of[1], tuple(done[i] for i in of[3:]), of[2])
            done.append(x.expand(shape) if x.shape != shape else x)
        size = (len(turns), *self.first.size)
        stride = (abs(self.step), *self.first.stride)
        return Write(size, stride, min(self.first.offset, self.last), done[-1].reshape(size))


class Loop:
    """Writes to different elements, gathered in few runs, and the newest, which may still be written over.

    Nothing may be read meanwhile but what lies apart from them, and what the newest wrote.
    """

    def __init__(self, first: Write) -> None:
        self.newest, self.count = first, 1
        self.low, self.high = first.offset, first.offset + first.extent  # what is written lies in there
        self._step: int | None = None  # from each write to the next, 0 where they differ in it or in geometry
        self._runs: list[_Run] = []

    def is_outside(self, size: Ints, stride: Ints, offset: int) -> bool:
        """Whether a view lies outside all that has been written."""
        return offset >= self.high or offset + layout.plan(size, stride).extent <= self.low

    def is_ahead(self, size: Ints, stride: Ints, offset: int) -> bool:
        """Whether a view is where a later write would be: it shares no element with any, as columns do not."""
        distance = offset - self.newest.offset if (size, stride) == self.newest[:2] else 0
        step = distance if self._step is None else self._step
        turns, rest = divmod(distance, step) if step else (0, 0)
        return turns > 0 == rest and layout.plan((self.count + turns, *size), (abs(step), *stride)).nested

    def _distance(self, write: Write) -> int:
        """From the newest write to one of its geometry; 0 where earlier writes were not at that distance."""
        step = write.offset - self.newest.offset if write[:2] == self.newest[:2] else 0
        return step if self._step in (None, step) else 0

    def is_newest(self, size: Ints, stride: Ints, offset: int) -> bool:
        """Whether a view is what the newest write wrote."""
        return self.newest[:3] == (size, stride, offset)

    def extend(self, write: Write) -> bool:
        """Take a further write; False where it must come after the others, or where these are no loop."""
        if not self.is_newest(*write[:3]):
            step = self._distance(write)
            free = self.is_outside(*write[:3]) or (step and self.is_ahead(*write[:3]))
            if not free or len(self._runs) == MANY_RUNS:
                return False
            self._end_newest()
            self.count, self._step = self.count + 1, step
            self.low, self.high = min(self.low, write.offset), max(self.high, write.offset + write.extent)
        self.newest = write
        return True

    def _end_newest(self) -> None:
        if not self._runs or not self._runs[-1].extend(self.newest):
            self._runs.append(_Run(self.newest))

    def writes(self, table: Table) -> list[Write]:
        """Few writes that do what all of them do, in any order; the loop is over."""
        self._end_newest()
        return [run.rolled(table) for run in self._runs]


__all__ = ["Loop", "Write", "strided_read"]
