"""A module whose thread needs the interpreter when the process ends: it is in a destructor of torch, which runs Python
code. An interpreter that is finalized meanwhile ends the thread by force, and C++ aborts the process."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

destroying = threading.Event()


class Slow:
    def __del__(self) -> None:
        destroying.set()
        while True:
            time.sleep(0.001)  # needs the interpreter again each time


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.slow = Slow()
        return tensor.clone()


def destroy_graph() -> None:
    Keeping.apply(torch.ones(1, requires_grad=True))


threading.Thread(target=destroy_graph, daemon=True).start()
destroying.wait()
