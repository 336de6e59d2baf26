"""How many drawn programs a second of one core the fuzzer runs, target by target, and what observing late is worth.

    python benchmarks/fuzz_speed.py [--programs 100] [--seed 0] [--targets tiny,aot_eager,meta,fake,cpu]

Each row is a process of its own with the same numbered programs. `tiny` runs four times: with an empty kernel cache and
with the one that this left behind, and both once more *naively*, every tensor read after every step. Time is the
processor's, children (compilers) included, so that a busy machine changes it little. Memory is looked at after a
quarter of the programs and at the end.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.fuzz_views import Drawing
from conformance.oracle import Observation, compare
from conformance.program import Execution, Program
from conformance.shadow import reference
from conformance.support import left_out, not_drawn
from conformance.target import Target, describe_target, load_target
from conformance.verdict import judge


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default="tiny,cpu,meta,fake,functionalize,aot_eager,inductor")
    parser.add_argument("--one", metavar="TARGET", help=argparse.SUPPRESS)
    parser.add_argument("--naive", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(json.dumps(measure(given.one, given.seed, given.programs, given.naive)))
        return 0
    print(f"{given.programs} programs of seed {given.seed}, processor seconds, one process each\n")
    print("| target | kernel cache | tensors read | programs | programs/s | kernels | MiB at 1/4 | MiB at end |")
    print("|---|---|---|---|---|---|---|---|")
    rates: dict[tuple[str, str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in given.targets.split(","):
            ways = [(naive, cache) for naive in (False, True) for cache in ("cold", "warm")] if target == "tiny" else [
                (False, "")]
            for naive, cache in ways:
                done = elsewhere(target, naive, Path(folder) / f"{naive}.db", given)
                rates[target, cache, "each step" if naive else "end"] = done["rate"]
                print(f"| {target} | {cache} | {'after each step' if naive else 'at the end'} | {done['programs']} | "
                      f"{done['rate']:.1f} | {done['kernels']} | {done['memory'][0]:.0f} | {done['memory'][1]:.0f} |",
                      flush=True)
    for cache in ("cold", "warm"):
        if ("tiny", cache, "end") in rates:
            ratio = rates["tiny", cache, "end"] / rates["tiny", cache, "each step"]
            print(f"\ntiny, {cache} cache: {ratio:.1f} times the programs of reading every tensor after each step")
    return 0


def elsewhere(target: str, naive: bool, cache: Path, given: argparse.Namespace) -> dict[str, Any]:
    """One row, measured in a fresh process."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", target, "--seed", str(given.seed), "--programs",
               str(given.programs), *(["--naive"] if naive else [])]
    done = subprocess.run(command, env={**os.environ, "CACHEDB": str(cache)}, check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(spec: str, seed: int, programs: int, naive: bool) -> dict[str, Any]:
    """Draw and run programs as a worker does, or with an observation after each step."""
    warnings.simplefilter("ignore")
    target = load_target(spec)
    drawing = Drawing(without=not_drawn(describe_target(spec)))
    memory, kernels, ran = [], 0, 0
    judge(drawing.numbered(seed, 0), target, locate=False)
    began = processor_seconds()
    for number in range(programs):
        program = drawing.numbered(seed, number)
        if naive and not left_out(program, target):
            expected = reference(program)
            with target.kernels() as counted:
                actual = read_after_each_step(program, target)
            compare(expected.observation, actual, oracles=target.oracles, exact=expected.exact)
            kernels += counted.total or 0
        elif not naive:
            kernels += judge(program, target, locate=False).kernels or 0
        ran += not left_out(program, target)
        if number + 1 in (max(1, programs // 4), programs):
            memory.append(resident())
    return {"programs": ran, "rate": programs / (processor_seconds() - began), "kernels": kernels,
            "memory": [memory[0], memory[-1]]}


def read_after_each_step(program: Program, target: Target) -> Observation:
    """Run a program as one does who trusts nothing: every tensor is copied to the host after every step, one by one."""
    execution = Execution(program, target)
    for step in program.steps:
        with target.active():
            execution.step(step)
        for tensor in execution.env.values():
            tensor.detach().cpu()
    return execution.observe()


def processor_seconds() -> float:
    """User and system time of this process and its ended children."""
    return sum(os.times()[:4])


def resident() -> float:
    """MiB of memory that this process holds; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20 if path.exists() else 0.0


if __name__ == "__main__":
    sys.exit(main())
