"""Output whose reader has gone, as in `| head`: no traceback, and no second one when Python flushes at its end."""

from __future__ import annotations

import os
import sys


def reader_gone() -> int:
    """Send what is still written to standard output nowhere; the exit code to end with."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
