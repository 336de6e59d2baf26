"""What is known to fail, strictly: one entry per op glob, variant, dtypes, layouts and oracles, each with a reason.

Defines `Expectation`, `load`, `apply` and `update`, for the `[[expect]]` entries of a file, and `dumps` of a whole
file; its `[[finding]]` entries are those of `known_findings`. The key insight: an entry is a promise in both
directions. A failure that it declares is XFAIL; a case that it covers and that passes is XPASS and fails the run, so
that the file can only shrink knowingly. Nothing here runs an op.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.core import known_findings, toml_tables
from conformance.core import result as model
from conformance.core.known_findings import KnownFinding
from conformance.core.names import DIFFERENTIATED
from conformance.core.result import UNEXPLAINED, Outcome, Result, Run
from conformance.core.toml_tables import Table, quoted

FOLDER = Path("reports/expectations")

OP_DB = Path(__file__).parent.parent / "opinfo" / "nothing_to_compare.toml"
"""What op_db itself leaves nothing to compare in, for any target."""
KEYS = ("op", "variant", "dtype", "layout", "oracle", "reason", "issue", "samples")
_HEAD = """\
# What is known to fail on {target}, and why. Each [[expect]] covers the cases of op_db that match all of its lists, "*"
# is all; each [[finding]] the findings of drawn programs whose signature matches its globs. What is covered and passes,
# or does not show, is XPASS and fails the run. `--update-expectations` adds what fails and removes what passes; give
# each entry that it adds a reason of yours. With `samples` or `programs`, a run of fewer need not fail.
"""


@dataclass(frozen=True)
class Expectation:
    """Cases whose op matches a glob and whose other names are in the lists; `oracle` may hold "*" or "skip". With
    `samples`, a case that compared fewer need not fail: what is declared may show in a later sample only."""

    op: str
    variant: tuple[str, ...]
    dtype: tuple[str, ...]
    layout: tuple[str, ...]
    oracle: tuple[str, ...]
    reason: str
    issue: str = ""
    samples: int = 0
    line: int = field(default=0, compare=False)

    def covers(self, case: Any) -> bool:
        """Whether a result or case (anything with name, variant, dtype, layout) is among those declared."""
        return (
            fnmatch.fnmatchcase(case.name, self.op)
            and _within(case.variant, self.variant)
            and _within(case.dtype, self.dtype)
            and _within(case.layout, self.layout)
        )

    def declares(self, oracle: str) -> bool:
        return _within(oracle, self.oracle)


def _within(name: str, listed: Sequence[str]) -> bool:
    return name in listed or "*" in listed


def path_for(target: str) -> Path:
    """Where a target's expectations are kept."""
    return FOLDER / f"{model.file_name(target)}.toml"


def load(path: Path | str) -> list[Expectation]:
    """The `[[expect]]` entries of a file; none when there is no file. Raises ReportError, which names the file and the
    line, also for a mistake in the other entries."""
    return _load(path)[0]


def findings(path: Path | str) -> list[KnownFinding]:
    """The `[[finding]]` entries of a file, likewise."""
    return _load(path)[1]


def _load(path: Path | str) -> tuple[list[Expectation], list[KnownFinding]]:
    tables = toml_tables.read(path, {"expect": KEYS, "finding": known_findings.KEYS})
    return list(map(_entry, tables["expect"])), list(map(known_findings.entry, tables["finding"]))


def expected(path: Path | str) -> list[Expectation]:
    """The entries of a target's file, and those that hold for every target. Raises ReportError."""
    return [*load(path), *load(OP_DB)]


def _entry(table: Table) -> Expectation:
    needed = [table.needed(name) for name in ("op", "reason")]
    variant, dtype, layout, oracle = (table.names(name) for name in ("variant", "dtype", "layout", "oracle"))
    more: dict[str, Any] = {"issue": table.text("issue"), "samples": table.number("samples"), "line": table.line}
    return Expectation(needed[0], variant, dtype, layout, oracle, needed[1], **more)


def declared_for(name: str, rest: Sequence[str], entries: Iterable[Expectation]) -> list[Expectation]:
    """The entries for an op's full name and, as far as they are given, its dtype, variant and layout."""
    given = dict(zip(("dtype", "variant", "layout"), rest, strict=False))
    return [
        entry
        for entry in entries
        if fnmatch.fnmatchcase(name, entry.op) and all(_within(v, getattr(entry, k)) for k, v in given.items())
    ]


