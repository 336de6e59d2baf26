"""Files on disk: reading JSON that may be compressed, and atomic writes.

Defines `read` and `write_atomic`. A new file is written next to the old one and then renamed. A full disk or a killed
process leaves the old one unchanged.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from conformance.record.errors import ReportError


def read(path: Path | str) -> Any:
    """Return the data of a .json or .json.gz file. Raises ReportError if the file is missing or damaged."""
    path = Path(path)
    try:
        raw = path.read_bytes()
        return json.loads((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode())
    except FileNotFoundError:
        raise ReportError(f"{path} does not exist; give the path of a result file.") from None
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}, line {error.lineno}: not valid JSON ({error.msg}).") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, RecursionError) as error:
        raise ReportError(f"{path} cannot be read ({error}).") from None


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Write a whole file or none: to a temporary file in the same folder, flushed, then renamed. Raises ReportError; an
    old file stays unchanged."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise ReportError(
            f"{path} cannot be written ({error.strerror}); make room or choose another --reports."
        ) from None
