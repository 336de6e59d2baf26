"""Cases in processes of their own: a crash, a hang or a memory explosion is the outcome of one case and of no other.

Defines `Pool`, a set of spawned workers that each import the target once and run case after case. The key insight: a
worker notes each step in a file *before* it takes it, so whoever survives knows what was running. The process that owns
the pool imports neither torch nor the target. Nothing here decides whether a case passed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pebble

from conformance.core.result import Failure, Outcome, Result
from conformance.opinfo.plan import Case, Entry
from conformance.opinfo.sample_script import from_op_db

RECYCLE_AFTER = 500
"""Cases after which a worker is replaced, so that what leaks in one case does not add up; a new one costs seconds."""

CALIBRATE_EVERY = 20
"""Cases between two calibration loops of a worker."""


class PoolError(Exception):
    """The workers cannot be started, or the target cannot be loaded in them; the text is one sentence for the user."""


class Pool:
    """`jobs` spawned workers for one target. Use as a context manager; leaving it stops the workers.

    `timeout` is in seconds and per case; `memory` is the most bytes of private memory that a worker may hold.
    """

    def __init__(self, target: str, jobs: int, timeout: float, memory: int) -> None:
        self.target, self.timeout, self.setup = target, timeout, "DEVICE = 'cpu'"
        self.folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self.jobs, self.memory = jobs, memory
        self.loops: list[float] = []
        self.pool = self._started()

    def _started(self) -> pebble.ProcessPool:
        return pebble.ProcessPool(
            max_workers=self.jobs,
            max_tasks=RECYCLE_AFTER,
            initializer=_start_worker,
            initargs=(self.folder.name, self.memory, self.target),
            context=multiprocessing.get_context("spawn"),
        )

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.pool.stop()
        self.pool.join()
        self.folder.cleanup()

    def catalog(self) -> tuple[list[Entry], dict[str, str]]:
        """All of op_db as the workers see it, and the target's environment. Raises PoolError."""
        patience = max(self.timeout, 180.0)
        try:
            answer = self.pool.schedule(_catalog, args=(self.target,)).result(timeout=patience)
        except concurrent.futures.TimeoutError:
            raise PoolError(
                f"target {self.target!r} did not load in {patience:.0f} s, or it ends its process."
            ) from None
        except BrokenProcessPool:
            raise PoolError(
                f"target {self.target!r} ends the process that loads it; see why by loading it by hand."
            ) from None
        except pebble.ProcessExpired as died:
            raise PoolError(f"loading target {self.target!r} {_death(died)}; try `python -X faulthandler`.") from None
        if isinstance(answer, str):
            raise PoolError(answer)
        entries, environment, self.setup = answer
        return entries, environment

    @property
    def calibration(self) -> float:
        """The median of the calibration loops that ran so far, in seconds; 0 when none did."""
        return statistics.median(self.loops) if self.loops else 0.0

    def run(self, cases: Sequence[Case]) -> Iterator[Result]:
        """The results of the cases, in the order in which they finish; they begin in the order given. Raises PoolError.

        A worker that dies between two cases, which is nobody's crash, breaks the pool; what is left goes to a new one.
        """
        left = dict.fromkeys(cases)
        fruitless = 0
        while left:
            before = len(left)
            futures: dict[Any, Case] = {}
            # pebble refuses with RuntimeError when the pool broke before it was asked.
            with contextlib.suppress(BrokenProcessPool, RuntimeError):
                for case in left:
                    futures[self.pool.schedule(_run, args=(self.target, case), timeout=self.timeout)] = case
            for future in concurrent.futures.as_completed(futures):
                if not isinstance(future.exception(), BrokenProcessPool):
                    del left[futures[future]]
                    yield self._result(future, futures[future])
            fruitless = fruitless + 1 if len(left) == before else 0
            if fruitless == 3:
                raise PoolError(f"the workers for target {self.target!r} die before they run a case.")
            if left:
                self.pool.stop()
                self.pool.join()
                self.pool = self._started()

    def _result(self, future: Any, case: Case) -> Result:
        try:
            result, loop = future.result()
            self.loops += [loop] if loop else []
            return result
        except concurrent.futures.TimeoutError:
            return self._lost(case, Outcome.TIMEOUT, "timeout", f"no answer in {self.timeout:g} s", self.timeout)
        except pebble.ProcessExpired as died:
            return self._lost(case, Outcome.CRASH, "crash", _death(died), 0.0)
        except Exception as error:
            return self._lost(case, Outcome.CRASH, "harness", f"{type(error).__name__}: {error}", 0.0)

    def _lost(self, case: Case, outcome: Outcome, oracle: str, what: str, seconds: float) -> Result:
        """The result of a case whose worker is gone, from what the worker noted last."""
        sample, phase, script = 0, "", ""
        for path in sorted(Path(self.folder.name).glob("*.note"), key=lambda p: p.stat().st_mtime):
            words = path.read_text().split("\t")
            if words[0] == case.id and len(words) >= 3:
                sample, phase = int(words[1]), words[2]
        if oracle in ("crash", "timeout"):
            script = from_op_db(case, self.setup, sample, f"{outcome}: {what}")
        where = {"CPU": "torch CPU, not the target", "target": "the target"}.get(phase, phase or "the worker")
        failure = Failure(
            oracle, where, "an answer", what, f"while running sample {sample}", sample=sample, script=script
        )
        return case.result(outcome, samples=max(sample, 1), failed=1, failures=(failure,), seconds=seconds)


