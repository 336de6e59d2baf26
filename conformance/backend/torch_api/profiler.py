"""Kernels of tiny in torch's profiler, by name and with their times.

Defines `install`. The key insight: what torch's profiler is told of a device's kernels comes from C++, but a range of
`record_function` reaches it from Python. A kernel that runs within one, and is waited for, is an event like any other,
inside of the operator that asked for its values.
"""

from __future__ import annotations

import torch

from ..runtime import torch_compat, trace


def _span() -> trace.KernelSpan | None:
    return torch.profiler.record_function if torch_compat.is_profiling() else None


def install() -> None:
    """Show kernels to a profiler that is on; without one, a schedule asks once whether there is."""
    trace.kernel_span = _span
