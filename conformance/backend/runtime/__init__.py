"""tinygrad's scheduler and its surroundings: replay, caches, loop kernels, the toolchain, counters."""

from __future__ import annotations

from .. import tinygrad_patches  # noqa: F401 - before any graph is built