def _death(died: pebble.ProcessExpired) -> str:
    code = died.exitcode or 0
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            return f"killed its process with {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"ended its process with exit code {code}"


# In the workers

_note = -1


def _start_worker(folder: str, memory: int, target: str) -> None:
    """Set the limits and load everything that takes long, so that no case's time is spent on it."""
    global _note
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # RLIMIT_DATA counts private writable memory only: reserved addresses, which a device may hand out as pointers, and
    # mapped libraries are free, so the limit means the same on every target.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _note = os.open(os.path.join(folder, f"{os.getpid()}.note"), os.O_WRONLY | os.O_CREAT, 0o600)
    import torch

    from conformance.core.errors import TargetError

    torch.set_num_threads(1)
    # A target that cannot be loaded is reported by `_catalog`, which the pool's owner asks for first.
    with contextlib.suppress(TargetError):
        _loaded(target)
        import conformance.opinfo.case  # noqa: F401 - after the target, which must register its device first


def _loaded(target: str) -> Any:
    """The target, loaded once a process and before torch.testing._internal is."""
    if target not in _targets:
        from conformance.core.loading import load_target

        _targets[target] = load_target(target)
    return _targets[target]


_targets: dict[str, Any] = {}


def _catalog(target: str) -> tuple[list[Entry], dict[str, str], str] | str:
    from conformance.core.errors import TargetError

    try:
        loaded = _loaded(target)
    except TargetError as error:
        return str(error)
    from conformance.opinfo import catalog

    # As plain text: torch's version is an object, and reading it back would import torch in the parent.
    environment = {
        **{name: str.__str__(text) for name, text in loaded.environment().items()},
        "seed": f"{catalog.SEED}",
    }
    return catalog.entries(), environment, loaded.script()


def _run(target: str, case: Case) -> tuple[Result, float]:
    """The case's result, and at every `CALIBRATE_EVERY`th case the seconds of the calibration loop, else 0."""
    global _cases_run
    loaded = _loaded(target)
    from conformance.opinfo.case import run_case

    def note(sample: int, phase: str) -> None:
        text = f"{case.id}\t{sample}\t{phase}\t".encode()
        os.pwrite(_note, text.ljust(256), 0)

    note(0, "sampling")
    result = run_case(case, loaded, note)
    _cases_run += 1
    return result, calibration_loop() if _cases_run % CALIBRATE_EVERY == 1 else 0.0


_cases_run = 0


def calibration_loop() -> float:
    """Seconds of a fixed piece of work of the kind that a run consists of: Python, and small torch calls."""
    import torch

    begin = time.perf_counter()
    small, total = torch.ones(16, 16), 0
    for number in range(2_000):
        small = small.add(1.0).t()
        total += len(str(number))
    return time.perf_counter() - begin
