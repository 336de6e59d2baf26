"""The queue of operator calls that are not yet values, in program order, emptied before its delay can be observed.

Defines `QueuedCall`, `defer` (add a call to the queue), `settle` (turn all calls into values), `drop_unneeded` (remove
the calls whose results are gone) and `pending`.

A lazy device does not need to build an expression at the call of an operator. Until a content is read, the caller sees
metadata only. The queue runs in order, each call on the contents that the earlier calls left, so the results equal
those of immediate execution. Each storage records whether the queue reads or writes it, and code that reads its content
empties the queue first. Calls whose results are gone are removed. A queue that equals an earlier one need not be turned
into values (`steps`).

This module must not depend on operators, tensors or storages.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ..runtime import allocations, recording
from ..runtime.garbage import FewerCollections
from ..runtime.lock import LOCK
from ..runtime.subnormals import Subnormals

# The queue's use of a storage, as `LazyStorage.queued`.
UNQUEUED, READ, WRITTEN = 0, 1, 2
# Number of calls at which the queue is emptied, which bounds the memory that it keeps alive.
LONGEST = 4096
# Bytes of arrays, such as tables of positions for writes by an index, at which the queue is emptied.
MOST_BYTES = 64 << 20
# Number of calls at which calls with dead results are removed; next, at twice the number that remained.
CHECKED = 256


class Kind(Protocol):
    """The common part of all calls of one operator with one geometry of its arguments."""

    fresh: bool  # whether the call makes the storages that it writes

    def execute(self, call: QueuedCall) -> None:
        """Read the operands, then hold or write the results. A repetition after an interrupt must change nothing."""

    def writes_element_of(self, storage: Any) -> bool:
        """Whether the call writes one element of a storage that has more."""

    def numbers(self, call: QueuedCall, data: list[Any]) -> tuple[Any, ...]:
        """The call's numbers as a key. Numbers that are data to the kernels are appended to `data` instead."""


class QueuedCall:
    """One call in the queue."""

    __slots__ = ("arrays", "kind", "operands", "read", "results", "written")

    def __init__(self, kind: Any, read: Sequence[Any], written: Sequence[Any], operands: Sequence[Any] = ()) -> None:
        self.kind = kind
        self.read, self.written = read, written  # storages
        self.operands = operands  # the call's numbers, or the buffers of the value that it restores
        self.arrays: Sequence[Any] = ()  # arrays that the value function computes on the host, from an index
        self.results: Any = None  # the computed results, kept in case an interrupt stops the write


SETTING = "TINY_QUEUE"
"""Environment variable; the value 0 switches the queue off."""

_queue: list[QueuedCall] = []
_running = False
_checked_at = CHECKED  # queue length at which `drop_unneeded` runs next
_array_bytes = 0  # of the arrays of calls that were added since the queue was empty
_open = os.environ.get(SETTING) != "0"


def pending() -> list[QueuedCall]:
    """The calls that are not yet values, in order."""
    return _queue


def is_closed() -> bool:
    """Whether the queue accepts no calls: it is switched off or being emptied, or a recording is open."""
    return _running or not _open or recording.is_open()


def queue_calls(on: bool) -> bool:
    """Switch the queue on or off and empty it; returns the previous setting. `TINY_QUEUE=0` in the environment switches
    it off from the start.
    """
    global _open
    settle()
    before, _open = _open, on
    return before


def defer(call: QueuedCall) -> None:
    """Add a call to the queue."""
    global _checked_at, _array_bytes
    with LOCK:
        for storage in call.read:
            if not storage.queued:
                storage.queued = READ
        for storage in call.written:
            storage.queued = WRITTEN
        _queue.append(call)
        if call.arrays:
            _array_bytes += sum([array.nbytes for array in call.arrays])
            if _array_bytes > MOST_BYTES:
                settle()
        if len(_queue) >= _checked_at:
            drop_unneeded()
            if len(_queue) > LONGEST * 3 // 4:
                settle()
            _checked_at = min(max(2 * len(_queue), CHECKED), LONGEST)


def writes_in_place(but_elements: bool) -> bool:
    """Whether a queued call writes one of its operands in place; `but_elements` excludes one of many elements."""
    return any(
        storage in call.read and not (but_elements and call.kind.writes_element_of(storage))
        for call in _queue
        for storage in call.written
    )


def needed(calls: Sequence[QueuedCall]) -> list[QueuedCall]:
    """The calls whose results have an owner, or that another one of these calls reads."""
    kept: list[QueuedCall] = []
    read: set[int] = set()
    for call in reversed(calls):
        for storage in call.written:
            if id(storage) in read or storage.owner() is not None:
                kept.append(call)
                read.update([id(operand) for operand in call.read])
                break
    kept.reverse()
    return kept


