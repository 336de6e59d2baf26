"""Changes between two runs: new failures, fixed, gone, flaky; measurements and time up or down.

Defines `CaseChange`, `Diff` and `diff`. The key insight: two runs are joined by case id, and a case in only one of them
is never dropped silently: it is new, or gone, or was not selected. Times are compared as multiples of each run's own
calibration loop, since machines differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from conformance.record.measurements import Measure, Rise, total
from conformance.record.result import BROKEN, UNEXPECTED, Outcome, Result, Run
from conformance.record.shortfall import CASES

FAILING = UNEXPECTED - {Outcome.FLAKY}
"""Outcomes of a case that fails each time. A case that becomes flaky is a separate kind of change."""
# The kinds of change, worst first, with their explanations. `kinds_of` adds those of the measures.
KINDS = {
    "new failures": "passed before, or was not there, and fails now",
    "budgets up": "more kernels or copies for a whole workload",
    "more samples fail": "fails as declared, but in more of the same samples: a second fault, perhaps",
    "gone": "was compared before and is not in this run, though it was asked for",
    "newly flaky": "passed only when it was run again",
    "fails otherwise": "still fails, by other oracles",
    "declared": "passed before, and fails as declared now",
    "by tolerance": "passes in more samples by a tolerance of the target's profile only",
    "by float64": "passes in more samples by the answer in float64 only, to which torch CPU's own is no nearer",
    "time up": "the whole run takes much longer, as a multiple of its calibration loop",
    "slower": "takes several times as long, as a multiple of the calibration loop",
    "fixed": "failed before and passes now",
    "budgets down": "fewer kernels or copies for a whole workload",
    "new": "was not in the other run, and does not fail",
    "still failing": "failed before and now",
}
REGRESSIONS = ("new failures", "budgets up", "more samples fail", "gone")
"""The kinds that fail a run. A rise of a measure fails it, too. Times are reported only: other work on the machine may
triple them, whatever the calibration loop measured at the start."""
MUCH_LONGER, LONG_RUN = 2.0, 60.0
"""Ratio of a run's time to the baseline's that is reported, and the least seconds in the baseline."""
SLOWER, LONG_CASE = 4.0, 4.0
"""Ratio of a case's time to the baseline's that is reported, and the least seconds of the case."""


@dataclass(frozen=True)
class CaseChange:
    """One change of a case: its kind, its id, and both states as text."""

    kind: str
    id: str
    before: str
    after: str


@dataclass
class Diff:
    """All changes from one run to another, by kind; the number of cases of the older run that the newer one did not
    select; sentences about the cases that both ran; the measures whose rise is a regression; and whether the newer run
    becomes the baseline, so that no change is a regression."""

    changes: dict[str, list[CaseChange]] = field(default_factory=dict)
    not_run: int = 0
    facts: list[str] = field(default_factory=list)
    watched: tuple[Measure, ...] = ()
    accepted: bool = False

    def count(self, kind: str) -> int:
        return len(self.changes.get(kind, ()))

    @property
    def worse(self) -> tuple[str, ...]:
        """The kinds that are regressions."""
        return () if self.accepted else (*REGRESSIONS, *(f"{measure.name} up" for measure in self.watched))

    @property
    def worst(self) -> list[CaseChange]:
        """The regressions, worst first."""
        return [change for kind, changes in self.changes.items() if kind in self.worse for change in changes]

    @property
    def regressions(self) -> int:
        return len(self.worst)


def kinds_of(watched: Iterable[Measure]) -> dict[str, str]:
    """The kinds of change, worst first, with their explanations."""
    up = {f"{measure.name} up": f"more {measure.unit} for the same samples" for measure in watched}
    down = {f"{measure.name} down": f"fewer {measure.unit} for the same samples" for measure in watched}
    first = "new failures"
    return {first: KINDS[first], **up, **KINDS, **down}


def diff(before: Run, after: Run, accepted: bool = False) -> Diff:
    """The changes from `before` to `after`. Measurements and times are compared if both runs passed the same
    samples."""
    old = {result.id: result for result in before.results}
    new = {result.id for result in after.results}
    pairs = [(old[r.id], r) for r in after.results if r.id in old and _comparable(old[r.id], r)]
    measures = tuple({measure.name: measure for measure in (*before.measures, *after.measures)}.values())
    watched = tuple(measure for measure in measures if measure.rise is Rise.REGRESSION)
    both = before.calibration and after.calibration
    scale = before.calibration / after.calibration if both else 0.0
    changes = [change for result in after.results for change in _changes(old.get(result.id), result, scale, measures)]
    changes += _budgets(before.budgets, after.budgets)
    facts, slow = _together(pairs, scale, measures)
    changes += slow
    missing = [result for result in before.cases if result.id not in new]
    lost = [result for result in before.findings if result.id not in new and result.outcome in BROKEN]
    again = _drew_as_much(before, after)
    changes += [CaseChange("fixed", result.id, _words(result), "no program showed it") for result in lost if again]
    # Only a complete run with the same selection can miss a case. A case without time is a shortfall, not a regression:
    # else a busy machine would fail a run that `--minutes` limits.
    whole = after.complete and before.environment.get("selection") == after.environment.get("selection")
    whole = whole and not after.falls_short_of(CASES.format("op_db"))
    changes += [CaseChange("gone", result.id, _words(result), "not in this run") for result in missing if whole]
    by_kind = {kind: [change for change in changes if change.kind == kind] for kind in kinds_of(watched)}
    return Diff(
        {kind: listed for kind, listed in by_kind.items() if listed},
        (0 if whole else len(missing)) + (0 if again else len(lost)),
        facts,
        watched,
        accepted,
    )


def _drew_as_much(before: Run, after: Run) -> bool:
    """Whether a run includes all programs of the earlier run, so that a missing finding is fixed."""
    a, b = before.drawn, after.drawn
    if a is None or b is None or not after.complete:
        return False
    as_wide = a.options == b.options and a.programs <= b.programs
    return as_wide and {*a.seeds} <= {*b.seeds} and {*a.corpus} <= {*b.corpus}


def _comparable(old: Result, new: Result) -> bool:
    return old.samples == new.samples and _right(old) and _right(new)


def _right(result: Result) -> bool:
    """Whether the case agrees with torch CPU in everything but its measurements."""
    return result.outcome is Outcome.PASS or result.only_measured


def _as_warm(old: Result, new: Result, measures: Sequence[Measure]) -> bool:
    """Whether no count rose whose rise makes times incomparable. An empty disk cache must not look like a change of the
    device."""
    names = [measure.name for measure in measures if measure.rise is Rise.UNTIMED]
    return all((new.measurements.get(name) or 0) <= old.measurements.counts.get(name, math.inf) for name in names)


def _together(
    pairs: Sequence[tuple[Result, Result]], scale: float, measures: Sequence[Measure]
) -> tuple[list[str], list[CaseChange]]:
    """Sentences about the cases that both runs passed: their measures that are shares, and their time. Also a change,
    if the later run is much slower."""
    facts: list[str] = []
    for measure in (measure for measure in measures if measure.rise is Rise.REGRESSION and measure.group):
        counted = [pair for pair in pairs if all(measure.name in row.measurements.counts for row in pair)]
        if counted:
            group = [other.name for other in measures if other.group == measure.group]
            a, b = (_share([pair[side] for pair in counted], measure.name, group) for side in (0, 1))
            facts.append(f"{measure.unit}: {a:.2%} of the {measure.group} before, {b:.2%} now")
    warm = [pair for pair in pairs if _as_warm(*pair, measures)]
    if len(warm) < len(pairs):
        units = " or ".join(measure.unit for measure in measures if measure.rise is Rise.UNTIMED)
        facts.append(f"time: not compared of {len(pairs) - len(warm)} cases, with more {units} than in the baseline")
    seconds = [sum(pair[side].seconds for pair in warm) for side in (0, 1)]
    if not (scale and all(seconds)):
        return facts, []
    ratio = seconds[1] * scale / seconds[0]
    facts.append(f"time: {ratio:.2f} of the baseline's, each as a multiple of its own calibration loop")
    if ratio < MUCH_LONGER or seconds[0] < LONG_RUN:
        return facts, []
    return facts, [CaseChange("time up", "the whole run", f"{seconds[0]:.0f} s", f"{ratio:.2f} times that")]


def _share(results: Sequence[Result], name: str, group: Sequence[str]) -> float:
    counts = total(result.measurements for result in results).counts
    return counts[name] / max(sum(counts.get(other, 0) for other in group), 1)


def _budgets(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> Iterator[CaseChange]:
    if not (before and after):
        return
    for workload in sorted(before.keys() | after.keys()):
        if workload not in after:
            yield CaseChange("gone", f"workload {workload}", "counted", "not counted")
        for name in sorted(before.get(workload, {}).keys() & after.get(workload, {}).keys()):
            yield from _counts("budgets", f"{workload}: {name}", before[workload][name], after[workload][name])


def _changes(old: Result | None, new: Result, scale: float, measures: Sequence[Measure]) -> Iterator[CaseChange]:
    kind = _kind(old, new)
    if kind:
        yield CaseChange(kind, new.id, _words(old) if old else "not in the baseline", _words(new))
    if old is None:
        return
    declared = old.outcome is new.outcome is Outcome.XFAIL
    if declared and (old.samples, old.skipped) == (new.samples, new.skipped) and new.failed > old.failed:
        yield CaseChange(
            "more samples fail", new.id, f"{old.failed} of {old.samples}", f"{new.failed} of {new.samples}"
        )
    if not _comparable(old, new):
        return
    if new.arbitrated > old.arbitrated:
        yield CaseChange("by float64", new.id, f"{old.arbitrated} samples", f"{new.arbitrated} samples")
    if new.tolerated > old.tolerated:
        yield CaseChange("by tolerance", new.id, f"{old.tolerated} samples", f"{new.tolerated} samples")
    if old.seconds and _as_warm(old, new, measures) and new.seconds * scale > max(SLOWER * old.seconds, LONG_CASE):
        yield CaseChange(
            "slower", new.id, f"{old.seconds:.1f} s", f"{new.seconds * scale / old.seconds:.1f} times that"
        )
    for name in (measure.name for measure in measures if measure.rise is Rise.REGRESSION):
        yield from _counts(name, new.id, old.measurements.get(name), new.measurements.get(name))


def _kind(old: Result | None, new: Result) -> str:
    """The kind of change of a case or finding; empty for a change that is not reported."""
    if new.outcome in FAILING and (old is None or old.outcome not in FAILING):
        return "new failures"
    if old is None:
        return "newly flaky" if new.outcome is Outcome.FLAKY else "new"
    if new.outcome in FAILING:
        return "still failing" if (old.outcome, old.oracles) == (new.outcome, new.oracles) else "fails otherwise"
    match new.outcome:
        case Outcome.PASS if old.outcome in FAILING | BROKEN:
            return "fixed"
        case Outcome.FLAKY if old.outcome is not Outcome.FLAKY:
            return "newly flaky"
        case Outcome.XFAIL if old.outcome is Outcome.PASS:
            return "declared"
    return ""


def _counts(noun: str, name: str, before: int | None, after: int | None) -> Iterator[CaseChange]:
    if before is not None and after is not None and before != after:
        yield CaseChange(f"{noun} {'up' if after > before else 'down'}", name, str(before), str(after))


def _words(result: Result) -> str:
    return f"{result.outcome} ({', '.join(result.oracles)})" if result.oracles else str(result.outcome)


def text(difference: Diff, limit: int = 20) -> str:
    """The changes as text for a terminal, in the order of `kinds_of`."""
    lines, kinds = list(difference.facts), kinds_of(difference.watched)
    for kind, changes in difference.changes.items():
        lines.append(f"{kind} ({len(changes)}): {kinds[kind]}")
        if kind != "still failing":
            lines += [f"  {change.id}: {change.before} -> {change.after}" for change in changes[:limit]]
            lines += [f"  ... and {len(changes) - limit} more"] if len(changes) > limit else []
    if difference.not_run:
        lines.append(f"{difference.not_run} cases of the baseline were not asked for in this run")
    return "\n".join([*lines, *([] if difference.changes else ["no changes"])])
