"""Worker processes for programs that may take their process with them, and what becomes known of one that died.

Defines `Workers`. The key insight: a worker writes down each step before it takes it, so the file that it keeps is its
heartbeat and its last words: a worker whose file stands still hangs, and the file of a dead one says which program, and
which step of it, it died of.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, TimeoutError, wait
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any

from pebble import ProcessExpired, ProcessPool

from conformance.core.errors import TargetError
from conformance.fuzzing import worker
from conformance.fuzzing.worker import CRASH, FLAKY, MEMORY, NOTHING, TIMEOUT, Finding, Result, Shard
from conformance.programs.model import Program, ProgramError
from conformance.programs.reduce import reduce_program

STARTING, SILENCE = 120.0, 10.0
"""Seconds that a worker may take until it begins its first program, and, beside the limit of a program, between two
signs that it is alive."""

LOOK = 0.5
"""Seconds between two looks at the workers' files."""

CRASH_TRIALS, MOST_DEATHS = 60, 4
"""How many smaller programs are tried for a crash or a hang, and how many of them may cost a new worker."""


@contextlib.contextmanager
def defer_sigint() -> Iterator[None]:
    """Ctrl-C waits for the end of the block. The threads and processes that are started in it inherit that it waits, so
    that a worker is not torn from its imports: the campaign alone answers."""
    resource_tracker.ensure_running()  # which lets Ctrl-C through again where it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Heartbeat:
    """A shard that a worker runs, and when its file was last seen to change."""

    shard: Shard
    wrote: int = 0
    heard: float = 0.0

    def silent(self) -> bool:
        """Whether nothing was heard for longer than any program may take."""
        try:
            wrote = self.shard.running.stat().st_mtime_ns
        except OSError:  # not begun yet
            wrote = 0
        if wrote != self.wrote or not self.heard:
            self.wrote, self.heard = wrote, time.monotonic()
        return time.monotonic() - self.heard > (self.shard.limit + SILENCE if wrote else STARTING)


