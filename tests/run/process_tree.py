"""Shared helpers of the pool tests: functions for workers to run, and queries of a process's children."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from conformance.run.pool import LocalPool
from tests.patience import wait_until

PLANTED = Path(__file__).parent.parent / "planted"
sys.path.insert(0, str(PLANTED))
try:
    import tasks
finally:
    sys.path.remove(str(PLANTED))


def descendants(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]  # fmt: skip
    return children + [inner for child in children for inner in descendants(child)]


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def alive(pid: int) -> bool:
    line = Path(f"/proc/{pid}/cmdline")
    return line.exists() and bool(line.read_bytes())


def trackers() -> set[int]:
    """Resource trackers of multiprocessing, which serve all pools of this process."""
    return {pid for pid in descendants(os.getpid()) if b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def only_of_tracker(said: bytes) -> bool:
    """Whether the output has only the resource tracker's warning about a dead process's semaphores."""
    return all(b"leaked semaphore" in line or b"warnings.warn(" in line for line in said.splitlines())


def until_ready(pool: LocalPool, workers: int) -> None:
    """Wait until this number of workers is ready."""
    pool._want_spare(True)
    wait_until(lambda: pool._census() >= workers, f"{workers} workers are ready")


__all__ = ["PLANTED", "alive", "descendants", "only_of_tracker", "tasks", "threads", "trackers", "until_ready"]
