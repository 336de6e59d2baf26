"""Replay of a queue of calls that equals an earlier one, without turning any call into a value.

Defines `replay`, which computes a queue in the same way as an earlier equal one, and `recorded`, which records the
computation of a queue.

Between two reads by the host, a program is a list of calls. Its result depends on the calls, their data dependencies,
the initial contents of the storages, and the storages that are still alive at the end. A comparison of these needs no
graph. If they equal an earlier step, the schedule and the final contents of all storages are the same. If anything
differs or cannot be compared, the queue is turned into values as usual.

Lazy values outside the step matter only if they contain a value that the schedule stores, because they then read it
from its buffer. So a program that keeps results without looking at them repeats one step:

    kept.append(model(x).softmax(1))    # stays lazy
    losses.append(loss_of(x).item())    # the same step for any number of kept results

This module must not depend on operators.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from ..runtime import expressions, memory, scheduler
from ..runtime.counters import COUNTERS
from ..runtime.defer_sigint import DeferSigint
from ..runtime.replay import Graph, Replay, Spec, canonical
from ..runtime.schedule_cache import settings
from . import calls
from .calls import QueuedCall
from .dtypes import COMPUTED
from .storage import DIRTY, DONOR_BYTES, LAZY, KnownReads, LazyStorage, living

# Size of the cache: keys, and the sum of their lengths. An optimizer with a line search takes some 300 different steps.
MOST_STEPS = 1024
KEPT = 1 << 20
# Variants of one key: the lazy values beside a step, as far as they matter.
MOST_VARIANTS = 16
# Number of earlier occurrences before a step is recorded.
SEEN_BEFORE = 1
# Whether steps are replayed.
ENABLED = True

Key = tuple[Any, ...]


class NotReplayable(Exception):
    """A step that cannot be compared with others."""


class PendingQueue(NamedTuple):
    """A queue that is about to be computed."""

    key: Key
    calls: list[QueuedCall]  # all calls, except those that restore values which no other call uses
    beside: list[QueuedCall]  # those
    storages: list[Any]  # all storages that the calls use, in order of first use
    buffers: list[UOp]  # the buffers that these storages hold
    data: list[Any]  # arrays, and numbers with their dtypes, that are data
    writes_buffers: bool  # whether the schedule may write into these buffers


class StoredContent(NamedTuple):
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

    @classmethod
    def of(cls, storage: LazyStorage) -> tuple[RestoredValue, list[UOp]] | None:
        """The kind that restores the lazy value of a storage, and its operands; None if the value reads more than
        buffers.

        Equal values over other buffers have the same object, so they are equal in the key of a later step, whichever
        step left them.
        """
        value, view = storage.base_value(), None if storage.flat is not None else storage.view
        graph = canonical([value])
        if not _reads_buffers_only(graph):
            return None
        place = (graph.key, view and view[:3])
        known = _restored.get(place)
        if known is None:
            stand_ins = {b: UOp.new_buffer(b.arg.device, b.max_numel(), b.dtype) for b in graph.buffers}
            restored = value.substitute(stand_ins, walk=True)
            reads = list(stand_ins.values())
            known = cls(restored, None, reads) if view is None else cls(None, (*view[:3], restored), reads)
            _restored[place] = known
        return known, graph.buffers

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

    def writes_element_of(self, storage: LazyStorage) -> bool:
        """It writes all elements."""
        return False

    def numbers(self, call: QueuedCall, data: list[Any]) -> tuple[Any, ...]:
        """No numbers: all operands are buffers."""
        return ()


class RecordedStep(NamedTuple):
    """Recorded computation of a queue."""

    schedule: Replay
    sources: list[int]  # indices of the schedule's buffers among the step's
    new_buffers: list[
        Spec
    ]  # buffers that value functions make for the schedule to write, which follow the step's own and data
    values: list[
        StoredContent | RestoredValue | None
    ]  # of each storage, also beside the step, afterwards; None if unchanged
    reads: list[list[int]]  # of each RestoredValue: its buffers among the step's
    overwritten: list[int]  # storages into whose own buffers the schedule writes
    device: str


@dataclass
class Record:
    """Knowledge of all steps with one key."""

    seen: int = 0  # occurrences before a step was recorded
    stored: list[frozenset[int]] | None = None  # the buffers that each stored value reads; None if all readers matter
    steps: OrderedDict[Key, RecordedStep] = field(default_factory=OrderedDict)  # by the values beside the step


_known: OrderedDict[Key, Record] = OrderedDict()
_length = 0  # of all keys in `_known`
_restored: weakref.WeakValueDictionary[Key, RestoredValue] = weakref.WeakValueDictionary()


def reset_state() -> None:
    """Clear the cache of steps."""
    global _length
    _known.clear()
    _length = 0


def _record(key: Key) -> Record:
    """The record of a key, the most recent one from now on. The least recent ones leave a full cache."""
    global _length
    record = _known.get(key)
    if record is None:
        record = _known[key] = Record()
        _length += len(key)
    _known.move_to_end(key)
    while len(_known) > MOST_STEPS or (_length > KEPT and len(_known) > 1):
        _length -= len(_known.popitem(last=False)[0])
    return record


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
    step, beside = _divided(queue, wanted)

    def place(storage: LazyStorage, fresh: bool = False) -> int:
        result = places.get(id(storage))
        if result is None:
            result = places[id(storage)] = len(storages)
            storages.append(storage)
            if not fresh:  # a new storage follows from the kind of the call
                key.append(_state(storage, buffers, lazy))
                key.append((storage.nbytes, storage.device))
        return result

    for call in step:
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
    for storage in DIRTY.values():
        if id(storage) not in places:  # the step would have to compute it too
            raise NotReplayable
    writes_buffers = any(storage.donor is not None or _may_donate(storage) for storage in storages)
    if writes_buffers:
        _add_holders(places, buffers, key)
    key.append(settings())
    return PendingQueue(tuple(key), step, beside, storages, list(buffers), data, writes_buffers)


def _divided(queue: Sequence[QueuedCall], wanted: Sequence[LazyStorage]) -> tuple[list[QueuedCall], list[QueuedCall]]:
    """The calls of a step, and those that restore values which neither another call uses nor the caller wants."""
    used = {id(storage) for storage in wanted}
    for call in queue:
        if type(call.kind) is not RestoredValue:
            used.update([id(storage) for storage in call.read])
            used.update([id(storage) for storage in call.written])
    step: list[QueuedCall] = []
    beside: list[QueuedCall] = []
    for call in queue:
        is_beside = type(call.kind) is RestoredValue and id(call.written[0]) not in used
        (beside if is_beside else step).append(call)
    return step, beside


def _may_donate(storage: LazyStorage) -> bool:
    """Whether a step may write into the buffer that a storage holds."""
    return storage.queued == calls.WRITTEN and storage.nbytes >= DONOR_BYTES and storage.base_buffer() is not None


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
    if not _reads_buffers_only(graph):
        raise NotReplayable
    key.append(graph.key)
    key.extend([buffers.setdefault(b, len(buffers)) for b in graph.buffers])


def _reads_buffers_only(graph: Graph) -> bool:
    return all(node.op is Ops.BUFFER or node.op not in expressions.OUTSIDE for node in graph.nodes)


def _add_holders(places: dict[int, int], buffers: dict[UOp, int], key: list[Any]) -> None:
    """Add to the key which of the step's buffers other storages hold too, so that the step must not write into them."""
    shared = []
    for storage in living():
        if id(storage) not in places:
            held = storage.base_buffer()
            if held is not None and held in buffers:
                shared.append(buffers[held])
    key.append(tuple(sorted(shared)))


