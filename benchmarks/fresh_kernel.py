"""Time of one fresh kernel with each available compiler: schedule, code generation, compile, load and run.

A fuzzer's programs are all different, so its speed depends on the cost of a kernel that was never compiled before. Each
compiler is measured in a separate process with the disk cache off, because tinygrad picks its compiler once. The
kernels differ by one constant, so only the first opening of the device is shared.

Usage: ``python benchmarks/fresh_kernel.py [KERNELS]``; prints medians in milliseconds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from conformance.backend.runtime.toolchain import ensure_compiler

# Measured compilers, as environment variables. X86 is tinygrad's own assembler: fast, but it miscompiles some kernels.
SETTINGS = {
    "zig": {"DEV": "CPU", "PATH": "", "CC": ""},  # no PATH, no other compiler
    "clang": {"DEV": "CPU", "CC": "clang"},
    "X86, miscompiles": {"DEV": "CPU:X86"},
    "PYTHON, interprets": {"DEV": "PYTHON"},
}
WORKLOADS = ("x * c, 16", "softmax, 16x16", "matmul, 16x16")


def main(kernels: int) -> None:
    """Print one row for each compiler."""
    table = Table("compiler", "version", *WORKLOADS, title=f"One fresh kernel: median ms of {kernels}")
    for name, settings in SETTINGS.items():
        if name == "clang" and shutil.which("clang") is None:
            table.add_row(name, "not installed", *["-"] * len(WORKLOADS))
            continue
        run = subprocess.run(
            [sys.executable, __file__, str(kernels), "--worker"],
            env={**os.environ, "CACHELEVEL": "0", **settings},
            check=False,
            capture_output=True,
            text=True,
        )
        if run.returncode:
            table.add_row(name, (run.stderr.strip().splitlines() or ["no word"])[-1], *["-"] * len(WORKLOADS))
            continue
        version, medians = json.loads(run.stdout)
        table.add_row(name, version, *[f"{milliseconds:.0f}" for milliseconds in medians])
    Console().print(table)


def worker(kernels: int) -> None:
    """Print the compiler's version and the median milliseconds of each workload as JSON."""
    compiler = ensure_compiler()
    from tinygrad import Tensor

    x = Tensor.arange(256).reshape(16, 16).float().contiguous().realize()
    run: tuple[Callable[[float], object], ...] = (
        lambda c: (x[0] * c).tolist(),
        lambda c: (x * c).softmax().sum().item(),
        lambda c: ((x * c) @ x).tolist(),
    )
    medians = []
    for workload in run:
        workload(1.5)  # opens the device and warms the graph rewriter
        seconds = []
        for index in range(kernels):
            started = time.perf_counter()
            workload(2.5 + index)
            seconds.append(time.perf_counter() - started)
        medians.append(1000 * statistics.median(seconds))
    print(json.dumps([compiler.version if compiler else "none needed", medians]))


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    worker(count) if "--worker" in sys.argv else main(count)
