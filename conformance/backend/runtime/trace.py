"""Trace events of the device at run time: schedules with their kernels, copies, stores, each with its reason.

Defines `Schedule`, `Copy`, `Store` and `LISTENERS`; the engine calls every listener for each event. Nothing is recorded
here, and without a listener no event is built. `kernel_span` measures kernels one by one, for a profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple


class Schedule(NamedTuple):
    """Lazy values computed together."""

    why: str  # the reason: "observed", "realize", "cut", "write in place", "index check", "compiled"
    kernels: tuple[str, ...]  # tinygrad's names: r_ for a reduction, E_ for elementwise work, copy
    values: int  # number of requested values
    origin: str  # of the schedule: "scheduled" now, or from "memory" or "disk"
    schedule_s: float  # seconds spent on the graph
    compile_s: float  # seconds spent on code of kernels
    run_s: float  # seconds spent on running kernels


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
"""The context of each kernel, by its name; usually returns None: no measurement. Called once for each schedule."""


def notify(event: Event) -> None:
    """Call every listener."""
    for listener in LISTENERS:
        listener(event)
