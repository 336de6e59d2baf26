"""Declared findings of drawn programs: the `[[finding]]` entries of an expectations file.

Defines `KnownFinding`, `apply`, `update` and `check`. Entries are strict in both directions. A declared finding is
XFAIL. If a campaign draws the programs that an entry names and shows no finding of it, the entry is XPASS. This module
does not run programs.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from conformance.declare.declared import Entry, reasons, twice, unexplained
from conformance.record.errors import ReportError
from conformance.record.names import nearest
from conformance.record.patterns import NOT_ONE_BUG, NOT_SHRUNK
from conformance.record.result import RERUN, Finding, Outcome, Result, Run

PARTS = ("property", "op", "pattern", "oracle", "step", "layout", "error", "kind", "first_wrong_step")
"""The parts of a finding that an entry matches, each by a glob."""
TOGETHER = 3
"""Least number of operators with one pattern for which `update` writes one entry."""
KINDS = ("FAIL", "FLAKY", "CRASH", "TIMEOUT", "MEMORY")


@dataclass(frozen=True)
class KnownFinding(Entry):
    """A declaration of findings by globs. One signature of a finding must match all of them.

    `property` and `op` match the cause, `pattern` the form that one bug has in many operators. `oracle`, `step`,
    `layout` and `error` (type and text) match parts of a signature. `kind` matches the kind of failure, and
    `first_wrong_step` the op of that step, which a signature may omit.

    The finding must show in each campaign of at least `programs` programs with this `seed` (any seed if it is None) and
    these `options`. An entry with `program`, a glob, covers saved programs of that name only, and must show in each run
    of them."""

    reason: str
    property: str = "*"
    op: str = "*"
    pattern: str = "*"
    oracle: str = "*"
    step: str = "*"
    layout: str = "*"
    error: str = "*"
    kind: str = "*"
    first_wrong_step: str = "*"
    program: str = ""
    programs: int = 0
    seed: int | None = None
    options: str = ""
    issue: str = ""
    torch: str = ""
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    KIND: ClassVar = "finding"
    KEYS: ClassVar = (*PARTS, "program", "programs", "seed", "options", "torch", "reason", "issue")
    NEEDED: ClassVar = ("reason",)

    def covers(self, finding: Finding) -> bool:
        """Whether the entry declares this finding. A fault of the harness is never declared."""
        named = any(fnmatch.fnmatchcase(name, self.program) for name in finding.saved)
        return self.holds and finding.kind in KINDS and (named or not self.program) and self.describes(finding)

    def describes(self, finding: Finding) -> bool:
        """Whether the cause and the parts of one of the finding's signatures match, whichever program showed it."""
        return any(
            all(fnmatch.fnmatchcase(getattr(seen, part), getattr(self, part)) for part in PARTS)
            for seen in finding.seen_as()
        )

    def due(self, run: Run) -> bool:
        """Whether the run must show a finding of this entry."""
        drawn = run.drawn
        if not self.holds or drawn is None or not run.complete or "; shard " in run.environment.get("selection", ""):
            return False
        if self.program:
            return any(fnmatch.fnmatchcase(name, self.program) for name in drawn.corpus)
        enough = drawn.programs - len(drawn.corpus) >= self.programs and drawn.options == self.options
        return enough and bool(drawn.seeds) and self.seed in (None, *drawn.seeds)

    def check_due(self, path: Path | str) -> None:
        """Raise ReportError if the entry does not say when it must show."""
        if not self.program and not self.programs:
            raise ReportError(
                f"{path}, line {self.line}: a finding needs 'programs', the least number of programs of a campaign "
                "from which on it must show, or 'program', the name of a saved program."
            )

    def __str__(self) -> str:
        return " / ".join(part for name in PARTS if (part := getattr(self, name)) != "*") or "*"


