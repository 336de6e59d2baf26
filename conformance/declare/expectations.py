"""Declared failures of op_db cases: one entry per op glob, variant, dtypes, layouts and oracles, each with a reason.

Defines `Expectation`, `load`, `apply` and `update`, for the `[[expect]]` entries of a file, and `dumps` for a whole
file. `known_findings` handles the file's `[[finding]]` entries. An entry is a promise in both directions. A failure
that it declares is XFAIL. A case that it covers and that passes is XPASS and fails the run, so an obsolete entry cannot
stay unnoticed. Nothing here runs an op.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from conformance.declare import known_findings
from conformance.declare import profile as profiles
from conformance.declare.declared import ALL, Entry, quoted, read, reasons, twice, unexplained
from conformance.declare.known_findings import KnownFinding
from conformance.record import result as model
from conformance.record.errors import ReportError
from conformance.record.files import write_atomic
from conformance.record.names import DIFFERENTIATED, DTYPES, LAYOUTS, ORACLES, RUN_ORACLES, VARIANTS, nearest
from conformance.record.result import Outcome, Result, Run

FOLDER = Path("reports/expectations")

OP_DB = Path(__file__).parent / "nothing_to_compare.toml"
"""Declarations for every target: parts of op_db that leave nothing to compare."""
WORDS: dict[str, Sequence[str]] = {
    "variant": tuple(VARIANTS),
    "layout": tuple(LAYOUTS),
    "dtype": DTYPES,
    "oracle": (*ORACLES, *RUN_ORACLES),
}
"""The words that the lists of an entry may hold."""

_HEAD = """\
# What is known to fail on {target}, and why. Each [[expect]] covers the cases of op_db that match all of its lists, "*"
# is all; each [[finding]] the findings of drawn programs whose signature matches its globs. What is covered and passes,
# or does not show, is XPASS and fails the run. `--update-expectations` adds what fails and removes what passes; give
# each entry that it adds a reason of yours. With `samples` or `programs`, a run of fewer need not fail; an entry
# with `torch`, such as ">=2.14", declares nothing where another version is installed.
"""


@dataclass(frozen=True)
class Expectation(Entry):
    """Cases whose op matches a glob and whose other names are in the lists. `oracle` may hold "*" or "skip". With
    `samples`, a case that compared fewer samples need not fail, since the declared failure may show only in a later
    sample."""

    op: str
    variant: tuple[str, ...] = ALL
    dtype: tuple[str, ...] = ALL
    layout: tuple[str, ...] = ALL
    oracle: tuple[str, ...] = ALL
    reason: str = ""
    issue: str = ""
    samples: int = 0
    torch: str = ""
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    KIND: ClassVar = "expect"
    KEYS: ClassVar = ("op", "variant", "dtype", "layout", "oracle", "torch", "reason", "issue", "samples")
    NEEDED: ClassVar = ("op", "reason")

    def covers(self, case: Any) -> bool:
        """Whether the entry declares this result or case (any object with name, variant, dtype, layout)."""
        return self.holds and self.matches(case.name, dtype=case.dtype, variant=case.variant, layout=case.layout)

    def matches(self, op: str, **lists: str) -> bool:
        """Whether the entry covers an op of this full name with the dtype, variant and layout, if these are
        specified."""
        return fnmatch.fnmatchcase(op, self.op) and all(_within(v, getattr(self, k)) for k, v in lists.items())

    def declares(self, oracle: str) -> bool:
        return _within(oracle, self.oracle)


def _within(name: str, listed: Sequence[str]) -> bool:
    return name in listed or "*" in listed


def path_for(target: str) -> Path:
    """Return the path of a target's expectations file."""
    return FOLDER / f"{profiles.file_name(target)}.toml"


def file_of(options: Any, usual: Path) -> Path:
    """Return the file named by `--expectations`, else the usual one, which need not exist. Raises ReportError if the
    named file does not exist and `--update-expectations` is not given to create it."""
    file: Path = options.expectations or usual
    update = getattr(options, "update_expectations", False)
    if options.expectations and not file.exists() and not update:
        raise ReportError(
            f"--expectations {file}: there is no such file; correct the path, or add --update-expectations to make it."
        )
    return file


