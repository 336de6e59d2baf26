"""The result model: results of op_db cases and of drawn programs in one form, and their JSON files.

Defines `Outcome`, `Failure`, `Result` (one op case, or one distinct finding of programs) and `Run` (all results of one
target). Also defines the exit rule, the order of findings, and a versioned JSON form. A result records how much was
*compared*, so "nothing was compared" can never look like a pass. This module must not import torch. It neither produces
results nor displays them.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from conformance.record import simple_values
from conformance.record.accuracy import ACCURACY, Accuracy
from conformance.record.error_text import text_of
from conformance.record.errors import ReportError
from conformance.record.files import read, write_atomic
from conformance.record.finding import MOVE, Finding, answers, property_of, severity_of, shown_by
from conformance.record.footprint import SIZES, Footprint
from conformance.record.measurements import UNMEASURED, Measure, Measurements, total
from conformance.record.missing_ops import MissingOperator
from conformance.record.models import ModelRow
from conformance.record.names import (
    MEASURED,
    MODULES,
    MUTANTS,
    NOT_COMPARED,
    OPERATOR,
    REPROS,
    TORCH_CPU,
    TRACE,
    UPSTREAM,
    without_features,
)
from conformance.record.program_stats import ProgramStats
from conformance.record.repro import Repro
from conformance.record.shortfall import Shortfall, describe

SCHEMA = 5
KIND, FORMER_KINDS = "conformance", ("conformance.opinfo", "fuzz")
TABLES = (ACCURACY, SIZES, MUTANTS, OPERATOR, TRACE, REPROS, MODULES, UPSTREAM)
"""The commands whose cases come from a table; each is the layout of its cases."""
SHOWS = "shows its headline"
"""Value of `alone` for a script that shows the result's headline when run in a fresh process."""
NOT_RUN = "script not run"
"""First words of `alone` for a script that was not run. A reason may follow."""
WITHOUT_BACKEND = "also fails without your backend"
"""Heading of the findings that fail in the same way on PyTorch's own compiler backends."""
LONGEST_TEXT = 2_000
"""Limit in characters on an exception's text and on printed values in a failure."""
UNEXPLAINED = "not yet explained: "
"""Prefix of the reason that a command writes into a new entry. The user replaces it with a real reason."""


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


# Outcomes that fail a run.
UNEXPECTED = frozenset({Outcome.CRASH, Outcome.TIMEOUT, Outcome.FAIL, Outcome.XPASS, Outcome.FLAKY})
# Outcomes that a rerun may show to be flaky.
RERUN = UNEXPECTED - {Outcome.XPASS, Outcome.FLAKY}
# Outcomes of a target that differs from torch CPU, with or without a declaration.
BROKEN = frozenset({Outcome.CRASH, Outcome.TIMEOUT, Outcome.FAIL, Outcome.XFAIL})


@dataclass(frozen=True)
class Failure:
    """The first mismatch that one oracle found in one case, with all data needed to display it.

    `values` holds rows (index, expected, actual, differs) of the compared tensor around the first difference; `layouts`
    maps "expected" and "actual" to (size, stride, storage_offset, storage elements). `cut` says that a limit of time
    ended the search for a smaller script. `culprit` is that of its smallest program (`finding.Finding.culprit`), and
    `cause` the check of an operator whose difference explains this one.
    """

    oracle: str
    where: str = ""
    expected: str = ""
    actual: str = ""
    detail: str = ""
    sample: int = 0
    call: str = ""
    script: str = ""
    values: tuple[tuple[str, str, str, bool], ...] = ()
    layouts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cut: bool = False
    culprit: str = ""
    cause: str = ""

    @classmethod
    def of(cls, value: Any, **more: Any) -> Failure:
        """Return a mismatch as a failure, with its texts cut to `LONGEST_TEXT` characters. `more` replaces fields."""
        texts = {name: getattr(value, name)[:LONGEST_TEXT] for name in ("where", "expected", "actual", "detail")}
        return cls(**{"oracle": value.oracle, **texts, **more})

    @classmethod
    def of_harness(cls, error: Exception | None) -> Failure:
        """Return the failure that an error of the harness itself is."""
        text = f"{type(error).__name__}: {text_of(error) if error else error}"[:LONGEST_TEXT]
        return cls("harness", "the harness itself", "no error", text)

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.oracle} of {self.where}: expected {self.expected}, got {self.actual}{detail}"


