"""Worker output, in a separate file so that it does not mix with the command's own output.

Defines `log_file`, `redirected` and `limited`. A device may print all the time, and its last lines before a crash are
often the only reason available. Output must therefore be neither shown nor lost: workers append it to one file, line by
line.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from conformance.record.errors import ReportError
from conformance.record.result import counted

_BY_LINE = 1
"""C's `_IOLBF`."""

MOST = 2**26
"""Size limit of the file in bytes, checked when a unit begins."""

_has_file = False


@contextlib.contextmanager
def log_file(path: Path, afresh: bool = True, option: str = "--reports") -> Iterator[Path]:
    """Context with the file for worker output in the block, truncated first if `afresh`.

    At the end, stderr gets a sentence with its path and number of lines. An empty file is deleted, and so is its folder
    if `log_file` created it. Raises ReportError, which names `option`, if the file cannot be written.
    """
    there = path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("wb" if afresh else "ab").close()
    except OSError as error:
        raise ReportError(f"{path} cannot be written ({error.strerror}); choose another with {option}.") from None
    try:
        yield path.absolute()
    finally:
        with contextlib.suppress(OSError):  # the file was deleted meanwhile
            lines = _lines(path)
            if lines:
                print(f"what the workers printed is in {path}: {counted(lines, 'line')}", file=sys.stderr)
            else:
                path.unlink()
                if not there:
                    path.parent.rmdir()


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def redirected(path: str) -> None:
    """Append all further output of this process, in Python or in C, to the file, or send it to stderr without one.
    Streams are line-buffered, since a process that dies does not flush.
    """
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
    os.dup2(2, 1)  # device output is not part of the command's answer
    with contextlib.suppress(OSError, ValueError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        stdout = "__stdoutp" if sys.platform == "darwin" else "stdout"
        library.setvbuf(ctypes.c_void_p.in_dll(library, stdout), None, _BY_LINE, 0)


def limited() -> None:
    """Truncate the file if it is larger than MOST, and write a line that says so, because constant output would fill
    the disk. Output right before a worker's death survives, since this runs only at the begin of a unit.
    """
    if _has_file and os.fstat(2).st_size > MOST:
        os.ftruncate(2, 0)
        os.write(2, f"more than {MOST >> 20} MiB were printed before this and are left out\n".encode())
