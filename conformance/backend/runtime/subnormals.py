"""Kernels compute with subnormal numbers, whatever the thread that runs them is set to.

Defines `Subnormals`. The key insight: `torch.set_flush_denormal` sets a register of the calling thread, for what torch
computes on the CPU then; a lazy device computes at another time, in whichever thread looks, and its kernels would flush
what was computed, as the program has it, outside of that setting. torch has no question for it, but a product tells.
Must not know schedules.
"""

from __future__ import annotations

import torch

_LEAST, _ONE = 5e-324, 1.0


class Subnormals:
    """A context in which this thread flushes no subnormal number; each is entered once."""

    def __init__(self) -> None:
        self.flushed = False

    def __enter__(self) -> None:
        self.flushed = not _LEAST * _ONE
        if self.flushed:
            torch.set_flush_denormal(False)

    def __exit__(self, *error: object) -> None:
        if self.flushed:
            torch.set_flush_denormal(True)
