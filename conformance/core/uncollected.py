"""Imports that the garbage collector does not look at, neither meanwhile nor later.

The key insight: modules are no garbage, and torch's are a million objects. Each full collection goes through all of
them, many times while they are imported and once more when the process ends; in a fork it copies their memory too.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """What is there at the end of the block is never collected; the block is for imports."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
