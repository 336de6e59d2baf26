"""Place of a pool's workers: this machine, or Ray, as `--pool` and `--per-worker` say.

Defines `ExecutionPlace`, `LOCAL` and `place_of`. Only this module distinguishes the pools, and `ray` is imported only
if the user asked for it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from conformance.record.errors import TargetError, UsageError
from conformance.record.names import without_features
from conformance.run.messages import Limits, Pool
from conformance.run.pool import PRELOAD, LocalPool

HERE = "local"
"""Address for workers on this machine, without Ray."""

PATIENCE = 5.0
"""Delay in seconds before the message that a target is still loading."""


@dataclass(frozen=True)
class ExecutionPlace:
    """Address of the workers: `local`, `ray`, `ray://HOST:PORT`, or another address that `ray.init` accepts. Each
    worker takes `per_worker` of the resources there. Tasks read `files`, which are sent to a cluster.
    """

    address: str = HERE
    per_worker: tuple[tuple[str, float], ...] = (("CPU", 1.0),)
    files: tuple[Path, ...] = ()
    worker_log: Path | None = None
    """File for the output of workers on this machine; on Ray, output is in Ray's own logs."""
    starting: float | None = None
    """Seconds that loading a target may take; None: the value of `Limits`."""
    tell: Callable[[str], None] = field(default=lambda text: None, compare=False)
    """Callback for a line of progress about long operations."""

    @property
    def local(self) -> bool:
        """Whether the workers are children of this process."""
        return self.address == HERE

    def limits(self, limits: Limits) -> Limits:
        """Return the limits with this place's `starting`, if it is set."""
        return limits if self.starting is None else replace(limits, starting=self.starting)

    @contextlib.contextmanager
    def loading(self, target: str, limits: Limits) -> Iterator[None]:
        """Context in which the target is loaded; it calls `tell` after `PATIENCE` seconds, since a device may hang at
        its import.
        """
        text = f"loading {without_features(target)}, at most {self.limits(limits).starting:g} s"
        timer = threading.Timer(PATIENCE, self.tell, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def pool(
        self, target: str, limits: Limits, jobs: int = 1, modules: Sequence[str] = (), preload: Sequence[str] = PRELOAD
    ) -> Pool:
        """Return a pool of workers at this place; the arguments are those of `LocalPool`. Raises UsageError if Ray has
        none.
        """
        limits = self.limits(limits)
        preload = (*preload, *preloaded(target))
        if self.local:
            return LocalPool(target, limits, jobs, modules, preload=preload, worker_log=self.worker_log)
        from conformance.run.ray_pool import RayPool

        return RayPool(self, target, limits, jobs, modules, preload)


LOCAL = ExecutionPlace()


def preloaded(target: str) -> tuple[str, ...]:
    """Return what the target asks a fork server to load; nothing for a target that cannot be described, which a worker
    reports. A process that does without torch does not import it for this."""
    if "torch" not in sys.modules:
        return ()
    from conformance.engine.loading import describe_target

    with contextlib.suppress(TargetError):
        return describe_target(target).facts.preload
    return ()


def place_of(args: argparse.Namespace, *files: Path | None) -> ExecutionPlace:
    """Return the place of these options, with the existing ones among `files`. Raises UsageError if Ray is needed and
    not installed.
    """
    there = tuple(file for file in files if file is not None and file.exists())
    result = ExecutionPlace(args.pool, args.per_worker, there, starting=args.starting, tell=log)
    if result.local and result.per_worker != LOCAL.per_worker:
        raise UsageError("--per-worker asks for resources of a Ray cluster: give its address as --pool too")
    if not result.local and find_spec("ray") is None:
        raise UsageError(f"--pool {result.address} needs Ray: pip install 'ray[client]>=2.50'")
    return result


def log(text: str) -> None:
    """Print and flush a line of progress."""
    print(text, flush=True)


def log_aside(text: str) -> None:
    """Print a line of progress to stderr, of a command whose output is a program or a table."""
    print(text, file=sys.stderr, flush=True)
