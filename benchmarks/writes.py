"""Time of in-place writes: loops over elements compared with torch CPU, and small writes into a large buffer.

The large buffer has 10^8 elements.

Usage: ``python benchmarks/writes.py``; prints medians of five. The ratios are the meaningful figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from kernel_counts import add_one_loop, append_loop, dependent_loop, row_loop, setitem_loop, setitem_loop_int
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.backend import kernels

LARGE = 10_000  # rows and columns of the large buffer
LOOPS: dict[Callable[..., torch.Tensor], tuple[int, ...]] = {
    setitem_loop: (10, 1000, 10_000), setitem_loop_int: (1000,), row_loop: (1000,), append_loop: (100,),
    add_one_loop: (100,), dependent_loop: (100,),
}  # fmt: skip


def seconds(call: Callable[[], object], rounds: int = 5) -> float:
    """Median time of a call, after one warm-up call."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print the two tables."""
    console = Console()
    loops = Table("loop", "n", "ms tiny", "ms torch CPU", "ratio", title="Loops, result brought to the CPU")
    for loop, sizes in LOOPS.items():
        for n in sizes:
            ours = seconds(lambda loop=loop, n=n: loop(n).cpu())  # type: ignore[misc]
            theirs = seconds(lambda loop=loop, n=n: loop(n, "cpu"))  # type: ignore[misc]
            figures = (f"{ours * 1e3:.2f}", f"{theirs * 1e3:.2f}", f"{ours / theirs:.1f}")
            loops.add_row(escape(loop.__doc__ or ""), str(n), *figures)
    console.print(loops)

    big = torch.zeros(LARGE, LARGE, device="tiny")
    big.add_(1)
    big[0, 0].item()
    table = Table("elements written", "ms a write", "kernels", "stores", "bytes copied", title="A buffer of 10^8")
    for k in (1, 100, LARGE):
        row = torch.arange(float(k)).to("tiny")

        def write(k: int = k, row: torch.Tensor = row) -> None:
            big[3, :k] = row
            big[3, 0].item()

        spent = seconds(write)
        with kernels.count() as counted:
            write()
        moved = counted.bytes_in + counted.bytes_out
        table.add_row(str(k), f"{spent * 1e3:.2f}", str(counted.kernels), str(counted.stored), str(moved))
    console.print(table)


if __name__ == "__main__":
    main()
