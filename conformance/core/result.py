"""The result model: what one conformance run found, and how it is kept on disk.

Defines `Outcome`, `Failure`, `Result` (one op x dtype x variant x layout) and `Run` (all results of one target), with
a versioned JSON form. The key insight: a result says how much was *compared*, so that "nothing was compared" can never
look like a pass. This module must not import torch, and knows neither how results are produced nor how they are shown.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import statistics
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from conformance.core.errors import ReportError

SCHEMA = 1
KIND = "conformance.opinfo"


class Outcome(StrEnum):
    """The outcome words, worst first."""

    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    FAIL = "FAIL"
    XPASS = "XPASS"
    FLAKY = "FLAKY"
    XFAIL = "XFAIL"
    SKIP = "SKIP"
    PASS = "PASS"


# Outcomes that fail a run. FLAKY does not: a rerun passed; it is shown and compared with the baseline.
UNEXPECTED = frozenset({Outcome.CRASH, Outcome.TIMEOUT, Outcome.FAIL, Outcome.XPASS})
# Outcomes that a rerun may show to be flaky.
RERUN = UNEXPECTED - {Outcome.XPASS}
# Outcomes in which the target did not do what torch CPU does, declared or not.
BROKEN = frozenset({Outcome.CRASH, Outcome.TIMEOUT, Outcome.FAIL, Outcome.XFAIL})


@dataclass(frozen=True)
class Failure:
    """The first mismatch that one oracle found in one case, with everything needed to see it again.

    `values` holds rows (index, expected, actual, differs) of the compared tensor around the first difference;
    `layouts` maps "expected" and "actual" to (size, stride, storage_offset, storage elements).
    """

    oracle: str
    where: str
    expected: str
    actual: str
    detail: str = ""
    sample: int = 0
    call: str = ""
    script: str = ""
    values: tuple[tuple[str, str, str, bool], ...] = ()
    differing: str = ""
    layouts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Named:
    """What has an op, overload, dtype, variant and layout has a name and an id."""

    op: str
    overload: str
    dtype: str
    variant: str
    layout: str

    @cached_property
    def name(self) -> str:
        """The OpInfo's full name, e.g. `linalg.pinv.hermitian`."""
        return f"{self.op}.{self.overload}" if self.overload else self.op

    @cached_property
    def id(self) -> str:
        """The case's id, e.g. `add::float32::forward::as_sampled`; unique within a run."""
        return f"{self.name}::{self.dtype}::{self.variant}::{self.layout}"


@dataclass(frozen=True, slots=True)
class Result(Named):
    """One case: an OpInfo with one dtype, variant and input layout, over all its samples.

    `samples` counts the samples that were compared by at least one oracle, `skipped` those that were not; `arbitrated`
    those of `samples` in which the target differs from torch CPU by more than the tolerance and agrees with its answer
    in float64, to which torch CPU's own is no nearer.
    `kernels`, `native`, `decomposed` and `fallback` count what the target ran; None when the target cannot count.
    `eager` counts the aten ops that compute or move data on torch CPU for the same samples, when kernels are counted;
    `allowed` is that and one for each storage that is sent or fetched: the most kernels that these samples may run.
    `scheduled` counts the graphs that had to be scheduled, since no earlier run had left a schedule on disk; None when
    the target cannot tell.
    """

    op: str
    dtype: str
    variant: str
    layout: str
    outcome: Outcome
    overload: str = ""
    family: str = ""
    samples: int = 0
    skipped: int = 0
    arbitrated: int = 0
    failed: int = 0
    reason: str = ""
    failures: tuple[Failure, ...] = ()
    kernels: int | None = None
    eager: int | None = None
    allowed: int | None = None
    native: int | None = None
    decomposed: int | None = None
    fallback: int | None = None
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    scheduled: int | None = None
    seconds: float = 0.0

    @property
    def oracles(self) -> tuple[str, ...]:
        """The oracles that found a mismatch, in the order in which they were first seen."""
        return tuple(dict.fromkeys(f.oracle for f in self.failures))

    @property
    def only_kernels(self) -> bool:
        """Whether it is declared to run more kernels than are allowed, and does what torch CPU does otherwise."""
        return self.outcome is Outcome.XFAIL and self.oracles == ("kernels",)

    def replace(self, **changes: Any) -> Result:
        return dataclasses.replace(self, **changes)

    def flaky(self) -> Result:
        """This failure, once a rerun has passed."""
        reason = f"{self.outcome} at first, PASS when run again"
        return self.replace(outcome=Outcome.FLAKY, reason=reason)


