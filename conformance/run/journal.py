"""Journal of a run of cases: each result is on disk as soon as it is available, and `--resume` reads it again.

Defines `Journal`. A line is either complete or ignored, so after a kill each case is either in the journal or still to
run. The first line identifies the run. It does not contain the commit, so that a fix made meanwhile shows in the
remaining cases.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.record import result as model
from conformance.record.errors import ReportError, UsageError
from conformance.record.result import Result, Run

NAME = "{}-progress.jsonl"
"""Name of the file, for a source's `stem`."""


class Journal:
    """Journal file in `folder`, for a run of this identity of the source `stem`.

    With `resume`, `finished` holds the results in it, and `seconds` the time that they took. Otherwise the file starts
    empty. Raises UsageError if it belongs to another run, and ReportError if it cannot be read or written.
    """

    def __init__(self, folder: Path, stem: str, identity: Mapping[str, Any], resume: bool = False) -> None:
        self.path, self.identity = folder / NAME.format(stem), {"schema": model.SCHEMA, **identity}
        self.finished: list[Result] = []
        self.seconds = 0.0
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
            if identity["schema"] != model.SCHEMA:
                raise ReportError(
                    f"{self.path} has result schema {identity['schema']!r} and this version reads {model.SCHEMA}; run "
                    "without --resume, or with the version that wrote it."
                )
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
        """Append a result. Raises ReportError."""
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
        with contextlib.suppress(OSError):  # `add` has already reported a full disk
            self.file.close()
        if not self.wrote:
            self.path.unlink(missing_ok=True)

    def discard_after(self, run: Run, what: str, resumable: bool) -> None:
        """Delete the file unless the command has `--resume` and the run ended before it had judged all of `what`."""
        if not resumable or (run.complete and not run.falls_short_of(what)):
            self.discard()

    def discard(self) -> None:
        """Delete the file, once the report is written, which holds the same results."""
        self.path.unlink(missing_ok=True)
