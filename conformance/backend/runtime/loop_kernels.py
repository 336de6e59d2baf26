"""Kernels written as loops, for work that depends on its own earlier steps, such as an elimination.

Defines `kernel`, which runs a program of loops, loads and stores over arrays, and `LoopProgram` and `Array`, which the
program uses:

    def running_sum(p: Program, total: Array, x: Array) -> None:
        sum = p.local(x.dtype, 0.0)
        for i in p.loop(len(x)):
            sum[0] = sum[0] + x[i]
            total[i] = sum[0]

tinygrad's kernels are graphs, which order nodes only by dependencies. Therefore every load and store depends on the
store before it, so that the graph has the order of the program. The graph cannot express that a load precedes a store
which overwrites the element. A loaded value is therefore refused once its array has been stored to; `Program.keep`
makes a copy.

tinygrad emulates floats that the device does not have, but not in memory that depends on a store. Arrays of such a
dtype hold its bits as integers.

This module must not depend on torch or on the computation. A `for` over `Program.loop` runs its body once, with a
symbol as the index. It must end without `break`, and must store the values that it computes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tinygrad import Device
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.helpers import EMULATED_DTYPES
from tinygrad.uop import Ops
from tinygrad.uop.ops import AxisType, KernelInfo, UOp

from . import expressions

Index = Any  # an int or a value, or a tuple of them
Content = UOp | float
Shape = tuple[int, ...]


class Array:
    """Memory of a program: `a[i, j]` loads an element, `a[i, j] = x` stores one, cast to the array's dtype."""

    def __init__(self, program: LoopProgram, memory: UOp, shape: Shape, dtype: DType) -> None:
        self._program, self._memory, self.shape, self.dtype = program, memory, shape, dtype

    def __len__(self) -> int:
        return self.shape[0]

    def _place(self, index: Index) -> UOp:
        """The flat index, row-major."""
        place = UOp.const(0, dtypes.weakint)
        for size, i in zip(self.shape, index if isinstance(index, tuple) else (index,), strict=True):
            place = place * size + (i.cast(dtypes.weakint) if isinstance(i, UOp) else i)
        return place

    def __getitem__(self, index: Index) -> UOp:
        return self._program.load(self._memory, self._place(index)).bitcast(self.dtype)

    def __setitem__(self, index: Index, content: Content) -> None:
        self.set(index, content)

    def set(self, index: Index, content: Content, where: UOp | None = None) -> None:
        """Store an element, if a condition holds."""
        value = content.cast(self.dtype) if isinstance(content, UOp) else UOp.const(content, self.dtype)
        condition = UOp.const(True, dtypes.bool) if where is None else where.simplify()
        known = expressions.constant_of(condition)
        if known is None:
            value = condition.where(value, self[index])
        elif not known:
            return  # tinygrad would drop a store of the same value, and the order of the earlier nodes with it
        self._program.store(self._memory, self._place(index), value.bitcast(self._memory.dtype))


