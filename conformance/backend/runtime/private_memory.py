"""Memory of tinygrad's CPU device that a forked process has to itself.

Defines `install`, called before that device is opened. The key insight: tinygrad maps its buffers as shared memory, so
a parent and its children go on writing to the same pages after a fork, each with an allocator that believes they are
its own. A private mapping is copied by the system when either side writes.
"""

from __future__ import annotations

import functools
import mmap
from typing import Any

from ..tinygrad_patches.patch import Patch


class _PrivateMappings:
    """The module `mmap`, whose shared mappings are private ones."""

    MAP_SHARED = getattr(mmap, "MAP_PRIVATE", 0)  # Windows has neither, nor forks

    def __getattr__(self, name: str) -> Any:
        return getattr(mmap, name)


@functools.cache
def install() -> None:
    """Let tinygrad's CPU device map private memory; imports the module of that device, which takes a while."""
    Patch(
        "tinygrad.runtime.ops_cpu:mmap",
        "Buffers are shared with forked processes: what one of them writes appears in the tensors of the others.",
        "tests/backend/test_state.py::TestFork::test_what_a_child_writes_is_its_own",
    ).apply(_PrivateMappings())