def drop_unneeded() -> None:
    """Remove the calls whose results are gone, so that storages which only they read are freed."""
    with LOCK:
        if _queue and not _running:
            kept = needed(_queue)
            if len(kept) < len(_queue):
                take(kept)


allocations.HOLDERS.append(drop_unneeded)


def settle() -> None:
    """Turn all calls into values, in order. An error leaves the call that raises it, and all later ones, in the
    queue.
    """
    global _running, _checked_at, _array_bytes
    if not _queue:
        return
    with LOCK, Subnormals(), FewerCollections():
        if _running or not _queue:
            return
        _running, _checked_at, _array_bytes = True, min(CHECKED, LONGEST), 0
        try:
            take(needed(_queue))
            uses = Counter([id(storage) for call in _queue for storage in (*call.read, *call.written)])
            while _queue:
                _queue[0].kind.execute(_queue[0])
                call = _queue.pop(0)
                for storage in (*call.read, *call.written):
                    uses[id(storage)] -= 1
                    if not uses[id(storage)]:
                        storage.queued = UNQUEUED
                del call, storage  # a storage without another owner must not be computed with the next
        finally:
            _running = False


def take(instead: Sequence[QueuedCall], of: Sequence[QueuedCall] | None = None) -> None:
    """Replace the queued calls `of` (default: all) by these, and update `queued` of the storages.

    No other call may use their storages.
    """
    kept: Sequence[QueuedCall] = ()
    if of is None:
        of = list(_queue)
    elif len(of) < len(_queue):
        gone = {id(call) for call in of}
        kept = [call for call in _queue if id(call) not in gone]
    states: dict[int, int] = {}
    for call in instead:
        for storage in call.read:
            states.setdefault(id(storage), READ)
        for storage in call.written:
            states[id(storage)] = WRITTEN
    for call in (*of, *instead):
        for storage in (*call.read, *call.written):
            storage.queued = states.get(id(storage), UNQUEUED)
    _queue[:] = [*kept, *instead]


@contextlib.contextmanager
def apart(storages: Sequence[Any]) -> Iterator[bool]:
    """Within the block, the queue holds only the calls that these storages depend on; afterwards the others return.

    Yields False, and leaves the queue unchanged, if the delay would change the other calls. That is so if another call
    uses a storage before a first call writes it, or if the torch storage of such a storage is gone.
    """
    with LOCK:
        first, others = _sliced({id(storage) for storage in storages})
        possible = not _running and not _disturbs(first, others)
        if possible:
            take(first)
        try:
            yield possible
        finally:
            if possible:
                take([*_queue, *others])


def _sliced(wanted: set[int]) -> tuple[list[QueuedCall], list[QueuedCall]]:
    """The calls from which these storages (by identity) are computed, and the others, each in order."""
    first: list[QueuedCall] = []
    others: list[QueuedCall] = []
    for call in reversed(_queue):
        if any(id(storage) in wanted for storage in call.written):
            wanted.update([id(storage) for storage in (*call.read, *call.written)])
            first.append(call)
        else:
            others.append(call)
    return first[::-1], others[::-1]


def _disturbs(first: Sequence[QueuedCall], others: Sequence[QueuedCall]) -> bool:
    """Whether a delay of the other calls until after the `first` calls would change their operands."""
    written = {id(storage): storage for call in first for storage in call.written}
    used = {id(storage) for call in others for storage in (*call.read, *call.written)}
    shared = written.keys() & used
    if any(written[i].owner() is None for i in shared):
        return True
    place = {id(call): number for number, call in enumerate(_queue)}
    last = {i: max(place[id(call)] for call in first if i in map(id, call.written)) for i in shared}
    return any(
        id(storage) in shared and place[id(call)] < last[id(storage)]
        for call in others
        for storage in (*call.read, *call.written)
    )


_data: list[Any] | None = None


def note_data(buffer: Any) -> None:
    """Record that a value function copied numbers into a buffer."""
    if _data is not None:
        _data.append(buffer)


@contextlib.contextmanager
def watched_data() -> Iterator[list[Any]]:
    """Within the block: the buffers into which value functions copied numbers."""
    global _data
    _data = []
    try:
        yield _data
    finally:
        _data = None


__all__ = [
    "Kind",
    "QueuedCall",
    "defer",
    "drop_unneeded",
    "is_closed",
    "needed",
    "pending",
    "queue_calls",
    "settle",
    "take",
]