class LazyContent(NamedTuple):
    """A lazy value outside a step, as it was before the step ran."""

    storage: LazyStorage
    value: UOp
    geometry: tuple[Any, ...] | None  # of a value that is not flat
    donor: UOp | None
    pending: bool  # whether writes to it are pending
    reads: frozenset[int]  # the identities of the buffers that it reads


def _find_values_outside(
    step: PendingQueue, matters: Callable[[frozenset[int]], bool] | None = None
) -> list[LazyContent]:
    """The lazy values outside a step, except those that a call restores; only those whose memory `matters`.

    This runs before each step, and a program may hold hundreds of lazy values (LBFGS's history), so the storages keep
    what their values read.
    """
    inside = {id(storage) for storage in (*step.storages, *[call.written[0] for call in step.beside])}
    contents = []
    for reference in LAZY.valuerefs():
        s = reference()
        if s is None or id(s) in inside:
            continue
        value = s.flat if s.flat is not None else s.view[3] if s.view is not None else None
        known = s.known_reads
        if known is not None and value is not None and known.value() is value:
            reads = known.buffers
        elif value is None or value.op in _MAY_BE_REALIZED:
            if not s.is_lazy():
                LAZY.pop(s.serial, None)  # so that the next step need not look at it
                continue
            value = s.base_value()
            reads = _read_by(value)
        else:
            reads = _read_by(value)
            s.known_reads = KnownReads(weakref.ref(value), reads)
        if matters is None or matters(reads):
            view = s.view if s.flat is None else None
            contents.append(LazyContent(s, value, view and view[:3], s.donor, s.has_pending_writes, reads))
    return contents


