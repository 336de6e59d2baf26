"""One flat value per torch storage, the writes that wait for it, and when it is realized.

Defines `Cell` (what hangs on an UntypedStorage), `allocate`, `cell_of`, `resize`, and `observe`.

The key insight: a Python attribute of an UntypedStorage lives exactly as long as the storage, so every view of it,
however it was made, finds the same cell, and a write through one is seen by all.
Must not know ops: it reads and writes geometries.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..runtime import materialization, recording, scheduler
from ..runtime.defer_sigint import HeldBack
from . import buffer_donation, layout
from .addresses import ADDRESSES
from .constant_writes import Number, NumberWrite, replayed
from .dtypes import TORCH, element
from .loop_rerolling import Loop, Write, strided_read

Ints = tuple[int, ...]

# A lazy value is realized when its measure exceeds one of these: scheduling time grows with depth, compile time with
# cost, and clang takes no more than 256 nested brackets.
MAX_DEPTH = 4096
MAX_NESTING = 128
MAX_COST = 2048
# Constant writes in a row that are kept as movement ops; more are replayed on the host into one table.
FEW_WRITES = 4
# Constant writes which a cell remembers before it replays them.
MANY_WRITES = 4096
# Contents of at least so many bytes are stored in the buffer that held the old one when they are computed.
HOME_BYTES = 1 << 14
# A write is stored in the buffer itself when that has at least so many bytes and the write is at most this share of it.
IN_PLACE_BYTES = 1 << 20
IN_PLACE_SHARE = 16


# By serial number, so that they are met in the order of creation: an equal program then makes an equal graph.
_cells: weakref.WeakValueDictionary[int, Cell] = weakref.WeakValueDictionary()  # lazy: they learn of realizations
_by_address: weakref.WeakValueDictionary[int, Cell] = weakref.WeakValueDictionary()  # by data pointer
_dirty: weakref.WeakValueDictionary[int, Cell] = weakref.WeakValueDictionary()  # lazily written in place
_looping: weakref.WeakValueDictionary[int, Cell] = weakref.WeakValueDictionary()  # with the writes of a loop waiting
_unsettled: weakref.WeakValueDictionary[int, Cell] = weakref.WeakValueDictionary()  # with writes to store in place
_serials = itertools.count()


class Cell:
    """The content of one storage, lazy: a flat value of shape (length,), and writes not yet applied to it.

    What waits are constant writes or the writes of a loop, never both.

    What an operator computes stays as it is, with the geometry in which it covers the storage, and is laid out flat
    only when something needs that; the next operator mostly reads it in the same geometry.
    """

    __slots__ = (
        "__weakref__",
        "_addresses",
        "_flat",
        "_fresh",
        "_home",
        "_loop",
        "_number",
        "_view",
        "_waiting",
        "device",
        "nbytes",
        "serial",
        "version",
    )

    def __init__(self, nbytes: int, device: str, dtype: DType = dtypes.uint8) -> None:
        self.nbytes, self.device, self.serial = nbytes, device, next(_serials)
        # While there is neither a flat value nor a view, all elements are one number. New memory reads as zeros: torch
        # promises nothing, and a constant costs nothing.
        self._fresh, self._number = dtype, cast(Number, 0)
        self._flat: UOp | None = None
        self._view: tuple[Ints, Ints, int, UOp] | None = None  # a geometry, and what it reads
        self._waiting: list[NumberWrite] = []
        self._loop: Loop | None = None  # writes to the flat value that wait; then no constant ones do
        self._home: UOp | None = None  # the buffer of the content before it was written, if there was one
        self._addresses: list[tuple[int, int]] = []
        self.version = 0  # counts changes of content

    def __del__(self) -> None:
        for address, size in self._addresses:
            ADDRESSES.release(address, size)

    @property
    def dtype(self) -> DType:
        """The dtype in which the content is held now."""
        if self._flat is not None:
            return self._flat.dtype
        return self._view[3].dtype if self._view is not None else self._fresh

    @property
    def value(self) -> UOp:
        """The content without the waiting constant writes, flat or in the geometry it was computed in."""
        if self._loop is not None:
            self.end_loop()
        if self._flat is not None:
            return self._flat
        if self._view is not None:
            return self._view[3]
        if self._number == 0 and math.copysign(1, self._number) > 0:
            self._flat = _zeros(self.nbytes, self._fresh)
        else:
            self._flat = UOp.const(self._number, self._fresh).expand((-(-self.nbytes // self._fresh.itemsize),))
        return self._flat

    def learn(self, value: UOp) -> None:
        """Hold an equal value instead: what `value` was, rewritten to read what has been computed meanwhile."""
        if self._flat is not None:
            self._flat, self._view = value, None
        else:
            assert self._view is not None
            self._view = (*self._view[:3], value)
        if scheduler.is_realized(value):
            self._home = None

    def flat(self) -> UOp:
        """The content as a value of shape (length,), all writes applied."""
        if self._loop is not None:
            self.end_loop()
        if self._flat is None:
            value = self.value
            if self._view is not None:
                p = layout.plan(*self._view[:2])
                self._flat = _reshaped(p.to_core(value), (p.numel,))
        assert self._flat is not None
        if self._waiting:
            self._apply_waiting()
        return self._flat

    def flat_as(self, dtype: DType) -> UOp:
        """The content in `dtype`: the same bits."""
        bits = self.flat()
        if bits.dtype == dtype:
            return bits
        if scheduler.constant_of(bits) == 0:
            self._flat, self._view = _zeros(self.nbytes, dtype), None
            return self._flat
        if bits.op is Ops.BITCAST and bits.src[0].dtype == dtype:
            return bits.src[0]  # there and back again
        if bits.dtype.itemsize != dtype.itemsize and not scheduler.is_realized(bits):
            # tinygrad merges a chain of bitcasts into one inside a kernel, also where element sizes differ: break it.
            bits = bits.clone(self.device) if bits.device is None else bits.contiguous()
        spare = -bits.shape[0] * bits.dtype.itemsize % dtype.itemsize
        if bits.dtype is dtypes.bool:
            bits = bits.cast(dtypes.uint8)
        if spare:  # a storage whose size is no multiple of the element's: the rest is never in a view
            bits = bits.bitcast(dtypes.uint8).pad(((0, spare),))
        if dtype is dtypes.bool:
            return bits.bitcast(dtypes.uint8).ne(0)
        return bits.bitcast(dtype) if bits.dtype != dtype else bits

    def buffer(self, dtype: DType) -> UOp | None:
        """The buffer that holds the content in `dtype`, None where there is none yet."""
        flat = self._flat
        if flat is None or self._waiting or self._loop or flat.op is not Ops.BUFFER or flat.dtype != dtype:
            return None
        return flat if scheduler.is_realized(flat) else None

    def read(self, dtype: torch.dtype, size: Ints, stride: Ints, offset: int) -> UOp:
        """The elements of a view; a complex view has a last dimension of 2 more."""
        real, parts = element(dtype)
        if parts == 2:
            size, stride, offset = paired(size, stride, offset)
        loop = self._loop
        if loop is not None and self.dtype == real:
            if loop.wrote(size, stride, offset) and self.nbytes < IN_PLACE_BYTES:
                return loop.newest.value
            if self._flat is not None and (loop.apart(size, stride, offset) or loop.ahead(size, stride, offset)):
                return strided_read(self._flat, size, stride, offset)
        if self._waiting and self._waiting[-1][:3] == (size, stride, offset) and self.dtype == real:
            return UOp.const(self._waiting[-1][3], real).expand(size)
        view, waits = self._view, self._waiting or loop is not None
        if view is not None and not waits and view[:3] == (size, stride, offset) and view[3].dtype == real:
            return view[3]
        value = strided_read(self.flat_as(real), size, stride, offset)
        self._view = (size, stride, offset, value)
        return value

    def apart(self, dtype: torch.dtype, size: Ints, stride: Ints, offset: int) -> bool:
        """Whether a view lies outside the writes of the loop that waits for a buffer here; False where none does."""
        if self._loop is None or self._flat is None or not scheduler.is_realized(self._flat):
            return False
        real, parts = element(dtype)
        if parts == 2:
            size, stride, offset = paired(size, stride, offset)
        return self.dtype == real and self._loop.apart(size, stride, offset)

    def write(self, dtype: torch.dtype, size: Ints, stride: Ints, offset: int, value: UOp) -> None:
        """Assign `value`, of the view's shape and dtype (complex: with a last dimension of 2), to a view."""
        real, parts = element(dtype)
        if parts == 2:
            size, stride, offset = paired(size, stride, offset)
        if 0 in size:
            return
        self.version += 1
        if layout.covers(size, stride, offset, -(-self.nbytes // real.itemsize)):
            self.hold(size, stride, value)
            return
        constant = scheduler.constant_of(value)
        if constant is not None and self.dtype == real:
            self._wait(size, stride, offset, constant)
        elif not self._looped(Write(size, stride, offset, value), real):
            flat = self.flat_as(real)
            p = layout.plan(size, stride)
            if flat is self._flat and p.nested and not p.expanded:
                self._loop, self._view = Loop(Write(size, stride, offset, value)), None
                _cells[self.serial] = _looping[self.serial] = self
                self._postponed()
            else:
                self._flat = flat
                self._write([Write(size, stride, offset, value)])

    def _looped(self, write: Write, real: DType) -> bool:
        """Whether a write is the next of a loop that waits."""
        if self._loop is None or self.dtype != real or not self._loop.continued(write):
            return False
        if self._loop.count >= MANY_WRITES:
            self.end_loop()
        return True

    def _write(self, writes: Sequence[Write]) -> None:
        """Apply writes whose values are of before all of them."""
        if self._stored(writes):
            return
        self._leave()
        for write in writes:
            assert self._flat is not None
            self._flat = layout.write(self._flat, *write, self._table)
        self._view = None
        _cells[self.serial] = self
        self.cut()

    def end_loop(self) -> None:
        """Apply the writes of a loop, as few writes."""
        loop, self._loop = self._loop, None
        if loop is not None:
            _looping.pop(self.serial, None)
            self._write(loop.writes(self._numbers))

    def _wait(self, size: Ints, stride: Ints, offset: int, number: Number) -> None:
        if self._loop is not None:
            constant = UOp.const(number, self.dtype)
            if self._looped(Write(size, stride, offset, constant.expand(size) if size else constant), self.dtype):
                return
            self.end_loop()
        if self._flat is None:
            self.flat()
        self._waiting.append((size, stride, offset, number))
        if self.serial not in _cells:
            _cells[self.serial] = self
        self._postponed()
        if len(self._waiting) >= MANY_WRITES:
            self._apply_waiting()

    def _postponed(self) -> None:
        if self.nbytes >= IN_PLACE_BYTES:
            _unsettled[self.serial] = self

    def number(self) -> Number | None:
        """The number that every element is known to be, None where that is not known."""
        if self._waiting or self._loop is not None:
            return None
        return self._number if self._flat is None and self._view is None else scheduler.constant_of(self.value)

    def fill(self, real: DType, size: Ints, stride: Ints, offset: int, number: Number) -> None:
        """Assign one number of the dtype `real` to all elements of a view."""
        if layout.covers(size, stride, offset, -(-self.nbytes // real.itemsize)):
            self._forget_writes()
            self._flat, self._view, self._fresh, self._number = None, None, real, number
            self.version += 1
        elif self.dtype == real:
            self.version += 1
            self._wait(size, stride, offset, number)
            if self.serial not in _dirty:
                self.mark_dirty()
        else:
            self.write(TORCH[real], size, stride, offset, UOp.const(number, real).expand(size))
            self.mark_dirty()

    def hold(self, size: Ints, stride: Ints, value: UOp) -> None:
        """Hold `value`, which covers the whole storage in this geometry, from now on."""
        self._forget_writes()
        self._leave()
        self._flat, self._view = None, (size, stride, 0, value)
        self.version += 1
        _cells[self.serial] = self
        self.cut()

    def _leave(self) -> None:
        """The content is about to change: remember the buffer that holds it."""
        flat = self._flat
        if flat is not None and flat.op is Ops.BUFFER and self.nbytes >= HOME_BYTES and scheduler.is_realized(flat):
            self._home = flat

    def home(self) -> UOp | None:
        """The buffer in which the content may be stored when it is computed, if nobody else reads that; else None."""
        home, flat = self._home, self.flat()
        if home is None or home.dtype != flat.dtype or home.shape != flat.shape or recording.is_open():
            return None
        return home

    def replace(self, flat: UOp, nbytes: int) -> None:
        """Hold `flat` from now on, as a storage of `nbytes` bytes."""
        self._forget_writes()
        self._flat, self._view, self._home, self.nbytes = flat, None, None, nbytes
        self.version += 1
        _cells[self.serial] = self

    def _forget_writes(self) -> None:
        self._waiting.clear()
        if self._loop is not None:
            self._loop = None
            _looping.pop(self.serial, None)

    def _stored(self, writes: Sequence[tuple[Ints, Ints, int, Number | UOp]]) -> bool:
        """Store small writes in a large buffer's own memory, in time of their size; False where that cannot be done.

        Whoever else reads the buffer gets its old content first: lazy values are computed, copies become real ones.
        """
        flat = self._flat
        count = sum(layout.plan(size, stride).numel for size, stride, _, _ in writes)
        if flat is None or self.nbytes < IN_PLACE_BYTES or count * IN_PLACE_SHARE > flat.shape[0]:
            return False
        if recording.is_open():
            return False
        if not scheduler.host_addressable(self.device) or not scheduler.is_realized(flat) or flat.dtype not in TORCH:
            return False
        dtype = TORCH[flat.dtype]
        computed = [w[3] for w in writes if isinstance(w[3], UOp)]
        buffers, _ = scheduler.realize(computed, self.device, why="write in place")
        done = iter(buffers)
        contents = [
            torch.frombuffer(scheduler.memory(next(done)), dtype=dtype).view(size) if isinstance(value, UOp) else value
            for size, _, _, value in writes
        ]
        about_to_write([self])
        memory = torch.frombuffer(scheduler.memory(flat), dtype=dtype)
        for (size, stride, offset, _), content in zip(writes, contents, strict=True):
            target = memory.as_strided(size, stride, offset)
            target.copy_(content) if isinstance(content, torch.Tensor) else target.fill_(content)
        self.overwritten()
        scheduler.count_store()
        return True

    def overwritten(self) -> None:
        """The buffer that this holds has got new contents."""
        self._view = None
        self.version += 1
        scheduler.overwritten()

    def _table(self, positions: np.ndarray) -> UOp:
        return scheduler.from_host(np.ascontiguousarray(positions), dtypes.int64, self.device)

    def _numbers(self, numbers: list[Number], dtype: DType) -> UOp:
        host = torch.tensor(numbers, dtype=TORCH[dtype]).view(torch.uint8)
        return scheduler.from_host(host.numpy(), dtype, self.device)

    def _apply_waiting(self) -> None:
        """Apply the constant writes: a few as movement ops, many replayed on the host into one table."""
        waiting, self._waiting = self._waiting, []
        flat = self.flat()
        dtype = flat.dtype
        if self._stored(waiting):
            return
        self._leave()
        if len(waiting) <= FEW_WRITES or dtype not in TORCH or dtype is dtypes.bfloat16:
            for size, stride, offset, number in waiting:
                value = UOp.const(number, dtype).expand(size)
                flat = layout.write(flat, size, stride, offset, value, self._table)
        else:
            flat = replayed(waiting, flat, self.device)
        self._flat, self._view = flat, None
        self.cut()

    def cut(self) -> None:
        """Realize a value that has grown past what one schedule should hold.

        Live cells whose values it is computed from are realized with it: later they would be computed a second time.
        """
        if recording.is_open():
            return
        depth, nesting, cost = scheduler.measure(self.value)
        if depth > MAX_DEPTH or nesting > MAX_NESTING or cost > MAX_COST:
            inside = self.value.toposort()
            under = [c for c in list(_cells.values()) if c is not self and c.value in inside]
            observe([self, *under], dirty=False, why="cut")

    @property
    def lazy(self) -> bool:
        """Whether the content is more than a buffer or a constant."""
        if self._waiting or self._loop is not None:
            return True
        value = self.value
        return scheduler.constant_of(value) is None and not scheduler.is_realized(value)

    def held(self) -> UOp | None:
        """The buffer that is the content, whatever is to be written to it; None where there is none."""
        value = self._flat if self._flat is not None else self._view[3] if self._view is not None else None
        return value.base if value is not None and value.base.op is Ops.BUFFER else None

    def mark_dirty(self) -> None:
        """Written in place: the next observation realizes it, so that a loop's graph does not grow."""
        _dirty[self.serial] = self

    def host(self, needed: int | None = None) -> tuple[memoryview | None, Number | None]:
        """The content after `observe`: its bytes, or (None, number) where all elements are one constant.

        `needed` is how many of the bytes are read, where that is known.
        """
        flat = self.flat()
        constant = scheduler.constant_of(flat)
        return (scheduler.to_host(flat, needed), None) if constant is None else (None, constant)


@functools.lru_cache(maxsize=1024)
def _zeros(nbytes: int, dtype: DType) -> UOp:
    return UOp.const(0, dtype).expand((-(-nbytes // dtype.itemsize),))


def _reshaped(value: UOp, shape: Ints) -> UOp:
    return value if value.shape == shape else value.reshape(shape)


def paired(size: Ints, stride: Ints, offset: int) -> tuple[Ints, Ints, int]:
    """The geometry of the real view of a complex view."""
    return (*size, 2), (*(2 * s for s in stride), 1), 2 * offset


def observe(cells: Iterable[Cell], dirty: bool = True, why: str = "observed") -> None:
    """Realize these cells in one schedule, and with them (when `dirty`) all that were written in place.

    `why` is what a trace says of it.
    """
    recording.check_closed("it needs a value before it ends")
    with scheduler.LOCK:
        for cell in list(_looping.values()):
            cell.end_loop()
        wanted = list(dict.fromkeys([*cells, *(list(_dirty.values()) if dirty else ())]))
        if dirty:
            _dirty.clear()
        by_device: dict[str, list[Cell]] = {}
        for cell in wanted:
            flat = cell.flat()
            if scheduler.constant_of(flat) is None and not scheduler.is_realized(flat) and cell.nbytes:
                by_device.setdefault(cell.device, []).append(cell)
        for device, group in by_device.items():
            _realize(group, device, why)
        for cell in list(_cells.values()):
            if not cell.lazy:
                _cells.pop(cell.serial, None)


def _realize(group: Sequence[Cell], device: str, why: str) -> None:
    """Compute the contents of a group of cells on one device; other lazy cells read them from now on."""
    group = [*group, *_along(group, device)]
    inside = set(group)
    rest = [c for c in _cells.values() if c not in inside]
    values, others = [c.flat() for c in group], [c.value for c in rest]
    homes = _homes(group)
    placed, made, reading = buffer_donation.in_place(values, homes, others) if homes else ({}, values, others)
    with HeldBack(bool(placed)) as run:
        try:
            done, others = scheduler.realize(made, device, reading, why, run.begin)
        except BaseException as error:
            if placed and not run.begun and buffer_donation.swapped(error):
                placed = {}
                done, others = scheduler.realize(values, device, others, why)
            else:
                for i in placed if run.begun else ():  # they must not be computed from themselves once more
                    group[i].replace(homes[i], group[i].nbytes)
                raise
        for cell, value in zip([*group, *rest], [*done, *others], strict=True):
            if cell.value is not value:
                cell.learn(value)
        for i in placed:
            group[i].overwritten()


def _along(group: Sequence[Cell], device: str) -> list[Cell]:
    """Lazy cells that are computed with a group, since they would keep alive much of what it computes on its way."""
    inside = set(group)
    rest = [c for c in _cells.values() if c not in inside and c.device == device]
    places = materialization.keeping([c.flat() for c in group], [scheduler.bare(c.value) for c in rest]) if rest else []
    return [rest[i] for i in places]


def _homes(group: Sequence[Cell]) -> dict[int, UOp]:
    """The buffers in which cells of a group may be stored, by place; values outside it may still read them.

    No two cells get the same, and none gets one that another cell holds as its content, as copies do.
    """
    homes = {home: i for i, cell in enumerate(group) if (home := cell.home()) is not None}
    if homes:
        for cell in _by_address.values():
            held = cell.held()
            if held is not None:
                homes.pop(held, None)
    return {i: home for home, i in homes.items()}


def settle(cell: Cell, dtype: torch.dtype, size: Ints, stride: Ints, offset: int) -> None:
    """Store what waits to be stored in place, before an operator reads this view and, perhaps, others.

    A store while an operator has some of its operands in hand would change them: they are read when the kernel runs.
    Elements apart from all that waits in the cell itself may be read as they are.
    """
    if _unsettled and not cell.apart(dtype, size, stride, offset) and not recording.is_open():
        cells = list(_unsettled.values())
        _unsettled.clear()
        for other in cells:
            other.flat()


def about_to_write(cells: Iterable[Cell]) -> bool:
    """Make every other cell independent of the buffers of these realized cells: they get new contents in place.

    Lazy values that read them are computed, copies that share them become real ones. Whether there were any.
    """
    written = {cell.flat().base: cell for cell in cells}
    readers = []
    for cell in set(_by_address.values()):
        value = cell.value
        if value.base in written:
            if written[value.base] is cell:
                continue
            cell.replace(cell.flat().clone(cell.device), cell.nbytes)
        elif value.op is Ops.BUFFER or written.keys().isdisjoint(value.toposort()):
            continue
        readers.append(cell)
    if readers:
        observe(readers, dirty=False, why="write in place")
    return bool(readers)


def allocate(nbytes: int, index: int, dtype: DType = dtypes.uint8) -> torch.UntypedStorage:
    """A new storage of `nbytes` bytes on `tiny:index`; it reads as zeros in `dtype`."""
    address, size_class = ADDRESSES.reserve(nbytes)
    device = torch.device("tiny", index)
    storage: Any = torch._C._construct_storage_from_data_pointer(address, device, nbytes)  # type: ignore[attr-defined]
    storage._cell = cell = Cell(nbytes, scheduler.device_name(index), dtype)
    _by_address[address] = cell
    cell._addresses.append((address, size_class))
    return storage


def cell_of(tensor: torch.Tensor) -> Cell:
    """The cell of a tiny tensor's storage."""
    store: Any = tensor.untyped_storage()
    try:
        return store._cell
    except AttributeError:
        return _by_address[store.data_ptr()]  # a storage that torch made of a bare pointer, as when it writes a file


def resize(storage: Any, nbytes: int) -> None:
    """Change a storage's size in place; what it held stays, as far as it fits, and every view goes on sharing it.

    torch has no hook for this from Python. Storages may swap their data pointers when one of them is empty, so the new
    size arrives in two swaps.
    """
    cell: Cell = storage._cell
    if nbytes == cell.nbytes:
        return
    index = storage.device.index or 0
    dtype = cell.dtype if nbytes % cell.dtype.itemsize == 0 else dtypes.uint8
    old = cell.flat_as(dtype)
    length = nbytes // dtype.itemsize
    kept = min(length, old.shape[0])
    cell.replace(old.shrink(((0, kept),)).pad(((0, length - kept),)), nbytes)
    address, size_class = ADDRESSES.reserve(nbytes)
    cell._addresses.append((address, size_class))
    make: Callable[..., Any] = torch._C._construct_storage_from_data_pointer  # type: ignore[attr-defined]
    device = torch.device("tiny", index)
    storage._swap_data_ptr_(make(0, device, 0))
    storage._swap_data_ptr_(make(address, device, nbytes))
    _by_address[address] = cell


def unobserved() -> int:
    """How many live cells hold lazy values; a loop that observes something each step keeps this flat."""
    return len(_cells)


def graph_size() -> int:
    """Number of distinct tinygrad nodes that lazy values hold; a loop that observes something keeps this flat."""
    seen: set[UOp] = set()
    for cell in list(_cells.values()):
        seen.update(cell.value.toposort())
    return len(seen)
