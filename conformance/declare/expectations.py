"""Declarations applied to a run: declared failures, declared failures that do not show, and updates from a run.

Defines `judged` and `apply`, `update` and `declare`, and the file of a target. A declaration is a promise in both
directions. A failure that it covers is XFAIL. A case that it covers and that passes, or a finding that it covers and
that no program shows, is XPASS and fails the run. So an obsolete declaration cannot stay unnoticed. Nothing here runs
an op or a program.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from conformance.declare import profile as profiles
from conformance.declare.declaration import (
    ANY,
    CASES,
    FINDINGS,
    KINDS,
    Declaration,
    Scope,
    among,
    dumps,
    literal,
    parts_of,
    quoted,
    read,
)
from conformance.record import op_names, shortfall, versions
from conformance.record.errors import ReportError
from conformance.record.files import write_atomic
from conformance.record.names import DIFFERENTIATED, DTYPES, LAYOUTS, MEASURED, NOT_COMPARED, VARIANTS
from conformance.record.patterns import NOT_ONE_BUG, NOT_SHRUNK
from conformance.record.result import BROKEN, RERUN, UNEXPECTED, UNEXPLAINED, Finding, Outcome, Result, Run, counted
from conformance.record.sentences import headline

FOLDER = Path("reports/expectations")

OP_DB = Path(__file__).parent / "nothing_to_compare.toml"
"""Declarations for every target: parts of op_db that leave nothing to compare."""
WORDS: dict[str, Sequence[str]] = {"variant": tuple(VARIANTS), "layout": tuple(LAYOUTS), "dtype": DTYPES}
"""The names of op_db's cases, by key of a scope."""
TOGETHER = 3
"""Least number of operators with one pattern for which `update` writes one declaration."""

HEAD = """\
# Known failures of {target}. Each [[declare]] covers the cases of op_db, or the findings of drawn programs, in its
# scope. If a covered case passes, or a covered finding does not show, that is XPASS and fails the run.
# `--update-expectations` adds failures and removes passes; give each added entry a reason of yours. With `samples` or
# `programs`, a shorter run need not fail. An entry with `torch`, such as ">=2.14", applies to these versions only.
"""


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


def expected(path: Path | str) -> list[Declaration]:
    """Return the declarations of a target's file, and those for every target, whose place names no path of the machine.
    Raises ReportError."""
    return [
        *read(path),
        *(dataclasses.replace(declaration, file=f"conformance/declare/{OP_DB.name}") for declaration in read(OP_DB)),
    ]


def apply(run: Run, declarations: Sequence[Declaration], file: Path | str) -> Run:
    """Return the run with each result judged, and with an XPASS for each declared finding that must show and did
    not."""
    results = [judged(result, declarations) for result in run.results]
    shown = {
        declaration
        for result in run.results
        if result.finding
        for declaration in declarations
        if declaration.covers(result)
    }
    missing = [declaration for declaration in declarations if declaration not in shown and due(declaration, run)]
    # also without a finding that they cover, since `warn_of_all_covering` reads the file that the run names
    where = str(file) if declarations else run.expectations
    return dataclasses.replace(run, results=[*results, *map(_missing, missing)], expectations=where)


def judged(result: Result, declarations: Sequence[Declaration]) -> Result:
    """Return the result with a declared failure as XFAIL, and a declared failure that passed as XPASS."""
    covering = [declaration for declaration in declarations if declaration.covers(result)]
    if result.finding is not None:
        return _known(result, covering, Outcome.XFAIL).replace(layer="") if covering else result
    if not covering or result.outcome in (Outcome.XFAIL, Outcome.XPASS):
        return result
    seen = set(result.oracles) or ({NOT_COMPARED} if result.outcome is Outcome.SKIP else set())
    undeclared = {oracle for oracle in seen if not any(declaration.names(oracle) for declaration in covering)}
    met = [declaration for declaration in covering if any(map(declaration.names, seen))]
    unmet = [
        declaration
        for declaration in covering
        if declaration not in met and result.samples + result.skipped >= declaration.scope.samples
    ]
    if undeclared or not (unmet or met):
        return result
    if unmet:
        return result.replace(outcome=Outcome.XPASS, reason=unmet[0].passes("it passed"))
    return _known(result, met, Outcome.SKIP if seen == {NOT_COMPARED} else Outcome.XFAIL)


