"""PyTorch Lightning on `tiny`: `Trainer(strategy=TinyStrategy())`.

Defines `TinyStrategy` and `TinyAccelerator`. Lightning knows only the devices of its own accelerators. For any other
one, its default strategy puts the model on the CPU and says nothing, so the strategy names the device, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import conformance.backend  # noqa: F401 - registers the device

try:
    from lightning.pytorch.accelerators import Accelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError:  # the older name of the same package
    from pytorch_lightning.accelerators import Accelerator
    from pytorch_lightning.strategies import SingleDeviceStrategy

DEVICE = torch.device("tiny", 0)


class TinyAccelerator(Accelerator):  # type: ignore[misc]
    """The device `tiny` as Lightning asks for it. There is one."""

    def setup_device(self, device: torch.device) -> None:
        """Check the device of the strategy. Raises ValueError for another one, on which Lightning would train."""
        if device.type != DEVICE.type:
            raise ValueError(f"the strategy trains on {device}, not on {DEVICE}: use Trainer(strategy=TinyStrategy())")

    def teardown(self) -> None:
        """Do nothing: all memory belongs to tensors."""

    def get_device_stats(self, device: Any) -> Mapping[str, Any]:
        """Return the statistics of the device's memory."""
        return torch.get_device_module(DEVICE).memory_stats()  # type: ignore[no-any-return]

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """Return the number of devices to use, which is 1. Raises ValueError for more."""
        if devices not in ("auto", 1, "1", -1, "-1", [0], "0"):
            raise ValueError(f"there is one device {DEVICE.type}, not {devices!r}: use devices=1")
        return 1

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        """Return the device."""
        return [DEVICE]

    @staticmethod
    def auto_device_count() -> int:
        """Return 1."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Return True."""
        return True

    @staticmethod
    def name() -> str:
        """Return the name of the device."""
        return DEVICE.type


class TinyStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Training in one process on `tiny`. The arguments are those of Lightning's `SingleDeviceStrategy`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(device=DEVICE, accelerator=TinyAccelerator(), **options)
