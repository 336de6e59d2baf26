"""What `device="tiny"` means in a call of torch while another device than the first is current.

Defines `select`. The key insight: torch gives a device without an index one before it asks a kernel, by a guard in C++
that is the same for every device registered from Python and answers 0. So the index is put in before torch sees the
call, by a mode of torch functions; that costs up to ten microseconds a call, so the mode is there only while it is
needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..runtime import torch_compat


class _Mode(TorchFunctionMode):
    """Puts the current device's index into the devices that are given without one."""

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
    """Whether torch would put in the default device, and that is tiny without an index."""
    if func not in torch_compat.device_constructors():
        return False
    defaults = [mode.device for mode in torch_compat.modes() if isinstance(mode, torch_compat.DeviceContext)]
    return defaults[-1:] == [torch.device("tiny")]


def select(index: int) -> None:
    """Let devices without an index be this one, in the thread that calls."""
    modes = [mode for mode in torch_compat.modes() if not isinstance(mode, _Mode)]
    if index:  # above torch's own mode for the default device, which insists on being the lowest
        lowest = sum(isinstance(mode, torch_compat.DeviceContext) for mode in modes)
        modes.insert(lowest, _Mode(index))
    torch_compat.replace_modes(modes)
