"""Kernels of tiny in torch's profiler, by name and with their times.

Defines `install`. The key insight: what torch's profiler is told of a device's kernels comes from C++, but a range of
`record_function` reaches it from Python. A kernel that runs within one, and is waited for, is an event like any other,
inside of the operator that asked for its values.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..runtime import torch_compat, trace


def _span() -> trace.KernelSpan | None:
    return torch.profiler.record_function if torch_compat.is_profiling() else None


def install() -> None:
    """Show kernels to a profiler that is on; without one, a schedule asks once whether there is."""
    trace.kernel_span = _span
    _profile_on_host()


def _profile_on_host() -> None:
    """`profile(use_device="tiny")` asks C++ for the device's clock, which is told of in hundreds of lines that there is
    none: the kernels are on the host's, so it is a profile without a device."""
    profile: Any = torch.autograd.profiler.profile
    original = profile.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") == "tiny":
            kwargs["use_device"] = None
        original(self, *args, **kwargs)

    profile.__init__ = init