def dumps(entries: Iterable[Expectation], target: str, known: Iterable[KnownFinding] = ()) -> str:
    """The entries of a file as TOML, sorted, so that the file changes only where they do."""
    blocks = [_HEAD.format(target=quoted(target))]
    for entry in sorted(entries, key=lambda e: (e.op, e.variant, e.dtype, e.layout, e.oracle)):
        lines = ["[[expect]]", f"op = {quoted(entry.op)}"]
        for name in ("variant", "dtype", "layout", "oracle"):
            if getattr(entry, name) != ("*",):
                lines.append(f"{name} = [{', '.join(map(quoted, getattr(entry, name)))}]")
        lines.append(f"reason = {quoted(entry.reason)}")
        if entry.issue:
            lines.append(f"issue = {quoted(entry.issue)}")
        if entry.samples:
            lines.append(f"samples = {entry.samples}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join([*blocks, *map(known_findings.block, sorted(known, key=str))])


def accept(results: Iterable[Result], entries: Sequence[Expectation]) -> list[Result]:
    """Results to which older entries were applied, by entries that were updated from them."""
    undone = (r.replace(outcome=Outcome.PASS, reason="") if r.outcome is Outcome.XPASS else r for r in results)
    return apply(undone, entries)


def apply(results: Iterable[Result], entries: Sequence[Expectation]) -> list[Result]:
    """The results with declared failures as XFAIL and declared failures that passed as XPASS."""
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
        return result.replace(outcome=Outcome.XPASS, reason=f"declared to fail, but passed: {unmet[0].reason}")
    reason = "; ".join(dict.fromkeys(f"{e.reason} {e.issue}".strip() for e in entries))
    return result.replace(outcome=Outcome.SKIP if seen == {"skip"} else Outcome.XFAIL, reason=reason)


def update(entries: Sequence[Expectation], run: Run, reason: str) -> tuple[list[Expectation], list[str]]:
    """The entries with `run`'s failures added and its passes taken out, and what was done in words.

    A glob that covers a pass is narrowed to the cases of this run that still fail; entries for cases that the run did
    not contain stay as they are.
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
            kept.append(replace(_for(result, oracles, entry.reason), issue=entry.issue))
    for result in results.values():
        if result.outcome not in model.BROKEN:
            continue
        oracles = tuple(o for o in result.oracles if not any(e.covers(result) and e.declares(o) for e in kept))
        if oracles:
            kept.append(_for(result, oracles, reason or _first_words(result)))
            done.append(f"added: {result.id} ({', '.join(oracles)})")
    return _grouped(kept), done


def _for(result: Result, oracles: tuple[str, ...], reason: str) -> Expectation:
    # Kernels are counted over all samples, and another mismatch may not be in the first.
    compared = result.samples + result.skipped
    first = [compared if f.oracle == "kernels" else f.sample + 1 for f in result.failures if f.oracle in oracles]
    least = min(first, default=0)
    names = (result.variant,), (result.dtype,), (result.layout,)
    return Expectation(result.name, *names, oracles, reason, samples=least if 1 < least <= compared else 0)


def _first_words(result: Result) -> str:
    failure = result.failures[0]
    text = failure.detail or f"expected {failure.expected}, got {failure.actual}"
    return f"{UNEXPLAINED}{failure.oracle} of {failure.where}: {text}"[:200]


def _grouped(entries: Iterable[Expectation]) -> list[Expectation]:
    """Entries that differ in one list only become one entry: first by dtype, then by layout."""
    result = list(dict.fromkeys(entries))
    for name in ("dtype", "layout"):
        groups: dict[Expectation, list[str]] = {}
        most: dict[Expectation, int] = {}
        for entry in result:
            key = replace(_with(entry, name, ()), samples=0)
            listed = groups.setdefault(key, [])
            listed.extend(item for item in getattr(entry, name) if item not in listed)
            most[key] = max(entry.samples, most.get(key, 0))
        result = [replace(_with(key, name, tuple(value)), samples=most[key]) for key, value in groups.items()]
    return result


def _with(entry: Expectation, name: str, listed: tuple[str, ...]) -> Expectation:
    changes: dict[str, Any] = {name: listed}
    return replace(entry, **changes)


def check(entries: Sequence[Expectation], ops: Iterable[str], known: dict[str, Sequence[str]], path: Path) -> list[str]:
    """What is wrong with the entries, one sentence each: names that nothing has, and the same case declared twice."""
    from conformance.core.names import nearest

    names = list(ops)
    problems = []
    for entry in entries:
        where = f"{path}, line {entry.line}"
        if not any(fnmatch.fnmatchcase(name, entry.op) for name in names):
            problems.append(f"{where}: no op matches {entry.op!r}{nearest(entry.op, names)}.")
        for part, allowed in known.items():
            for word in getattr(entry, part):
                if word != "*" and word not in allowed:
                    problems.append(f"{where}: entry {entry.op!r}: unknown {part} {word!r}{nearest(word, allowed)}.")
    seen: dict[tuple[Any, ...], Expectation] = {}
    for entry in entries:
        for key in (
            (entry.op, v, d, la, o)
            for v in entry.variant
            for d in entry.dtype
            for la in entry.layout
            for o in entry.oracle
        ):
            if key in seen:
                problems.append(f"{path}, line {entry.line}: {' '.join(key)} is declared twice.")
            seen[key] = entry
    return problems


def without_cases(entries: Sequence[Expectation], catalog: Sequence[Any], path: Path) -> list[str]:
    """One sentence for each entry whose names exist, but which covers no case of op_db (a list of the planner's
    entries): an op that lost a dtype or a variant."""
    problems = []
    for entry in entries:
        ops = [op for op in catalog if fnmatch.fnmatchcase(op.name, entry.op)]
        if ops and not any(_has_case(op, entry) for op in ops):
            what = " ".join(",".join(getattr(entry, part)) for part in ("variant", "dtype"))
            problems.append(f"{path}, line {entry.line}: {entry.op!r} has no case {what} in op_db; take the entry out.")
    return problems


def _has_case(op: Any, entry: Expectation) -> bool:
    for variant in op.variants if "*" in entry.variant else op.variants.intersection(entry.variant):
        # Error inputs choose their dtypes themselves, so a run names them by whatever dtype it was asked for.
        dtypes = op.backward_dtypes if variant in DIFFERENTIATED else op.dtypes
        if variant == "error_inputs" or "*" in entry.dtype or dtypes.intersection(entry.dtype):
            return True
    return False
