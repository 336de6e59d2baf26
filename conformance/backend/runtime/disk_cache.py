"""Rows in tinygrad's cache file, for what one process has worked out and the next need not.

Defines `place` (where something lies), `made_by`, `read` and `write`. `CACHELEVEL=0` turns it all off, `CACHEDB` moves
the file.

The key insight: a row may be used again only where everything that made it is the same, and that is more than its
subject: tinygrad's code, our patches of it, the variables that it reads, the processor that kernels are compiled for.
All that is in the place, so a row is never out of date, only not found, also in a file that was carried to another
machine. A checksum makes a damaged row one that is not found, too.
Must not know what the rows hold.
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
_DECIDING = ("schedule", "codegen", "renderer", "uop")  # parts of tinygrad that decide what becomes of a graph
_OURS = ("disk_cache.py", "materialization.py", "program_cache.py", "schedule_cache.py", "replay.py")


@functools.cache
def _makers() -> tuple[str, tuple[str, ...]]:
    """A digest of all code that makes rows, drivers' bindings aside, and the variables that decide within it."""
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
    """What all places begin with here: a digest of the code that makes rows, and of the processor they are made for."""
    return hashlib.sha256(repr((_makers()[0], platform.machine(), _processor())).encode()).hexdigest()[:16]


def _processor() -> str:
    """What the processor can do, since kernels are compiled for all of it; its name where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, features = line.partition(":")
            if name.strip() in ("flags", "Features", "isa"):
                return " ".join(sorted(features.split()))
    return platform.processor()


def place(*subject: Any) -> str:
    """Where something lies: by what it is, as values whose repr says all of them, and by what makes it."""
    variables = [os.environ.get(v) for v in _makers()[1]]
    return made_by() + hashlib.sha256(repr((subject, variables)).encode()).hexdigest()


def enabled() -> bool:
    """Whether anything is kept at all."""
    return bool(CACHELEVEL >= 1)


def read(table: str, where: str) -> bytes | None:
    """The row at a place; None where there is none, or a damaged one."""
    try:
        row = diskcache_get(table, where)
    except Exception:  # what unpickling may raise has no bounds
        return None
    if not isinstance(row, bytes) or row[:_CHECK] != _checksum(row[_CHECK:]):
        return None
    return row[_CHECK:]


def write(table: str, where: str, row: bytes) -> None:
    """Put a row at a place, instead of what was there."""
    diskcache_put(table, where, _checksum(row) + row)


def _checksum(row: bytes) -> bytes:
    return hashlib.blake2b(row, digest_size=_CHECK).digest()
