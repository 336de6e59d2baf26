"""What runs inside a Ray actor: one isolated worker, watched by the pool that watches it on a single machine too.

Defines `Supervisor`. The key insight: a subject runs in a process below the actor, never in it, so what kills, hangs or
fills that process is an answer of the actor like any other, and Ray sees none of it. Tasks and answers pass through as
bytes: neither torch nor a target is imported here. Nor is ray, so that all of it runs without a cluster too.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.run import worker
from conformance.run.messages import Death, Done, Limits, Task, WorkerDied
from conformance.run.pool import PRELOAD, LocalPool

News = tuple[list[tuple[str, str]], bytes | Death | None]
"""Files that the task wants on the owner's disk, by path; and its answer, if it has ended."""

ROOM = 2**20
"""Bytes that a node's temporary folder must have left."""


@dataclass(frozen=True)
class Setup:
    """How a supervisor's worker is made: the arguments of `LocalPool`, and the owner's release of torch."""

    target: str
    limits: Limits
    modules: tuple[str, ...] = ()
    preload: tuple[str, ...] = PRELOAD
    torch: str = ""


class Supervisor:
    """One worker on this node. Its methods are called one after another."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def start(self) -> Death | str:
        """Load the target in the worker: the death of a worker that cannot, or why this node can have none, or the
        empty string. It takes as long as loading does."""
        setup = self._setup
        # A server that workers are forked from imports its parent's main module, which would be Ray's.
        sys.modules["__main__"].__file__ = None
        torch = importlib.metadata.version("torch").partition("+")[0]
        if setup.torch and torch != setup.torch:
            return f"it has torch {torch}, and this machine {setup.torch}"
        try:
            self._spool = Path(tempfile.mkdtemp(prefix="conformance-"))
            room = self._spool / "room"
            room.write_bytes(bytes(ROOM))
            room.unlink()
            self._pool = LocalPool(setup.target, setup.limits, 1, setup.modules, setup.preload, self._spool)
            self._pool.ask(os.getpid)
        except WorkerDied as died:
            return died.death
        except OSError as error:
            return f"{tempfile.gettempdir()} cannot be written ({error.strerror})"
        return ""

    def look(self, seconds: float, task: Task | None = None) -> News:
        """Hand a task to the worker, if one is given, and wait so long for its end, or for files that it keeps. An
        answer is a pickled `Done`; the task's function and arguments are in it as `worker.relay` takes them."""
        if task is not None:
            self._pool.submit(task)
        until = time.monotonic() + seconds
        answer: Done | Death | None = None
        files: list[tuple[str, str]] = []
        while answer is None and not files and time.monotonic() < until:
            answer = next((ended for _, ended in self._pool.ended(min(0.5, seconds))), None)
            files = list(self._kept())
        if isinstance(answer, Done):
            return files, answer.value if answer.error is None else pickle.dumps(answer)
        return files, answer

    def _kept(self) -> Sequence[tuple[str, str]]:
        found = []
        for path in sorted(self._spool.glob(f"*.{worker.KEPT}")):
            found.append(pickle.loads(path.read_bytes()))
            path.unlink()
        return found

    def end(self) -> None:
        """End the worker and take its files away."""
        self._pool.close()
        for path in self._spool.iterdir():
            path.unlink()
        self._spool.rmdir()