class Named:
    """Mixin for a case with an op, overload, dtype, variant and layout: gives it a name and an id. `call` is its call
    as Python source, if it has one."""

    op: str
    overload: str
    dtype: str
    variant: str
    layout: str
    call: str

    @cached_property
    def name(self) -> str:
        """The OpInfo's full name, e.g. `linalg.pinv.hermitian`."""
        return f"{self.op}.{self.overload}" if self.overload else self.op

    @cached_property
    def id(self) -> str:
        """Id that is unique within a run: `add::float32::forward::as_sampled` for a case, `program::CAUSE` for a
        finding."""
        finding = getattr(self, "finding", None)
        if finding is not None:
            return f"program::{finding.title()}"
        return f"{self.name}::{self.dtype}::{self.variant}::{self.layout}"

    def result(self, outcome: Outcome, **rest: Any) -> Result:
        """Return a result of this case."""
        return Result(
            self.op, self.dtype, self.variant, self.layout, outcome, self.overload, getattr(self, "family", ""), **rest
        )


@dataclass(frozen=True, slots=True)
class Result(Named):
    """One op case, or one distinct finding of drawn programs.

    A case is an OpInfo with one dtype, variant and input layout, over all its samples. A result with a `finding` has
    the variant "program", the op of the first wrong step, the layout class of its operands, and no dtype.

    `samples` counts the samples that at least one oracle compared, `skipped` the other samples, and `late` the samples
    that a limit of time kept from being compared. `arbitrated` counts the samples that pass only by arbitration in
    float64: the target differs from torch CPU by more than the tolerance, but agrees with the float64 answer and is no
    further from it than torch CPU. `tolerated` counts those that pass only by a tolerance of the target's profile.

    `measurements` are the target's counts for these samples, in the measures of the run.

    `accuracy` holds the measured errors of the answer with the largest error, and `footprint` the measured memory and
    time; each is None if it was not measured. `repro` is the known bug that the case tries. `alone` says whether the
    script of `scripted` shows its headline in a fresh process: SHOWS, or NOT_RUN, or the reason why not; empty if the
    result has no script. `layer` is the target without the backend under test that fails in the same way; empty if
    there is none. `declared` is the file and line of the declarations that cover the result; empty if none does.
    `also_on` gives what the script does under other interpreters, by their torch version, in the words of `alone`.
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
    tolerated: int = 0
    failed: int = 0
    reason: str = ""
    failures: tuple[Failure, ...] = ()
    measurements: Measurements = UNMEASURED
    seconds: float = 0.0
    finding: Finding | None = None
    accuracy: Accuracy | None = None
    footprint: Footprint | None = None
    repro: Repro | None = None
    alone: str = ""
    layer: str = ""
    declared: str = ""
    also_on: Mapping[str, str] = field(default_factory=dict)
    late: int = 0

    @property
    def scripted(self) -> Failure | None:
        """The first failure with a script: the script that is run before the result is listed."""
        return next((failure for failure in self.failures if failure.script), None)

    @property
    def script_mark(self) -> str:
        """The mark of a script that does not show the headline or was not run; empty for any other result."""
        return mark_of(self.alone)

    @property
    def script_rank(self) -> int:
        """Rank of the result by its script: 0 if it shows the headline or there is none, 1 if it was not run, 2 if it
        does not show the headline."""
        return 0 if not self.script_mark else 1 if self.alone.startswith(NOT_RUN) else 2

    @property
    def remark(self) -> str:
        """The reason, the mark of the script, and the other torch versions that show the result or do not."""
        versions = (f"{version}: {ending}" for version, ending in self.also_on.items())
        return "; ".join(filter(None, (self.reason, self.script_mark, *versions)))

    def without_backend(self, layer: str, fails: bool) -> Result:
        """Return this failure, which also occurs in the same way on `layer`, as PyTorch's own. The outcome becomes
        XFAIL, unless such a failure `fails` the run."""
        outcome = self.outcome if fails else Outcome.XFAIL
        return self.replace(layer=layer, outcome=outcome, reason=f"{WITHOUT_BACKEND}, on {layer}")

    def fails_as(self, other: Result) -> bool:
        """Whether the case fails in the same way in both runs: the same outcome, the same number of failed samples, and
        the same answers in the first sample of each oracle."""
        compared = self.failures and not {NOT_COMPARED, "harness"} & {*self.oracles}
        same = (self.outcome, self.failed) == (other.outcome, other.failed)
        return bool(compared) and same and answers(self.failures) == answers(other.failures)

    @property
    def oracles(self) -> tuple[str, ...]:
        """The oracles that found a mismatch, in the order of their first mismatch."""
        return tuple(dict.fromkeys(f.oracle for f in self.failures))

    @property
    def wrong(self) -> list[tuple[str, Failure]]:
        """The property that each failure shows to be wrong, with the failure. Each tensor of a module's state covers
        its storage, so wrong memory of a buffer is a wrong value, and no write outside of it."""
        own = self.layout == MODULES
        return [("value" if own and one.oracle == "storage" else shown_by(one), one) for one in self.failures]

    @property
    def only_measured(self) -> bool:
        """Whether the only differences are declared counts above their bounds."""
        return self.outcome is Outcome.XFAIL and {*self.oracles} <= {*MEASURED}

    def replace(self, **changes: Any) -> Result:
        return dataclasses.replace(self, **changes)

    def flaky(self) -> Result:
        """Return this failure as FLAKY, after a rerun has passed."""
        reason = f"{self.outcome} at first, PASS when run again"
        return self.replace(outcome=Outcome.FLAKY, reason=reason)


def mark_of(alone: str) -> str:
    """Return the mark of a script with this verdict, the value of `Result.alone`; empty if the script shows its
    headline."""
    if alone in ("", SHOWS) or alone.startswith(NOT_RUN):
        return alone.removeprefix(SHOWS)
    return f"does not reproduce alone: {alone}"


def severity(result: Result) -> tuple[bool, int, int, int, str]:
    """Sort key of findings: the order of `finding.SEVERITY`, then the most programs first. Findings of PyTorch itself
    come after the others. In each of these two groups, findings whose script was not run come behind the others, and
    findings whose script does not show its headline come last."""
    finding = result.finding
    seen = [wrong for wrong, _ in result.wrong]
    if result.repro is not None:
        seen = [result.repro.kind]
    elif finding and finding.property:
        seen = [finding.property]
    elif finding and finding.parts.oracle != "error":
        seen = [property_of(finding.parts.oracle, "", "")]
    ranks = [severity_of(wrong) for wrong in seen]
    rank = min(ranks, default=severity_of("")), -finding.count if finding else 0, result.id
    return bool(result.layer), result.script_rank, *rank


def exit_code(unexpected: int, compared: int, *, complete: bool = True, interrupted: int = 0) -> int:
    """The exit rule of every command. Returns 128 + N after signal N; 1 for anything unexpected (findings, FLAKY, XPASS
    and regressions) and for a run that is not `complete`: one that ended early, or that judged less than planned under
    `--strict`; 2 if nothing was compared; else 0."""
    if interrupted:
        return 128 + interrupted
    if unexpected:
        return 1
    return (0 if complete else 1) if compared else 2


def worst(codes: Iterable[int]) -> int:
    """The exit code of several parts. An interruption takes precedence over findings, and findings over "nothing
    compared"."""
    return max(codes, key=lambda code: (code > 2, code == 1, code), default=2)


