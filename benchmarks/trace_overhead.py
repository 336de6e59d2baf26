"""Cost of `conformance.trace`: a training step of GPT-2 under the trace against the plain step on the same device.

On the device `cpu` the ratio is the cost of the second computation, the copies and the comparison. With
``--device tiny`` the step runs on tiny, whose kernels are computed one by one under the trace. Times are processor
times of one thread, medians of the steps after the first ones. tiny replays a plain step after ``--warm 8``.

Usage: ``python benchmarks/trace_overhead.py [--blocks N] [--warm N] [--device tiny] [--divergence]``; see --help
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))  # for use as a script
import conformance
from tests.sources.trace.models import Gpt2


def seconds(step: Callable[[], None], count: int, before: int) -> float:
    """Return the median processor time of `count` steps after `before` others."""
    times = []
    for _ in range(before + count):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return statistics.median(times[before:])


def step_of(args: argparse.Namespace, device: str) -> Callable[[], None]:
    """Return a training step: loss, gradients, AdamW. It reads the loss, which a lazy device must compute for that."""
    torch.manual_seed(0)
    net = Gpt2(args.vocabulary, args.width, args.width // 64, args.blocks, args.tokens).to(device)
    tokens = torch.randint(0, args.vocabulary, (1, args.tokens + 1)).to(device)
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def main() -> None:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50_257)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm", type=int, default=1, help="steps before the measured ones (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or tiny (default: %(default)s)")
    parser.add_argument("--divergence", action="store_true", help="with the free run of torch CPU")
    args = parser.parse_args()
    if args.device == "tiny":
        importlib.import_module("conformance.backend")
    torch.set_num_threads(1)
    plain = seconds(step_of(args, args.device), args.steps, args.warm)
    step = step_of(args, args.device)
    with conformance.trace(args.device, divergence=args.divergence) as report:
        traced = seconds(step, args.steps, args.warm)
    judged = report.judged // (args.steps + args.warm)
    print(f"plain: {plain:.2f} s a step; traced: {traced:.2f} s, {traced / plain:.1f} times, {judged} calls a step")
    print(report)


if __name__ == "__main__":
    main()
