"""Counters of executed work since the process started: `Counters`, and the process's instance, `COUNTERS`.

The engine and the kernels' programs update them; only `stats` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Counters since the process started; `conformance.backend.stats` gives differences."""

    kernels: int = 0
    schedules: int = 0  # computed graphs
    scheduled: int = 0  # of these, graphs that tinygrad had to schedule
    loaded: int = 0  # of these, graphs whose schedule came from disk
    divided: int = 0  # of these, graphs that were scheduled in pieces
    stored: int = 0  # writes into a buffer's own memory
    copies_in: int = 0
    copies_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    prepared: int = 0  # calls whose metadata were computed, not found in the cache
    warned: int = 0  # calls that warned; `Deferred` does not cache such calls
    recorded: int = 0  # queues of calls recorded for replay without their graph
    replayed: int = 0  # queues that were replayed
    unoptimized: int = 0  # kernels that tinygrad's optimizer could not optimize


COUNTERS = Counters()
