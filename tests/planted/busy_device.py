"""The device `guarded`, which keeps autograd's thread busy when the process ends, and says that it is closed."""

from __future__ import annotations

import atexit
import threading
import time

import guarded_device  # noqa: F401  registers the device
import torch

running = threading.Event()


def wait_in_hook(grad: torch.Tensor) -> None:
    running.set()
    while True:
        time.sleep(0.001)  # needs the interpreter again each time


def run_backward() -> None:
    result = torch.ones(1).to("guarded").requires_grad_() * 2
    result.register_hook(wait_in_hook)
    result.backward(torch.ones(1).to("guarded"))


@atexit.register
def close() -> None:
    threading.Thread(target=run_backward, daemon=True).start()
    running.wait()
    print("the device is closed")
