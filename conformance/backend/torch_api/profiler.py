"""Kernels of tiny in torch's profiler, by name and with their times.

Defines `install`. torch's profiler gets device kernels from C++, but `record_function` adds a range from Python. A
kernel that runs and finishes within such a range is an ordinary event, inside the operator that needed its values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..runtime import torch_compat, trace
from .replacements import replace_at_import


def _span() -> trace.KernelSpan | None:
    return torch.profiler.record_function if torch_compat.is_profiling() else None


def install() -> None:
    """Show kernels to an active profiler; without one, the cost is one check per schedule."""
    trace.kernel_span = _span
    _profile_on_host()


def _profile_on_host() -> None:
    """Treat `profile(use_device="tiny")` as a profile without a device.

    torch would query the device's clock in C++, and print hundreds of lines because there is none. The kernels use the
    host's clock.
    """

    def serving(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("use_device") == "tiny":
                kwargs["use_device"] = None
            original(self, *args, **kwargs)

        return init

    replace_at_import("torch.autograd.profiler:profile.__init__", serving)