def _read_by(value: UOp) -> frozenset[int]:
    """The identities of the buffers that a value reads, valid as long as it lives."""
    return frozenset(map(id, expressions.read_by(value)))


# Every constant and every realized value has one of these operations.
_MAY_BE_REALIZED = frozenset({Ops.BUFFER, Ops.CONST, Ops.PARAM, Ops.UNSHARD, Ops.MSELECT, *GroupOp.Movement})


class Beside(NamedTuple):
    """The lazy values outside a step that matter for it."""

    key: Key
    storages: list[LazyStorage]
    buffers: list[UOp]  # which they read and the step does not use


def _make_filter(step: PendingQueue, stored: Collection[frozenset[int]] | None) -> Callable[[frozenset[int]], bool]:
    """The test of the buffers that a lazy value reads, by identity: whether the value matters for a step. `stored` are
    the buffers, by place, that each stored value reads (None: each reader of the step's buffers matters)."""
    own = frozenset(map(id, step.buffers))
    if stored is None:
        return lambda reads: not own.isdisjoint(reads)
    sets = [frozenset([id(step.buffers[i]) for i in places]) for places in stored]
    return lambda reads: not own.isdisjoint(reads) and any(one <= reads for one in sets)


def _beside(step: PendingQueue, stored: Collection[frozenset[int]] | None, outside: Iterable[LazyContent]) -> Beside:
    """The lazy values outside a step that matter for it.

    A value matters if it contains one that the schedule stores, because it reads that one from the buffer afterwards.
    It then also reads the buffers of that one, which is what we compare. If the step may write into its buffers, each
    of their readers matters.
    """
    buffers = {buffer: i for i, buffer in enumerate(step.buffers)}
    matters = _make_filter(step, stored)
    key: list[Any] = []
    lazy: list[UOp] = []
    storages: list[LazyStorage] = []
    for call in step.beside:
        if matters(frozenset(map(id, call.operands))):
            key.append(call.kind)
            key.extend([buffers.setdefault(b, len(buffers)) for b in call.operands])
            storages.append(call.written[0])
    for content in outside:
        if matters(content.reads):
            if content.pending:
                raise NotReplayable
            donor = content.donor
            key.append((content.geometry, None if donor is None else buffers.setdefault(donor, len(buffers))))
            lazy.append(content.value)
            storages.append(content.storage)
    _add_graphs(lazy, buffers, key)
    return Beside(tuple(key), storages, list(buffers)[len(step.buffers) :])


