"""Rerolling of loops of writes: `for i in range(n): a[i] += b[i] * i` becomes one write of n elements.

Defines `Loop`, pending writes to one flat value, and `Write`, a single write.

The values that a loop writes are one expression whose reads and constants advance by equal steps. Therefore n values
are that expression over n times as many elements. The comparison with the last value takes time proportional to the
size of the expression. Applied one by one, each write would be a select over the whole storage.

This module must not depend on torch or storages.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from . import layout
from .layout import Ints
from .recurrences import recurrence

# Larger expressions are not analysed: that costs more than the write.
LARGEST = 64
# Number of separate runs of writes at which all are applied.
MANY_RUNS = 4
# Single elements of at most this many are written in any order, `a[order[i]] += i`, with tables of all elements.
MOST_CELLS = 1 << 14

# Strided reads, by their value: the flat value that was read, and the geometry.
_READS: weakref.WeakKeyDictionary[UOp, tuple[UOp, Ints, Ints, int]] = weakref.WeakKeyDictionary()

# Largest number of turns that a recurrence reads back.
FARTHEST = 4
# Shorter recurrences are one expression; longer ones are a separate kernel between their first values and the store.
FEW_TURNS = 16
NO_VALUES: dict[UOp, int] = {}


class Changing(float):
    """A number that is data, since it has changed between calls: a constant would need a new compiled kernel."""


_CHANGING: weakref.WeakKeyDictionary[UOp, Changing] = weakref.WeakKeyDictionary()

Number = float | int | bool
Table = Callable[[list[Number], Any], UOp]  # the numbers as a realized value of a dtype


def strided_read(flat: UOp, size: Ints, stride: Ints, offset: int) -> UOp:
    """The elements of a view of a flat value, registered so that a loop recognizes the next such view."""
    value = layout.read(flat, size, stride, offset)
    if not layout.plan(size, stride).dense:
        _READS[value] = flat, size, stride, offset
    return value


def note_number(value: UOp, number: float) -> UOp:
    """Register the memory that holds a number, so that a loop takes it for one, and return it."""
    _CHANGING[value] = Changing(number)
    return value


class Expression(NamedTuple):
    """A value as elementwise work on reads of flat values."""

    steps: tuple[tuple[Any, ...], ...]  # in order, with operands by place; equal for two turns of a loop
    starts: tuple[int, ...]  # start of each read
    numbers: tuple[Number, ...]  # the constants, and the numbers that are data


class _TooLarge(Exception):
    """An expression of more than LARGEST nodes."""


def _expression(value: UOp, count: int, earlier: dict[UOp, int] = NO_VALUES) -> Expression | None:
    """`value`, of `count` elements, as an expression; None if it is too large or an operand has neither one nor `count`
    elements.

    `earlier` maps values of earlier turns to the number of turns back.
    """
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
        if node in earlier:
            step: tuple[Any, ...] = ("earlier", earlier[node])
        elif read is not None:
            starts.append(read[3])
            step = ("read", *read[:3])
        elif node in _CHANGING:
            numbers.append(_CHANGING[node])
            step = ("number", node.dtype)
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
        steps.append(step)
        if step[0] != "number":  # two constants may be equal in one turn and differ in the next
            places[node] = len(steps) - 1
        return len(steps) - 1

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
        """Elements from the first to one past the last that the write reaches."""
        return layout.plan(self.size, self.stride).extent


class _Run:
    """Writes of one geometry at equal distances, whose values are one expression; or one write of any value.

    In a recurrence the first writes may have any value. The others are one expression of earlier values.
    """

    def __init__(self, first: Write) -> None:
        self.first = first
        self.writes = [first]
        turn = _expression(first.value, math.prod(first.size))
        self.turns = [] if turn is None else [turn]
        self.step = 0  # from turn to turn
        self.moves = (0,) * len(turn.starts if turn else ())  # of each read, from turn to turn

    @property
    def is_recurrence(self) -> bool:
        """Whether a turn needs earlier turns."""
        return 0 < len(self.turns) < len(self.writes)

    def extend(self, write: Write) -> bool:
        """Add a write; False if it does not continue the run."""
        step = write.offset - self.writes[-1].offset
        if write[:2] != self.first[:2] or (self.step and step != self.step):
            return False
        count = math.prod(write.size)
        if not self.is_recurrence and self.turns and self._continues(_expression(write.value, count), step):
            pass
        elif (turn := _expression(write.value, count, self._earlier())) is None:
            return False
        elif not (self.is_recurrence and self._continues(turn, step)):
            if len(self.writes) >= FARTHEST or not any(s[0] == "earlier" for s in turn.steps):
                return False
            self.turns, self.moves = [turn], (0,) * len(turn.starts)  # the earlier writes only start the recurrence
        self.step = step
        self.writes.append(write)
        return True

    def _continues(self, turn: Expression | None, step: int) -> bool:
        """Add a turn that is the last one, advanced by a step; False if it is not."""
        if turn is None or turn.steps != self.turns[-1].steps:
            return False
        moves = tuple(b - a for a, b in zip(self.turns[-1].starts, turn.starts, strict=True))
        # Strides are not negative: reads have to advance in the direction of the writes, or not at all.
        if any(m * step < 0 for m in moves) or (len(self.turns) > 1 and moves != self.moves):
            return False
        self.moves = moves
        self.turns.append(turn)
        return True

    def _earlier(self) -> dict[UOp, int]:
        """The last values, each with how many turns ago it was written; among equal values the latest."""
        return {w.value: back for back, w in reversed([*enumerate(self.writes[: -FARTHEST - 1 : -1], 1)])}

    def rolled(self, table: Table, device: str) -> list[Write]:
        """Few writes equivalent to all writes of the run, in any order."""
        if self.is_recurrence and len(self.turns) < FEW_TURNS:
            return self.writes
        if len(self.writes) == 1:
            return [self.first]
        down, size = self.step < 0, (len(self.writes), *self.first.size)
        operands = self._operands(self.turns[::-1] if down else self.turns, table)
        if self.is_recurrence:
            begins = [w.value for w in self.writes[: -len(self.turns)]]
            value = recurrence(begins, operands, self.turns[0].steps, len(self.turns), down, device)
        else:
            value = _at_once(operands, self.turns[0].steps, (len(self.turns), math.prod(self.first.size)))
        stride = (abs(self.step), *self.first.stride)
        return [Write(size, stride, min(self.first.offset, self.writes[-1].offset), value.reshape(size))]

    def _operands(self, turns: Sequence[Expression], table: Table) -> list[UOp]:
        """The operands of the steps, in order, each with one row per turn (one row if all are equal) and one column per
        element.
        """
        starts = iter(zip(turns[0].starts, self.moves, strict=True))
        numbers = zip(*[t.numbers for t in turns], strict=True)
        operands = []
        for kind, *of in turns[0].steps:
            if kind == "number":
                values = list(next(numbers))
                if all(repr(x) == repr(values[0]) for x in values):
                    values = values[:1]
                constant = len(values) == 1 and not isinstance(values[0], Changing)
                operands.append(UOp.const(values[0], of[0]) if constant else table(values, of[0]).reshape((-1, 1)))
            elif kind == "read":
                start, move = next(starts)
                count = len(turns) if move else 1
                read = layout.read(of[0], (count, *of[1]), (abs(move), *of[2]), start)
                operands.append(read.reshape((count, -1)))
            elif kind == "same":
                node = of[0]
                operands.append(node if node.op is Ops.CONST else node.reshape((1, math.prod(node.shape))))
        return operands


def _at_once(operands: Sequence[UOp], steps: Sequence[tuple[Any, ...]], shape: Ints) -> UOp:
    """All turns of a loop whose turns are independent."""
    operand, done = iter(operands), list[UOp]()
    for kind, *of in steps:
        x = UOp(of[0], of[1], tuple(done[i] for i in of[3:]), of[2]) if kind == "compute" else next(operand)
        done.append(x.expand(shape) if x.shape != shape else x)
    return done[-1]


def _scattered(runs: Sequence[_Run], flat: UOp, table: Table) -> Write:
    """One write equivalent to runs of single elements whose turns are one expression; its kernel does not depend on
    their places.

    The expression is computed for all elements of `flat`, with the operands of the first turn where no turn writes:
    other operands could divide by zero, which ends the process.
    """
    writes, turns = [w for run in runs for w in run.writes], [turn for run in runs for turn in run.turns]
    length = int(flat.shape[0])

    def at_places(values: Sequence[Number], dtype: Any, elsewhere: Number) -> UOp:
        cells = [elsewhere] * length
        for write, number in zip(writes, values, strict=True):
            cells[write.offset] = number
        return table(cells, dtype)

    starts, numbers = zip(*[t.starts for t in turns], strict=True), zip(*[t.numbers for t in turns], strict=True)
    operands = []
    for kind, *of in turns[0].steps:
        if kind == "number":
            values = next(numbers)
            operands.append(at_places(values, of[0], values[0]))
        elif kind == "read":
            places = next(starts)
            operands.append(layout.elements(of[0], at_places(places, dtypes.int64, places[0])))
        elif kind == "same":
            operands.append(of[0] if of[0].op is Ops.CONST else of[0].reshape((1,)))
    value = _at_once(operands, turns[0].steps, (length,))
    written = at_places([True] * len(writes), dtypes.bool, False)
    return Write((length,), (1,), 0, written.where(value, flat))


class Loop:
    """Writes to different elements, grouped in few runs, and the newest write, which may still be overwritten.

    Until the loop ends, only elements outside these writes and the value of the newest write may be read. Single
    elements may be written in any order, in any number of runs, if these are one expression.
    """

    def __init__(self, first: Write, length: int) -> None:
        """`length` is the number of elements of the flat value."""
        self._places = {first.offset} if not first.size and length <= MOST_CELLS else None  # of single elements
        self.newest, self.count = first, 1
        self.low, self.high = first.offset, first.offset + first.extent  # bounds of all written elements
        self._step: int | None = None  # distance between consecutive writes, 0 if distances or geometries differ
        self._runs: list[_Run] = []

    def is_outside(self, size: Ints, stride: Ints, offset: int) -> bool:
        """Whether a view lies outside all elements that have been written."""
        if self._places is not None and not size:
            return offset not in self._places
        return offset >= self.high or offset + layout.plan(size, stride).extent <= self.low

    def is_ahead(self, size: Ints, stride: Ints, offset: int) -> bool:
        """Whether a view is at the place of a later write: it shares no element with any, as columns do not."""
        distance = offset - self.newest.offset if (size, stride) == self.newest[:2] else 0
        step = distance if self._step is None else self._step
        turns, rest = divmod(distance, step) if step else (0, 0)
        return turns > 0 == rest and layout.plan((self.count + turns, *size), (abs(step), *stride)).nested

    def _distance(self, write: Write) -> int:
        """Distance from the newest write to this one, if the geometries are equal; 0 if earlier distances differ."""
        step = write.offset - self.newest.offset if write[:2] == self.newest[:2] else 0
        return step if self._step in (None, step) else 0

    def is_newest(self, size: Ints, stride: Ints, offset: int) -> bool:
        """Whether a view is the target of the newest write."""
        return self.newest[:3] == (size, stride, offset)

    def written(self, size: Ints, stride: Ints, offset: int) -> UOp | None:
        """The value of a view that one of the last writes wrote, as a recurrence reads; else None."""
        last = self._runs[-1].writes[:-FARTHEST:-1] if self._runs else []
        return next((w.value for w in (self.newest, *last) if w[:3] == (size, stride, offset)), None)

    def extend(self, write: Write) -> bool:
        """Add a write; False if it must come after the others, or if it belongs to no loop with them."""
        if not self.is_newest(*write[:3]):
            step = self._distance(write)
            free = self.is_outside(*write[:3]) or (step and self.is_ahead(*write[:3]))
            if not free or not self._takes_runs():
                return False
            self._end_newest()
            if self._places is not None:
                self._places.add(write.offset)
            if write.size:
                self._places = None
            self.count, self._step = self.count + 1, step
            self.low, self.high = min(self.low, write.offset), max(self.high, write.offset + write.extent)
        self.newest = write
        return True

    def _takes_runs(self) -> bool:
        """Whether a further write may begin a new run."""
        if len(self._runs) < MANY_RUNS:
            return True
        new = self._runs if len(self._runs) == MANY_RUNS else self._runs[-1:]
        return self._places is not None and all(map(self._is_scattered, new))

    def _is_scattered(self, run: _Run) -> bool:
        first = self._runs[0].turns
        return bool(first) and len(run.turns) == len(run.writes) and run.turns[0].steps == first[0].steps

    def _end_newest(self) -> None:
        if not self._runs or not self._runs[-1].extend(self.newest):
            self._runs.append(_Run(self.newest))

    def writes(self, flat: UOp, table: Table, device: str) -> list[Write]:
        """Few writes to `flat` equivalent to all writes of the loop, in any order; ends the loop."""
        self._end_newest()
        scattered, others = list[_Run](), self._runs
        if self._places is not None and sum(map(self._is_scattered, self._runs)) > MANY_RUNS:
            scattered = [run for run in self._runs if self._is_scattered(run)]
            others = [run for run in self._runs if not self._is_scattered(run)]
        rolled = [write for run in others for write in run.rolled(table, device)]
        return [_scattered(scattered, flat, table), *rolled] if scattered else rolled


__all__ = ["Loop", "Write", "strided_read"]
