"""Cost of a worker pool: seconds for an empty task, and programs/s of the fuzzer on torch CPU.

    python benchmarks/pools.py [--pool ray] [--workers 1 2 4] [--programs 400] [--shards 1 5 20 100] [--driver 300000]

Rates are printed by the number of workers and the place. With `--shards`, they are also printed by the size of a shard.
With `--driver`, the memory and time of the collecting process are printed for each 10^5 programs.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conformance.run.campaign import plan as plans
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.tasks import ShardResult
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Done, Limits, Pool, Task
from conformance.run.shrinking import Ahead, Shrinker
from conformance.sources.fuzzing.drawn import DrawnPrograms

FAILING, CAUSES = 100, 50
"""In the simulation one program in FAILING fails, in one of CAUSES ways."""


def empty_task(place: ExecutionPlace) -> float:
    """Seconds between submitting a task that does nothing and its answer."""
    with place.pool("cpu", Limits(), 1) as pool:
        pool.ask(os.getpid)
        began = time.perf_counter()
        for _ in range(200):
            pool.ask(os.getpid)
        return (time.perf_counter() - began) / 200


def rate(place: ExecutionPlace, workers: int, programs: int) -> float:
    """Programs/s of a campaign on torch CPU, after its first worker is ready."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(DrawnPrograms(), "cpu", programs=programs, jobs=workers, reports=Path(folder))
        running = Campaign(plan, place=place)
        running.run()
        return running.result.done / running.running_seconds


class Simulated(Pool):
    """Pool whose workers take no time, so that only the collecting process is measured."""

    def __init__(self) -> None:
        self.waiting: list[Task] = []

    def submit(self, task: Task) -> None:
        self.waiting.append(task)

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Any]]:
        while self.waiting:
            task = self.waiting.pop(0)
            (shard,) = task.args
            numbers = range(shard.first, shard.first + shard.count)
            findings = [
                FailingProgram(f"value / op {number // FAILING % CAUSES}", "FAIL", number)
                for number in numbers
                if number % FAILING == 0
            ]
            cells = Counter({("view", "window", f"dtype {number % 300}"): 1 for number in numbers})
            yield (
                task,
                Done(ShardResult(shard.count, 6 * shard.count, cells=cells, done=shard.count, findings=findings)),
            )

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float = math.inf
    ) -> Any:
        return {}

    def alive(self) -> int:
        return 1

    def busy(self) -> list[tuple[Task, float]]:
        return []

    def close(self) -> None:
        pass


class SimulatedPlace(ExecutionPlace):
    def pool(self, *args: Any, **options: Any) -> Pool:
        return Simulated()


class Unshrunk(Campaign):
    def _shrink_all(self, shrinker: Shrinker, ahead: Ahead | None, most: int) -> None:
        """Skip shrinking: the simulated findings have no program."""


def driver(programs: int) -> None:
    """Print the process's memory and the time after each 10^5 programs."""
    began, last = time.perf_counter(), 0

    def tell(at: Campaign) -> None:
        nonlocal last
        if at.result.done // 100_000 > last:
            last = at.result.done // 100_000
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            size = pages * resource.getpagesize() / 2**20
            print(f"{at.result.done:>9,} programs  {size:7.1f} MiB  {time.perf_counter() - began:7.1f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(DrawnPrograms(), "cpu", programs=programs, reports=Path(folder))
        Unshrunk(plan, tell=tell, place=SimulatedPlace()).run()


def main() -> None:
    """Print the requested measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pool", default=LOCAL.address, help="as of conformance fuzz")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--shards", type=int, nargs="*", default=[])
    parser.add_argument("--driver", type=int, default=0, metavar="PROGRAMS")
    args = parser.parse_args()
    place = ExecutionPlace(args.pool)
    if args.driver:
        driver(args.driver)
        return
    print(f"{args.pool}: {1000 * empty_task(place):.1f} ms for a task that does nothing")
    for workers in args.workers:
        for size in args.shards or [plans.SHARD]:
            plans.SHARD = size
            speed = rate(place, workers, args.programs)
            print(f"{args.pool}: {workers} workers, shards of {size}: {speed:.1f} programs/s", flush=True)


if __name__ == "__main__":
    main()
