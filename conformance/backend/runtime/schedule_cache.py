"""Cache of schedules by graph, in this process and on disk: a graph that any process has met is not scheduled again.

Defines `Schedules`, a cache in memory, backed by tinygrad's cache file.

A schedule is small. Its programs are already on disk (see `program_cache`) and are referred to by their keys. Its
buffers are numbered, the graph's first, so it needs only a list of their sizes. It is stored as plain numbers and
names, which cannot refer to this process's buffers and run no code when they are read.

This module must not depend on the use of the graphs.
"""

from __future__ import annotations

import hashlib
import marshal
from collections import OrderedDict
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from tinygrad import helpers
from tinygrad.device import Buffer, Device
from tinygrad.dtype import DTYPES_DICT, INVERSE_DTYPES_DICT, ConstFloat, DType
from tinygrad.helpers import ContextVar
from tinygrad.uop.ops import UOp

from . import disk_cache
from .counters import COUNTERS
from .program_cache import PROGRAMS
from .replay import ArgumentPlace, Kernel, Key, Replay

TABLE = "conformance_schedules"
KEPT = 1 << 19  # nodes of all graphs in memory, some 130 bytes each
_PLAIN = 2  # the last version of marshal with equal bytes for equal values
_SETTINGS = [v for v in vars(helpers).values() if isinstance(v, ContextVar)]


class ScheduleKey(NamedTuple):
    """The key of a schedule."""

    graph: Key
    device: str
    settings: tuple[str, ...]  # tinygrad's, in the order of _SETTINGS


def settings() -> tuple[str, ...]:
    """tinygrad's current settings."""
    return tuple([str(v.value) for v in _SETTINGS])


def subject(graph: Key, device: str) -> ScheduleKey:
    """The key of a graph under the current settings."""
    return ScheduleKey(graph, device, settings())


class Schedules:
    """Schedules by their subject: the most recent in memory, all others on disk."""

    def __init__(self) -> None:
        self._known: OrderedDict[ScheduleKey, Replay] = OrderedDict()
        self._nodes = 0  # of their graphs

    def get(self, of: ScheduleKey) -> tuple[Replay | None, str]:
        """A schedule, and its origin: "memory" or "disk"; the schedule is None if there is none."""
        known = self._known.get(of)
        if known is not None:
            self._known.move_to_end(of)
            return known, "memory"
        stored = self._read(of)
        if stored is not None:
            self._remember(of, stored)
            COUNTERS.loaded += 1
        return stored, "disk"

    def put(self, of: ScheduleKey, replay: Replay) -> None:
        """Store a schedule, also on disk if it consists of kernels only."""
        self._remember(of, replay)
        where, row = _place(of), _row(replay)
        if where is not None and row is not None:
            disk_cache.write(TABLE, where, row)

    def clear(self) -> None:
        """Clear the memory, as in a new process."""
        self._known.clear()
        self._nodes = 0

    def _remember(self, of: ScheduleKey, replay: Replay) -> None:
        """Add a schedule to the memory, and evict the least recently used ones."""
        self._known[of] = replay
        self._nodes += len(of.graph)
        while self._nodes > KEPT:
            gone, _ = self._known.popitem(last=False)
            self._nodes -= len(gone.graph)

    def _read(self, of: ScheduleKey) -> Replay | None:
        where = _place(of)
        row = disk_cache.read(TABLE, where) if where is not None else None
        return _replay(row) if row is not None else None


def _place(of: ScheduleKey) -> str | None:
    """The disk cache key of a schedule; None if it is not stored."""
    graph = content(of.graph) if disk_cache.enabled() else None
    if graph is None:
        return None
    renderer = Device[of.device].renderer
    made_for = type(renderer).__module__, type(renderer).__qualname__, str(renderer.target)
    return disk_cache.place(graph, of.device, of.settings, made_for)


def content(key: Key) -> str | None:
    """A digest of a graph's key, equal in every process; None if a part of it cannot be serialized."""
    try:
        return hashlib.sha256(marshal.dumps([tuple(map(_plain, entry)) for entry in key], _PLAIN)).hexdigest()
    except ValueError:  # types that marshal does not support, mainly tinygrad's objects
        return None


def _plain(x: Any) -> Any:
    """A part of a key in types that marshal supports; the exact types, since it refuses their subclasses."""
    kind = type(x)
    if kind is int or kind is str or x is None:
        return x
    if kind is DType or isinstance(x, Enum):
        return _name(x)
    if kind is ConstFloat:
        return float(x)
    if kind is UOp:  # a kernel that appears in the graph as a call
        return x.key
    return tuple(map(_plain, x)) if kind is tuple else x


@lru_cache(maxsize=1024)
def _name(x: DType | Enum) -> tuple[str, str]:
    return type(x).__name__, repr(x)


def _row(replay: Replay) -> bytes | None:
    """A schedule as bytes; None if a part of it cannot be stored."""
    kernels: list[Any] = []
    programs: dict[str, int] = {}
    for kernel in replay.kernels:
        if not isinstance(kernel, Kernel) or (place := PROGRAMS.place(kernel.program)) is None:
            return None
        number = programs.setdefault(place, len(programs))
        kernels.append((number, kernel.device, [tuple(p) for p in kernel.places], kernel.local, kernel.offsets))
    fresh = [(device, size, INVERSE_DTYPES_DICT[dtype.name]) for device, size, dtype in replay.fresh]
    scratch = [(b.device, b.size, INVERSE_DTYPES_DICT[b.dtype.name]) for b in replay.scratch]
    return marshal.dumps((list(programs), kernels, fresh, replay.results, replay.becomes, scratch), _PLAIN)


def _replay(row: bytes) -> Replay | None:
    """A schedule from its bytes; None if one of its programs is missing."""
    places, kernels, fresh, results, becomes, scratch = marshal.loads(row)
    programs = [PROGRAMS.at(place) for place in places]
    if None in programs:
        return None
    return Replay(
        [Kernel(programs[n], device, tuple(ArgumentPlace(*p) for p in at), *more) for n, device, at, *more in kernels],
        [(device, size, DTYPES_DICT[name]) for device, size, name in fresh],
        results,
        becomes,
        [Buffer(device, size, DTYPES_DICT[name]) for device, size, name in scratch],
    )


__all__ = ["Schedules"]
