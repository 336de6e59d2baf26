"""Fuzzing rate in drawn programs per second of one core, by target, and the gain of late observation.

    python benchmarks/fuzz_speed.py [--programs 100] [--seed 0] [--targets tiny,aot_eager,meta,fake,cpu]
                                    [--steps MIN..MAX] [--minutes M]

Each row is a separate process with the same numbered programs. `tiny` runs four times: with an empty kernel cache, with
the cache from that run, and both again *naively*, reading every tensor after every step. Some programs of another seed
run first, unmeasured, to trigger late imports. Time is processor time, including child processes (compilers), so a busy
machine changes it little. A function of a compiler is called as often as in a campaign; calls/s counts its judged
calls. Memory is measured after each quarter of the programs. With `--minutes`, the run takes this many minutes and runs
as many programs as it can; the quarters are quarters of that time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from conformance.backend.runtime import compiler_process
from conformance.engine.loading import load_target
from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.program.execute import SteppedProgram, make_inputs
from conformance.program.model import Program
from conformance.program.shadow import reference
from conformance.program.unsupported import unsupported_reason, unsupported_steps
from conformance.record.measurements import growth
from conformance.run.options import steps_range
from conformance.sources.fuzzing.drawing import STEPS, Drawing
from conformance.sources.fuzzing.further_calls import with_calls
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import compare
from conformance.targets.tiny import TinyTarget

WARM_UP = 10
"""Programs that run before the measurement: torch imports its compiler when it traces the first decomposition."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default="tiny,cpu,meta,fake,functionalize,aot_eager,inductor")
    parser.add_argument("--steps", type=steps_range, default=STEPS, metavar="MIN..MAX")
    parser.add_argument("--minutes", type=float, help="run for so long, whatever --programs says")
    parser.add_argument("--one", metavar="TARGET", help=argparse.SUPPRESS)
    parser.add_argument("--naive", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.one:
        print(json.dumps(measure(args)))
        return 0
    low, high = args.steps
    print(f"Programs of {low} to {high} steps, seed {args.seed}, processor seconds, one process each\n")
    columns = ("target", "kernel cache", "tensors read", "programs", "programs/s", "calls/s", "kernels", "schedules")
    print(f"| {' | '.join(columns)} | MiB by quarter |\n{'|---' * (len(columns) + 1)}|")
    rates: dict[tuple[str, str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in args.targets.split(","):
            ways = (
                [(naive, cache) for naive in (False, True) for cache in ("cold", "warm")]
                if target == "tiny"
                else [(False, "")]
            )
            for naive, cache in ways:
                done = elsewhere(target, naive, Path(folder) / f"{naive}.db", args)
                rates[target, cache, "each step" if naive else "end"] = done["rate"]
                print(
                    f"| {target} | {cache} | {'after each step' if naive else 'at the end'} | {done['programs']} | "
                    f"{done['rate']:.1f} | {done['calls']:.1f} | {done['kernels']} | {done['schedules']} | "
                    f"{', '.join(f'{size:.0f}' for size in done['memory'])} |",
                    flush=True,
                )
    for cache in ("cold", "warm"):
        if ("tiny", cache, "end") in rates:
            ratio = rates["tiny", cache, "end"] / rates["tiny", cache, "each step"]
            print(f"\ntiny, {cache} cache: {ratio:.1f} times the programs of reading every tensor after each step")
    return 0


def elsewhere(target: str, naive: bool, cache: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One row, measured in a fresh process."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        "--one",
        target,
        "--seed",
        str(args.seed),
        "--programs",
        str(args.programs),
        "--steps",
        f"{args.steps[0]}..{args.steps[1]}",
        *(["--minutes", str(args.minutes)] if args.minutes else []),
        *(["--naive"] if naive else []),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "CACHEDB": str(cache)},
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Draw and run programs as a worker does, or with an observation after each step."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # as in a worker
    target = load_target(args.one)
    drawing = Drawing(args.steps, without=unsupported_steps(target.facts), compiled=target.facts.compiles)
    way = naively if args.naive else as_a_worker
    for number in range(WARM_UP):
        way(drawing.numbered(args.seed + 1, number), target)
    memory, kernels, calls, ran, number = [], 0, 0, 0, 0
    schedules, began, started = schedules_of(target), processor_seconds(target), time.monotonic()
    done = 0.0
    while done < 1:
        program = drawing.numbered(args.seed, number)
        if target.facts.transforms_program:
            program = with_calls(program, args.seed, number, target)
        more_kernels, more_calls = way(program, target)
        kernels, calls = kernels + more_kernels, calls + more_calls
        ran += not unsupported_reason(program, target.facts)
        number += 1
        before, done = (
            done,
            ((time.monotonic() - started) / (60 * args.minutes) if args.minutes else number / args.programs),
        )
        if int(4 * before) < int(4 * done):
            memory.append(resident())
    seconds = processor_seconds(target) - began
    return {
        "programs": ran,
        "rate": number / seconds,
        "calls": calls / seconds,
        "kernels": kernels,
        "schedules": schedules_of(target) - schedules,
        "memory": memory,
    }


def as_a_worker(program: Program, target: Target) -> tuple[int, int]:
    """Judge a program and return its numbers of kernels and of judged calls."""
    verdict = judge_program(program, target, locate=False)
    return verdict.measured.get("kernels") or 0, 0 if verdict.unsupported else max(verdict.calls, 1)


def naively(program: Program, target: Target) -> tuple[int, int]:
    """Judge a program that is read after each step, and return its numbers of kernels and of judged calls."""
    if unsupported_reason(program, target.facts):
        return 0, 0
    expected = reference(program)
    before = target.counters()
    actual = read_after_each_step(program, target)
    measured = growth(before, target.counters())
    compare(expected.observation, actual, oracles=target.facts.oracles, exact=expected.exact)
    return measured.get("kernels") or 0, 1


def schedules_of(target: Target) -> int:
    """Number of schedules on tiny so far, cached graphs included; 0 for any other target."""
    return int(target.backend.stats()["schedules"]) if isinstance(target, TinyTarget) else 0


def read_after_each_step(program: Program, target: Target) -> Observation:
    """Run a program, and after every step copy every tensor to the host, one by one."""
    execution = SteppedProgram(program, target.send(make_inputs(program)), target)
    for step in program.steps:
        with target.active():
            execution.step(step)
        for tensor in execution.env.values():
            tensor.detach().cpu()
    return execution.observe(target)


def processor_seconds(target: Target) -> float:
    """User and system time of this process and its children, after the end of tiny's compiler."""
    if isinstance(target, TinyTarget):
        compiler_process.end()
    return sum(os.times()[:4])


def resident() -> float:
    """Resident memory of this process in MiB; 0 if the system does not report it."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if path.exists() else 0.0


if __name__ == "__main__":
    sys.exit(main())
