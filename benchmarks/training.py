"""Time of a training step with Adam, all in one run: tiny eager and compiled, torch CPU, plain tinygrad, TinyJit.

Two networks, batch 32: an MLP 784-128-128-10, and a batch-norm CNN on 28x28 images. The figures to take are the ratios:
the machine is whatever this runs on. Medians of the steps after the first dozen.

Usage: ``python benchmarks/training.py [STEPS]``
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from conformance import backend
from conformance.backend import compile as compiled

WARM_UP = 12


def mlp() -> nn.Module:
    """784-128-128-10"""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def cnn() -> nn.Module:
    """Two convolutions with batch-norm, max-pool, one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 5 * 5, 10),
    )  # fmt: skip


def torch_step(build: Callable[[], nn.Module], device: str, compile_it: bool) -> Callable[[], float]:
    """A training step on a torch device; the loss is read at each."""
    torch.manual_seed(0)
    net = build().to(device)
    run = torch.compile(net, backend=compiled.tiny) if compile_it else net
    optimizer = torch.optim.Adam(net.parameters())
    x, y = torch.randn(32, 1, 28, 28).to(device), torch.randint(0, 10, (32,)).to(device)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def tinygrad_step(convolutional: bool, jit: bool) -> Callable[[], float]:
    """The same step in tinygrad itself."""
    from tinygrad import Tensor, TinyJit
    from tinygrad import nn as tnn
    from tinygrad.helpers import Context

    Tensor.manual_seed(0)
    relu, flat = Tensor.relu, (lambda t: t.flatten(1))
    layers: list[Any]
    if convolutional:
        first = [tnn.Conv2d(1, 16, 3), tnn.BatchNorm(16), relu, Tensor.max_pool2d]
        second = [tnn.Conv2d(16, 32, 3), tnn.BatchNorm(32), relu, Tensor.max_pool2d]
        layers = [*first, *second, flat, tnn.Linear(32 * 5 * 5, 10)]
    else:
        layers = [flat, tnn.Linear(784, 128), relu, tnn.Linear(128, 128), relu, tnn.Linear(128, 10)]
    optimizer = tnn.optim.Adam(tnn.state.get_parameters(layers))
    x, y = Tensor.randn(32, 1, 28, 28).realize(), Tensor.randint(32, high=10).realize()

    def compute() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = x.sequential(layers).sparse_categorical_crossentropy(y).backward()
            return loss.realize(*optimizer.schedule_step())

    run = TinyJit(compute) if jit else compute
    return lambda: float(run().item())


def measure(step: Callable[[], float], steps: int) -> tuple[float, list[float]]:
    """(median ms of a step after the warm-up, all losses)"""
    times, losses = [], []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        losses.append(step())
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[WARM_UP:]), losses


def main(steps: int) -> None:
    """Print one row for each way to train."""
    console = Console()
    for name, build in (("MLP 784-128-128-10", mlp), ("batch-norm CNN 28x28", cnn)):
        convolutional = build is cnn
        ways: dict[str, Callable[[], float]] = {
            "tiny, eager": torch_step(build, "tiny", False),
            "tiny, torch.compile(backend=tiny)": torch_step(build, "tiny", True),
            "torch CPU": torch_step(build, "cpu", False),
            "tinygrad": tinygrad_step(convolutional, False),
            "tinygrad, TinyJit": tinygrad_step(convolutional, True),
        }
        found: dict[str, float] = {}
        kernels: dict[str, float] = {}
        for way, step in ways.items():
            backend.reset_stats()
            found[way], losses = measure(step, steps)
            kernels[way] = backend.stats()["kernels"] / (WARM_UP + steps)
            assert losses[-1] < losses[0], f"{way} does not learn: {losses[0]} to {losses[-1]}"
        table = Table(
            "way", "ms a step", "to tinygrad", "to TinyJit", "kernels a step", title=f"{name}, batch 32, Adam"
        )
        for way, ms in found.items():
            ratios = (f"{ms / found[reference]:.2f}" for reference in ("tinygrad", "tinygrad, TinyJit"))
            table.add_row(way, f"{ms:.1f}", *ratios, f"{kernels[way]:.1f}" if "tiny," in way else "")
        console.print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
