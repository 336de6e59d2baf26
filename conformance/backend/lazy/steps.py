"""Replay of a queue of calls that equals an earlier one, without turning any call into a value.

Defines `replay`, which computes a queue in the same way as an earlier equal one, and `recorded`, which records the
computation of a queue.

Between two reads by the host, a program is a list of calls. Its result depends on the calls, their data dependencies,
the initial contents of the storages, and the storages that are still alive at the end. A comparison of these needs no
graph. If they equal an earlier step, the schedule and the final contents of all storages are the same. If anything
differs or cannot be compared, the queue is turned into values as usual.

This module must not depend on operators.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..runtime import expressions, memory, scheduler
from ..runtime.counters import COUNTERS
from ..runtime.defer_sigint import DeferSigint
from ..runtime.replay import Replay, Spec, canonical
from ..runtime.schedule_cache import settings
from . import calls
from .calls import QueuedCall
from .dtypes import COMPUTED
from .storage import DIRTY, LAZY, LazyStorage, living

# Size of the cache of steps, and number of earlier occurrences before a step is recorded.
MOST_STEPS = 64
SEEN_BEFORE = 1
# Whether steps are replayed.
ENABLED = True

Key = tuple[Any, ...]


class NotReplayable(Exception):
    """A step that cannot be compared with others."""


class PendingQueue(NamedTuple):
    """A queue that is about to be computed."""

    key: Key
    storages: list[Any]  # all storages that the calls use, in order of first use
    buffers: list[UOp]  # the buffers that these storages hold
    data: list[Any]  # arrays, and numbers with their dtypes, that are data


class Value(NamedTuple):
    """Content of a storage after a step."""

    flat: int | UOp | None  # index of a buffer of the step, or a value that reads no buffer
    view: tuple[Any, ...] | None  # the last element is like `flat`
    number: tuple[Any, Any]
    donor: int | None


class RestoredValue:
    """A lazy value that a step left: a `Kind` of queued call, whose operands are the step's buffers."""

    fresh = False

    def __init__(self, flat: UOp | None, view: tuple[Any, ...] | None, reads: list[UOp]) -> None:
        """`reads` are the placeholder buffers in the value."""
        self.flat, self.view, self.reads = flat, view, reads

    def execute(self, call: QueuedCall) -> None:
        """Let the storage hold the value over its buffers."""
        value = self.flat if self.flat is not None else self.view[3]  # type: ignore[index]
        restored = value.substitute(dict(zip(self.reads, call.operands, strict=True)), walk=True)
        storage: LazyStorage = call.written[0]
        storage.restore(
            restored if self.flat is not None else None,
            None if self.flat is not None else (*self.view[:3], restored),  # type: ignore[index]
            None,  # a step computes all storages that were written in place, so no lazy value has a donor
        )

    def numbers(self, call: QueuedCall, data: list[Any]) -> tuple[Any, ...]:
        """No numbers: all operands are buffers."""
        return ()


class Step(NamedTuple):
    """Recorded computation of a queue."""

    schedule: Replay
    sources: list[int]  # indices of the schedule's buffers among the step's
    new_buffers: list[
        Spec
    ]  # buffers that value functions make for the schedule to write, which follow the step's own and data
    values: list[Value | RestoredValue | None]  # content of each storage afterwards, None if unchanged
    reads: list[list[int]]  # of each RestoredValue: its buffers among the step's
    overwritten: list[int]  # storages into whose own buffers the schedule writes
    device: str


_known: OrderedDict[Key, Step | int | None] = OrderedDict()


def reset_state() -> None:
    """Clear the cache of steps."""
    _known.clear()


def pending_queue(wanted: Sequence[LazyStorage]) -> PendingQueue | None:
    """The queue that a flush of `wanted` and of all storages written in place computes; None if it cannot be
    compared.
    """
    if not ENABLED or calls.is_closed():
        return None
    calls.drop_unneeded()
    if not calls.pending():
        return None
    try:
        return _described(calls.pending(), wanted)
    except NotReplayable:
        return None