@dataclass
class Run:
    """All results of one target in one run, with the environment of the run.

    `drawn` holds the totals of drawn programs. `calibration` is the median time in seconds of a fixed loop that ran
    between the cases, 0 if unknown. Times of two machines, or of an idle and a busy machine, are compared as multiples
    of it. `budgets` are the kernels and copies of whole workloads, if they were counted with the run. `expectations` is
    the file of declarations. `interrupted` is the number of the signal that ended the run. `lacking` are the operators
    that the target's profile declares lacking and that kept something from running. `target` is the spec that ran,
    which a replay runs again. `identity` is the name of the target, the same whether a profile loads it or not
    (`profile.identity`). `measures` are the measures that the target offers, `models` the outcomes of recorded models.
    `not_judged` holds what a limit kept from being judged, and `strict` says that this fails the run. `reference` names
    what the target is compared with, if it is not torch CPU.
    """

    target: str
    results: list[Result] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    started: str = ""
    seconds: float = 0.0
    calibration: float = 0.0
    complete: bool = True
    interrupted: int = 0
    notes: list[str] = field(default_factory=list)
    expectations: str = ""
    budgets: dict[str, dict[str, int]] = field(default_factory=dict)
    drawn: ProgramStats | None = None
    lacking: tuple[MissingOperator, ...] = ()
    identity: str = ""
    measures: tuple[Measure, ...] = ()
    models: tuple[ModelRow, ...] = ()
    not_judged: list[Shortfall] = field(default_factory=list)
    strict: bool = False
    reference: str = TORCH_CPU
    WRITTEN: ClassVar = ("command", "started", "seconds", "calibration", "complete", "environment")

    @property
    def title(self) -> str:
        """The name of the target, the same for all runs that belong together."""
        return self.identity or without_features(self.target)

    def counts(self) -> Counter[str]:
        """Number of results by outcome word."""
        return Counter(str(result.outcome) for result in self.results)

    @property
    def program(self) -> str:
        """The noun of the run's programs: they are drawn, recorded, or both."""
        if not self.models:
            return "drawn program"
        return "program" if self.drawn and self.drawn.families else "recorded call"

    @property
    def cases(self) -> list[Result]:
        """The results of op cases."""
        return [result for result in self.results if result.finding is None]

    @property
    def table(self) -> str:
        """The command of `TABLES` that all results come from, else ""."""
        layouts = {result.layout for result in self.results}
        return next((command for command in TABLES if layouts == {command}), "")

    @property
    def errors(self) -> list[Result]:
        """The results of cases whose errors were measured, ordered by excess over the limit, largest first."""
        measured = [(result.accuracy.excess, result) for result in self.results if result.accuracy]
        return [result for _, result in sorted(measured, key=lambda pair: (-pair[0], pair[1].id))]

    @property
    def footprints(self) -> list[Result]:
        """The results of cases whose memory was measured, ordered by excess over the limit, largest first."""
        measured = [(result.footprint.excess, result) for result in self.results if result.footprint]
        return [result for _, result in sorted(measured, key=lambda pair: (-pair[0], pair[1].id))]

    @property
    def repros(self) -> list[Result]:
        """The results of known bugs: those that the target shows before those that it cannot run, and those before the
        others; of each the worst kind of bug first."""
        ranks = {Outcome.SKIP: 1, Outcome.PASS: 2}
        known = [(ranks.get(result.outcome, 0), result.repro.rank, result) for result in self.results if result.repro]
        return [result for *_, result in sorted(known, key=lambda row: (*row[:2], row[2].id))]

    @property
    def findings(self) -> list[Result]:
        """The findings of drawn programs, worst first."""
        return sorted((result for result in self.results if result.finding), key=severity)

    @property
    def stopped_at_inputs(self) -> Result | None:
        """The finding that every program shows at the move of its inputs, or None. With such a finding, no step of any
        program ran."""
        programs = self.drawn.compared if self.drawn else 0
        all_alike = (finding for finding in self.findings if finding.finding and finding.finding.op == MOVE
                     and finding.finding.count == programs and finding.outcome in UNEXPECTED)  # fmt: skip
        return next(all_alike, None)

    @property
    def listed(self) -> list[Result]:
        """The findings that a report lists one by one, worst first. `stopped_at_inputs` is excluded: a sentence at the
        top reports it."""
        stopped = self.stopped_at_inputs
        return [result for result in self.findings if result is not stopped]

    @property
    def failing_programs(self) -> int:
        """Number of programs with a difference that is not declared."""
        if self.drawn is not None and self.drawn.failing is not None:
            return self.drawn.failing
        counts = (result.finding.count for result in self.results if result.finding and result.outcome in UNEXPECTED)
        return sum(counts)

    @property
    def known_programs(self) -> int:
        """Number of programs with declared differences only."""
        if self.drawn is not None and self.drawn.known is not None:
            return self.drawn.known
        return sum(
            result.finding.count for result in self.results if result.finding and result.outcome is Outcome.XFAIL
        )

    @property
    def unexpected(self) -> list[Result]:
        """The results that fail the run, worst first."""
        return sorted((result for result in self.results if result.outcome in UNEXPECTED), key=severity)

    @property
    def compared(self) -> int:
        """Number of samples that at least one oracle compared, over all results."""
        return sum(result.samples for result in self.results)

    @property
    def arbitrated(self) -> int:
        """Number of samples that pass by arbitration in float64, over all results."""
        return sum(result.arbitrated for result in self.results)

    @property
    def tolerated(self) -> int:
        """Number of samples that pass only by a tolerance of the target's profile, over all results."""
        return sum(result.tolerated for result in self.results)

    @property
    def shortfall(self) -> str:
        """The sentence about what was not judged; "" if all was."""
        return describe(self.not_judged, self.strict)

    def falls_short_of(self, what: str) -> bool:
        """Whether a limit kept some of `what`, a name in `record.shortfall`, from being judged."""
        return any(row.what == what for row in self.not_judged)

    @property
    def measured(self) -> Measurements:
        """The measurements of all results together."""
        return total(result.measurements for result in self.results)

    def exit_code(self, regressions: int = 0) -> int:
        """Return the exit code by the exit rule, with this number of regressions since the baseline."""
        compared = self.compared + (self.drawn.compared if self.drawn else 0)
        unexpected = len(self.unexpected) + regressions
        complete = self.complete and not (self.strict and self.not_judged)
        return exit_code(unexpected, compared, complete=complete, interrupted=self.interrupted)


