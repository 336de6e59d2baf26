"""Peak memory and time of a call, on the target and on torch CPU, and the limit of memory for a finding.

Defines `Footprint` and the rule. A call must hold its inputs and its results, so the limit of a peak is a multiple of
their bytes. If torch CPU itself needs more, the target may use as much. This module must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

SIZES = "sizes"
"""Stands in place of a layout, since the table of rows chooses the inputs."""

HELD_TIMES = 3
"""Growth of memory allowed at the peak, as a multiple of the bytes held. Growth counts from the start of the call, when
the inputs are already in memory."""

ALLOWANCE = 128 << 20
"""Further bytes allowed for every call: kernels that it builds and loads, and chunks of results that the harness
reads."""


SHORT = "needs more than --memory"
"""Prefix of the reason of a case that could not be measured within the harness's own limit of memory."""


@dataclass(frozen=True)
class Footprint:
    """Memory and time of one call. `held` is the bytes of its inputs and results with the objects around them. `target`
    and `cpu` are the growth of the process's memory at the peak, in bytes; the other two are the seconds."""

    held: int
    target: int
    cpu: int
    target_seconds: float
    cpu_seconds: float
    WRITTEN: ClassVar = ("held", "target", "cpu", "target_seconds", "cpu_seconds")

    @property
    def limit(self) -> int:
        """The largest peak in bytes that is no finding."""
        return allowed(self.held, self.cpu)

    @property
    def excess(self) -> float:
        """The peak as a multiple of the limit; above 1 it is a finding."""
        return self.target / self.limit


def allowed(held: int, cpu: int) -> int:
    """Return the largest peak in bytes that is no finding, given the bytes held and torch CPU's peak."""
    return max(HELD_TIMES * held, cpu) + ALLOWANCE


def mebibytes(count: float) -> str:
    """Format a number of bytes for a reader: `12 MiB`."""
    return f"{count / 2**20:,.0f} MiB"