def _described(queue: Sequence[QueuedCall], wanted: Sequence[LazyStorage]) -> PendingQueue:
    places: dict[int, int] = {}
    storages: list[LazyStorage] = []
    buffers: dict[UOp, int] = {}
    data: list[Any] = []
    key: list[Any] = []
    lazy: list[UOp] = []

    def place(storage: LazyStorage, fresh: bool = False) -> int:
        result = places.get(id(storage))
        if result is None:
            result = places[id(storage)] = len(storages)
            storages.append(storage)
            if not fresh:  # a new storage follows from the kind of the call
                key.append(_state(storage, buffers, lazy))
                key.append((storage.nbytes, storage.device))
        return result

    for call in queue:
        kind = call.kind
        key.append(kind)
        if type(kind) is RestoredValue:
            key.extend([buffers.setdefault(b, len(buffers)) for b in call.operands])
            place(call.written[0], True)
            continue
        key.extend([place(storage) for storage in call.read])
        for storage in call.written:  # new, or operands of which the kind has the places
            place(storage, kind.fresh)
        if call.operands or call.arrays:
            key.extend(kind.numbers(call, data))
    key.append(tuple([place(storage) for storage in wanted]))
    key.append(tuple([storage.owner() is not None for storage in storages]))
    key.append(tuple([storage.serial in DIRTY for storage in storages]))
    _add_graphs(lazy, buffers, key)
    _check_others(places, buffers, key)
    key.append(settings())
    return PendingQueue(tuple(key), storages, list(buffers), data)


def _state(storage: LazyStorage, buffers: dict[UOp, int], lazy: list[UOp]) -> Any:
    """Initial content of a storage, as a key. Its buffer gets a number. A lazy value is appended to `lazy`, since lazy
    values share most of their nodes and are put into the key together.
    """
    if storage.has_pending_writes:
        raise NotReplayable
    donor = storage.donor
    into = None if donor is None else buffers.setdefault(donor, len(buffers))
    flat, view = storage.flat, storage.view
    if flat is None and view is None:
        number = storage.number()
        return storage.dtype, str(number), into
    value = flat if flat is not None else view[3]  # type: ignore[index]
    if value.op is Ops.BUFFER and expressions.is_realized(value):
        return value.dtype, buffers.setdefault(value, len(buffers))
    lazy.append(value)
    return "lazy", view[:3] if flat is None and view else None, into


def _add_graphs(lazy: Sequence[UOp], buffers: dict[UOp, int], key: list[Any]) -> None:
    """Add lazy values to the key, and number the buffers that they read."""
    if not lazy:
        return
    graph = canonical(lazy)
    if not all(node.op is Ops.BUFFER or node.op not in expressions.OUTSIDE for node in graph.nodes):
        raise NotReplayable
    key.append(graph.key)
    key.extend([buffers.setdefault(b, len(buffers)) for b in graph.buffers])


def _check_others(places: dict[int, int], buffers: dict[UOp, int], key: list[Any]) -> None:
    """Add to the key the uses of the step's buffers by other storages.

    Raises NotReplayable if the step would have to compute another storage.
    """
    own = set(buffers)
    lazy: list[UOp] = []
    for storage in DIRTY.values():
        if id(storage) not in places:
            raise NotReplayable
    for storage in LAZY.values():
        if id(storage) in places or not storage.is_lazy():
            continue
        if not own.isdisjoint(expressions.read_by(storage.base_value())):
            key.append(_state(storage, buffers, lazy))
    _add_graphs(lazy, buffers, key)
    shared = []
    for storage in living():
        if id(storage) not in places:
            held = storage.base_buffer()
            if held is not None and held in own:
                shared.append(buffers[held])
    key.append(tuple(sorted(shared)))


def replay(step: PendingQueue, why: str) -> bool:
    """Compute the queue in the same way as an earlier equal one; False if none is recorded."""
    known = _known.get(step.key)
    if not isinstance(known, Step):
        return False
    _known.move_to_end(step.key)
    table = list(step.buffers)
    for one in step.data:
        if not isinstance(one, np.ndarray):
            number, dtype = one
            one = np.array([number], dtype=np.float64 if dtype is dtypes.float64 else np.float32)
        table.append(memory.from_host(one.reshape(-1), COMPUTED[torch.from_numpy(one).dtype], known.device))
    table += [UOp.new_buffer(*spec) for spec in known.new_buffers]
    with DeferSigint(bool(known.overwritten)) as run:
        try:
            slots = scheduler.rerun(known.schedule, [table[i] for i in known.sources], why, run.begin)
        except BaseException:
            if run.begun and known.overwritten:  # prevents a second computation from their own results
                held = [(step.storages[i], step.storages[i].flat) for i in known.overwritten]
                calls.settle()
                for storage, buffer in held:
                    storage.replace(buffer, storage.nbytes)
            raise
        table += slots[len(known.sources) :]
        left: list[QueuedCall] = []
        for storage, value, reads in zip(step.storages, known.values, known.reads, strict=True):
            if type(value) is RestoredValue:
                left.append(QueuedCall(value, (), (storage,), [table[i] for i in reads]))
            elif isinstance(value, Value):
                _hold(storage, value, table)
        calls.take(left)
        DIRTY.clear()
        for i in known.overwritten:
            step.storages[i].mark_overwritten()
    COUNTERS.replayed += 1
    return True