def _known(result: Result, declarations: Sequence[Declaration], outcome: Outcome) -> Result:
    where, why = (
        "; ".join(dict.fromkeys(getattr(declaration, key) for declaration in declarations)) for key in ("where", "why")
    )
    return result.replace(outcome=outcome, reason=why, declared=where)


def due(declaration: Declaration, run: Run) -> bool:
    """Whether the run must show a finding of this declaration. A finding has no cause until it is shrunk, so in a run
    with too little time for that, a declared cause may be there without its name."""
    drawn, scope = run.drawn, declaration.scope
    sharded = "; shard " in run.environment.get("selection", "")
    if declaration.subject is not FINDINGS or not declaration.holds or drawn is None or not run.complete or sharded:
        return False
    if run.falls_short_of(shortfall.FINDINGS):
        return False
    if scope.program:
        return any(among(name, scope.program) for name in drawn.corpus)
    enough = drawn.programs - len(drawn.corpus) >= scope.programs and drawn.options == scope.options
    return enough and bool(drawn.seeds) and scope.seed in (None, *drawn.seeds)


def _missing(declaration: Declaration) -> Result:
    step, layout = (", ".join(names) or ANY for names in (declaration.scope.step, declaration.scope.layout))
    finding = Finding(f"declared: {declaration}", "XPASS", count=0)
    reason = declaration.passes("no program showed it")
    return Result(step, "", "program", layout, Outcome.XPASS, reason=reason, finding=finding)


def warn_of_all_covering(run: Run, declarations: Iterable[Declaration]) -> list[str]:
    """Return a warning for each declaration that covers everything, with the number of failures that only it covers. A
    run with such a declaration passes whatever the target does. If it is about cases of op_db, `op = "*"` covers no
    finding of a drawn program, and the warning says so where there is one."""
    warnings = []
    for declaration in declarations:
        if not (declaration.holds and declaration.covers_all):
            continue
        hidden = [result for result in run.results if result.declared == declaration.where]
        if declaration.subject is CASES and run.cases:
            number = counted(len(hidden), "failure")
        elif declaration.subject is FINDINGS and run.drawn:
            number = _in_programs(hidden)
        elif declaration.subject is CASES and (failing := [r for r in run.findings if r.outcome in UNEXPECTED]):
            warnings.append(
                f"warning: {declaration.where} covers every failure of op_db's cases and no finding of a drawn "
                f"program, so the run fails with {_in_programs(failing)}: an entry about findings has 'programs' in "
                "its scope"
            )
            continue
        else:
            continue
        warnings.append(
            f"warning: {declaration.where} covers every failure, and hides {number} that no other entry declares: name "
            "in it the operators and the properties that may differ"
        )
    return warnings


def _in_programs(results: Sequence[Result]) -> str:
    programs = sum(result.finding.count for result in results if result.finding)
    return f"{counted(len(results), 'finding')} in {counted(programs, 'program')}"


def accept(results: Iterable[Result], declarations: Sequence[Declaration]) -> list[Result]:
    """Apply updated declarations to results of cases that older declarations were already applied to."""
    undone = (r.replace(outcome=Outcome.PASS, reason="") if r.outcome is Outcome.XPASS else r for r in results)
    return [judged(result, declarations) for result in undone]


def declare(run: Run, path: Path, reason: str = "") -> list[str]:
    """Add the failures of a run, of cases and programs, to the file, remove its passes, and return a summary. Raises
    ReportError."""
    kept, done = update(read(path), run, reason)
    write_atomic(path, dumps(kept, HEAD.format(target=quoted(run.title))))
    return [*done, f"{path}: {counted(len(kept), 'entry')}"]