def summary_line(run: Run, regressions: int = 0) -> str:
    """The last line of a run: `N passed, N failed, N skipped`, over cases and drawn programs, and the regressions since
    the baseline, if there are any. Known failures are not counted here; `report.summary` has a line for them."""
    tests = Counter(str(result.outcome) for result in run.cases)
    failed, passed, skipped = sum(tests[str(word)] for word in UNEXPECTED), tests["PASS"], tests["SKIP"]
    # A declared finding that did not show is a failure without a program.
    failed += sum(result.outcome in UNEXPECTED and not result.finding.count for result in run.results if result.finding)
    failed += run.failing_programs
    if run.drawn:
        # Of an interrupted run, findings of shards that did not end are there, and their programs are not counted.
        passed += max(run.drawn.compared - run.failing_programs - run.known_programs, 0)
        skipped += run.drawn.programs - run.drawn.compared
    changed = f", {counted(regressions, 'regression')} since the baseline" if regressions else ""
    return f"{passed} passed, {failed} failed, {skipped} skipped{changed}"


def counted(number: int, noun: str) -> str:
    """A number and its noun: `1 program`, `2 programs`, `2 entries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


HEAD = (*("target", "identity", "command", "started", "seconds", "calibration", "complete", "environment"),
        *("interrupted", "expectations", "budgets", "drawn", "lacking", "measures", "models",
          "not_judged", "strict", "reference"))  # fmt: skip
"""The fields of a run that a file holds before its notes and results."""


def result_to_json(result: Result) -> dict[str, Any]:
    """Convert a result to plain data. Fields with their default value are omitted."""
    data: dict[str, Any] = simple_values.dump(result.replace(seconds=round(result.seconds, 4)))
    return data


def result_from_json(data: Any) -> Result:
    """The inverse of `result_to_json`. Raises KeyError, TypeError or ValueError if the data is not a result."""
    result: Result = simple_values.load(Result, data)
    return result


def run_to_json(run: Run) -> dict[str, Any]:
    """Convert a run to plain data, with the schema's version first."""
    seconds, calibration = round(run.seconds, 3), round(run.calibration, 6)
    data = simple_values.dump(dataclasses.replace(run, results=[], seconds=seconds, calibration=calibration))
    head = {"schema": SCHEMA, "kind": KIND, **{name: data[name] for name in HEAD if name in data}}
    return {**head, "notes": run.notes, "totals": dict(run.counts()), "results": list(map(result_to_json, run.results))}


