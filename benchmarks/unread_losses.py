"""Cost of training steps whose losses stay in a list: processor seconds, kernels, schedules, replayed steps.

Each round trains for all steps and then reads the list. The first round starts with an empty cache, and its processor
time includes the compiler's.

Usage: ``python benchmarks/unread_losses.py [stack|item|sum] [STEPS]``; the default is 200 steps whose losses are
stacked.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable

os.environ["CACHEDB"] = os.path.join(tempfile.mkdtemp(), "cache.db")  # read when tinygrad is imported
os.environ["ONE_COMPILER"] = "0"  # its time is counted when a process ends

import torch
from torch import nn

from conformance.backend import kernels
from conformance.backend.runtime.counters import COUNTERS

READ: dict[str, Callable[[list[torch.Tensor]], float]] = {
    "stack": lambda losses: torch.stack(losses).mean().item(),
    "item": lambda losses: sum(loss.item() for loss in losses) / len(losses),
    "sum": lambda losses: torch.as_tensor(sum(losses)).item() / len(losses),
}


def main(read: str, steps: int) -> None:
    """Print one line for each of three rounds."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to("tiny")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x, y = torch.randn(steps, 4, 8).to("tiny"), torch.randn(steps, 4, 1).to("tiny")
    for number in range(1, 4):
        before, scheduled, replayed = os.times(), COUNTERS.scheduled, COUNTERS.replayed
        with kernels.count() as counted:
            losses = []
            for i in range(steps):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(net(x[i]), y[i])
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            mean = READ[read](losses)
        seconds = sum(os.times()[:4]) - sum(before[:4])
        counts = f"{counted.kernels} kernels, {COUNTERS.scheduled - scheduled} new schedules"
        counts += f", {COUNTERS.replayed - replayed} replays"
        print(f"round {number}: {seconds:5.2f} s, {counts}, mean loss {mean:.6f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "stack", int(sys.argv[2]) if len(sys.argv) > 2 else 200)