def _equal_step(step: PendingQueue) -> tuple[RecordedStep, Beside] | None:
    """The recorded computation of an equal queue beside equal lazy values; None if there is none."""
    record = _known.get(step.key)
    if record is None or not record.steps:
        return None
    _known.move_to_end(step.key)
    try:
        beside = _beside(step, record.stored, _find_values_outside(step, _make_filter(step, record.stored)))
    except NotReplayable:
        return None
    known = record.steps.get(beside.key)
    return known and (known, beside)


def replay(step: PendingQueue, why: str) -> bool:
    """Compute the queue in the same way as an earlier equal one; False if none is recorded."""
    found = _equal_step(step)
    if found is None:
        return False
    known, beside = found
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
        table += [*slots[len(known.sources) :], *beside.buffers]
        left: list[QueuedCall] = []
        gone = list(step.calls)
        restored = {id(call.written[0]): call for call in step.beside} if beside.storages else {}
        storages = [*step.storages, *beside.storages]
        for storage, value, reads in zip(storages, known.values, known.reads, strict=True):
            if value is not None and id(storage) in restored:
                gone.append(restored[id(storage)])
            if type(value) is RestoredValue:
                left.append(QueuedCall(value, (), (storage,), [table[i] for i in reads]))
            elif isinstance(value, StoredContent):
                _hold(storage, value, table)
        calls.take(left, gone)
        DIRTY.clear()
        for i in known.overwritten:
            storages[i].mark_overwritten()
    COUNTERS.replayed += 1
    return True


def _hold(storage: LazyStorage, value: StoredContent, table: list[UOp]) -> None:
    flat = table[value.flat] if isinstance(value.flat, int) else value.flat
    view = value.view
    if view is not None and type(view[3]) is int:
        view = (*view[:3], table[view[3]])
    storage.restore(flat, view, None if value.donor is None else table[value.donor], value.number)
    if type(value.flat) is int or (view is not None and type(value.view[3]) is int):  # type: ignore[index]
        LAZY.pop(storage.serial, None)


def recorded(step: PendingQueue, compute: Callable[[], None]) -> None:
    """Turn the queue into values, `compute` them, and record the computation if such a queue was seen before."""
    record = _record(step.key)
    record.seen += 1
    outside = _find_values_outside(step) if record.seen > SEEN_BEFORE else []
    # A storage without another owner must not stay alive here: it would be computed with the others.
    step.storages[:] = [s if s.owner() is not None else None for s in step.storages]
    if record.seen <= SEEN_BEFORE:
        for held in (step.calls, step.beside, step.storages):
            held.clear()
        calls.settle()
        compute()
        return
    step.calls.clear()
    before = {id(s): (s.flat, s.view, s.version) for s in step.storages if s is not None}
    copies, written, generation = COUNTERS.copies_in, COUNTERS.stored, memory.generation()
    first = next(UOp.unique_num)  # buffers with a greater number are created after this line
    with scheduler.watched() as schedules:
        with calls.watched_data() as data:
            calls.settle()
        others = [*[content.storage for content in outside], *[call.written[0] for call in step.beside]]
        before |= {id(s): (s.flat, s.view, s.version) for s in others}
        compute()
    same = COUNTERS.stored == written and COUNTERS.copies_in - copies == len(data) == len(step.data)
    if len(schedules) != 1 or schedules[0] is None or not same:
        return
    stored = None if step.writes_buffers else _stored(step, schedules[0])
    try:
        beside = _beside(step, stored, outside)
    except NotReplayable:
        return
    step.storages.extend(beside.storages)
    inside = {id(storage) for storage in beside.storages}
    if any(_changed(s, before) for s in others if id(s) not in inside):
        return
    entry = _step(step, before, schedules[0], data, beside.buffers, memory.generation() - generation, first)
    if entry is not None:
        if stored != record.stored:
            record.steps.clear()
            record.stored = stored
        record.steps[beside.key] = entry
        if len(record.steps) > MOST_VARIANTS:
            record.steps.popitem(last=False)
        COUNTERS.recorded += 1


