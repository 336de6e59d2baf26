"""Support for subnormal numbers in kernels, independent of the settings of the calling thread.

Defines `Subnormals`. `torch.set_flush_denormal` sets a register of the calling thread, for torch's current computations
on the CPU. A lazy device computes later, in any thread that reads a value. Its kernels would also flush values which
the program computed outside that setting. torch has no function that returns the setting, so a product tests it.

This module must not depend on schedules.
"""

from __future__ import annotations

import torch

_LEAST, _ONE = 5e-324, 1.0


class Subnormals:
    """A context in which this thread flushes no subnormal numbers; each instance is entered once."""

    def __init__(self) -> None:
        self.flushed = False

    def __enter__(self) -> None:
        self.flushed = not _LEAST * _ONE
        if self.flushed:
            torch.set_flush_denormal(False)

    def __exit__(self, *error: object) -> None:
        if self.flushed:
            torch.set_flush_denormal(True)
