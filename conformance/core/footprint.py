"""What a call took: its peak memory and its time, on the target and on torch CPU, and when the memory is a finding.

Defines `Footprint` and the rule. The key insight: what a call must hold are its inputs and its results, so a peak is
judged in multiples of their bytes; and a call for which torch CPU itself needs more may take as much. This module must
not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

SIZES = "sizes"
"""In place of a layout, since inputs are chosen by the table of rows."""

HELD_TIMES = 3
"""So many times the bytes that are held may be resident at the peak, those of the inputs not counted again."""

ALLOWANCE = 128 << 20
"""Bytes that every call may take beyond: kernels that are built and loaded, chunks of results that are read."""


SHORT = "needs more than --memory"
"""How the reason begins of a case that the harness's own limit of memory kept from being measured."""


@dataclass(frozen=True)
class Footprint:
    """The bytes that a call holds, its inputs and results with the objects around them; and by how many bytes the
    memory of the process grew at the peak, and how many seconds passed, on the target and on torch CPU."""

    held: int
    target: int
    cpu: int
    target_seconds: float
    cpu_seconds: float
    WRITTEN: ClassVar = ("held", "target", "cpu", "target_seconds", "cpu_seconds")

    @property
    def limit(self) -> int:
        """The largest peak that is no finding."""
        return allowed(self.held, self.cpu)

    @property
    def excess(self) -> float:
        """How many times the limit the peak is; above 1 it is a finding."""
        return self.target / self.limit


def allowed(held: int, cpu: int) -> int:
    """The largest peak in bytes that is no finding where so many are held, and torch CPU's peak is this."""
    return max(HELD_TIMES * held, cpu) + ALLOWANCE


def mebibytes(count: float) -> str:
    """Bytes as people read them: `12 MiB`."""
    return f"{count / 2**20:,.0f} MiB"
