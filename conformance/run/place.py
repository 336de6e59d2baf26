"""Where the workers of a pool run: on this machine, or on Ray, as `--pool` and `--per-worker` say.

Defines `Place`, `LOCAL`, `PlacedPool`, `add_options` and `place_of`. The key insight: a caller asks a place for a pool
and knows the protocol alone, so nothing but this module tells the pools apart, and `ray` is not imported where it was
not asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conformance.core.errors import UsageError
from conformance.core.names import without_features
from conformance.run.messages import Death, Done, Limits, Pool, Task
from conformance.run.pool import PRELOAD, LocalPool

HERE = "local"
"""The address of no Ray at all."""

PATIENCE = 5.0
"""Seconds after which a user is told that a target is still being loaded."""


@dataclass(frozen=True)
class Place:
    """Workers at an address: `local`, `ray`, `ray://HOST:PORT` or what `ray.init` takes; each takes `per_worker` of the
    resources there. `files` are read by tasks, and sent along to a cluster."""

    address: str = HERE
    per_worker: tuple[tuple[str, float], ...] = (("CPU", 1.0),)
    files: tuple[Path, ...] = ()
    words: Path | None = None
    """The file for what workers on this machine print; on Ray's it is in Ray's own logs."""
    starting: float | None = None
    """Seconds that loading a target may take; None: what its `Limits` say."""
    tell: Callable[[str], None] = field(default=lambda text: None, compare=False)
    """Told what takes long."""

    @property
    def local(self) -> bool:
        """Whether the workers are children of this process."""
        return self.address == HERE

    def limits(self, limits: Limits) -> Limits:
        """The limits of a worker here."""
        return limits if self.starting is None else replace(limits, starting=self.starting)

    @contextlib.contextmanager
    def loading(self, target: str, limits: Limits) -> Iterator[None]:
        """The target is loaded in the block, of which is told once it takes long: a device may hang at its import."""
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
        """A pool of workers here; the arguments are those of `LocalPool`. Raises UsageError where Ray has none."""
        limits = self.limits(limits)
        if self.local:
            return LocalPool(target, limits, jobs, modules, preload, words=self.words)
        from conformance.run.ray_pool import RayPool

        return RayPool(self, target, limits, jobs, modules, preload)


LOCAL = Place()


class PlacedPool(Pool):
    """The pool at a place, to be built upon."""

    def __init__(
        self,
        place: Place,
        target: str,
        limits: Limits,
        jobs: int = 1,
        modules: Sequence[str] = (),
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        self.place, self.target, self.limits, self.jobs = place, target, limits, jobs
        self.pool = place.pool(target, limits, jobs, modules, preload)

    def submit(self, task: Task) -> None:
        """See `Pool.submit`."""
        self.pool.submit(task)

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """See `Pool.ended`."""
        return self.pool.ended(seconds)

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float = math.inf
    ) -> Any:
        """See `Pool.ask`."""
        return self.pool.ask(function, *args, seconds=seconds, until=until)

    def alive(self) -> int:
        """See `Pool.alive`."""
        return self.pool.alive()

    def close(self) -> None:
        """See `Pool.close`."""
        self.pool.close()


def add_options(add: Callable[..., Any]) -> None:
    """The options that choose a place, for a parser's `add_argument`."""
    where = "where workers run: local, ray (one that ends with the command), ray://HOST:PORT, or a cluster's address"
    add("--pool", default=HERE, metavar="ADDRESS", help=f"{where} (default: {HERE})")
    each = "what a worker takes of a Ray cluster's resources, as CPU=1,GPU=1,NAME=1 (default: CPU=1)"
    starting = f"that loading the target may take (default: {Limits().starting:g})"
    add("--starting", type=float, metavar="SECONDS", help=starting)
    add("--per-worker", type=resources, default=LOCAL.per_worker, metavar="NAME=N[,..]", help=each)


def place_of(given: argparse.Namespace, *files: Path | None) -> Place:
    """The place that the options name, and the files that tasks read there, as far as they exist. Raises UsageError
    where it needs Ray, and that is not installed, and for a limit that is none."""
    if given.starting is not None and not given.starting > 0:
        raise UsageError(f"--starting must be above 0, and is {given.starting:g}")
    there = tuple(file for file in files if file is not None and file.exists())
    made = Place(given.pool, given.per_worker, there, starting=given.starting, tell=told)
    if made.local and made.per_worker != LOCAL.per_worker:
        raise UsageError("--per-worker asks for resources of a Ray cluster: give its address as --pool too")
    if not made.local and find_spec("ray") is None:
        raise UsageError(f"--pool {made.address} needs Ray: pip install 'ray[client]>=2.50'")
    return made


def told(text: str) -> None:
    """Show a line of progress at once."""
    print(text, flush=True)


def resources(text: str) -> tuple[tuple[str, float], ...]:
    """`CPU=1,GPU=0.5` as pairs."""
    pairs = []
    for word in text.split(","):
        name, _, amount = word.partition("=")
        try:
            pairs.append((name.strip(), float(amount)))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{word!r} is not NAME=N: write for example CPU=1,GPU=1") from None
        if not name.strip() or not 0 <= pairs[-1][1] < float("inf"):
            raise argparse.ArgumentTypeError(f"{word!r} is not NAME=N with N of 0 or more")
    return tuple(pairs)
