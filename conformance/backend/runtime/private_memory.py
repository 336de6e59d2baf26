"""Private memory for tinygrad's CPU device, which a forked process does not share with its parent.

Defines `install`, called before that device is opened. tinygrad maps its buffers as shared memory. After a fork, parent
and children would write to the same pages, each with an allocator that assumes exclusive use. A private mapping is
copied by the system when either side writes.
"""

from __future__ import annotations

import functools
import mmap
from typing import Any

from ..tinygrad_patches.patch import Patch


class _PrivateMappings:
    """The module `mmap`, with private mappings in place of shared ones."""

    MAP_SHARED = getattr(mmap, "MAP_PRIVATE", 0)  # Windows has neither, nor forks

    def __getattr__(self, name: str) -> Any:
        return getattr(mmap, name)


@functools.cache
def install() -> None:
    """Make tinygrad's CPU device map private memory; imports the module of that device, which is slow."""
    Patch(
        "tinygrad.runtime.ops_cpu:mmap",
        "Buffers are shared with forked processes: what one of them writes appears in the tensors of the others.",
        "tests/backend/test_state.py::TestFork::test_what_a_child_writes_is_its_own",
    ).apply(_PrivateMappings())
