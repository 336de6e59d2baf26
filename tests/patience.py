"""How long tests wait: limits for a quiet machine, stretched by how slow this one is.

A busy machine must not fail a test, and a hang must. So a limit is given for a quiet machine of two cores, and
stretched by how much longer this machine takes for some fixed work. Other work may begin at any time, so the machine is
measured again whenever a limit is reached, and the slowest time so far counts.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable

QUIET = 0.12
"""Seconds of a clock that the fixed work takes on the quiet reference machine."""

_measured: list[float] = []


def slowness() -> float:
    """Return how many times longer this machine takes than a quiet one, at least 1, as far as it was measured."""
    return max(_measured) if _measured else measured_slowness()


def measured_slowness() -> float:
    """Measure the machine now, by what tests wait for: the start of an interpreter, and computations. Return the
    slowness with this measurement."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import json"], check=True)
    for _ in range(30):
        hashlib.sha256(bytes(4_000_000)).digest()
    _measured.append(max(1.0, (time.monotonic() - began) / QUIET))
    return slowness()


def stretched(seconds: float) -> float:
    """Return a limit for this machine, from the one for a quiet machine; both in seconds."""
    return seconds * slowness()


def call_at_limit(seconds: float, call: Callable[[], object]) -> Callable[[], None]:
    """Call a function in a thread once so many seconds of a quiet machine are over. Return a function that cancels
    that."""
    began, cancelled = time.monotonic(), threading.Event()

    def watch() -> None:
        limit = stretched(seconds)
        while not cancelled.wait(max(began + limit - time.monotonic(), 0.0)):
            limit = seconds * measured_slowness()
            if time.monotonic() >= began + limit:
                call()
                return

    thread = threading.Thread(target=watch, name=f"limit of {seconds:g} s", daemon=True)
    thread.start()

    def cancel() -> None:
        cancelled.set()
        thread.join()

    return cancel


def wait_until(condition: Callable[[], object], awaited: str, seconds: float = 100.0) -> None:
    """Wait until the condition is true; `seconds` are those of a quiet machine.

    :raises AssertionError: the condition is still false then; the message names what was awaited.
    """
    began, limit = time.monotonic(), stretched(seconds)
    while not condition():
        if time.monotonic() >= began + limit:
            limit = seconds * measured_slowness()
            assert time.monotonic() < began + limit, f"waited {limit:.0f} s until {awaited}"
        time.sleep(0.02)
