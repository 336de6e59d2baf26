"""Kernel counts by line: the work of a block of code on the tiny device, the lines that caused it, and the reasons.

Defines `count` (a context manager that yields a `Count`) and `budget` (which fails when a workload takes more than its
file allows).

The key insight: a lazy device computes at boundaries, and each boundary belongs to a line of the program. The line with
the most kernels is the line to change.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from conformance.backend.runtime import trace
from conformance.backend.runtime.torch_compat import TORCH

# By minor version of torch, since a newer one may call other operators for the same program.
BUDGETS = Path("reports/baseline/torch-{}.{}/kernels.json".format(*TORCH.release[:2]))
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent), "<")


class Place(NamedTuple):
    """A line of the program that crossed a boundary."""

    file: str
    line: int
    code: str


@dataclass
class Count:
    """Device work while a block of `count` was open. Times are seconds, sizes bytes."""

    kernels: int = 0
    schedules: int = 0
    replayed: int = 0  # schedules found in the cache for a known graph
    loaded: int = 0  # replayed schedules loaded from disk, which another process stored
    stored: int = 0  # writes into a buffer's own memory
    copies_in: int = 0
    copies_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    schedule_s: float = 0.0
    compile_s: float = 0.0
    run_s: float = 0.0
    boundaries: list[tuple[Place, trace.Event]] = field(default_factory=list)

    def add(self, event: trace.Event) -> None:
        """Add one event of the device."""
        match event:
            case trace.Copy(direction="in", nbytes=n):
                self.copies_in, self.bytes_in = self.copies_in + 1, self.bytes_in + n
            case trace.Copy(nbytes=n):
                self.copies_out, self.bytes_out = self.copies_out + 1, self.bytes_out + n
            case trace.Store():
                self.stored += 1
            case trace.Schedule() as s:
                self.kernels, self.schedules = self.kernels + len(s.kernels), self.schedules + 1
                self.replayed += s.origin != "scheduled"
                self.loaded += s.origin == "disk"
                self.schedule_s, self.compile_s = self.schedule_s + s.schedule_s, self.compile_s + s.compile_s
                self.run_s += s.run_s
        self.boundaries.append((_place(), event))

    @property
    def counts(self) -> dict[str, int]:
        """The counts that a budget limits."""
        return {"kernels": self.kernels, "copies_in": self.copies_in, "copies_out": self.copies_out}


@contextlib.contextmanager
def count() -> Iterator[Count]:
    """Count the device work of the block; blocks may nest.

    with conformance.backend.kernels.count() as k:
        step()
    assert k.kernels <= 12
    """
    counted = Count()
    trace.LISTENERS.append(counted.add)
    try:
        yield counted
    finally:
        trace.LISTENERS.remove(counted.add)


class OverBudget(AssertionError):
    """A workload took more kernels or copies than its budget."""


@contextlib.contextmanager
def budget(workload: str, file: Path = BUDGETS) -> Iterator[Count]:
    """Count as `count` does; raise OverBudget after the block if it took more than `file` allows for this workload.

    Raises ValueError if the file has no such workload.
    """
    allowed = json.loads(file.read_text()).get(workload) if file.exists() else None
    if allowed is None:
        raise ValueError(f"{file} has no budget for {workload!r}; benchmarks/kernel_counts.py --json FILE writes them.")
    with count() as counted:
        yield counted
    over = [f"{name} {n}, allowed {allowed[name]}" for name, n in counted.counts.items() if n > allowed[name]]
    if over:
        raise OverBudget(f"{workload}: {'; '.join(over)}")


def _place() -> Place:
    """Return the innermost line outside of torch and this package."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    summary = traceback.extract_stack(frame, 1)[0]
    return Place(summary.filename, summary.lineno or 0, summary.line or "")