def dumps(run: Run) -> str:
    """Serialize a run with one result a line, so that any text tool can compare two runs."""
    data = run_to_json(run)
    results = data.pop("results")
    head = json.dumps(data, ensure_ascii=False, indent=1)[:-2]
    lines = ",\n".join(json.dumps(result, ensure_ascii=False, separators=(",", ":")) for result in results)
    return f'{head},\n "results": [\n{lines}\n]}}\n'


def run_from_json(data: Any, source: str) -> Run:
    """Convert plain data to a run. Raises ReportError, which names `source`, if the data is not a run of a known
    schema."""
    kind, schema = (data.get("kind"), data.get("schema")) if isinstance(data, dict) else (None, None)
    if kind not in (KIND, *FORMER_KINDS) or (kind != KIND and schema is None):
        raise ReportError(f"{source} is not a conformance result file; give an opinfo.json or a fuzz.json.")
    if (kind, schema) != (KIND, SCHEMA):
        of = "" if kind == KIND else f" of the former kind {kind!r}"
        raise ReportError(
            f"{source} has result schema {schema!r}{of} and this version reads {SCHEMA}; run again to renew it."
        )
    known = {field.name for field in dataclasses.fields(Run)} & data.keys()
    results, held = [], data.get("results", [])
    for position, item in enumerate(held if isinstance(held, list) else ()):
        try:
            results.append(result_from_json(item))
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{source}: result number {position + 1} is damaged ({error!r}).") from None
    try:
        run: Run = simple_values.load(Run, {**{name: data[name] for name in known}, "results": [] if results else held})
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{source} is damaged ({str(error)[:200]}).") from None
    return dataclasses.replace(run, results=results)


def load(path: Path | str) -> Run:
    """Read a run from a .json or .json.gz file. Raises ReportError if the file is missing or damaged."""
    return run_from_json(read(path), str(path))


def save(run: Run, path: Path | str) -> None:
    """Write a run as .json, or as .json.gz if the path ends so, to a temporary file that is then renamed. Raises
    ReportError."""
    data = dumps(run).encode()
    # mtime 0: the same results give the same bytes, so a tracked baseline changes only when the results do.
    write_atomic(path, gzip.compress(data, mtime=0) if Path(path).suffix == ".gz" else data)


def slim(run: Run) -> Run:
    """Reduce a run to the form of a baseline: failures without scripts, values and pictures, seconds rounded to tenths,
    no `budgets`."""
    results = [
        result.replace(
            seconds=round(result.seconds, 1),
            failures=tuple(Failure(f.oracle, f.where, sample=f.sample) for f in result.failures),
        )
        for result in run.results
    ]
    return dataclasses.replace(run, results=sorted(results, key=lambda result: result.id), budgets={})
