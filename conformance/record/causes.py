"""Findings and failing cases by cause: one entry for each pattern or reported bug, with its smallest example first.

Defines `Cause` and `causes_of`. One bug shows in many operators, in drawn programs and in op_db alike. A report
therefore lists causes (`record/patterns.py`) and names the operators under each. This module judges no result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.record.finding import gist
from conformance.record.names import DEVICE_TEST, OPERATOR, UPSTREAM
from conformance.record.patterns import base_operator, blamed_operator, by_culprit, pattern_of
from conformance.record.result import BROKEN, TABLES, Outcome, Result, counted, severity
from conformance.record.upstream import UNKNOWN

NAMED = 12
"""Maximum number of a cause's operators named in one line."""


@dataclass(frozen=True)
class Cause:
    """Results of one pattern, the smallest example first."""

    pattern: str
    results: tuple[Result, ...]

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators with this cause, each once."""
        return tuple(dict.fromkeys(map(_operator_of, self.results)))

    @property
    def title(self) -> str:
        """The pattern and its number of operators. A single finding keeps its own title. Findings in operators that all
        call the one to blame are named by that one."""
        if len(self.operators) > 1:
            return f"{self.pattern}: {len(self.operators)} operators"
        first, (blamed,) = self.results[0].finding, self.operators
        findings = [result.finding for result in self.results if result.finding is not None]
        called = any(base_operator(finding.op) != blamed for finding in findings)
        if first is not None and called and not self.pattern.endswith(f" of {blamed}"):
            return f"{first.property} of {blamed}"
        single = len(self.results) == 1 and not called
        return first.title() if first is not None and single else self.pattern

    @property
    def seen(self) -> str:
        """The numbers of results by kind: `3 findings, 12 op_db cases`. The cases of a command with a table of its own,
        such as the operators of a script, are just cases, and those of an operator are its checks, by name."""
        if all(result.layout == OPERATOR for result in self.results):
            return f"{counted(len(self.results), 'check')}: {', '.join(result.variant for result in self.results)}"
        kinds = Counter(
            "finding" if result.finding is not None else "case" if result.layout in TABLES else "op_db case"
            for result in self.results
        )
        return ", ".join(counted(kinds[kind], kind) for kind in ("finding", "op_db case", "case") if kinds[kind])

    @property
    def named(self) -> str:
        """The operators in one line, up to `NAMED`."""
        more = len(self.operators) - NAMED
        return ", ".join([*self.operators[:NAMED], *([f"and {more} more"] if more > 0 else [])])


def _operator_of(result: Result) -> str:
    """The operator to blame for a result, by its base name."""
    if result.finding is not None:
        return blamed_operator(result.finding.op, result.finding.culprit)
    if result.layout == UPSTREAM:
        return result.op.rpartition(".")[2]
    return base_operator(result.name)


def pattern_of_result(result: Result) -> str:
    """The reported bug that a finding is, or the pattern of a finding or of a case's worst failure; empty without a
    failure. One bug may have several patterns."""
    if result.finding is not None:
        if result.finding.upstream not in ("", UNKNOWN) and result.outcome is not Outcome.FLAKY:
            return result.finding.upstream
        return result.finding.pattern or result.finding.title()
    if not result.failures:
        return ""
    if result.repro is not None:
        return f"{result.op}: {result.repro.title}"
    if result.layout == UPSTREAM:  # thousands of tests fail by one message
        first = result.failures[0]
        return gist(first.actual) if first.oracle == DEVICE_TEST else f"{first.oracle} in {_operator_of(result)}"
    if result.failures[0].cause:
        return f"{result.failures[0].cause} of {result.op}"
    wrong, first = min(result.wrong, key=lambda pair: severity(result.replace(failures=(pair[1],))))
    return by_culprit(pattern_of(first, wrong, result.name), wrong, result.name, first.culprit)


def causes_of(results: Iterable[Result]) -> list[Cause]:
    """The causes of these results, the worst first. Results that no program and no sample showed have no cause: an
    XPASS, and a part of the target that is not as its profile says."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        wanted = result.outcome in BROKEN or result.outcome is Outcome.FLAKY
        wanted = wanted and (result.finding is None or result.finding.count > 0)
        if wanted and (pattern := pattern_of_result(result)):
            groups.setdefault(pattern, []).append(result)
    causes = [Cause(pattern, tuple(sorted(members, key=_size))) for pattern, members in groups.items()]
    return sorted(causes, key=lambda cause: _rank(cause.results))


def _size(result: Result) -> tuple[int, int, int, str]:
    """Sort key for examples. Results whose script reproduces them come first. Then shrunk programs, cases, and other
    programs; then fewest steps or shortest script."""
    rank = result.script_rank
    if result.finding is not None:
        return rank, 0 if result.finding.shrunk else 2, result.finding.steps or 0, result.id
    return rank, 1, len(result.failures[0].call) if result.failures else 0, result.id


def _rank(results: Sequence[Result]) -> tuple[object, ...]:
    """Sort key for causes: the rank of the worst result, then the largest number of programs and cases."""
    *worst, _, name = min(map(severity, results))
    return *worst, -sum(result.finding.count if result.finding else 1 for result in results), name