def apply(run: Run, entries: Sequence[KnownFinding], file: Path | str) -> Run:
    """The run with declared findings as XFAIL, and with an XPASS for each entry that must show and matched nothing."""
    results, met = [], set()
    for result in run.results:
        found = [known for known in entries if result.finding and known.covers(result.finding)]
        met.update(found)
        if found:
            result = result.replace(outcome=Outcome.XFAIL, reason=reasons(found), layer="")
        results.append(result)
    unmet = [known for known in entries if known not in met and known.due(run)]
    changes = {"expectations": str(file)} if met or unmet else {}
    return dataclasses.replace(run, results=[*results, *map(_unmet, unmet)], **changes)  # type: ignore[arg-type]


def _unmet(known: KnownFinding) -> Result:
    parts = {name: getattr(known, name) for name in PARTS}
    finding = Finding(f"declared: {known}", **{**parts, "kind": "XPASS", "property": "", "op": ""}, count=0)
    reason = known.passes("no program showed it")
    return Result(known.step, "", "program", known.layout, Outcome.XPASS, reason=reason, finding=finding)


def update(entries: Sequence[KnownFinding], run: Run, reason: str = "") -> tuple[list[KnownFinding], list[str]]:
    """Add the run's findings to the entries, and remove entries whose finding did not show. Return the entries and a
    line for each change.

    Findings of one pattern in several operators are one entry. Three kinds are not added: flaky findings, faults of the
    harness, and findings without a known cause because they are not shrunk. Declare a flaky finding by hand."""
    known = apply(run, entries, "").results
    kept = [one for one in entries if not one.due(run) or any(r.finding and one.covers(r.finding) for r in run.results)]
    done = [f"removed: {one}, which no program showed" for one in entries if one not in kept]
    fresh: dict[str, list[tuple[Result, Finding]]] = {}
    for result in known:
        finding = result.finding
        if finding and finding.count and finding.kind in KINDS and result.outcome in RERUN:
            if finding.pattern.startswith(NOT_SHRUNK.format("")):
                done.append(f"not added: {finding.title()}, whose cause is not known until it is shrunk")
                continue
            drawn = finding.first is not None and finding.pattern
            fresh.setdefault(finding.pattern if drawn else finding.title(), []).append((result, finding))
    for members in fresh.values():
        several = len({finding.op for _, finding in members}) >= TOGETHER
        together = several and members[0][1].pattern not in NOT_ONE_BUG
        if together:
            members = [min(members, key=lambda pair: pair[1].first or 0)]
        for result, finding in members:
            kept.append(_for(result, finding, run, reason, ("pattern",) if together else ()))
            done.append(f"added: {finding.pattern if together else finding.title()}")
    return kept, done


def _for(result: Result, finding: Finding, run: Run, reason: str, names: Sequence[str] = ()) -> KnownFinding:
    usual = ("property", "op", "kind") if finding.property else ("oracle", "step", "layout", "error", "kind")
    names = names or usual
    parts: dict[str, Any] = {name: _literal(text) for name in names if (text := getattr(finding, name))}
    reason = reason or unexplained(result)
    if finding.first is None:
        return KnownFinding(reason, **parts, program=_literal(finding.saved[0]) if finding.saved else "*")
    drawn = run.drawn
    seed = drawn.seeds[0] if drawn and len(drawn.seeds) == 1 else None
    options = drawn.options if drawn else ""
    return KnownFinding(reason, **parts, programs=finding.first + 1, seed=seed, options=options)


def _literal(text: str) -> str:
    """A glob that matches this text alone."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def check(entries: Sequence[KnownFinding], allowed: Mapping[str, Sequence[str]], path: Path) -> list[str]:
    """One sentence for each fault of the entries: a part that no finding can have, or a duplicate."""
    problems = []
    entries = [known for known in entries if known.holds]
    for known in entries:
        for name, words in allowed.items():
            text = getattr(known, name)
            if not any(fnmatch.fnmatchcase(word, text) for word in words):
                where = f"{path}, line {known.line}"
                problems.append(f"{where}: no finding has the {name} {text!r}{nearest(text, words) or '.'}")
    keys = (*PARTS, "program", "options")
    return [*problems, *twice(((known, tuple(getattr(known, key) for key in keys)) for known in entries), path)]
