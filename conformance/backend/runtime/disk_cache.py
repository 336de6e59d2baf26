"""Rows in tinygrad's cache file, which carry results from one process to later ones.

Defines `place` (the key of a row), `made_by`, `read` and `write`. `CACHELEVEL=0` turns the cache off, `CACHEDB` moves
the file.

A row may be reused only if everything that determines it is the same. Besides its subject, that is tinygrad's code, our
patches of it, the variables that it reads, and the processor. All of these are in the key, so a row is never out of
date, also in a file from another machine. A row with a wrong checksum counts as not found.

This module must not depend on the content of the rows.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
from pathlib import Path
from typing import Any

import tinygrad
from tinygrad.helpers import CACHELEVEL, diskcache_get, diskcache_put

_CHECK = 8  # bytes of checksum in front of each row
_DECIDING = ("schedule", "codegen", "renderer", "uop")  # parts of tinygrad that determine schedules and code
_OURS = (
    "disk_cache.py", "materialization.py", "moving_offsets.py", "pieces.py", "program_cache.py", "replay.py",
    "schedule_cache.py",
)  # fmt: skip


@functools.cache
def _makers() -> tuple[str, tuple[str, ...]]:
    """A digest of all code that makes rows, except drivers' bindings, and the variables that this code reads."""
    package = Path(tinygrad.__file__).parent
    digest, variables = hashlib.sha256(), {"CC"}
    for path in sorted(path for path in package.rglob("*.py") if "autogen" not in path.parts):
        code = path.read_bytes()
        digest.update(code)
        if path.relative_to(package).parts[0] in _DECIDING:
            variables.update(name.decode() for name in re.findall(rb'getenv\("(\w+)"', code))
    here = Path(__file__).parent
    for path in [*sorted((here.parent / "tinygrad_patches").glob("*.py")), *(here / name for name in _OURS)]:
        digest.update(path.read_bytes())
    return digest.hexdigest(), tuple(sorted(variables))


@functools.cache
def made_by() -> str:
    """The common prefix of all keys here: a digest of the code that makes rows, and of the processor."""
    return hashlib.sha256(repr((_makers()[0], platform.machine(), _processor())).encode()).hexdigest()[:16]


def _processor() -> str:
    """The processor's features, since kernels use all of them; its name if the system does not list them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, features = line.partition(":")
            if name.strip() in ("flags", "Features", "isa"):
                return " ".join(sorted(features.split()))
    return platform.processor()


def place(*subject: Any) -> str:
    """The key of a row: from its subject, as values with complete reprs, and from everything that determines it."""
    variables = [os.environ.get(v) for v in _makers()[1]]
    return made_by() + hashlib.sha256(repr((subject, variables)).encode()).hexdigest()


def enabled() -> bool:
    """Whether rows are stored."""
    return bool(CACHELEVEL >= 1)


def read(table: str, where: str) -> bytes | None:
    """The row of a key; None if there is none, or if it is damaged."""
    try:
        row = diskcache_get(table, where)
    except Exception:  # unpickling may raise any exception
        return None
    if not isinstance(row, bytes) or row[:_CHECK] != _checksum(row[_CHECK:]):
        return None
    return row[_CHECK:]


def write(table: str, where: str, row: bytes) -> None:
    """Store a row under a key, and replace an earlier one."""
    diskcache_put(table, where, _checksum(row) + row)


def _checksum(row: bytes) -> bytes:
    return hashlib.blake2b(row, digest_size=_CHECK).digest()
