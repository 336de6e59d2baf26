"""What changed between two runs: new failures, fixed, still failing, gone, flaky, kernels and fallbacks up or down.

Defines `Change` and `diff`. The key insight: two runs are joined by case id, and a case that is only in one of them is
never silently dropped; it is new, or gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from conformance.report.model import BROKEN, UNEXPECTED, Outcome, Result, Run

# The kinds of change, worst first, with what they say; the first four are regressions.
KINDS = {
    "new failures": "passed before, or was not there, and fails now",
    "kernels up": "more kernels for the same samples",
    "fallbacks up": "more calls that run on the CPU for the same samples",
    "gone": "was compared before and is not in this run, though its op, dtype, variant and layout were asked for",
    "newly flaky": "passed only when it was run again",
    "fails otherwise": "still fails, by other oracles",
    "fixed": "failed before and passes now",
    "kernels down": "fewer kernels for the same samples",
    "fallbacks down": "fewer calls that run on the CPU for the same samples",
    "new": "was not in the other run, and does not fail",
    "still failing": "failed before and now",
}
REGRESSIONS = ("new failures", "kernels up", "fallbacks up", "gone")


@dataclass(frozen=True)
class Change:
    """One case's change: its kind, its id, and the two states in words."""

    kind: str
    id: str
    before: str
    after: str


@dataclass
class Diff:
    """All changes from one run to another, by kind, and the cases of the older run that this one did not ask for."""

    changes: dict[str, list[Change]] = field(default_factory=dict)
    not_run: int = 0

    def count(self, kind: str) -> int:
        return len(self.changes.get(kind, ()))

    @property
    def regressions(self) -> int:
        return sum(self.count(kind) for kind in REGRESSIONS)


def diff(before: Run, after: Run) -> Diff:
    """The changes from `before` to `after`. Kernels and calls are compared where both ran the same samples."""
    old = {result.id: result for result in before.results}
    new = {result.id: result for result in after.results}
    found: dict[str, list[Change]] = {kind: [] for kind in KINDS}
    for result in after.results:
        for change in _changes(old.get(result.id), result):
            found[change.kind].append(change)
    asked = {(result.name, result.variant, result.dtype, result.layout) for result in after.results}
    ops, rest = {name for name, *_ in asked}, {tuple(r) for _, *r in asked}
    missing = [result for result in before.results if result.id not in new]
    # A run of a few ops says nothing about the others; only a complete run can miss a case.
    whole = after.complete and len(ops) >= len({r.name for r in before.results}) * 0.9
    gone = [r for r in missing if whole and (r.variant, r.dtype, r.layout) in rest]
    found["gone"] = [Change("gone", r.id, _words(r), "not in this run") for r in gone]
    return Diff({kind: changes for kind, changes in found.items() if changes}, len(missing) - len(gone))


def _changes(old: Result | None, new: Result) -> Iterator[Change]:
    now_bad = new.outcome in UNEXPECTED
    if old is None:
        yield Change("new failures" if now_bad else "new", new.id, "not in the baseline", _words(new))
        return
    was_bad = old.outcome in UNEXPECTED
    if now_bad and not was_bad:
        yield Change("new failures", new.id, _words(old), _words(new))
    elif now_bad and (old.outcome, old.oracles) != (new.outcome, new.oracles):
        yield Change("fails otherwise", new.id, _words(old), _words(new))
    elif now_bad:
        yield Change("still failing", new.id, _words(old), _words(new))
    elif (was_bad or old.outcome in BROKEN) and new.outcome is Outcome.PASS:
        yield Change("fixed", new.id, _words(old), _words(new))
    elif new.outcome is Outcome.FLAKY and old.outcome is not Outcome.FLAKY:
        yield Change("newly flaky", new.id, _words(old), _words(new))
    if new.samples != old.samples or new.outcome is not Outcome.PASS or old.outcome is not Outcome.PASS:
        return
    for attribute, kind in (("kernels", "kernels"), ("fallback", "fallbacks")):
        a, b = getattr(old, attribute), getattr(new, attribute)
        if a is not None and b is not None and a != b:
            yield Change(f"{kind} {'up' if b > a else 'down'}", new.id, str(a), str(b))


def _words(result: Result) -> str:
    return f"{result.outcome} ({', '.join(result.oracles)})" if result.oracles else str(result.outcome)


def text(difference: Diff, limit: int = 20) -> str:
    """The changes for a terminal, regressions first."""
    lines = []
    for kind, changes in difference.changes.items():
        lines.append(f"{kind} ({len(changes)}): {KINDS[kind]}")
        if kind != "still failing":
            lines += [f"  {change.id}: {change.before} -> {change.after}" for change in changes[:limit]]
            lines += [f"  ... and {len(changes) - limit} more"] if len(changes) > limit else []
    if difference.not_run:
        lines.append(f"{difference.not_run} cases of the baseline were not asked for in this run")
    return "\n".join(lines) or "no changes"
