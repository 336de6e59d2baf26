"""Fuzzing rate in programs per second on a device whose process dies at every N-th program.

    python benchmarks/crashes.py [--every 0,100,30,10] [--programs 600] [--rounds 2] [--tree DIR] [--tree DIR] ...

Each row is a campaign of the same programs on torch CPU as such a device (0: it never dies). The rate uses wall time
from the first program to the last, so run it on a quiet machine. With `--tree`, the given checkouts are measured
alternately, with this interpreter's packages.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

DEVICE = """
import os

from conformance.engine.target import Target


class Dies(Target):
    name = "dies"

    def reset_state(self):  # a program begins
        every = int(os.environ["DIES_EVERY"])
        count = os.open(os.environ["DIES_COUNT"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(count, b".")
        if every and os.fstat(count).st_size % every == 0:
            os.abort()
        os.close(count)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", default="0,100,30,10", metavar="N[,N]")
    parser.add_argument("--programs", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tree", type=Path, action="append", metavar="DIR", default=[])
    args = parser.parse_args(arguments)
    trees = [tree.resolve() for tree in args.tree] or [Path(__file__).parent.parent]
    print(f"| the device dies at every | {' | '.join(f'{tree.name}: programs/s' for tree in trees)} |")
    print("|---|" + "---|" * len(trees))
    for every in map(int, args.every.split(",")):
        rates: dict[Path, list[float]] = {tree: [] for tree in trees}
        for _ in range(args.rounds):
            for tree in trees:
                rates[tree].append(rate(tree, every, args.programs))
        shown = (
            f"{statistics.median(rates[tree]):.1f} ({min(rates[tree]):.1f} to {max(rates[tree]):.1f})" for tree in trees
        )
        print(f"| {f'{every}th program' if every else 'no program'} | {' | '.join(shown)} |", flush=True)
    return 0


def rate(tree: Path, every: int, programs: int) -> float:
    """Programs per second of one campaign, from its own output."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "dying.py").write_text(DEVICE, encoding="utf-8")
        words = ["--target", "class:dying.Dies", "--programs", str(programs), "--reports", folder]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "conformance.fuzz", *words],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(tree), folder]),
                "DIES_EVERY": str(every),
                "DIES_COUNT": str(Path(folder) / "count"),
            },
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    said = re.findall(r"([0-9.]+) programs/s", done.stdout)
    if not said:
        raise SystemExit(f"the campaign says no rate: {done.stdout}{done.stderr}")
    return float(said[-1])


if __name__ == "__main__":
    sys.exit(main())
