"""A module whose import raises an ImportError, as the import of a device target."""

from __future__ import annotations

raise ImportError("libodd.so.1: cannot open shared object file")
