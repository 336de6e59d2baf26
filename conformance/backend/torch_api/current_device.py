"""Meaning of `device="tiny"` in a call of torch while another device than the first is current.

Defines `select`. Before it calls a kernel, torch adds an index to a device without one. It uses a guard in C++, which
is the same for every device registered from Python and returns 0. So a mode of torch functions adds the index before
torch handles the call. That costs up to ten microseconds a call, so the mode is active only while it is needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..runtime import torch_compat


class _Mode(TorchFunctionMode):
    """Adds the current device's index to devices without one."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.device = torch.device("tiny", index)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = self._indexed(kwargs["device"])
        elif _takes_default(func):
            kwargs["device"] = self.device
        if func is torch.Tensor.to:
            args = tuple(map(self._indexed, args))
        return func(*args, **kwargs)

    def _indexed(self, x: Any) -> Any:
        unnumbered = isinstance(x, str) and x == "tiny"
        return (
            self.device if unnumbered or (isinstance(x, torch.device) and x.type == "tiny" and x.index is None) else x
        )


def _takes_default(func: Any) -> bool:
    """Whether torch would use the default device, and that is tiny without an index."""
    if func not in torch_compat.device_constructors():
        return False
    defaults = [mode.device for mode in torch_compat.modes() if isinstance(mode, torch_compat.DeviceContext)]
    return defaults[-1:] == [torch.device("tiny")]


def select(index: int) -> None:
    """Use this index for devices without one, in the calling thread."""
    modes = [mode for mode in torch_compat.modes() if not isinstance(mode, _Mode)]
    if index:  # above torch's own mode for the default device, which must be the lowest
        lowest = sum(isinstance(mode, torch_compat.DeviceContext) for mode in modes)
        modes.insert(lowest, _Mode(index))
    torch_compat.replace_modes(modes)