def load(path: Path | str) -> list[Expectation]:
    """Read the `[[expect]]` entries of a file; none if there is no file. Raises ReportError with the file and the line,
    also for a mistake in the other entries."""
    return _load(path)[0]


def findings(path: Path | str) -> list[KnownFinding]:
    """Read the `[[finding]]` entries of a file, with the same errors."""
    return _load(path)[1]


def _load(path: Path | str) -> tuple[list[Expectation], list[KnownFinding]]:
    cases, known = read(path, (Expectation, KnownFinding))
    for one in known:
        one.check_due(path)
    return cases, known


def expected(path: Path | str) -> list[Expectation]:
    """Return the entries of a target's file, and the entries for every target. Raises ReportError."""
    return [*load(path), *load(OP_DB)]


def dumps(entries: Iterable[Expectation], target: str, known: Iterable[KnownFinding] = ()) -> str:
    """Return the entries of a file as TOML, sorted, so that the file changes only where entries change."""
    cases = sorted(entries, key=lambda e: (e.op, e.variant, e.dtype, e.layout, e.oracle))
    return "\n".join([_HEAD.format(target=quoted(target)), *(one.toml() for one in [*cases, *sorted(known, key=str)])])


def declare(run: Run, path: Path, reason: str = "") -> list[str]:
    """Add the failures of a run, of cases and programs, to the file, remove its passes, and return a summary. Raises
    ReportError."""
    entries, known = _load(path)
    entries, done = update(entries, run, reason) if run.cases else (entries, [])
    known, more = known_findings.update(known, run, reason) if run.drawn else (known, [])
    write_atomic(path, dumps(entries, run.title, known))
    return [*done, *more, f"{path}: {len(entries) + len(known)} entries"]


def accept(results: Iterable[Result], entries: Sequence[Expectation]) -> list[Result]:
    """Apply updated entries to results that older entries were already applied to."""
    undone = (r.replace(outcome=Outcome.PASS, reason="") if r.outcome is Outcome.XPASS else r for r in results)
    return apply(undone, entries)


def apply(results: Iterable[Result], entries: Sequence[Expectation]) -> list[Result]:
    """Return the results with declared failures as XFAIL and declared failures that passed as XPASS."""
    return [_applied(result, [entry for entry in entries if entry.covers(result)]) for result in results]


def _applied(result: Result, entries: list[Expectation]) -> Result:
    if not entries or result.outcome in (Outcome.XFAIL, Outcome.XPASS):
        return result
    seen = set(result.oracles) or ({"skip"} if result.outcome is Outcome.SKIP else set())
    undeclared = {oracle for oracle in seen if not any(entry.declares(oracle) for entry in entries)}
    unmet = [entry for entry in entries if not any(entry.declares(oracle) for oracle in seen)]
    entries = [entry for entry in entries if entry not in unmet]
    unmet = [entry for entry in unmet if result.samples + result.skipped >= entry.samples]
    if undeclared or not (unmet or entries):
        return result
    if unmet:
        return result.replace(outcome=Outcome.XPASS, reason=unmet[0].passes("it passed"))
    return result.replace(outcome=Outcome.SKIP if seen == {"skip"} else Outcome.XFAIL, reason=reasons(entries))


def update(entries: Sequence[Expectation], run: Run, reason: str) -> tuple[list[Expectation], list[str]]:
    """Return the entries with `run`'s failures added and its passes removed, and a list of the changes in words.

    A glob that covers a pass is narrowed to the cases of this run that still fail. Entries for cases outside this run
    stay as they are.
    """
    results = {result.id: result for result in run.results}
    kept: list[Expectation] = []
    done: list[str] = []
    for entry in entries:
        covered = [result for result in results.values() if entry.covers(result)]
        failing = [r for r in covered if r.outcome in model.BROKEN and any(entry.declares(o) for o in r.oracles)]
        skipped = [r for r in covered if r.outcome is Outcome.SKIP and entry.declares("skip")]
        short = [r for r in covered if r.outcome is Outcome.PASS and r.samples + r.skipped < entry.samples]
        if len(failing) + len(skipped) + len(short) == len(covered):
            kept.append(entry)
            continue
        done.append(f"removed: {entry.op} ({', '.join(entry.oracle)}), which no longer fails everywhere it says")
        for result in failing:
            oracles = tuple(o for o in result.oracles if entry.declares(o))
            kept.append(replace(_for(result, oracles, entry.reason), issue=entry.issue, torch=entry.torch))
    for result in results.values():
        if result.outcome not in model.BROKEN or (result.layer and result.outcome is Outcome.XFAIL):
            continue
        oracles = tuple(o for o in result.oracles if not any(e.covers(result) and e.declares(o) for e in kept))
        if oracles:
            kept.append(_for(result, oracles, reason or unexplained(result)))
            done.append(f"added: {result.id} ({', '.join(oracles)})")
    return _grouped(kept), done


