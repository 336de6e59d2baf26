"""Kernel and copy counts of the tiny device: 13 fusion workloads, and loops of setitem.

The peer is tinygrad's own torch backend (`extra/torch_backend` at commit a9069c177a), measured on the same workloads:
119 in total, copies in and random numbers included. Each workload here is counted in the same way: inputs moved to the
device, computed, and one result copied back.

Usage: ``python benchmarks/kernel_counts.py [--json FILE]``; counts are exact, not timings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from conformance import backend

Workload = Callable[[], torch.Tensor]


def on_tiny(*size: int) -> torch.Tensor:
    """Random numbers moved to the device, like a program's inputs."""
    return torch.randn(*size).to("tiny")


def elementwise_chain() -> torch.Tensor:
    """((x * 2 + 1).relu() - 3).exp()"""
    return ((on_tiny(64, 64) * 2 + 1).relu() - 3).exp()


def conv_relu() -> torch.Tensor:
    """conv2d, relu"""
    return nn.functional.conv2d(on_tiny(1, 3, 16, 16), on_tiny(8, 3, 3, 3), on_tiny(8)).relu()


def conv_bn_relu() -> torch.Tensor:
    """conv2d, batch_norm in eval mode, relu"""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval().to("tiny")
    with torch.no_grad():
        return net(on_tiny(1, 3, 16, 16))


def mul_sum() -> torch.Tensor:
    """(a * b).sum()"""
    return (on_tiny(64, 64) * on_tiny(64, 64)).sum()


def matmul_add_relu() -> torch.Tensor:
    """(a @ b + c).relu()"""
    return (on_tiny(32, 32) @ on_tiny(32, 32) + on_tiny(32)).relu()


def max_pool() -> torch.Tensor:
    """max_pool2d"""
    return nn.functional.max_pool2d(on_tiny(1, 4, 16, 16), 2)


def residual_relu() -> torch.Tensor:
    """(x + conv2d(x)).relu()"""
    x = on_tiny(1, 8, 8, 8)
    return (x + nn.functional.conv2d(x, on_tiny(8, 8, 3, 3), padding=1)).relu()


def inplace_add_relu() -> torch.Tensor:
    """x += y; x.relu_()"""
    x = on_tiny(64, 64)
    x += on_tiny(64, 64)
    return x.relu_()


def conv_bn_add_relu() -> torch.Tensor:
    """relu(batch_norm(conv2d(x)) + x), eval mode"""
    conv, norm = nn.Conv2d(8, 8, 3, padding=1).to("tiny"), nn.BatchNorm2d(8).eval().to("tiny")
    x = on_tiny(1, 8, 8, 8)
    with torch.no_grad():
        return (norm(conv(x)) + x).relu()


def two_inplace_relu() -> torch.Tensor:
    """x.add_(1).mul_(2).relu()"""
    return on_tiny(64, 64).add_(1).mul_(2).relu()


def inplace_on_view() -> torch.Tensor:
    """x[1:3] *= 2, then x + 1"""
    x = on_tiny(8, 8)
    x[1:3] *= 2
    return x + 1


def batch_norm_statistics() -> torch.Tensor:
    """batch_norm in training mode, running statistics kept"""
    norm = nn.BatchNorm2d(8).to("tiny").train()
    with torch.no_grad():
        return norm(on_tiny(4, 8, 8, 8))


