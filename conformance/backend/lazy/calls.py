"""Operator calls that wait to become values: a queue in program order, emptied before anything could see it.

Defines `Call`, `defer` (put one into the queue), `settle` (turn all of them into values), `drop_unneeded` (leave out
those whose results are gone) and `pending`.

The key insight: a lazy device need not build an expression when an operator is called, only before somebody asks for
it; metadata are all that the caller sees until then. What is queued runs in its order, each call upon the contents that
the calls before it left, so emptying the queue is what calling them one by one would have been; a storage knows
whether the queue reads or writes it, and whoever wants its content empties the queue first. A call whose results are
gone is left out, and a queue that equals an earlier one need not be turned into values at all (`steps`).
Must not know operators, tensors or storages.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ..runtime import allocations
from ..runtime.lock import LOCK
from ..runtime.subnormals import Subnormals

# What the queue does with a storage, as `LazyStorage.queued`.
UNQUEUED, READ, WRITTEN = 0, 1, 2
# Calls after which the queue is emptied, so that what it keeps is bounded.
LONGEST = 4096
# Calls after which those whose results are gone are looked for; the next time, where there are twice as many as stayed.
CHECKED = 256


class Kind(Protocol):
    """What calls of one operator with one geometry of its arguments have in common."""

    fresh: bool  # whether the call makes the storages that it writes

    def execute(self, call: Call) -> None:
        """Read the operands and hold or write the results; doing so once more after an interrupt changes nothing."""

    def numbers(self, call: Call, data: list[Any]) -> tuple[Any, ...]:
        """The call's numbers as a key, those that are data to its kernels appended to `data` instead."""


class Call:
    """One call in the queue."""

    __slots__ = ("arrays", "given", "kind", "read", "results", "written")

    def __init__(self, kind: Any, read: Sequence[Any], written: Sequence[Any], given: Sequence[Any] = ()) -> None:
        self.kind = kind
        self.read, self.written = read, written  # storages
        self.given = given  # its numbers, or the buffers of what it restores
        self.arrays: Sequence[Any] = ()  # what its value function computes on the host, from an index
        self.results: Any = None  # what was computed, in case that writing it was interrupted


SETTING = "TINY_QUEUE"
"""The environment variable that switches the queue off, with the value 0."""

_queue: list[Call] = []
_running = False
_checked_at = CHECKED  # calls after which the next look is taken
_open = os.environ.get(SETTING) != "0"


def pending() -> list[Call]:
    """The calls that have not been turned into values, in order."""
    return _queue


def is_closed() -> bool:
    """Whether nothing may be put into the queue: it is switched off, or being emptied."""
    return _running or not _open


def queue_calls(on: bool) -> bool:
    """Let calls wait from now on, or not, and empty the queue; what was so before. `TINY_QUEUE=0` in the environment
    lets none wait from the start."""
    global _open
    settle()
    before, _open = _open, on
    return before


def defer(call: Call) -> None:
    """Put a call into the queue."""
    global _checked_at
    with LOCK:
        for storage in call.read:
            if not storage.queued:
                storage.queued = READ
        for storage in call.written:
            storage.queued = WRITTEN
        _queue.append(call)
        if len(_queue) >= _checked_at:
            drop_unneeded()
            if len(_queue) > LONGEST * 3 // 4:
                settle()
            _checked_at = min(max(2 * len(_queue), CHECKED), LONGEST)


def writes_in_place() -> bool:
    """Whether a queued call writes what it is given."""
    return any(storage in call.read for call in _queue for storage in call.written)


def needed(calls: Sequence[Call]) -> list[Call]:
    """The calls whose results somebody holds, or another one of them reads."""
    kept: list[Call] = []
    read: set[int] = set()
    for call in reversed(calls):
        if any(id(storage) in read or storage.owner() is not None for storage in call.written):
            kept.append(call)
            read.update([id(storage) for storage in call.read])
    kept.reverse()
    return kept


def drop_unneeded() -> None:
    """Leave out the calls whose results are gone, so that what only they read is freed."""
    with LOCK:
        if _queue and not _running:
            take(needed(_queue))


allocations.HOLDERS.append(drop_unneeded)


def settle() -> None:
    """Turn all calls into values, in order. An error leaves the call that raises it, and those after it, queued."""
    global _running, _checked_at
    if not _queue:
        return
    with LOCK, Subnormals():
        if _running or not _queue:
            return
        _running, _checked_at = True, min(CHECKED, LONGEST)
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
                del call, storage  # what nobody holds any more is not to be computed with what comes next
        finally:
            _running = False


def take(instead: Sequence[Call]) -> None:
    """Put others in the place of all calls that are queued, and let the storages know."""
    states: dict[int, int] = {}
    for call in instead:
        for storage in call.read:
            states.setdefault(id(storage), READ)
        for storage in call.written:
            states[id(storage)] = WRITTEN
    for call in (*_queue, *instead):
        for storage in (*call.read, *call.written):
            storage.queued = states.get(id(storage), UNQUEUED)
    _queue[:] = instead


@contextlib.contextmanager
def apart(storages: Sequence[Any]) -> Iterator[bool]:
    """Within the block only what these storages are computed from is queued; the other calls come after it again.

    Gives False, and leaves the queue as it is, where the others would notice: where one of them uses what the rest
    writes, and came before that, or nobody but it holds what was written.
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


def _sliced(wanted: set[int]) -> tuple[list[Call], list[Call]]:
    """The calls from which the storages of these identities are computed, and the others, each in order."""
    first: list[Call] = []
    others: list[Call] = []
    for call in reversed(_queue):
        if any(id(storage) in wanted for storage in call.written):
            wanted.update([id(storage) for storage in (*call.read, *call.written)])
            first.append(call)
        else:
            others.append(call)
    return first[::-1], others[::-1]


def _disturbs(first: Sequence[Call], others: Sequence[Call]) -> bool:
    """Whether the other calls, all of which are to come later than the first, would meet anything else."""
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
    """A value function has put numbers into a buffer."""
    if _data is not None:
        _data.append(buffer)


@contextlib.contextmanager
def watched_data() -> Iterator[list[Any]]:
    """Within the block: the buffers into which value functions put numbers."""
    global _data
    _data = []
    try:
        yield _data
    finally:
        _data = None


__all__ = ["Call", "Kind", "defer", "drop_unneeded", "is_closed", "needed", "pending", "queue_calls", "settle", "take"]
