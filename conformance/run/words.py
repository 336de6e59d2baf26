"""What the workers of a run print, in a file of its own and not among what the command says.

Defines `kept`, `redirected` and `limited`. The key insight: a device may print all the time, and what one prints before
it dies is often the only reason that is given, so it must be neither shown nor lost: workers append to one file, line
by line.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.core.errors import ReportError
from conformance.core.result import counted

_BY_LINE = 1
"""C's `_IOLBF`."""

MOST = 2**26
"""Bytes that the file may have when a unit of work begins."""

_has_file = False


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


@contextlib.contextmanager
def kept(
    path: Path, afresh: bool = True, tell: Callable[[str], None] = _to_stderr, option: str = "--reports"
) -> Iterator[Path]:
    """The file for what workers print in the block, begun afresh or gone on with. In the end it is named in a sentence,
    with its number of lines, or, where it is empty, taken away, and so is its folder. Raises ReportError where it
    cannot be written, which names the option for another."""
    there = path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("wb" if afresh else "ab").close()
    except OSError as error:
        raise ReportError(f"{path} cannot be written ({error.strerror}); choose another with {option}.") from None
    try:
        yield path.absolute()
    finally:
        with contextlib.suppress(OSError):  # somebody took it away
            lines = _lines(path)
            if lines:
                tell(f"what the workers printed is in {path}: {counted(lines, 'line')}")
            else:
                path.unlink()
                if not there:
                    path.parent.rmdir()


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def redirected(path: str) -> None:
    """From here on what this process prints, in Python or in C, is appended to the file, or goes to stderr where none
    is named; line by line, since a process that dies writes no buffers."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            stream.reconfigure(line_buffering=True)
    global _has_file
    if path:
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            os.dup2(file, 2)
            os.close(file)
            _has_file = True
    os.dup2(2, 1)  # what a device prints is not the command's answer
    with contextlib.suppress(OSError, ValueError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, _BY_LINE, 0)


def limited() -> None:
    """Begin the file anew, which it says, once it is larger than MOST: a device that prints all the time would fill the
    disk. What a worker printed right before it died is kept."""
    if _has_file and os.fstat(2).st_size > MOST:
        os.ftruncate(2, 0)
        os.write(2, f"more than {MOST >> 20} MiB were printed before this and are left out\n".encode())
