"""How long tests wait: limits for a quiet machine, stretched by how slow this one is.

A busy machine must not fail a test, and a hang must. So a limit is given for a quiet machine of two cores, and
`slowness` measures once, at the start of the tests, how much longer this machine takes for some fixed work.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable

QUIET = 0.12
"""Seconds of a clock that `slowness` takes on the quiet reference machine."""


@functools.cache
def slowness() -> float:
    """Return how many times longer this machine takes than a quiet one, at least 1, for what tests wait for: the start
    of an interpreter, and computations."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import json"], check=True)
    for _ in range(30):
        hashlib.sha256(bytes(4_000_000)).digest()
    return max(1.0, (time.monotonic() - began) / QUIET)


def stretched(seconds: float) -> float:
    """Return a limit for this machine, from the one for a quiet machine; both in seconds."""
    return seconds * slowness()


def wait_until(condition: Callable[[], object], awaited: str, seconds: float = 100.0) -> None:
    """Wait until the condition is true; `seconds` are those of a quiet machine.

    :raises AssertionError: the condition is still false then; the message names what was awaited.
    """
    limit = stretched(seconds)
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit:.0f} s until {awaited}"
        time.sleep(0.02)
