"""Exit without a traceback when the reader of standard output has gone, as in `| head`."""

from __future__ import annotations

import os
import sys


def reader_gone() -> int:
    """Redirect further standard output to the null device, so that Python's flush at exit does not fail too. Return the
    exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
