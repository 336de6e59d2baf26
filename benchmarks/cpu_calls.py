"""Cost of `import conformance.backend` for code that uses the CPU alone: times of the same calls with and without it.

Two processes time the same calls in turns, chunk by chunk, so other load on the machine meets both. A chunk's time is
processor time, and each figure is the least of its chunks. The second process has imported the device and does not use
it. The last column compares the first process with another without the import, and shows the error of measurement.

Usage: ``python benchmarks/cpu_calls.py [--calls N] [--chunk N] [NAME ...]``; see --help
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

CALLS = {
    "x + y": "x + y",
    "torch.ones": "torch.ones(2)",
    "x.is_pinned()": "x.is_pinned()",
    "x.untyped_storage()": "x.untyped_storage()",
    "UntypedStorage(8)": "torch.UntypedStorage(8)",
    "storage.nbytes()": "storage.nbytes()",
    "storage.is_shared()": "storage.is_shared()",
    "Event('cpu')": "torch.Event('cpu')",
    "Generator()": "torch.Generator()",
    "manual_seed(0)": "torch.manual_seed(0)",
    "linear.double()": "wide.double()",
    "mlp.to('cpu')": "mlp.to('cpu')",
    "linear(x)": "linear(row)",
    "backward": "(leaf * leaf).sum().backward()",
    "repr(x)": "repr(x)",
    "copy.deepcopy(x)": "copy.deepcopy(x)",
    "set_default_tensor_type": "torch.set_default_tensor_type(torch.FloatTensor)",
    "sent to a process": "ForkingPickler.dumps(0)",
    "autocast": "torch.autocast('cpu').__enter__().__exit__(None, None, None)",
    "accelerator.is_available()": "torch.accelerator.is_available()",
}
"""Statements by name. The last one costs more by design: the device is an accelerator."""

WORKER = """
import copy, gc, sys, time
from multiprocessing.reduction import ForkingPickler
import torch
torch.set_num_threads(1)
if sys.argv[1] == "after":
    import conformance.backend
x, y, row = torch.ones(3), torch.ones(3), torch.ones(1, 2)
storage = torch.UntypedStorage(8)
linear, wide = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
mlp = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(8)))
leaf = torch.ones(3, requires_grad=True)
gc.disable()
for line in sys.stdin:
    count, _, statement = line.rstrip().partition(" ")
    scope = {}
    exec(f"def run(count):\\n for _ in range(count):\\n  {statement}", globals(), scope)
    start = time.process_time()
    scope["run"](int(count))
    print(time.process_time() - start, flush=True)
"""


class Worker:
    """Process that times statements."""

    def __init__(self, when: str) -> None:
        words = [sys.executable, "-W", "ignore", "-c", WORKER, when]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def seconds(self, statement: str, count: int) -> float:
        """Return the processor time of `count` executions."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, statement, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def main() -> None:
    """Print the time of each call without the import, and the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(CALLS)} (default: all)")
    parser.add_argument("--calls", type=int, default=1_000_000, help="calls of all kinds together (default: 10^6)")
    parser.add_argument("--chunk", type=int, default=500, help="calls in a chunk (default: 500)")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in CALLS]
    if unknown:
        parser.error(f"there is no call {unknown[0]!r}; choose from {', '.join(CALLS)}")
    names = args.names or list(CALLS)
    turns = max(2, args.calls // (len(names) * args.chunk))
    workers = {when: Worker(when) for when in ("before", "after", "again")}
    least: dict[tuple[str, str], float] = {}
    for turn in range(turns + 1):
        for name in names:
            for when, worker in list(workers.items())[:: 1 if turn % 2 else -1]:
                taken = worker.seconds(CALLS[name], args.chunk)
                if turn:  # the first chunk warms up
                    least[name, when] = min(taken, least.get((name, when), taken))
    print(f"{turns} chunks of {args.chunk} calls")
    print("| call | before, us | after / before | before / before |\n|---|---|---|---|")
    for name in names:
        before, after, again = (least[name, when] for when in workers)
        print(f"| `{name}` | {before / args.chunk * 1e6:.2f} | {after / before:.2f} | {again / before:.2f} |")


if __name__ == "__main__":
    main()