def update(declarations: Sequence[Declaration], run: Run, reason: str = "") -> tuple[list[Declaration], list[str]]:
    """Return the declarations with the run's failures added and its passes removed, and the changes in words."""
    cases = [declaration for declaration in declarations if declaration.subject is CASES]
    programs = [declaration for declaration in declarations if declaration.subject is not CASES]
    cases, done = _update_cases(cases, run, reason) if run.cases else (cases, [])
    programs, more = _update_programs(programs, run, reason) if run.drawn else (programs, [])
    return [*cases, *programs], [*done, *more]


def _update_cases(declarations: Sequence[Declaration], run: Run, reason: str) -> tuple[list[Declaration], list[str]]:
    """Update from the cases of a run. A glob that covers a pass is narrowed to the cases of this run that still fail.
    Declarations of cases outside this run stay as they are."""
    results = {result.id: result for result in run.cases}
    kept: list[Declaration] = []
    done: list[str] = []
    for declaration in declarations:
        covered = [result for result in results.values() if declaration.covers(result)]
        failing = [r for r in covered if r.outcome in BROKEN and any(map(declaration.names, r.oracles))]
        skipped = [r for r in covered if r.outcome is Outcome.SKIP and declaration.names(NOT_COMPARED)]
        short = [r for r in covered if r.outcome is Outcome.PASS and r.samples + r.skipped < declaration.scope.samples]
        if len(failing) + len(skipped) + len(short) == len(covered):
            kept.append(declaration)
            continue
        done.append(f"removed: {declaration}, which no longer fails everywhere in its scope")
        for result in failing:
            narrowed = _of_case(result, tuple(filter(declaration.names, result.oracles)), declaration.reason)
            kept.append(dataclasses.replace(declaration, scope=narrowed.scope, property=narrowed.property))
    for result in results.values():
        if result.outcome not in BROKEN or (result.layer and result.outcome is Outcome.XFAIL):
            continue
        oracles = tuple(
            o
            for o in result.oracles
            if not any(declaration.covers(result) and declaration.names(o) for declaration in kept)
        )
        if oracles:
            kept.append(_of_case(result, oracles, reason or unexplained(result)))
            done.append(f"added: {result.id} ({', '.join(oracles)})")
    return _grouped(kept), done


def _of_case(result: Result, oracles: tuple[str, ...], reason: str) -> Declaration:
    # Measurements are of all samples together, and another mismatch may not be in the first.
    compared = result.samples + result.skipped
    first = [compared if f.oracle in MEASURED else f.sample + 1 for f in result.failures if f.oracle in oracles]
    least = min(first, default=0)
    names: Any = {key: (name,) for key in ("variant", "dtype", "layout") if (name := getattr(result, key))}
    scope = Scope(op=(result.name,), **names, samples=least if 1 < least <= compared else 0)
    return Declaration(scope, oracles, reason)


def _grouped(declarations: Iterable[Declaration]) -> list[Declaration]:
    """Join declarations that differ in one list of their scopes only: first by dtype, then by layout."""
    result = list(dict.fromkeys(declarations))
    for name in ("dtype", "layout"):
        groups: dict[Declaration, list[Scope]] = {}
        for declaration in result:
            alike: Any = {name: (), "samples": 0}
            key = dataclasses.replace(declaration, scope=dataclasses.replace(declaration.scope, **alike))
            groups.setdefault(key, []).append(declaration.scope)
        result = []
        for key, scopes in groups.items():
            listed = tuple(dict.fromkeys(item for scope in scopes for item in getattr(scope, name)))
            joined: Any = {name: listed if all(getattr(scope, name) for scope in scopes) else ()}
            scope = dataclasses.replace(scopes[0], samples=max(scope.samples for scope in scopes), **joined)
            result.append(dataclasses.replace(key, scope=scope))
    return result


