"""Client packages that are installed outside the environment, because they require or replace packages of it.

Defines `install` and `NotHad`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[2]


class NotHad(RuntimeError):
    """The packages could not be installed. The message gives the reason."""


def install(requirements: str) -> Path:
    """Return the folder with the packages of requirements/FILE without their dependencies. Install them at the first
    call.

    Raises NotHad if they cannot be installed.
    """
    listed = ROOT / "requirements" / requirements
    folder = ROOT / ".nox" / listed.stem
    folder.parent.mkdir(exist_ok=True)
    stamp = folder / "installed"
    with FileLock(f"{folder}.lock"):
        wanted = listed.read_text()
        if not stamp.exists() or stamp.read_text() != wanted:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"]
            done = subprocess.run(
                [*pip, "--target", str(folder), "--requirement", str(listed)],
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise NotHad(f"what {requirements} names cannot be installed: {done.stderr.strip()[-500:]}")
            stamp.write_text(wanted)
    return folder