def _hold(storage: LazyStorage, value: Value, table: list[UOp]) -> None:
    flat = table[value.flat] if isinstance(value.flat, int) else value.flat
    view = value.view
    if view is not None and type(view[3]) is int:
        view = (*view[:3], table[view[3]])
    storage.restore(flat, view, None if value.donor is None else table[value.donor], value.number)
    if type(value.flat) is int or (view is not None and type(value.view[3]) is int):  # type: ignore[index]
        LAZY.pop(storage.serial, None)


def recorded(step: PendingQueue, compute: Callable[[], None]) -> None:
    """Turn the queue into values, `compute` them, and record the computation if such a queue was seen before."""
    count = _known.get(step.key, 0)
    _known[step.key] = count + 1 if isinstance(count, int) else count
    _known.move_to_end(step.key)
    if len(_known) > MOST_STEPS:
        _known.popitem(last=False)
    inside = {id(storage) for storage in step.storages}
    # A storage without another owner must not stay alive here: it would be computed with the others.
    step.storages[:] = [s if s.owner() is not None else None for s in step.storages]
    if not isinstance(count, int) or count < SEEN_BEFORE:
        step.storages.clear()
        calls.settle()
        compute()
        return
    before = [s and (s.flat, s.view, s.version) for s in step.storages]
    others = [(s, s.base_value()) for s in LAZY.values() if id(s) not in inside]
    copies, stored, generation = COUNTERS.copies_in, COUNTERS.stored, memory.generation()
    first = next(UOp.unique_num)  # buffers with a greater number are created after this line
    with scheduler.watched() as schedules:
        with calls.watched_data() as data:
            calls.settle()
        compute()
    known = _known.get(step.key)
    if not isinstance(known, int):
        return
    same = COUNTERS.stored == stored and COUNTERS.copies_in - copies == len(data) == len(step.data)
    if len(schedules) == 1 and schedules[0] is not None and same and all(s.base_value() is v for s, v in others):
        entry = _step(step, before, schedules[0], data, memory.generation() - generation, first)
        if entry is not None:
            _known[step.key] = entry
            COUNTERS.recorded += 1


def _step(
    step: PendingQueue, before: list[Any], schedule: Any, data: list[UOp], overwrites: int, first: int
) -> Step | None:
    """The recorded computation of the queue; None if it cannot be replayed. Buffers numbered above `first` are new."""
    run, buffers, slots, device = schedule
    if any(b.op is not Ops.BUFFER for b in slots):
        return None
    table = {b: i for i, b in enumerate([*step.buffers, *data])}
    count = len(step.buffers) + len(data)
    fresh = slots[len(buffers) :]
    if len(table) != count:
        return None
    own = [b for b in buffers if b not in table]
    if any(b.arg.slot <= first for b in own) or any(b in table for b in fresh):
        return None
    table |= {b: count + i for i, b in enumerate(own)}
    count = len(table)
    table |= {b: count + i for i, b in enumerate(fresh)}
    values: list[Any] = []
    reads: list[list[int]] = []
    overwritten = []
    for i, (storage, old) in enumerate(zip(step.storages, before, strict=True)):
        values.append(None)
        reads.append([])
        if storage is None:
            continue
        if storage.flat is old[0] and (storage.flat is not None or storage.view == old[1]):
            if storage.version != old[2]:
                overwritten.append(i)
            continue
        if storage.has_pending_writes:
            return None
        flat, view = storage.flat, None if storage.flat is not None else storage.view
        value = storage.base_value()
        outside = list(expressions.read_by(value)) if flat is not None or view is not None else []
        donor = storage.donor
        if any(b not in table for b in outside) or (donor is not None and donor not in table):
            return None
        place = None if donor is None else table[donor]
        if value.op is Ops.BUFFER:
            held: Any = table[value]
            number = (storage._fresh, storage._number)
            values[-1] = Value(held if flat is not None else None, view and (*view[:3], held), number, place)
            if held < len(step.buffers):
                overwritten.append(i)
        elif not outside:
            values[-1] = Value(flat, view, (storage._fresh, storage._number), place)
        else:
            stand_ins = {b: UOp.new_buffer(b.arg.device, b.max_numel(), b.dtype) for b in outside}
            restored = value.substitute(stand_ins, walk=True)
            values[-1] = RestoredValue(
                restored if flat is not None else None,
                None if flat is not None else (*view[:3], restored),  # type: ignore[index]
                list(stand_ins.values()),
            )
            reads[-1] = [table[b] for b in outside]
    if len(overwritten) != overwrites:
        return None
    specs = [(b.arg.device, b.max_numel(), b.dtype) for b in own]
    return Step(run, [table[b] for b in buffers], specs, values, reads, overwritten, device)


__all__ = ["pending_queue", "recorded", "replay", "reset_state"]