def _update_programs(declarations: Sequence[Declaration], run: Run, reason: str) -> tuple[list[Declaration], list[str]]:
    """Update from the findings of a run. Findings of one pattern in several operators are one declaration.

    Three kinds are not added: flaky findings, faults of the harness, and findings without a known cause because they
    are not shrunk. Declare a flaky finding by hand."""
    known = apply(run, declarations, "").results
    kept = [
        declaration
        for declaration in declarations
        if not due(declaration, run) or any(map(declaration.covers, run.results))
    ]
    done = [
        f"removed: {declaration}, which no program showed" for declaration in declarations if declaration not in kept
    ]
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
            kept.append(_of_finding(finding, run, reason or unexplained(result), together))
            done.append(f"added: {finding.pattern if together else finding.title()}")
    return kept, done


def _of_finding(finding: Finding, run: Run, reason: str, by_pattern: bool) -> Declaration:
    usual = ("op", "kind") if finding.property else ("step", "layout", "error", "kind")
    names = ("pattern",) if by_pattern else usual
    known = parts_of(finding)
    parts: dict[str, Any] = {name: (literal(known[name]),) for name in names if known[name]}
    wrong = ANY if by_pattern else finding.property or finding.parts.oracle
    if finding.first is None:
        scope = Scope(**parts, program=(literal(finding.saved[0]) if finding.saved else ANY,))
    else:
        drawn = run.drawn
        seed = drawn.seeds[0] if drawn and len(drawn.seeds) == 1 else None
        options = drawn.options if drawn else ""
        scope = Scope(**parts, programs=finding.first + 1, seed=seed, options=options)
    return Declaration(scope, (wrong or ANY,), reason)


def unexplained(result: Result) -> str:
    """Return the reason that a command writes into a new declaration of this result."""
    return f"{UNEXPLAINED}{headline(result) if result.failures else result.id}"[:200]


def without_cases(declarations: Sequence[Declaration], catalog: Sequence[Any]) -> list[str]:
    """Return one sentence for each declaration whose names exist but which covers no case of op_db. An op may have lost
    a dtype or a variant. `catalog` is a list of the planner's entries."""
    problems = []
    for declaration in declarations:
        if not declaration.holds or declaration.subject is not CASES:
            continue
        for glob in declaration.scope.op:
            ops = [op for op in catalog if among(op.name, (glob,))]
            if ops and not any(_has_case(op, declaration.scope) for op in ops):
                what = " ".join(",".join(part) for part in (declaration.scope.variant, declaration.scope.dtype) if part)
                problems.append(f"{declaration.where}: {glob!r} has no case {what} in op_db; take it out.")
    return problems


def known_ops(installed: Sequence[str]) -> list[str]:
    """Return the names of ops that an entry may have: the installed op_db first, then other versions of it."""
    return [*dict.fromkeys([*installed, *op_names.versions_of()])]


def absent(declarations: Sequence[Declaration], installed: Sequence[str]) -> list[str]:
    """Return a sentence that counts the declarations whose ops are all absent from the installed op_db, or nothing."""
    skipped = [
        declaration
        for declaration in declarations
        if declaration.holds
        and declaration.subject is CASES
        and not any(fnmatch.filter(installed, glob) for glob in declaration.scope.op)
    ]
    if not skipped:
        return []
    ops = ", ".join(dict.fromkeys(glob for declaration in skipped for glob in declaration.scope.op))
    return [f"{counted(len(skipped), 'expectation')} skipped, since torch {versions.installed()} has no {ops}"]


def _has_case(op: Any, scope: Scope) -> bool:
    for variant in (variant for variant in op.variants if among(variant, scope.variant)):
        # Error inputs choose their own dtypes, so a run names them by the requested dtype, whatever it is.
        dtypes = op.backward_dtypes if variant in DIFFERENTIATED else op.dtypes
        if variant == "error_inputs" or not scope.dtype or any(among(dtype, scope.dtype) for dtype in dtypes):
            return True
    return False
