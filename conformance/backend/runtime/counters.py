"""What ran since the process started, in numbers: `Counters`, and the process's own, `COUNTERS`.

The engine and the kernels' programs count here; nothing is read here but by `stats`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """What ran since the process started; `conformance.backend.stats` gives differences."""

    kernels: int = 0
    schedules: int = 0  # graphs that were computed
    scheduled: int = 0  # of these, the ones that tinygrad had to schedule
    loaded: int = 0  # of these, the ones whose schedule came from disk
    stored: int = 0  # writes into a buffer's own memory
    copies_in: int = 0
    copies_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    prepared: int = 0  # calls whose metadata were looked up the long way
    warned: int = 0  # calls that warned: such a one is not to be answered by what an earlier one was found to be
    recorded: int = 0  # queues of calls that are computed without their graph when they come again
    replayed: int = 0  # queues that were
    unoptimized: int = 0  # kernels that tinygrad's optimizer could not take


COUNTERS = Counters()
