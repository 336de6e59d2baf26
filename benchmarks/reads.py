"""Cost of reading a number in a loop: `.item()` of small computations, as optimizers with a line search, logging and
reinforcement learning do it.

Each pattern runs on tiny and on torch CPU by turns, in process time, after a warm-up. The counters are tiny's for the
whole measurement: schedules, those that were replayed or made anew, and kernels.

Usage: ``python benchmarks/reads.py [PATTERN ...]``
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

import conformance.backend as backend

WARM_UP, ROUNDS = 30, 10

Pattern = Callable[[str], Iterator[int]]
"""A program on a device; after each round it yields how many numbers it has read in that round."""


def net(device: str) -> nn.Sequential:
    """A small classifier."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)


def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels."""
    return torch.randn(8, 8).to(device), torch.randint(4, (8,)).to(device)


def sum_of_new_data(device: str) -> Iterator[int]:
    """One number of a new tensor."""
    while True:
        (batch(device)[0] * 2 + 1).sum().item()
        yield 1


def changing_number(device: str) -> Iterator[int]:
    """A computation with a whole number that grows, such as a running mean."""
    x = torch.randn(8, 8).to(device)
    for count in range(1, 1 << 30):
        (x * count + 1).sum().item()
        yield 1


def metrics(device: str) -> Iterator[int]:
    """A training step that logs its loss, the norm of its gradients and its accuracy."""
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        x, y = batch(device)
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for number in (loss, norm, (out.argmax(1) == y).float().mean()):
            number.item()
        yield 3


def kept_outputs(device: str) -> Iterator[int]:
    """An evaluation that keeps its outputs, which nobody reads yet, and reads each loss."""
    model, kept = net(device), []
    while True:
        x, y = batch(device)
        with torch.no_grad():
            out = model(x)
            kept.append(out.softmax(1))
            F.cross_entropy(out, y).item()
        yield 1


def line_search(device: str) -> Iterator[int]:
    """LBFGS with a history of ten directions, which never ends a step early. A step reads some 500 numbers."""
    model, (x, y) = net(device), batch(device)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.01, max_iter=20, history_size=10, tolerance_grad=-1, tolerance_change=-1
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    while True:
        optimizer.step(closure)  # type: ignore[arg-type]
        yield 500


PATTERNS: dict[str, tuple[Pattern, int]] = {
    "sum of new data": (sum_of_new_data, 20),
    "changing number": (changing_number, 20),
    "metrics": (metrics, 5),
    "kept outputs": (kept_outputs, 5),
    "LBFGS": (line_search, 1),
}
"""The programs, and their rounds in one measurement."""


def microseconds(rounds: Iterator[int], count: int) -> float:
    """Process time for each number that the next rounds read."""
    start = time.process_time()
    numbers = sum(next(rounds) for _ in range(count))
    return (time.process_time() - start) / numbers * 1e6


def measure(pattern: Pattern, count: int) -> tuple[list[float], list[float], dict[str, int]]:
    """Microseconds for a number on tiny and on torch CPU, one measurement after the other, and tiny's counters."""
    on_tiny, on_cpu = pattern("tiny"), pattern("cpu")
    for _ in range(WARM_UP if count > 1 else WARM_UP // 3):
        next(on_tiny), next(on_cpu)
    backend.reset_stats()
    pairs = [(microseconds(on_tiny, count), microseconds(on_cpu, count)) for _ in range(ROUNDS)]
    return [a for a, _ in pairs], [b for _, b in pairs], backend.stats()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help=f"of {', '.join(PATTERNS)} (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = ("pattern", "tiny us", "torch CPU us", "ratio", "schedules", "replayed", "scheduled", "kernels")
    table = Table(*names, title="For each number read")
    for name in args.patterns or PATTERNS:
        pattern, count = PATTERNS[name]
        ours, theirs, stats = measure(pattern, count)
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        counts = [stats[c] for c in ("schedules", "replayed", "scheduled", "kernels")]
        row = [f"{statistics.median(ours):.0f}", f"{statistics.median(theirs):.1f}", f"{ratio:.0f}"]
        table.add_row(name, *row, *[str(c) for c in counts])
    Console().print(table)


if __name__ == "__main__":
    main()
