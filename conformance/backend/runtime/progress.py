"""Progress lines on the terminal while many kernels are compiled, so that a first run does not look like a hang.

Defines `Progress` and its instance `PROGRESS`, which counts every compiled kernel. A first step compiles its kernels in
several schedules, so the sum of their times counts. A line appears after 5 seconds of compilation, and again each time
that this has doubled.
"""

from __future__ import annotations

import os
import sys

from . import disk_cache

FIRST_S = 5.0
SETTING = "TINY_PROGRESS"
"""Environment variable; the value 0 turns the lines off."""


class Progress:
    """Number of kernels that this process has compiled, and their total time."""

    def __init__(self) -> None:
        self.kernels, self.seconds = 0, 0.0
        self._next = FIRST_S

    def add(self, seconds: float) -> None:
        """Count a compiled kernel; prints a line on stderr, if that is a terminal and the next limit is reached."""
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
    """Whether stderr is a terminal and the lines are not turned off."""
    return os.environ.get(SETTING) != "0" and sys.stderr is not None and sys.stderr.isatty()


PROGRESS = Progress()
