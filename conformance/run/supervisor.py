"""Code of a Ray actor: one isolated worker in a `LocalPool` of its node.

Defines `Supervisor`. A subject runs in a child process of the actor, never in the actor. If the subject kills, hangs or
fills that process, the actor reports a `Death` like any other answer, and Ray itself is not affected. Tasks and answers
pass through as bytes, so neither torch nor a target is imported here. ray is not imported either, so the module also
runs without a cluster.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.run import worker
from conformance.run.messages import Death, Done, Task, WorkerDied
from conformance.run.pool import LocalPool

News = tuple[list[tuple[str, str]], bytes | Death | None]
"""Files for the owner's disk as pairs of path and text, and the task's answer, if it has ended."""

ROOM = 2**20
"""Bytes that must be free in a node's temporary folder."""


class Supervisor:
    """One worker on this node, in a pool that `pool_of` creates for `spool`, a folder of kept files. `torch` is the
    release of torch on the owner's machine. Ray calls the methods one after another.
    """

    def __init__(self, pool_of: Callable[..., LocalPool], torch: str) -> None:
        self._pool_of, self._torch = pool_of, torch

    def start(self) -> Death | str:
        """Load the target in the worker; this takes as long as loading does. Return the death of a worker that cannot
        load it, or the reason why this node cannot have a worker, or the empty string.
        """
        # A fork server imports its parent's main module, which would be Ray's.
        sys.modules["__main__"].__file__ = None
        torch = importlib.metadata.version("torch").partition("+")[0]
        if torch != self._torch:
            return f"it has torch {torch}, and this machine {self._torch}"
        try:
            self._spool = Path(tempfile.mkdtemp(prefix="conformance-"))
            room = self._spool / "room"
            room.write_bytes(bytes(ROOM))
            room.unlink()
            self._pool = self._pool_of(spool=self._spool)
            self._pool.ask(os.getpid)
        except WorkerDied as died:
            return died.death
        except OSError as error:
            return f"{tempfile.gettempdir()} cannot be written ({error.strerror})"
        return ""

    def look(self, seconds: float, task: Task | None = None) -> News:
        """Submit the task, if one is passed. Wait up to `seconds` for its end or for files that it keeps.

        An answer is a pickled `Done`. The task must be a call of `worker.relay` with the pickled function and
        arguments.
        """
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
        result = []
        for path in sorted(self._spool.glob(f"*.{worker.KEPT}")):
            result.append(pickle.loads(path.read_bytes()))
            path.unlink()
        return result