class LoopProgram:
    """State of the program: the last store or loop, on which the next node depends, and the stale loads. `emulated`
    are the floats that the device does not have."""

    def __init__(self, emulated: frozenset[DType] = frozenset()) -> None:
        self._emulated = emulated
        self._axes, self._slots = itertools.count(), itertools.count()
        self._last: tuple[UOp, ...] = ()
        self._stores: Counter[UOp] = Counter()  # by memory
        self._loads: dict[UOp, tuple[UOp, int]] = {}  # the memory, and the number of stores to it at that time

    def load(self, memory: UOp, place: UOp) -> UOp:
        """An element of an array's memory."""
        loaded = memory.after(*self._last).index(self._fresh(place)).load()
        self._loads[loaded] = memory, self._stores[memory]
        return loaded

    def store(self, memory: UOp, place: UOp, content: UOp) -> None:
        """Set an element of an array's memory."""
        self._last = (memory.after(*self._last).index(self._fresh(place)).store(self._fresh(content)),)
        self._stores[memory] += 1

    def _fresh(self, value: UOp) -> UOp:
        """The value; RuntimeError if it was loaded from an array that has been stored to since."""
        nodes, seen = [value], set()
        while nodes:
            node = nodes.pop()
            if node in self._loads:
                memory, count = self._loads[node]
                if self._stores[memory] != count:
                    raise RuntimeError("a value is used after a store to the array that it was loaded from: keep it")
            elif node not in seen:
                seen.add(node)
                nodes.extend(node.src)
        return value

    def local(self, dtype: DType, *content: Content) -> Array:
        """A new array of the program, filled with these elements at this point."""
        size = len(content)
        memory = UOp.placeholder((size,), _stored(dtype, self._emulated), next(self._slots), AddrSpace.REG)
        result = Array(self, memory, (size,), dtype)
        for i, element in enumerate(content):
            result[i] = element
        return result

    def keep(self, value: UOp) -> UOp:
        """A copy of the value, unaffected by later stores."""
        return self.local(value.dtype, value)[0]

    def loop(self, count: int, independent: bool = False) -> Iterator[UOp]:
        """0, 1, ... below `count`, which must be a number for tinygrad. `independent` turns do not use other turns."""
        if count == 1:
            yield UOp.const(0, dtypes.weakint)
        if count < 2:
            return
        turn = UOp.range(count, next(self._axes), AxisType.WEAK if independent else AxisType.LOOP)
        before, self._last = self._last, (*self._last, turn)
        yield turn
        self._last = before if turn in self._last else (self._last[0].end(turn),)  # unchanged if nothing was stored

    def sink(self, name: str) -> UOp:
        """The kernel's graph."""
        return UOp.sink(*self._last, arg=KernelInfo(name=name, opts_to_apply=()))


def kernel(
    write: Callable[..., None], outputs: Sequence[tuple[Shape, DType]], inputs: Sequence[UOp], device: str, *more: Any
) -> list[UOp]:
    """The outputs, as lazy values, of one kernel: `write(program, *outputs, *inputs, *more)` with an Array for each.

    Elements of an output that the program does not store are undefined.
    """
    emulated = _emulated(device, EMULATED_DTYPES.value)
    read = [_in_memory(x.bitcast(_stored(x.dtype, emulated)), device) for x in inputs]
    buffers = [UOp.new_buffer(device, math.prod(shape), _stored(dtype, emulated)) for shape, dtype in outputs]
    arrays = [*outputs, *((tuple(int(n) for n in x.shape), x.dtype) for x in inputs)]
    call = _graph(write, tuple(arrays), emulated, *more).call(*buffers, *read)
    return [b.after(call).reshape(shape).bitcast(dtype) for b, (shape, dtype) in zip(buffers, outputs, strict=True)]


@functools.cache
def _emulated(device: str, by_setting: str) -> frozenset[DType]:
    """The narrow floats that tinygrad emulates on a device: its renderer lacks them, or a setting names them."""
    held = Device[device].renderer.supported_dtypes()
    named = {getattr(dtypes, name) for name in by_setting.split(",") if name}
    return frozenset(dtype for dtype in dtypes.floats if dtype.itemsize < 4 and dtype not in held - named)


def _stored(dtype: DType, emulated: frozenset[DType]) -> DType:
    """The dtype of an array's memory."""
    return {2: dtypes.uint16, 1: dtypes.uint8}[dtype.itemsize] if dtype in emulated else dtype


@functools.lru_cache(maxsize=1024)
def _graph(
    write: Callable[..., None], arrays: Sequence[tuple[Shape, DType]], emulated: frozenset[DType], *more: Any
) -> UOp:
    program = LoopProgram(emulated)
    memories = [
        UOp.placeholder((math.prod(shape),), _stored(dtype, emulated), slot)
        for slot, (shape, dtype) in enumerate(arrays)
    ]
    write(program, *(Array(program, m, *array) for m, array in zip(memories, arrays, strict=True)), *more)
    return program.sink(write.__name__.strip("_"))


def _in_memory(x: UOp, device: str) -> UOp:
    """A value as a flat buffer, or as a value that will become one."""
    flat = x.reshape((math.prod(x.shape),))
    if x.device is None:
        return flat.clone(device)
    return flat if expressions.strip_reshapes(x).op in (Ops.BUFFER, Ops.AFTER, Ops.CONTIGUOUS) else flat.contiguous()
