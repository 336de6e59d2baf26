"""Make the wheels of torchvision and torchaudio in the registry loadable by a torch without CUDA.

    python scripts/cuda_stand_ins.py PYTHON FOLDER

These wheels link `libtorch_cuda.so` and `libc10_cuda.so`. The script writes libraries of these names into FOLDER. They
define the functions that the wheels of PYTHON's environment import from them; each ends the process when it is called,
except one that counts zero devices. No operator on the CPU calls these functions. A program finds them by
`LD_LIBRARY_PATH=FOLDER`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so")
COUNT = "_ZN3c104cuda12device_countEv"
"""`c10::cuda::device_count()`, which torch may call while it loads a library."""


def unresolved(site: Path) -> list[str]:
    """Return the symbols that the extensions below a folder of packages need and no library defines."""
    symbols: set[str] = set()
    path = os.environ | {"LD_LIBRARY_PATH": str(site / "torch" / "lib")}
    for file in sorted(site.glob("torch[av]*/**/*.so")):
        ran = subprocess.run(["ldd", "-r", str(file)], check=False, capture_output=True, text=True, env=path)
        symbols |= {*re.findall(r"undefined symbol: (\w+)", ran.stdout + ran.stderr)}
    return sorted(name for name in symbols if not name.startswith(("Py", "_Py")))


def source(names: Sequence[str]) -> str:
    """Return C code that defines the symbols."""
    lines = ["#include <stdlib.h>", *(f"void {name}(void) {{ abort(); }}" for name in names if name != COUNT)]
    return "\n".join([*lines, f"signed char {COUNT}(void) {{ return 0; }}", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the libraries."""
    python, folder = arguments or sys.argv[1:]
    where = Path(folder).resolve()
    where.mkdir(parents=True, exist_ok=True)
    code = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())
    text = source(unresolved(site))
    for library in LIBRARIES:
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{library}", "-x", "c", "-", "-o", str(where / library)]
        subprocess.run(["cc", *flags], check=True, input=text, text=True)
        text = source([])
    return 0


if __name__ == "__main__":
    sys.exit(main())
