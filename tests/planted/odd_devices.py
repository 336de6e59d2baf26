"""Functions that register a device with one unusual behaviour each: `device:cpu,import=odd_devices,call=...`."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Any

import torch

from conformance.engine.target import Target


def hangs() -> None:
    """Hang while the target loads."""
    time.sleep(1_000)


class HangsTarget(Target):
    """Hang while the target loads, without an earlier probe."""

    name = "hangs"

    def prepare(self) -> None:
        hangs()


def hangs_at_the_first_tensor() -> None:
    def empty(*args: Any, **kwargs: Any) -> Any:
        time.sleep(1_000)

    torch.empty = empty  # type: ignore[assignment]


def hangs_at_exit() -> None:
    atexit.register(time.sleep, 1_000)


def prints_all_the_time() -> None:
    def prints() -> None:
        while True:
            os.write(1, b"what a device prints\n")
            time.sleep(0.001)

    threading.Thread(target=prints, daemon=True).start()


def ends_its_process() -> None:
    os._exit(3)


def has_no_unfold() -> None:
    def unfold(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("unfold")

    torch.Tensor.unfold = unfold  # type: ignore[method-assign,assignment]


def hangs_in_unfold() -> None:
    torch.Tensor.unfold = lambda *args, **kwargs: time.sleep(1_000)  # type: ignore[method-assign,assignment]


def wants_a_variable() -> None:
    if os.environ.get("ODD_DEVICE") != "1":
        raise RuntimeError("set ODD_DEVICE=1")
