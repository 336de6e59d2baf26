"""Any torch device, `device:NAME[,import=MODULE]`: cuda, mps, xpu, or an out-of-tree backend that MODULE registers."""

from __future__ import annotations

import importlib

import torch

from conformance.core.errors import TargetError
from conformance.core.names import ORACLES
from conformance.core.target import Target


class DeviceTarget(Target):
    """What only the device itself could count, its kernels, is not judged. Version counters are: torch counts writes
    above the device's kernels, and those that a kernel makes of its own count twice."""

    name = "device"
    oracles = frozenset(ORACLES) - {"kernels"}

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        name, _, option = argument.partition(",")
        key, _, self.module = option.partition("=")
        if not name or (option and (key != "import" or not self.module)):
            raise TargetError(
                f"target 'device:{argument}' is not understood: write device:NAME or "
                "device:NAME,import=MODULE, for example device:cuda"
            )
        self.device_name = name

    def prepare(self) -> None:
        """Import the backend's module, if any, and make one tensor on the device to see that it is there."""
        if self.module:
            try:
                importlib.import_module(self.module)
            except Exception as error:  # anybody's code, which may fail in any way
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise TargetError(
                    f"module {self.module!r}, which should register device {self.device_name!r}, cannot "
                    f"be imported: {reason}"
                ) from error
        try:
            self.device = torch.device(self.device_name)
            torch.empty(1, device=self.device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise TargetError(f"torch has no usable device {self.device_name!r} here: {reason}") from error

    def script(self) -> str:
        """The import that registers the device, if any, and its name."""
        return (f"import {self.module}\n" if self.module else "") + f"DEVICE = {self.device_name!r}"
