"""torch CPU under a mode that passes each call on, as a device in Python does that has no bug of its own.

What differs here from torch CPU is PyTorch's own: `matrix_rank(out=)`, for one, does not fill its result if a dispatch
mode is active. So a finding of a device in Python that also shows here in the same way is not the device's.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch

from conformance.record.errors import TargetError
from conformance.standalone.torch_compat import TorchDispatchMode
from conformance.targets.device import DeviceTarget


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class PassThroughTarget(DeviceTarget):
    """torch CPU under `PassThrough`. The oracle `version` is excluded: torch counts a write above the mode, and again
    below it."""

    name = "passthrough"
    facts = replace(DeviceTarget.facts.without(("version",)), probed=False)

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise TargetError(f"target 'passthrough:{argument}' is not understood: write passthrough")
        super().__init__("cpu")

    def _load(self) -> None:
        PassThrough().__enter__()
        self.device = torch.device("cpu")

    def script(self) -> str:
        """Return the mode's class, and the code that enters it."""
        lines = [
            "from typing import Any",
            "from torch.utils._python_dispatch import TorchDispatchMode",
            inspect.getsource(PassThrough).rstrip(),
            "PassThrough().__enter__()",
            "DEVICE = 'cpu'",
        ]
        return "\n".join(lines)