@dataclass
class Run:
    """All results of one target in one run, with the environment in which they were found.

    `calibration` is the median time in seconds of a fixed loop that ran between the cases, 0 when it is not known:
    times of two machines, or of a quiet and a busy one, are compared as multiples of it. `budgets` are the kernels and
    copies of whole workloads, where they were counted beside the run.
    """

    target: str
    results: list[Result] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    started: str = ""
    seconds: float = 0.0
    calibration: float = 0.0
    complete: bool = True
    notes: list[str] = field(default_factory=list)
    budgets: dict[str, dict[str, int]] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        """Results by outcome word."""
        return Counter(str(result.outcome) for result in self.results)

    @property
    def compared(self) -> int:
        """Samples that were compared by at least one oracle, over all results."""
        return sum(result.samples for result in self.results)

    @property
    def arbitrated(self) -> int:
        """Samples that pass by the answer in float64, over all results."""
        return sum(result.arbitrated for result in self.results)

    def passed_without_fallback(self) -> int | None:
        """How many PASS results needed no CPU fallback; None when the target cannot count fallbacks."""
        passed = [result for result in self.results if result.outcome is Outcome.PASS]
        counted = [result for result in passed if result.fallback is not None]
        return sum(result.fallback == 0 for result in counted) if counted else None

    def fallbacks(self) -> Counter[str]:
        """Calls that fell back to the CPU, by op, over all results."""
        total: Counter[str] = Counter()
        for result in self.results:
            total.update(result.fallbacks)
        return total

    def exit_code(self) -> int:
        """0 when nothing unexpected was found, else 1. A run in which nothing was compared is a failed run."""
        return int(self.compared == 0 or any(result.outcome in UNEXPECTED for result in self.results))


def summary_line(run: Run) -> str:
    """The last line of a run: `N passed, N failed, N skipped`. As in JUnit, a declared failure is a skipped test."""
    counts = run.counts()
    passed, skipped = counts["PASS"] + counts["FLAKY"], counts["SKIP"] + counts["XFAIL"]
    return f"{passed} passed, {len(run.results) - passed - skipped} failed, {skipped} skipped"


def file_name(target: str) -> str:
    """A target's name as a file name: letters, digits, dot, dash and underscore only."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", target).strip("-") or "target"


# --- JSON ------------------------------------------------------------------------------------------------------------

_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Result) if f.default is not dataclasses.MISSING}


def result_to_json(result: Result) -> dict[str, Any]:
    """A result as plain data; fields that hold their default are left out."""
    data: dict[str, Any] = {}
    for item in dataclasses.fields(Result):
        value = getattr(result, item.name)
        if item.name == "failures":
            value = [{k: v for k, v in vars(f).items() if v or k == "oracle"} for f in value]
        elif item.name == "fallbacks":
            value = dict(value)
        elif item.name == "seconds":
            value = round(value, 4)
        if value == _DEFAULTS.get(item.name) or value in ([], {}):
            continue
        data[item.name] = value
    return data


def result_from_json(data: Mapping[str, Any]) -> Result:
    """The inverse of `result_to_json`. Raises KeyError, TypeError or ValueError on data that is no result."""
    values = dict(data)
    values["outcome"] = Outcome(values["outcome"])
    blank = {"expected": "", "actual": ""}  # a baseline leaves them out
    values["failures"] = tuple(
        Failure(**{**blank, **f, "values": tuple(tuple(row) for row in f.get("values", ()))})
        for f in values.get("failures", ())
    )
    for name in ("op", "dtype", "variant", "layout"):
        if not isinstance(values[name], str):
            raise TypeError(f"{name} must be a string")
    return Result(**values)


def run_to_json(run: Run) -> dict[str, Any]:
    """A run as plain data, with the schema's version first."""
    head = {"schema": SCHEMA, "kind": KIND, "target": run.target, "command": run.command, "started": run.started}
    head |= {"seconds": round(run.seconds, 3), "calibration": round(run.calibration, 6)}
    head |= {"complete": run.complete, "environment": run.environment}
    head |= {"budgets": run.budgets} if run.budgets else {}
    return {**head, "notes": run.notes, "totals": dict(run.counts()), "results": list(map(result_to_json, run.results))}


