"""What the device runs, told while it runs: schedules with their kernels, copies, stores, and why each happened.

Defines `Schedule`, `Copy`, `Store` and `LISTENERS`; the engine tells every listener of each. Nothing is recorded here,
and without a listener nothing is built. `kernel_span` measures kernels one by one, for a profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple


class Schedule(NamedTuple):
    """Lazy values computed together."""

    why: str  # what asked for the values: "observed", "realize", "cut", "write in place", "index check", "compiled"
    kernels: tuple[str, ...]  # tinygrad's names: r_ for a reduction, E_ for elementwise work, copy
    values: int  # how many values were asked for
    origin: str  # of the schedule: "scheduled" now, or remembered in "memory" or on "disk"
    schedule_s: float  # seconds spent on the graph
    compile_s: float  # seconds spent on code of kernels
    run_s: float  # seconds in which kernels ran


class Copy(NamedTuple):
    """Bytes between the host and the device."""

    direction: str  # "in" or "out"
    nbytes: int


class Store(NamedTuple):
    """A write into a buffer's own memory."""


Event = Schedule | Copy | Store
LISTENERS: list[Callable[[Event], None]] = []

KernelSpan = Callable[[str], AbstractContextManager[object]]


def _unmeasured() -> KernelSpan | None:
    return None


kernel_span: Callable[[], KernelSpan | None] = _unmeasured
"""What each kernel, by its name, runs within; None, as a rule, where nothing measures them. Asked once a schedule."""


def notify(event: Event) -> None:
    """Tell every listener."""
    for listener in LISTENERS:
        listener(event)
