"""Dispatch cost of a call before any computation: views, lazy arithmetic, an in-place write; and the import time.

Medians of seven rounds in process time, compared with torch CPU in the same run. The values are lazy: on tiny no kernel
runs.

Usage: ``python benchmarks/dispatch.py``
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import conformance.backend  # noqa: F401

ROUNDS, CALLS = 7, 300
IMPORT = "import time, torch; t = time.process_time(); import {}; print(time.process_time() - t)"


def calls(device: str) -> dict[str, Callable[[], object]]:
    """The calls by name, on 4x4 tensors; the operands of arithmetic are lazy."""
    a, b = (torch.randn(4, 4).to(device) for _ in range(2))
    x, y, wide = a + 1, b + 1, torch.randn(8, 4).to(device)
    return {
        "a.t()": a.t, "a[2:5]": lambda: wide[2:5], "a + b": lambda: x + y, "a.relu()": x.relu, "a.sum()": x.sum,
        "a @ b": lambda: x @ y, "a.clone().add_(b)": lambda: x.clone().add_(y),
    }  # fmt: skip


def microseconds(call: Callable[[], object]) -> float:
    """Median process time of a call in microseconds."""
    for _ in range(20):
        call()
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(CALLS):
            call()
        rounds.append((time.process_time() - start) / CALLS * 1e6)
    return statistics.median(rounds)


def imported(module: str) -> float:
    """Seconds to import a module after torch, in a new process: median of five."""
    command = [sys.executable, "-c", IMPORT.format(module)]
    return statistics.median(float(subprocess.check_output(command, text=True)) for _ in range(5))


def main() -> None:
    """Print the table."""
    table = Table("call", "tiny us", "torch CPU us", "ratio", title="Dispatch")
    for (name, ours), theirs in zip(calls("tiny").items(), calls("cpu").values(), strict=True):
        mine, reference = microseconds(ours), microseconds(theirs)
        table.add_row(name.replace("[", r"\["), f"{mine:.1f}", f"{reference:.2f}", f"{mine / reference:.0f}")
    console = Console()
    console.print(table)
    backend, tinygrad = imported("conformance.backend"), imported("tinygrad")
    console.print(f"import conformance.backend after torch: {backend:.2f} s, of which tinygrad {tinygrad:.2f} s")


if __name__ == "__main__":
    main()
