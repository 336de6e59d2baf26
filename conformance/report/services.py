"""A run in the forms of services that show results: PyTorch's relay for the CI of other repositories, and Allure.

The relay (RFC-0054) takes counts, at most 1,000 failures, and an address for the rest; each key of `relay` is an input
of its callback action. Allure takes a folder with one file for each test. The text of a target's exceptions is
untrusted: control characters are escaped, and every text has a limit.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conformance.record.files import write_atomic
from conformance.record.result import UNEXPECTED, Outcome, Result, Run
from conformance.report.escape import escape_control_characters
from conformance.report.machine import headline_of, list_tests, milliseconds, name_of

RELAY, ALLURE = "relay", "allure"
"""The names of the forms."""

MOST_FAILURES, MESSAGE_BYTES, TRACE_BYTES = 1000, 1024, 4096
"""Limits of the relay. It truncates or drops what exceeds them."""

SKIPPED = (Outcome.SKIP, Outcome.XFAIL)
BROKEN = (Outcome.CRASH, Outcome.TIMEOUT)


def relay(runs: Sequence[Run], artifact_url: str = "") -> str:
    """Return the inputs of the relay's callback for these runs, as JSON: `conclusion`, `test-results`,
    `failed-tests-detail` and `artifact-url`, and the `environment`, for which the action has no input yet."""
    pairs = [(run, result) for run in runs for result in list_tests(run)]
    failed = [(run, result) for run, result in pairs if result.outcome in UNEXPECTED]
    skipped = sum(result.outcome in SKIPPED for _, result in pairs)
    counts = {"passed": len(pairs) - len(failed) - skipped, "failed": len(failed), "skipped": skipped}
    environment = {key: value for run in runs for key, value in run.environment.items()}
    code = max((run.exit_code() for run in runs), default=2)
    data = {
        "conclusion": "failure" if code else "success",
        "test-results": counts,
        "failed-tests-detail": [_failed_test(run, result) for run, result in failed[:MOST_FAILURES]],
        **({"artifact-url": artifact_url} if artifact_url else {}),
        "environment": {"target": runs[0].title, **environment} if runs else {},
    }
    return json.dumps(data, indent=1) + "\n"


def _failed_test(run: Run, result: Result) -> dict[str, Any]:
    text = {"message": headline_of(result) if result.failures else result.reason}
    if result.failures and result.failures[0].script:
        text["stacktrace"] = result.failures[0].script
    limits = {"message": MESSAGE_BYTES, "stacktrace": TRACE_BYTES}
    return {
        "name": one_line(name_of(result)),
        "classname": f"conformance.{result.family or 'run'}",
        **{key: cut_bytes(escape_control_characters(value), limits[key]) for key, value in text.items()},
        "duration": round(result.seconds, 3),
    }


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters."""
    return " ".join(escape_control_characters(text).split())


def cut_bytes(text: str, most: int) -> str:
    """Return a text of at most this many bytes in UTF-8, which never ends within a character."""
    return text.encode("utf-8", "backslashreplace")[:most].decode("utf-8", "ignore")


def allure(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files of an Allure folder: a result for each test, the script of a failure, and
    the environment."""
    environment: dict[str, str] = {}
    for run in runs:
        environment |= {"target": run.title, **run.environment}
        start = milliseconds(run.started)
        for result in list_tests(run):
            stop = start + round(1000 * result.seconds)
            yield from _allure_test(run, result, start, stop)
            start = stop
    lines = [f"{key.replace(' ', '_')}={escape_control_characters(value)}" for key, value in environment.items()]
    yield "environment.properties", "\n".join(lines).replace("\\", "\\\\") + "\n"


def _allure_test(run: Run, result: Result, start: int, stop: int) -> Iterator[tuple[str, str]]:
    name = one_line(name_of(result))
    history = hashlib.md5(f"{run.title} {name}".encode(), usedforsecurity=False).hexdigest()
    identity = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run.title} {run.started} {run.command} {name}"))
    labels = {"framework": "conformance", "language": "python", "parentSuite": run.title, "suite": result.family,
              "subSuite": result.variant, "tag": result.dtype}  # fmt: skip
    data: dict[str, Any] = {
        "uuid": identity,
        "historyId": history,
        "testCaseId": history,
        "fullName": f"{run.title} {name}",
        "name": name,
        "status": _allure_status(result.outcome),
        "stage": "finished",
        "start": start,
        "stop": stop,
        "labels": [{"name": key, "value": value} for key, value in labels.items() if value],
    }
    if result.outcome is not Outcome.PASS:
        message = headline_of(result) if result.failures else result.reason
        data["statusDetails"] = {
            "message": escape_control_characters(message),
            "known": result.outcome is Outcome.XFAIL,
            "flaky": result.outcome is Outcome.FLAKY,
        }
    script = result.failures[0].script if result.failures and result.outcome in UNEXPECTED else ""
    if script:
        data["attachments"] = [{"name": "script", "source": f"{identity}-attachment.py", "type": "text/x-python"}]
        yield f"{identity}-attachment.py", script
    yield f"{identity}-result.json", json.dumps(data) + "\n"


def _allure_status(outcome: Outcome) -> str:
    if outcome in BROKEN:
        return "broken"
    if outcome in UNEXPECTED:
        return "failed"
    return "skipped" if outcome in SKIPPED else "passed"


def write_allure(runs: Sequence[Run], folder: Path) -> int:
    """Write the files of an Allure folder and return their number. Files of earlier runs stay, as Allure expects of a
    folder that several commands fill."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, text in allure(runs):
        write_atomic(folder / name, text)
        count += 1
    return count