Before = dict[int, tuple[Any, ...]]
"""The contents of storages, by identity: flat, view, version."""


def _changed(storage: LazyStorage, before: Before) -> bool:
    """Whether a storage holds another value than before; its buffer may have been overwritten."""
    flat, view, _ = before[id(storage)]
    return storage.flat is not flat or (flat is None and storage.view != view)


def _stored(step: PendingQueue, schedule: scheduler.WatchedSchedule) -> list[frozenset[int]]:
    """The sets of the step's buffers that the values read which its schedule stores, without the larger sets.

    Values without buffers are left out, and those with buffers that are new in every run, which no other value reads.
    """
    places = {buffer: i for i, buffer in enumerate(step.buffers)}
    nodes = schedule.graph.nodes
    points = [nodes[i] for i, _ in schedule.replay.becomes] + [n for n in nodes if n.op is Ops.CONTIGUOUS]
    reads = [expressions.read_by(node) for node in (*schedule.values, *points)]
    sets = {frozenset([places[b] for b in one]) for one in reads if one and places.keys() >= one}
    return sorted([one for one in sets if not any(other < one for other in sets)], key=sorted)


def _step(
    step: PendingQueue, before: Before, schedule: scheduler.WatchedSchedule, data: list[UOp], further: list[UOp],
    overwrites: int, first: int,
) -> RecordedStep | None:  # fmt: skip
    """The recorded computation of the queue; None if it cannot be replayed. Buffers numbered above `first` are new.
    Only values beside the step read the `further` buffers.
    """
    buffers, slots = schedule.graph.buffers, schedule.slots
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
    count = len(table)
    table |= {b: count + i for i, b in enumerate(further)}
    values: list[Any] = []
    reads: list[list[int]] = []
    overwritten = []
    for i, storage in enumerate(step.storages):
        values.append(None)
        reads.append([])
        if storage is None:
            continue
        if not _changed(storage, before):
            if storage.version == before[id(storage)][2]:
                continue
            if storage.base_buffer() is not None:
                overwritten.append(i)
                continue
            # A number may have replaced a number, which `before` does not contain.
        if storage.has_pending_writes:
            return None
        flat, view = storage.flat, None if storage.flat is not None else storage.view
        value = storage.base_value()
        outside = expressions.read_by(value) if flat is not None or view is not None else ()
        donor = storage.donor
        if any(b not in table for b in outside) or (donor is not None and donor not in table):
            return None
        place = None if donor is None else table[donor]
        if value.op is Ops.BUFFER:
            held: Any = table[value]
            number = (storage._fresh, storage._number)
            values[-1] = StoredContent(held if flat is not None else None, view and (*view[:3], held), number, place)
            if held < len(step.buffers):
                overwritten.append(i)
        elif not outside:
            values[-1] = StoredContent(flat, view, (storage._fresh, storage._number), place)
        else:
            restored = RestoredValue.of(storage)
            if restored is None:
                return None
            values[-1] = restored[0]
            reads[-1] = [table[b] for b in restored[1]]
    if not overwrites:
        overwritten = []  # these storages share a buffer of the step, as copies do
    elif len(overwritten) != overwrites or not step.writes_buffers:
        return None
    specs = [(b.arg.device, b.max_numel(), b.dtype) for b in own]
    sources = [table[b] for b in buffers]
    return RecordedStep(schedule.replay, sources, specs, values, reads, overwritten, schedule.device)


__all__ = ["pending_queue", "recorded", "replay", "reset_state"]