class Workers:
    """`jobs` spawned processes with one target. Use as a context manager; an error in its block ends them at once.

    `limit`: seconds that a program may take; `memory`: GiB that a worker may (None: no limit)."""

    def __init__(self, target: str, limit: float, memory: float | None = None, jobs: int = 1) -> None:
        self.target, self.limit, self.jobs = target, limit, jobs
        self.running: dict[Future[Any], Heartbeat] = {}
        self._pool = ProcessPool(
            jobs, context=multiprocessing.get_context("spawn"), initializer=worker.start, initargs=[memory]
        )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:  # fmt: skip
        if kind is not None:
            self._pool.stop()
        self._pool.close()
        self._pool.join()

    def load(self) -> dict[str, str]:
        """Load the target, in a worker, and say what it runs on. Raises TargetError."""
        try:
            environment: dict[str, str] = self.ask(worker.environment, self.target)
            return environment
        except ProcessExpired as death:
            raise TargetError(
                f"target {self.target!r} cannot be used: its process died while it was loaded, with exit "
                f"code {death.exitcode}"
            ) from death

    def ask(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
        """A function's answer in a worker. Raises what it raises, pebble's ProcessExpired when the worker dies, and
        TimeoutError."""
        with defer_sigint():
            asked = self._pool.schedule(function, args=args, timeout=seconds)
        return asked.result()

    def begin(self, shard: Shard) -> None:
        """Run a shard as soon as a worker is free."""
        with defer_sigint():
            future = self._pool.schedule(worker.run_shard, args=[shard])
        self.running[future] = Heartbeat(shard)

    def ended(self) -> list[tuple[Shard, Result, Shard | None]]:
        """Wait until at least one of the shards has ended: each that has, its result, and what is left of it to run."""
        while not (done := wait(self.running, LOOK, FIRST_COMPLETED).done):
            for future, pulse in self.running.items():
                if pulse.silent():
                    future.cancel()  # which ends its worker
        return [self._end(future) for future in done]

    def run(self, shard: Shard) -> Result:
        """Run one shard, with a new worker after each death, to its end."""
        whole, left = Result(), [shard]
        while left:
            self.begin(left.pop())
            for _, result, rest in self.ended():
                whole.add(result)
                left += [rest] if rest else []
        return whole

    def _end(self, future: Future[Any]) -> tuple[Shard, Result, Shard | None]:
        shard = self.running.pop(future).shard
        try:
            result = future.result()
        except ProcessExpired:
            result = recover_dead_worker(shard, CRASH)
        except CancelledError:
            result = recover_dead_worker(shard, TIMEOUT)
        rest = replace(shard, first=shard.first + result.done, count=shard.count - result.done)
        return shard, result, rest if rest.count else None

    def fate(self, program: Program) -> str:
        """What becomes of a worker that runs a program: CRASH, TIMEOUT, MEMORY, or nothing, the empty string. Raises
        what fails in the harness itself."""
        self.load()  # anew, where the last program ended the worker
        try:
            self.ask(worker.survives, self.target, program, self.limit, seconds=self.limit + SILENCE)
        except ProcessExpired:
            return CRASH
        except (TimeoutError, worker.ProgramTimeout):
            return TIMEOUT
        except MemoryError:
            return MEMORY
        except ProgramError:  # it means nothing on torch CPU, so it shows nothing
            return ""
        return ""

    def shrink(self, finding: Finding, trials: int) -> Finding:
        """The finding on a smaller program; FLAKY where a death does not come again. Raises what fails in the harness
        itself."""
        if finding.kind in (CRASH, TIMEOUT, MEMORY):
            return self._shrink_death(finding)
        try:
            small: Finding = self.ask(worker.shrink, self.target, finding, trials, seconds=60 + trials * 10)
            return small
        except (ProcessExpired, TimeoutError):
            return finding

    def _shrink_death(self, finding: Finding) -> Finding:
        """Reduce a crash or a hang, each candidate in a worker that may die of it."""
        if not finding.program.inputs:
            return finding
        same = {finding.kind, CRASH if finding.kind == MEMORY else finding.kind}
        if self.fate(finding.program) not in same:
            return replace(finding, kind=FLAKY, group=f"flaky / {finding.group}")
        deaths = 0

        def dies(candidate: Program) -> bool:
            nonlocal deaths
            if deaths >= MOST_DEATHS:
                return False
            fate = self.fate(candidate)
            deaths += fate in (CRASH, TIMEOUT)
            return fate in same

        small = reduce_program(finding.program, dies, CRASH_TRIALS)
        last = finding.step and min(finding.step, len(small.steps))
        return replace(finding, program=small, step=last)


def recover_dead_worker(shard: Shard, kind: str) -> Result:
    """What a dead worker left: its findings, and the program that it died of."""
    number, finding = shard.first, Finding(kind, shard.seed, shard.first, f"{kind.lower()} / starting", NOTHING)
    with contextlib.suppress(OSError, ValueError, KeyError, ProgramError):
        first, *steps = shard.running.read_text(encoding="utf-8").split("\n")
        note = json.loads(first)
        number = int(note["number"])
        finding = Finding(kind, shard.seed, number, f"{kind.lower()} / drawing, in torch CPU", NOTHING)
        if steps and int(steps[-1]) in worker.LAST_WORDS:
            kind = worker.LAST_WORDS[int(steps.pop())]
        step = int(steps[-1]) if steps else 0
        finding = worker.ended(kind, shard.seed, number, Program.from_json(note["program"]), step)
    shard.running.unlink(missing_ok=True)
    left = Result(done=number + 1 - shard.first)
    for earlier in range(shard.first, number):
        worker.program_of(shard, earlier, left.tally)
        if shard.found(earlier).exists():
            left.findings.append(Finding.from_json(json.loads(shard.found(earlier).read_text(encoding="utf-8"))))
    left.findings.append(finding)
    return left
