"""`torch.tiny.amp`: torch.amp's classes with the device named, as torch.cuda.amp has them.

Defines `module`. The key insight: what casts is told in `autocast.py`; this only names the device.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch


class autocast(torch.autocast):
    """`torch.autocast("tiny", ...)`; without a dtype in the one of torch.get_autocast_dtype("tiny")."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> None:
        super().__init__("tiny", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("tiny", ...)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("tiny", *args, **kwargs)


def module() -> ModuleType:
    """The module to be `torch.tiny.amp`."""
    made = ModuleType("torch.tiny.amp", __doc__)
    made.autocast, made.GradScaler = autocast, GradScaler  # type: ignore[attr-defined]
    made.custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="tiny")  # type: ignore[attr-defined]
    made.custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="tiny")  # type: ignore[attr-defined]
    return made
