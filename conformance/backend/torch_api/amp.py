"""`torch.tiny.amp`: the classes of torch.amp for this device, as in torch.cuda.amp.

Defines `module`. The casting rules are in `autocast.py`; this module only sets the device.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch


class autocast(torch.autocast):
    """`torch.autocast("tiny", ...)`; the default dtype is torch.get_autocast_dtype("tiny")."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> None:
        super().__init__("tiny", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("tiny", ...)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("tiny", *args, **kwargs)


def module() -> ModuleType:
    """Make the module `torch.tiny.amp`."""
    result = ModuleType("torch.tiny.amp", __doc__)
    result.autocast, result.GradScaler = autocast, GradScaler  # type: ignore[attr-defined]
    result.custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="tiny")  # type: ignore[attr-defined]
    result.custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="tiny")  # type: ignore[attr-defined]
    return result