def _for(result: Result, oracles: tuple[str, ...], reason: str) -> Expectation:
    # Kernels are counted over all samples, and another mismatch may not be in the first.
    compared = result.samples + result.skipped
    first = [compared if f.oracle == "kernels" else f.sample + 1 for f in result.failures if f.oracle in oracles]
    least = min(first, default=0)
    names = (result.variant,), (result.dtype,), (result.layout,)
    return Expectation(result.name, *names, oracles, reason, samples=least if 1 < least <= compared else 0)


def _grouped(entries: Iterable[Expectation]) -> list[Expectation]:
    """Join entries that differ in one list only: first by dtype, then by layout."""
    result = list(dict.fromkeys(entries))
    for name in ("dtype", "layout"):
        groups: dict[Expectation, list[Expectation]] = {}
        for entry in result:
            alike: dict[str, Any] = {name: (), "samples": 0}
            groups.setdefault(replace(entry, **alike), []).append(entry)
        result = []
        for key, group in groups.items():
            listed = tuple(dict.fromkeys(item for entry in group for item in getattr(entry, name)))
            joined: dict[str, Any] = {name: listed, "samples": max(entry.samples for entry in group)}
            result.append(replace(key, **joined))
    return result


def check(
    entries: Sequence[Expectation], ops: Iterable[str], path: Path, words: Mapping[str, Sequence[str]] = WORDS
) -> list[str]:
    """Return the mistakes in the entries, one sentence each: unknown names, and cases declared twice."""
    names = list(ops)
    problems = []
    entries = [entry for entry in entries if entry.holds]  # entries for another torch cannot be checked with this one
    for entry in entries:
        where = f"{path}, line {entry.line}"
        if not any(fnmatch.fnmatchcase(name, entry.op) for name in names):
            problems.append(f"{where}: no op matches {entry.op!r}{nearest(entry.op, names) or '.'}")
        for part, allowed in words.items():
            for word in getattr(entry, part):
                if word != "*" and word not in allowed:
                    problems.append(
                        f"{where}: entry {entry.op!r}: unknown {part} {word!r}{nearest(word, allowed) or '.'}"
                    )
    keyed = (
        (entry, key)
        for entry in entries
        for key in itertools.product((entry.op,), entry.variant, entry.dtype, entry.layout, entry.oracle)
    )
    return [*problems, *twice(keyed, path)]


def without_cases(entries: Sequence[Expectation], catalog: Sequence[Any], path: Path) -> list[str]:
    """Return one sentence for each entry whose names exist but which covers no case of op_db. An op may have lost a
    dtype or a variant. `catalog` is a list of the planner's entries."""
    problems = []
    for entry in (entry for entry in entries if entry.holds):
        ops = [op for op in catalog if fnmatch.fnmatchcase(op.name, entry.op)]
        if ops and not any(_has_case(op, entry) for op in ops):
            what = " ".join(",".join(getattr(entry, part)) for part in ("variant", "dtype"))
            problems.append(f"{path}, line {entry.line}: {entry.op!r} has no case {what} in op_db; take the entry out.")
    return problems


def _has_case(op: Any, entry: Expectation) -> bool:
    for variant in op.variants if "*" in entry.variant else op.variants.intersection(entry.variant):
        # Error inputs choose their own dtypes, so a run names them by the requested dtype, whatever it is.
        dtypes = op.backward_dtypes if variant in DIFFERENTIATED else op.dtypes
        if variant == "error_inputs" or "*" in entry.dtype or dtypes.intersection(entry.dtype):
            return True
    return False
