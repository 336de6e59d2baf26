"""Imports without garbage collection: imported objects are exempt from it, during the imports and later.

Modules are no garbage, and torch's are a million objects. Each full collection traverses all of them: many times during
the imports and once more when the process ends. In a fork it also copies their memory.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_freeze() -> Iterator[None]:
    """Disable garbage collection inside the block, and exempt all objects that exist at its end. Use it for imports."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
