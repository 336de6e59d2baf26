"""A run in sentences, for terminal, Markdown and page: first the verdict, then the facts.

Defines `verdicts`, `facts`, `known` and `masked`. Op cases and drawn programs are two halves of one run. Each half has
a verdict, so a green half cannot hide a red one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.record.causes import causes_of
from conformance.record.finding import MOVE
from conformance.record.measurements import RECOMPILED, Rise
from conformance.record.missing_ops import removed
from conformance.record.names import MEASURED, REPROS, UPSTREAM
from conformance.record.patterns import NOT_SHRUNK
from conformance.record.result import (
    NOT_RUN,
    SHOWS,
    UNEXPECTED,
    UNEXPLAINED,
    WITHOUT_BACKEND,
    Outcome,
    Result,
    Run,
    counted,
)
from conformance.record.sentences import sentence
from conformance.record.shortfall import SCRIPTS, add_up, describe


@dataclass(frozen=True)
class RunVerdict:
    """Whether one half of a run, `cases` or `fuzz`, is as expected, and the sentence about it; or the sentence about
    what was `not-judged`."""

    good: bool
    sentence: str
    half: str


def verdicts(*runs: Run | None, regressions: int = 0) -> list[RunVerdict]:
    """The verdicts on the halves of these runs, the worst first, then what they did not judge. With regressions since
    the baseline, which come first, no half is good."""
    lines = [verdict for run in runs if run for verdict in _halves(run)]
    said = shortfall(*runs)
    short = [RunVerdict(not any(run.strict for run in runs if run), said, "not-judged")] if said else []
    if regressions:
        changed = f"{counted(regressions, 'regression')} since the baseline."
        return [RunVerdict(False, changed, "cases"), *(verdict for verdict in lines if not verdict.good), *short]
    return [*sorted(lines, key=lambda verdict: verdict.good), *short]


def shortfall(*runs: Run | None) -> str:
    """The sentence about what these runs together did not judge; "" if they judged all that was planned."""
    there = [run for run in runs if run]
    return describe(add_up(row for run in there for row in run.not_judged), any(run.strict for run in there))


def _halves(run: Run) -> list[RunVerdict]:
    programs = [_on_programs(run)] if run.drawn else []
    return [*([_on_cases(run)] if run.cases or not programs else []), *programs]


def _on_cases(run: Run) -> RunVerdict:
    cases = run.cases
    bad = sum(result.outcome in UNEXPECTED for result in cases)
    if not run.compared and not bad:
        return RunVerdict(False, "Nothing was compared.", "cases")
    if not run.complete:
        return RunVerdict(False, f"The run was interrupted after {len(cases)} cases.", "cases")
    if run.table == REPROS:
        tried, unable = sum(result.outcome is not Outcome.SKIP for result in cases), run.counts()["SKIP"]
        tail = f"; {unable:,} cannot run" if unable else ""
        show = "show, and are" if bad > 1 else "shows, and is"
        said = f"{bad:,} of the {tried:,} known bugs that were tried {show} not declared{tail}."
        if not bad:
            said = f"None of the {tried:,} known bugs that were tried shows, or only as declared{tail}."
        return RunVerdict(not bad, said, "cases")
    if run.table == UPSTREAM:
        tail = "".join(f"; {part}" for part in without_backend(run) if "case" in part)
        ran = sum(result.outcome is not Outcome.SKIP for result in cases)
        said = f"{bad:,} of the {ran:,} tests that ran {'fail' if bad > 1 else 'fails'}"
        return RunVerdict(
            not bad, f"{said if bad else f'All {ran:,} tests that ran pass, or fail as declared'}{tail}.", "cases"
        )
    if bad:
        verb = "does" if bad == 1 else "do"
        return RunVerdict(False, f"{bad:,} of {len(cases):,} cases {verb} not do what {run.reference} does.", "cases")
    passed = sum(result.outcome is Outcome.PASS for result in cases)
    tail = "".join(f"; {part}" for part in without_backend(run) if "case" in part)
    sentence = f"All {passed:,} cases that were compared do what {run.reference} does, or fail as declared{tail}."
    return RunVerdict(True, sentence, "cases")


def _on_programs(run: Run) -> RunVerdict:
    drawn, findings = run.drawn, run.findings
    assert drawn is not None  # checked by the caller
    stopped = run.stopped_at_inputs
    if stopped is not None:
        return RunVerdict(False, at_inputs(run, stopped), "fuzz")
    new = [result for result in findings if result.finding and result.finding.count and result.outcome in UNEXPECTED]
    gone = sum(result.outcome is Outcome.XPASS for result in findings)
    unlike = sum(result.outcome is Outcome.FAIL for result in findings if result.finding and not result.finding.count)
    tail = "".join(f"; {part}" for part in (*known(run), *without_backend(run)))
    sentences = []
    if new:
        distinct = counted(len(causes_of(new)), "distinct cause")
        failing = f"{run.failing_programs:,} of {counted(drawn.programs, run.program)} fail"
        if not run.complete or run.failing_programs > drawn.programs:  # programs count when their shard ends
            end = "the time was over" if run.complete else "the interruption"
            failing = f"{counted(run.failing_programs, run.program)} failed before {end}"
        sentences.append(f"{failing}: {distinct}{tail}.")
    if gone:
        sentences.append(f"{counted(gone, 'declared finding')} did not show.")
    if unlike:
        parts, verb = counted(unlike, "part"), "is" if unlike == 1 else "are"
        sentences.append(f"{parts} of the target {verb} lacking or wrong, and not declared.")
    if not sentences and not drawn.compared:
        sentences.append(f"No {run.program} was compared.")
    if not sentences and not run.complete:
        sentences.append(f"The fuzz campaign was interrupted after {counted(drawn.programs, 'program')}.")
    if sentences:
        return RunVerdict(False, " ".join(sentences), "fuzz")
    left = f"; the target leaves out {drawn.programs - drawn.compared:,} more" if drawn.unsupported else ""
    word = "new finding" if tail else "finding"
    return RunVerdict(True, f"No {word} in {counted(drawn.compared, run.program)}{left}{tail}.", "fuzz")


def at_inputs(run: Run, stopped: Result) -> str:
    """The sentence for a run whose programs all fail in one way before their first step, with the first difference."""
    programs = run.drawn.compared if run.drawn else 0
    first = stopped.failures[0]
    text = f"{first.actual}: {first.detail}".removesuffix(": ") if first.oracle == "error" else sentence(first)
    cause = " ".join(text.split())[:300]
    every = f"All {programs:,} programs fail" if programs > 1 else "The one program fails"
    return f"{every} at {MOVE}, before the first step, so that nothing else was compared: {cause}"


def known(run: Run) -> list[str]:
    """`3 known findings in 12 programs, declared in FILE`; empty if there are none."""
    known = (result for result in run.findings if result.outcome is Outcome.XFAIL and not result.layer)
    findings = [result.finding for result in known if result.finding]
    apart = any(result.layer for result in run.findings)  # `known_programs` counts these too
    programs = counted(sum(finding.count for finding in findings) if apart else run.known_programs, "program")
    return (
        [f"{counted(len(findings), 'known finding')} in {programs}, declared in {run.expectations}"] if findings else []
    )


MASKED = 0.1
"""Share of masked programs above which the line becomes a warning."""


def masked(run: Run) -> list[str]:
    """The number of programs with steps behind a known finding that were not judged, and the findings that mask
    them, with the file and line of their declarations."""
    drawn = run.drawn
    if drawn is None or not drawn.masked:
        return []
    by = [
        (f.masked, f.title(), f", declared in {result.declared}" if result.declared else "")
        for result in run.findings
        if (f := result.finding) and f.masked and result.outcome is Outcome.XFAIL
    ]
    named = ", ".join(f"{title} ({count}{where})" for count, title, where in sorted(by, reverse=True))
    share = drawn.masked / max(drawn.compared, 1)
    have = "has" if drawn.masked == 1 else "have"
    text = f"{counted(drawn.masked, 'program')} ({share:.0%}) {have} steps that known findings mask: {named}"
    if share <= MASKED:
        return [text]
    return [f"warning: {text}; new faults in these steps stay unseen, so mend or narrow the declared ones"]


def not_shrunk(run: Run) -> list[str]:
    """The number of findings not shrunk because the run was interrupted; empty if there are none. Those for which the
    time was over are a shortfall of the run."""
    if not run.interrupted:
        return []
    late = sum(finding.finding.pattern.startswith(NOT_SHRUNK.format("")) for finding in run.findings if finding.finding)
    late -= run.drawn.unwanted if run.drawn is not None else 0
    why = "since the run was interrupted: --resume goes on"
    return [f"{counted(late, 'finding')} not shrunk, {why}"] if late > 0 else []


def known_cases(run: Run) -> list[str]:
    """`3 known failures, declared in FILE`; empty if there are none."""
    failures = sum(result.outcome is Outcome.XFAIL and not result.layer for result in run.cases)
    where = f", declared in {run.expectations}" if run.expectations else ""
    return [f"{counted(failures, 'known failure')}{where}"] if failures else []


def scripts(run: Run) -> list[str]:
    """`3 of 3 scripts show their headline` and `2 scripts not run`, each if there are any. Scripts for which the time
    was over are a shortfall of the run."""
    endings = [result.alone for result in run.results if result.alone]
    ended, left = [text for text in endings if not text.startswith(NOT_RUN)], endings.count(NOT_RUN)
    verb = "show their headline" if len(ended) > 1 else "shows its headline"
    lines = [f"{ended.count(SHOWS)} of {counted(len(ended), 'script')} {verb}"] if ended else []
    hint = "--check-scripts gives them more seconds"
    told = run.falls_short_of(SCRIPTS)
    return [*lines, *([f"{counted(left, 'script')} not run: {hint}"] if left and not told else [])]


def without_backend(run: Run) -> list[str]:
    """`2 findings also fail without your backend`; empty if there are none."""
    cases, findings = (sum(bool(result.layer) for result in results) for results in (run.cases, run.findings))
    counts = [(cases, "case"), (findings, "finding")]
    singular = WITHOUT_BACKEND.replace("fails", "fail")
    return [
        f"{counted(number, noun)} {singular if number > 1 else WITHOUT_BACKEND}" for number, noun in counts if number
    ]


def facts(run: Run) -> list[str]:
    """Further facts of a run, one sentence each without its full stop."""
    lines = [*scripts(run), *without_backend(run), *known_cases(run)]
    lines += not_shrunk(run)
    if run.arbitrated:
        cases = sum(bool(result.arbitrated) for result in run.results)
        lines.append(
            f"{run.arbitrated} samples of {cases} cases differ from torch CPU and pass by its answer in float64"
        )
    if run.drawn and run.drawn.arbitrated:
        lines.append(f"{run.drawn.arbitrated} programs differ from torch CPU and pass by its answer in float64")
    if run.tolerated:
        cases = sum(bool(result.tolerated) for result in run.results)
        lines.append(f"{run.tolerated} samples of {cases} cases pass only by the tolerances of the profile")
    if run.drawn and run.drawn.tolerated:
        lines.append(f"{run.drawn.tolerated} programs pass only by the tolerances of the profile")
    if run.drawn and run.drawn.calls:
        again = f"{run.drawn.measured.get(RECOMPILED.name) or 0} {RECOMPILED.unit}"
        lines.append(f"{run.drawn.calls} calls of {run.drawn.compared} programs were judged; {again}")
    if run.lacking:
        lines.append(f"{counted(len(run.lacking), 'operator')} declared lacking: {removed(run.lacking)} not run")
    over = Counter(", ".join(result.oracles) for result in run.results if result.only_measured)
    lines += [f"{count} XFAIL for their {names} only" for names, count in over.items()]
    lines += [f"{count:,} of {all_of:,} {fact}" for _, count, all_of, fact in measured(run)]
    unexplained = [r for r in run.results if r.outcome is Outcome.XFAIL and UNEXPLAINED in r.reason]
    if unexplained:
        where = f" in {run.expectations}" if run.expectations else ""
        lines.append(f"{counted(len(unexplained), 'declared failure')} not yet explained: give each a reason{where}")
    return lines


def measured(run: Run) -> Iterator[tuple[str, int, int, str]]:
    """Yield the measures of a run that have a total: the page's filter for them, the count, the total, and the rest of
    a sentence. For a measure whose rise is a regression and that nothing bounds, the count is the number of passing
    cases without it."""
    sums, passed = (
        run.measured.counts,
        [result.measurements for result in run.results if result.outcome is Outcome.PASS],
    )
    for measure in run.measures:
        if measure.rise is Rise.REGRESSION and measure.name not in MEASURED:
            plain = sum(counts.get(measure.name) == 0 for counts in passed)
            yield f"-{measure.name}", plain, len(passed), f"passed without {measure.unit}"
        elif measure.group and sums.get(measure.name):
            every = sum(sums.get(other.name, 0) for other in run.measures if other.group == measure.group)
            yield measure.name, sums[measure.name], every, f"{measure.group}: {measure.unit}"