def dumps(run: Run) -> str:
    """One result a line, so that two runs can be compared by any text tool."""
    data = run_to_json(run)
    results = data.pop("results")
    head = json.dumps(data, ensure_ascii=False, indent=1)[:-2]
    lines = ",\n".join(json.dumps(result, ensure_ascii=False, separators=(",", ":")) for result in results)
    return f'{head},\n "results": [\n{lines}\n]}}\n'


def run_from_json(data: Any, source: str) -> Run:
    """Plain data as a run. Raises ReportError, which names `source`, when the data is not a run of a known schema."""
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise ReportError(f"{source} is not a conformance result file; give one that conformance.opinfo_runner wrote.")
    if data.get("schema") != SCHEMA:
        raise ReportError(
            f"{source} has result schema {data.get('schema')!r} and this version reads {SCHEMA}; run again to renew it."
        )
    kinds = {"target": str, "environment": dict, "notes": list, "results": list, "budgets": dict}
    odd = [name for name, kind in kinds.items() if name in data and not isinstance(data[name], kind)]
    if odd:
        raise ReportError(f"{source} is damaged ({odd[0]!r} is no {kinds[odd[0]].__name__}).")
    results = []
    for position, item in enumerate(data.get("results", ())):
        try:
            results.append(result_from_json(item))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ReportError(f"{source}: result number {position + 1} is damaged ({error!r}).") from None
    try:
        names = [item.name for item in dataclasses.fields(Run) if item.name != "results"]
        return Run(results=results, **{name: data[name] for name in names if name in data})
    except TypeError as error:
        raise ReportError(f"{source} is damaged ({error}).") from None


def load(path: Path | str) -> Run:
    """Read a run from a .json or .json.gz file. Raises ReportError when there is none or it is damaged."""
    return run_from_json(read(path), str(path))


def read(path: Path | str) -> Any:
    """What a .json or .json.gz file holds. Raises ReportError when there is none or it is damaged."""
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


def save(run: Run, path: Path | str) -> None:
    """Write a run as .json, or .json.gz by its name, beside and then renamed. Raises ReportError."""
    data = dumps(run).encode()
    # mtime 0: the same results give the same bytes, so a tracked baseline changes only when the results do.
    write_atomic(path, gzip.compress(data, mtime=0) if Path(path).suffix == ".gz" else data)


def slim(run: Run) -> Run:
    """The run as a baseline keeps it: failures without scripts, values and pictures, seconds to the tenth."""
    keep = ("oracle", "where", "sample")
    results = [
        result.replace(
            seconds=round(result.seconds, 1),
            failures=tuple(
                Failure(**{k: getattr(f, k) for k in keep}, expected="", actual="") for f in result.failures
            ),
        )
        for result in run.results
    ]
    return dataclasses.replace(run, results=sorted(results, key=lambda result: result.id), budgets={})


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Write a whole file or none: beside it, flushed, then renamed. Raises ReportError; an old file stays untouched."""
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


_SHARD = re.compile(r"; shard (\d{1,4})/(\d{1,4})$")


def merge(runs: Iterable[Run]) -> Run:
    """Join the shards of one run; one that is missing makes the run incomplete. Raises ReportError when they are of
    different targets or a case is in two of them."""
    runs = list(runs)
    if len({run.target for run in runs}) > 1:
        raise ReportError(f"runs of different targets cannot be merged: {', '.join(sorted({r.target for r in runs}))}.")
    results: dict[str, Result] = {}
    for run in runs:
        for result in run.results:
            if result.id in results:
                raise ReportError(f"{result.id} is in two of the merged files; merge the shards of one run only.")
            results[result.id] = result
    first = runs[0]
    # What all shards together were asked for.
    whole = _SHARD.sub("", first.environment.get("selection", ""))
    found = [match for run in runs if (match := _SHARD.search(run.environment.get("selection", "")))]
    count = int(found[0][2]) if found else 0
    missing = sorted({str(i + 1) for i in range(count)} - {match[1] for match in found}, key=int)
    lost = [f"Shard {', '.join(missing)} of {count} is missing: its cases are not in this report."] if missing else []
    return dataclasses.replace(
        first,
        results=list(results.values()),
        environment={**first.environment, **({"selection": whole} if whole else {})},
        seconds=sum(run.seconds for run in runs),
        calibration=statistics.median(run.calibration for run in runs),
        complete=all(run.complete for run in runs) and not missing,
        notes=lost + list(dict.fromkeys(note for run in runs for note in run.notes)),
    )
