"""Packs of kernels and schedules: exported from tinygrad's cache file, and imported on another machine.

Defines `held`, `export`, `take_in`, `prune` and `PackError`. The key of a row begins with a digest of the code and the
processor that made it. A pack contains exactly the rows that this version can find. With another digest, no row could
be found, so the whole pack is refused. A pack is code, as a wheel is: the programs in it are executed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tinygrad.helpers import CACHEDB, VERSION

from . import disk_cache, program_cache, schedule_cache

TABLES = (program_cache.TABLE, schedule_cache.TABLE)
FORMAT = 0x74696E79  # "tiny", in SQLite's application id
_WAIT_S = 60.0  # for another process that writes


class PackError(Exception):
    """A pack that cannot be read, written or used here, in one sentence."""


class Rows(NamedTuple):
    """Number of rows, and their bytes."""

    number: int
    nbytes: int


class HeldPack(NamedTuple):
    """The rows of one table: usable here, or made by other code or for another processor."""

    table: str
    usable: Rows
    other: Rows


def held() -> list[HeldPack]:
    """The rows of each table in the cache file; empty if there is no file."""
    result = []
    with _cache(write=False) as file:
        for table in _present(file):
            (usable,), (other,) = (
                file.execute(f"SELECT count(*), coalesce(sum(length(val)), 0) FROM '{table}' WHERE {which}").fetchall()
                for which in (_ours(), f"NOT ({_ours()})")
            )
            result.append(HeldPack(table.removesuffix(f"_{VERSION}"), Rows(*usable), Rows(*other)))
    return result


def export(path: Path) -> Rows:
    """Write all rows that are usable here to a pack, which replaces a file of that name once it is complete.

    Raises PackError if there are no such rows, or if the file cannot be written.
    """
    count = nbytes = 0
    with _cache(write=False) as file, _written(path) as pack:
        pack.execute("CREATE TABLE made (by text)")
        pack.execute("INSERT INTO made VALUES (?)", (disk_cache.made_by(),))
        pack.execute("CREATE TABLE rows (name text, key text, val blob)")
        for table in _present(file):
            for key, value in file.execute(f"SELECT key, val FROM '{table}' WHERE {_ours()}"):
                pack.execute("INSERT INTO rows VALUES (?, ?, ?)", (table, key, zlib.compress(value)))
                count, nbytes = count + 1, nbytes + len(value)
        if not count:
            raise PackError(f"{CACHEDB} has no kernel that this version made: run something on tiny first")
    return Rows(count, nbytes)


def take_in(path: Path) -> Rows:
    """Import the rows of a pack into the cache file; returns the number of new rows.

    Raises PackError for a file that is no pack, and for a pack of other code or another processor.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as pack:
            (kind,) = pack.execute("PRAGMA application_id").fetchone()
            if kind != FORMAT:
                raise PackError(f"{path} is no pack of kernels")
            (maker,) = pack.execute("SELECT by FROM made").fetchone()
            if maker != disk_cache.made_by():
                raise PackError(
                    f"{path} was made by another version of conformance or tinygrad, or for another processor "
                    f"({maker}, here {disk_cache.made_by()}): nothing in it would be found here"
                )
            return _rows_of(pack)
    except (sqlite3.Error, OSError, zlib.error) as error:
        raise PackError(f"{path} cannot be read as a pack of kernels: {error}") from None


def _rows_of(pack: sqlite3.Connection) -> Rows:
    count = nbytes = 0
    names = {f"{table}_{VERSION}" for table in TABLES}
    with _cache(write=True) as file:
        for name in names:
            file.execute(f"CREATE TABLE IF NOT EXISTS '{name}' (key text, val blob, PRIMARY KEY (key))")
        for name, key, packed in pack.execute("SELECT name, key, val FROM rows"):
            if name not in names:
                continue
            value = zlib.decompress(packed)
            new = file.execute(f"INSERT OR IGNORE INTO '{name}' VALUES (?, ?)", (key, value)).rowcount
            count, nbytes = count + new, nbytes + new * len(value)
    return Rows(count, nbytes)


def prune() -> Rows:
    """Remove the rows that are not usable here, and shorten the file. Raises PackError while another process uses
    it.
    """
    removed = [h.other for h in held()]
    with _cache(write=True) as file:
        for table in _present(file):
            file.execute(f"DELETE FROM '{table}' WHERE NOT ({_ours()})")
    with _cache(write=True) as file:
        file.isolation_level = None
        file.execute("VACUUM")
    return Rows(sum(r.number for r in removed), sum(r.nbytes for r in removed))


def _ours() -> str:
    return f"key LIKE '{disk_cache.made_by()}%'"  # hexadecimal digits


def _present(file: sqlite3.Connection) -> list[str]:
    named = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [name for table in TABLES if (name := f"{table}_{VERSION}") in named]


@contextlib.contextmanager
def _cache(*, write: bool) -> Iterator[sqlite3.Connection]:
    """tinygrad's cache file; changes are committed if the block succeeds. Without a file, an empty one is read.

    Raises PackError if SQLite cannot read or write it.
    """
    if write:
        Path(CACHEDB).parent.mkdir(parents=True, exist_ok=True)
    elif not Path(CACHEDB).exists():
        with contextlib.closing(sqlite3.connect(":memory:")) as empty:
            yield empty
        return
    try:
        with contextlib.closing(sqlite3.connect(CACHEDB, timeout=_WAIT_S)) as file, file:
            yield file
    except sqlite3.OperationalError as error:  # locked, full, or not readable
        raise PackError(f"{CACHEDB} cannot be used now ({error}): try again when nothing runs on tiny") from None
    except sqlite3.DatabaseError as error:
        raise PackError(f"{CACHEDB} is damaged ({error}): remove it, and it is made anew") from None


@contextlib.contextmanager
def _written(path: Path) -> Iterator[sqlite3.Connection]:
    """A new SQLite file, renamed to `path` if the block succeeds."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    except OSError as error:
        raise PackError(f"{path} cannot be written: {error.strerror}") from None
    os.close(handle)
    try:
        with contextlib.closing(sqlite3.connect(name)) as pack, pack:
            pack.execute(f"PRAGMA application_id = {FORMAT}")
            yield pack
        os.chmod(name, 0o644)  # as any other file, which a later job of another user may read
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
