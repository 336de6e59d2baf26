"""Lines on the terminal while many kernels are compiled, so that a first run does not look like a hang.

Defines `Progress` and `PROGRESS`, which is told of each kernel. The key insight: a first step compiles its kernels in
several schedules, so what a user waits for is the sum; lines come when it has passed 5 seconds, and again each time it
has doubled.
"""

from __future__ import annotations

import os
import sys

from . import disk_cache

FIRST_S = 5.0
SETTING = "TINY_PROGRESS"
"""The environment variable that turns the lines off, with the value 0."""


class Progress:
    """How many kernels this process has compiled, and for how long."""

    def __init__(self) -> None:
        self.kernels, self.seconds = 0, 0.0
        self._next = FIRST_S

    def add(self, seconds: float) -> None:
        """A kernel was compiled; says so on stderr, where that is a terminal, if it is time."""
        self.kernels += 1
        self.seconds += seconds
        if self.seconds < self._next:
            return
        while self._next <= self.seconds:
            self._next *= 2
        if is_wanted():
            kept = "kept on disk for the next run" if disk_cache.enabled() else "not kept, since CACHELEVEL is 0"
            line = f"tiny: {self.kernels} kernels compiled in {self.seconds:.0f} s, {kept} ({SETTING}=0 hides this)"
            print(line, file=sys.stderr, flush=True)


def is_wanted() -> bool:
    """Whether somebody may be looking and has not turned the lines off."""
    return os.environ.get(SETTING) != "0" and sys.stderr is not None and sys.stderr.isatty()


PROGRESS = Progress()
