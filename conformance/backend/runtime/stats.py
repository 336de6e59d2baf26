"""Counts of the device's work by operator: native, decomposed, on the host by design, fallback to the CPU.

Defines `STATS`, `stats`, `reset_stats` and `no_fallback`. Counting does not change results. A fallback is counted
before it runs, so none is silent.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from .counters import COUNTERS, Counters


@dataclass
class Stats:
    """Calls by operator name, such as "aten.add.Tensor"."""

    native: Counter[str] = field(default_factory=Counter)
    decomposed: Counter[str] = field(default_factory=Counter)
    host: Counter[str] = field(default_factory=Counter)  # computed on the CPU by design
    fallback: Counter[str] = field(default_factory=Counter)
    forbid: int = 0  # number of open `no_fallback` blocks


STATS = Stats()
_start = asdict(Counters())  # the process's counters at the last `reset_stats`


class FallbackError(RuntimeError):
    """An operator would have run on the CPU inside `no_fallback`."""


def stats() -> dict[str, Any]:
    """Counts since `reset_stats`: calls by operator (native, decomposed, host, fallback), kernels, copies and bytes."""
    return {
        "native": dict(STATS.native),
        "decomposed": dict(STATS.decomposed),
        "host": dict(STATS.host),
        "fallback": dict(STATS.fallback),
        **{name: count - _start[name] for name, count in asdict(COUNTERS).items()},
    }


def reset_stats() -> None:
    """Start counting from zero. The process's counters go on, since caches compare them between calls."""
    for counter in (STATS.native, STATS.decomposed, STATS.host, STATS.fallback):
        counter.clear()
    _start.update(asdict(COUNTERS))


@contextlib.contextmanager
def no_fallback() -> Iterator[None]:
    """Within the block an operator that falls back to the CPU raises FallbackError with its name.

    Operators that run on the host by design (random numbers, shapes that depend on values) are allowed.
    """
    STATS.forbid += 1
    try:
        yield
    finally:
        STATS.forbid -= 1


def count_fallback(name: str) -> None:
    """Count one call of an operator that runs on the CPU; raises FallbackError inside `no_fallback`."""
    STATS.fallback[name] += 1
    if STATS.forbid:
        raise FallbackError(f"{name} has no tiny kernel and would run on the CPU, which no_fallback() forbids")
