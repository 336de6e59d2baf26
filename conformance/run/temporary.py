"""Temporary folders of this process, which a later process removes if this one is killed.

The key insight: the owner of a folder holds a lock on a file in it, and the system releases the lock when the owner
dies, for any reason. A process id would be less certain: it returns, and another container has its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

PREFIX = "conformance-"
LOCK = f"owner.{os.uname().nodename}"
"""Name of the locked file. A file system may keep locks within one machine, so each machine removes only its own."""


class OwnedFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder of this process. The first one of a process removes the folders of processes that died."""

    def __init__(self, kind: str = "") -> None:
        _remove_abandoned()
        super().__init__(prefix=PREFIX + kind)
        self._lock: IO[bytes] | None = None
        with contextlib.suppress(OSError):  # without a lock, the folder of a killed process stays
            self._lock = _locked(Path(self.name))

    def cleanup(self) -> None:
        """Remove the folder."""
        super().cleanup()
        if self._lock is not None:
            self._lock.close()


def _locked(folder: Path) -> IO[bytes]:
    """Create the locked file. It gets its name with the lock, so that no process sees it without."""
    file = (folder / "owner").open("wb")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(folder / "owner", folder / LOCK)
    return file


@functools.cache
def _remove_abandoned() -> None:
    """Remove the folders of this user whose owner has died."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # the owner lives, or another process removes the folder, or it is foreign
            found = lock.parent.lstat()
            if lock.parent.is_symlink() or found.st_uid != os.getuid():
                continue
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
