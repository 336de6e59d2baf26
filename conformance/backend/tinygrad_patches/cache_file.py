"""Use of tinygrad's cache file from any thread.

SQLite serializes access itself; only Python's check that one thread owns a connection has to be disabled.
"""

from __future__ import annotations

import functools
import sqlite3
import types

from .patch import Patch

_CONNECT = functools.partial(sqlite3.connect, check_same_thread=False)

Patch(
    "tinygrad.helpers:sqlite3",
    "The connection to the cache file refuses every thread but the one that used it first.",
    "tests/backend/runtime/test_program_cache.py::test_a_second_thread_computes_too",
).apply(types.SimpleNamespace(**{**vars(sqlite3), "connect": _CONNECT}))
