"""A module that registers a device and whose import then raises an ImportError."""

from __future__ import annotations

raise ImportError("libodd.so.1: cannot open shared object file")
