"""Cost of training steps at lengths that were not met before: processor seconds, new schedules, compiled kernels.

Starts with an empty cache. The processor time includes the compiler's.

Usage: ``python benchmarks/new_lengths.py [gru|lstm|encoder] [LENGTH ...]``; the batch is first.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

os.environ["CACHEDB"] = os.path.join(tempfile.mkdtemp(), "cache.db")  # read when tinygrad is imported
os.environ["ONE_COMPILER"] = "0"  # its time is counted when a process ends

import torch
from torch import nn

import conformance.backend  # noqa: F401 - registers the device
from conformance.backend.runtime.counters import COUNTERS
from conformance.backend.runtime.progress import PROGRESS

WIDTH, BATCH = 16, 4
MODELS: dict[str, Any] = {
    "gru": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
    "lstm": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True),
}


def main(name: str, lengths: list[int]) -> None:
    """Print one line for each length."""
    torch.manual_seed(0)
    model = MODELS[name]().to("tiny")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = 0.0
    for length in lengths:
        x = torch.randn(BATCH, length, WIDTH).to("tiny")
        before, scheduled, compiled = os.times(), COUNTERS.scheduled, PROGRESS.kernels
        y = model(x)
        loss = (y if isinstance(y, torch.Tensor) else y[0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        seconds = sum(os.times()[:4]) - sum(before[:4])
        first = first or seconds
        new = f"{COUNTERS.scheduled - scheduled:3} new schedules, {PROGRESS.kernels - compiled:3} new kernels"
        print(f"length {length:3}: {seconds:6.2f} s, {seconds / first:.2f} of the first, {new}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "gru", [int(n) for n in sys.argv[2:]] or list(range(5, 29)))
