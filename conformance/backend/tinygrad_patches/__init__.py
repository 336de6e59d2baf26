"""Corrections of tinygrad, each a record of its site, versions, upstream issue, and the test that shows it.

Importing this package applies them all. `patch` defines the record; docs/findings.md has reproducers of the faults.
Compiled programs on disk depend on the content of these files (see `runtime.disk_cache`).
"""

from __future__ import annotations

from . import (
    c_source,
    cache_file,
    float_rules,
    folding,
    gpu_source,
    integer_bounds,
    llvm,
    node_construction,
    number_formats,
    rewrites,
)
from .patch import PATCHES, Patch, PatchError

__all__ = [
    "PATCHES",
    "Patch",
    "PatchError",
    "c_source",
    "cache_file",
    "float_rules",
    "folding",
    "gpu_source",
    "integer_bounds",
    "llvm",
    "node_construction",
    "number_formats",
    "rewrites",
]
