"""A module that registers a device and does not import, for a reason of its own."""

from __future__ import annotations

raise ImportError("libodd.so.1: cannot open shared object file")