def adam_step() -> torch.Tensor:
    """One Adam step of a small CNN: forward, backward, step; the loss is read."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)).to("tiny")
    optimizer = torch.optim.Adam(net.parameters())
    loss = nn.functional.cross_entropy(net(on_tiny(2, 1, 8, 8)), torch.tensor([0, 2]).to("tiny"))
    loss.backward()
    optimizer.step()
    return loss.detach()


# Each workload with the peer's count.
WORKLOADS: dict[Workload, int] = {
    elementwise_chain: 6, conv_relu: 7, conv_bn_relu: 11, mul_sum: 6, matmul_add_relu: 8, max_pool: 6,
    residual_relu: 8, inplace_add_relu: 8, conv_bn_add_relu: 13, two_inplace_relu: 5, inplace_on_view: 7,
    batch_norm_statistics: 9, adam_step: 25,
}  # fmt: skip


def count(workload: Workload) -> dict[str, int]:
    """Kernels and copies of one run whose result is copied to the CPU."""
    torch.manual_seed(0)
    backend.reset_stats()
    workload().cpu()
    stats = backend.stats()
    counts = {k: stats[k] for k in ("kernels", "copies_in", "copies_out")}
    return {**counts, "fallback": sum(stats["fallback"].values())}


def setitem_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """a[i] = i"""
    a = torch.zeros(n, device=device)
    for i in range(n):
        a[i] = i
    return a


def setitem_loop_with_view(n: int) -> torch.Tensor:
    """a[i] = i, a view alive"""
    a = torch.zeros(n, device="tiny")
    view = a.view(2, -1)
    for i in range(n):
        a[i] = i
    return view


def setitem_loop_int(n: int, device: str = "tiny") -> torch.Tensor:
    """a[i] = i, a an int64 tensor that was moved to the device"""
    a = torch.ones(n, dtype=torch.int64).to(device)
    for i in range(n):
        a[i] = i
    return a


def add_one_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """a[i] += 1"""
    a = torch.zeros(n).to(device)
    for i in range(n):
        a[i] += 1
    return a


def row_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """m[i] = i, rows of a matrix"""
    m = torch.zeros(n, 4).to(device)
    for i in range(n):
        m[i] = i
    return m


def dependent_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """a[i] = a[i - 1] * 2"""
    a = torch.ones(n).to(device)
    for i in range(1, n):
        a[i] = a[i - 1] * 2
    return a


def append_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """cache[:, i] = x, as a key-value cache grows"""
    cache, x = torch.zeros(2, n, 4, device=device), torch.ones(2, 4).to(device)
    for i in range(n):
        cache[:, i] = x
    return cache


def indexed_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """a[order[i]] = i, a permutation on the device"""
    a, order = torch.zeros(n, device=device), torch.randperm(n).to(device)
    for i in range(n):
        a[order[i]] = i
    return a


def indexed_add_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """a[order[i]] += i, a permutation on the device"""
    a, order = torch.zeros(n, device=device), torch.randperm(n).to(device)
    for i in range(n):
        a[order[i]] += i
    return a


def ring_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """b[i % 4] = b[(i + 1) % 4] + 1"""
    b = torch.arange(4.0, device=device)
    for i in range(n):
        b[i % 4] = b[(i + 1) % 4] + 1
    return b


def bubble_sort(n: int, device: str = "tiny") -> torch.Tensor:
    """bubble sort of n elements, by minimum and maximum of neighbours"""
    x = torch.randperm(n).float().to(device)
    for end in range(n - 1, 0, -1):
        for j in range(end):
            x[j], x[j + 1] = torch.minimum(x[j], x[j + 1]), torch.maximum(x[j], x[j + 1])
    return x


def masked_loop(n: int, device: str = "tiny") -> torch.Tensor:
    """v.mul_(0.99).add_(0.01) of a view v of x, and x[x > 1] = 0.5 every ten turns"""
    x = torch.randn(32).to(device)
    v = x[::2]
    for i in range(n):
        v.mul_(0.99).add_(0.01)
        if i % 10 == 0:
            x[x > 1] = 0.5
    return x


# Each loop with the values of n to measure; a loop whose steps depend on each other cannot be one kernel.
LOOPS: dict[Callable[..., torch.Tensor], tuple[int, ...]] = {
    setitem_loop: (10, 100, 1000, 10000), setitem_loop_with_view: (10, 100, 1000, 10000),
    setitem_loop_int: (10, 100, 1000, 10000), row_loop: (10, 100, 1000, 10000), add_one_loop: (10, 100, 1000),
    append_loop: (10, 100, 1000), dependent_loop: (10, 100), indexed_loop: (64,), indexed_add_loop: (64,),
    ring_loop: (10, 25, 100), bubble_sort: (8,), masked_loop: (640,),
}  # fmt: skip


def counts() -> dict[str, dict[str, int]]:
    """Kernels and copies of every workload, by name; runs compare them with `reports/baseline/kernels.json`."""
    launches = {workload.__name__: count(workload) for workload in WORKLOADS}
    for loop, sizes in LOOPS.items():
        for n in sizes:
            launches[f"{loop.__name__}({n})"] = count(lambda loop=loop, n=n: loop(n))  # type: ignore[misc]
    return launches


def show(launches: dict[str, dict[str, int]]) -> None:
    """Print the two tables."""
    console = Console()
    columns = ("kernels", "copies_in", "copies_out", "fallback")
    table = Table("workload", "kernels", "copies in", "copies out", "CPU fallbacks", "all", "peer", title="Fusion")
    total = [0] * 5
    for workload, peer in WORKLOADS.items():
        row = [launches[workload.__name__][name] for name in columns]
        row.append(sum(row[:3]))
        total = [a + b for a, b in zip(total, row, strict=True)]
        table.add_row(workload.__name__, *map(str, row), str(peer))
    table.add_row("sum", *map(str, total), str(sum(WORKLOADS.values())))
    console.print(table)
    loops = Table("loop", "n", "kernels", "copies in", "copies out", title="Loops of in-place writes")
    for loop, sizes in LOOPS.items():
        for n in sizes:
            row = [launches[f"{loop.__name__}({n})"][name] for name in columns[:3]]
            loops.add_row(escape(loop.__doc__ or ""), str(n), *map(str, row))
    console.print(loops)


def main(arguments: list[str] | None = None) -> None:
    """Count every workload; print the tables, or write the counts as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there instead of printing them")
    args = parser.parse_args(arguments)
    launches = counts()
    if args.json is None:
        show(launches)
        return
    kept = {name: {k: v for k, v in c.items() if k != "fallback"} for name, c in launches.items()}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    beside = args.json.with_suffix(".part")
    beside.write_text(json.dumps(kept, indent=1) + "\n")
    beside.replace(args.json)


if __name__ == "__main__":
    main()
