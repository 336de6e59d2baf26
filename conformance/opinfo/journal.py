"""The journal of an OpInfo run: each result on disk as soon as it is known, and taken up again by `--resume`.

Defines `Journal`. The key insight: a line is written whole or it is not there, so a run that was killed has each of its
cases either in the journal or still to run. The first line says which run it is: not the commit, so that a fault that
was mended meanwhile shows in the cases that are left.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.core import result as model
from conformance.core.errors import ReportError, UsageError
from conformance.core.result import Result

SCHEMA = 1
NAME = "opinfo-progress.jsonl"


class Journal:
    """The file in `folder`, for a run of this identity. With `resume`, the results that are in it are `finished` and
    `seconds` is the time that they took; otherwise it begins anew, with the first result.

    Raises UsageError where it is of another run, and ReportError where it cannot be read or written."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], resume: bool = False) -> None:
        self.path, self.identity = folder / NAME, {"schema": SCHEMA, **identity}
        self.finished: list[Result] = []
        self.seconds, self.complete = 0.0, False
        """Set when the report is written, which has all that the journal has."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if resume and self.path.exists():
                self._read()
            lines = [self.identity, *(self._line(result, self.seconds) for result in self.finished)]
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            model.write_atomic(self.path, text)
            self.file = open(self.path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - see `close`
        except OSError as error:
            raise ReportError(
                f"{folder} cannot be written ({error.strerror}); choose another with --reports."
            ) from None
        self.began, self.wrote = time.monotonic(), bool(self.finished)

    def _read(self) -> None:
        head, *lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] or [""]
        try:
            identity = json.loads(head)
            if identity != self.identity:
                raise UsageError(
                    f"{self.path} is of another run: --resume needs the target, the selection, the shard and the "
                    "torch that it was started with; run without it, or choose another --reports"
                )
            for line in map(json.loads, lines):
                self.finished.append(model.result_from_json(line["result"]))
                self.seconds = float(line["seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise ReportError(f"{self.path} is damaged ({error}); run without --resume.") from None

    @staticmethod
    def _line(result: Result, seconds: float) -> dict[str, Any]:
        return {"seconds": round(seconds, 3), "result": model.result_to_json(result)}

    def add(self, result: Result) -> None:
        """Write a result down. Raises ReportError."""
        line = self._line(result, self.seconds + time.monotonic() - self.began)
        try:
            self.file.write(f"{json.dumps(line, ensure_ascii=False)}\n")
            self.file.flush()
            self.wrote = True
        except OSError as error:
            raise ReportError(f"{self.path} cannot be written ({error.strerror}); make room and run again.") from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):  # what a full disk refused was said when it was written
            self.file.close()
        if self.complete or not self.wrote:
            self.path.unlink(missing_ok=True)
