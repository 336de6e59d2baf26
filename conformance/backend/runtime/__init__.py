"""tinygrad's scheduler and what surrounds it: replay, caches, loop kernels, the toolchain, counters."""

from __future__ import annotations

from .. import tinygrad_patches  # noqa: F401 - before any graph is built
