"""The work on one finding in a worker: its smallest program, its culprit, and its result on related targets.

Defines `shrink`, `attributed`, `fails`, `survives` and `elsewhere`, which `shrinking.py` calls in workers that may die,
and `ShrinkTrials`, the trials of smaller programs. Every source shrinks its findings here.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from conformance.engine.executor import Watch
from conformance.engine.target import Target
from conformance.program import recorded
from conformance.program.attribution import culprit
from conformance.program.calls import fails_alone, judge_program, judge_trial
from conformance.program.cause import cause_of, plainer
from conformance.program.execute import Broken
from conformance.program.model import Program, ProgramError
from conformance.program.reduce import RECORDED_PASSES, SAMPLE_PASSES, plainer_values, reduce_program, written_names
from conformance.program.trial import Trial
from conformance.program.verdict import Verdict, leading, shortest, signature
from conformance.record.errors import TargetError
from conformance.record.finding import CRASH, FAIL, MEMORY, TIMEOUT, answers, gist, shown_by
from conformance.record.result import Failure
from conformance.run.failing_program import DEATHS, FailingProgram
from conformance.run.messages import COMPILING, Death, ExitReason
from conformance.run.shrink_progress import ShrinkProgress
from conformance.run.worker import UnitTimeout, at_most, loaded, step, unit
from conformance.standalone.oracles import WHOLE, Mismatch

CRASH_TRIALS = 60
"""Number of smaller programs that one worker tries for a crash or a hang."""

NO_PROGRESS = ShrinkProgress()

LONGEST_TRIAL = 30.0
"""Time limit in seconds for a smaller program during shrinking."""

LONGEST_COMPILING = 60.0
"""Time limit in seconds for compiling a smaller program during shrinking. A smaller program may need more time than the
whole one: some compilers take exponential time for a chain of steps."""

LONGEST_ATTRIBUTION = 120.0
"""Time limit in seconds for finding the culprit of one cause."""


SAMPLE, DISTINCT_SAMPLE = "sample", "sample of distinct values"
"""Passes for a sample of op_db; the second for an operator whose result is undefined for equal values."""

PASSES: Mapping[str, Sequence[Callable[[Program], Iterator[Program]]]] = {
    SAMPLE: SAMPLE_PASSES,
    DISTINCT_SAMPLE: [propose for propose in SAMPLE_PASSES if propose is not plainer_values],
}
"""The passes that a source asks for, by name (`FailingProgram.passes`)."""


def passes_of(finding: FailingProgram) -> Sequence[Callable[[Program], Iterator[Program]]]:
    """The passes that make the finding's program smaller; none for the usual ones."""
    if recorded.is_recorded(finding.program):
        return RECORDED_PASSES
    return PASSES[finding.passes] if finding.passes else ()


def watch_steps(program: Program, hang: Collection[str] = ()) -> Watch:
    """Return a callback that records each step before it runs. If a step may build kernels, the build does not count as
    program time, unless its op is in `hang`."""

    def watch(number: int, builds: bool) -> None:
        op = program.steps[number - 1].op if 0 < number <= len(program.steps) else ""
        step(str(number), COMPILING if builds and op not in hang else "")

    return watch


def shows_same_failure(mismatch: Mismatch, other: Mismatch | Failure) -> bool:
    """Whether two mismatches are about the same oracle, and for errors have the same type and text."""
    if "error" not in (mismatch.oracle, other.oracle):
        return mismatch.oracle == other.oracle
    texts = ((side.oracle, side.expected, side.actual, gist(side.detail)) for side in (mismatch, other))
    return next(texts) == next(texts)


def shows(finding: FailingProgram, program: Program, mismatches: Sequence[Mismatch]) -> bool:
    """Whether one of a smaller program's mismatches is that of the finding (`FailingProgram.shown`)."""
    return any(is_shown(finding, program, mismatch) for mismatch in mismatches)


def is_shown(finding: FailingProgram, program: Program, mismatch: Mismatch) -> bool:
    """Whether a smaller program's mismatch is that of the finding: the same property is wrong, of a result or a written
    tensor as before, or of another input as before. An error must have the same type and text."""
    wanted = finding.shown
    if wanted is None or shown_by(mismatch) != shown_by(wanted) or not shows_same_failure(mismatch, wanted):
        return False
    of_result = _is_of_result(program, mismatch.where) == _is_of_result(finding.program, wanted.where)
    return mismatch.oracle == "error" or of_result


def _is_of_result(program: Program, where: str) -> bool:
    name = where.removeprefix("grad of ").partition(" (")[0].partition("[")[0]
    made = {name for step in program.steps for name in (*step.out, *written_names(step))}
    return name in made or name.startswith("step ")


class ShrinkTrials:
    """The trials for one failure.

    `matches` says whether a verdict shows the failure, and `hangs` whether a time-out does. `seconds` limits one trial
    beside the limits of the worker, and none begins after `until`, in seconds since the epoch.
    """

    def __init__(
        self,
        target: Target,
        progress: ShrinkProgress,
        matches: Callable[[Trial, Verdict], bool],
        *,
        hangs: bool = False,
        hang: Collection[str] = (),
        seconds: float = math.inf,
        until: float = math.inf,
    ) -> None:
        self.target, self.progress, self.matches, self.hangs, self.hang = target, progress, matches, hangs, hang
        self.seconds, self.until = seconds, until
        self.tried = 0

    @property
    def best(self) -> Program | None:
        """The smallest failing program so far."""
        return Program.from_json(json.loads(self.progress.best)) if self.progress.best else None

    def smallest(
        self, start: Program, most: int, passes: Sequence[Callable[[Program], Iterator[Program]]] = ()
    ) -> Program:
        """Return the smallest failing program after at most `most` trials, from `start` or from the progress so far."""
        return reduce_program(self.best or start, self.fails, most, passes, self.until)

    def fails(self, program: Program) -> bool:
        """Whether the target fails on the program in the same way."""
        text = json.dumps(program.to_json())
        if text in self.progress.skipped or self.progress.over:
            return False
        self.tried += 1
        try:
            trial = Trial.of(program, self.target)
            failed, timed_out = self.matches(trial, self.judged(trial, text)), False
        except UnitTimeout:
            failed, timed_out = self.hangs, self.hangs
            if not failed:
                self.progress = self.progress.passed_over(text)
        except (ProgramError, Broken):  # a program without a meaning on torch CPU shows nothing
            return False
        if failed:
            self.progress = self.progress.failed(text, timed_out)
        return failed

    def judged(self, trial: Trial, text: str = "", locate: bool = False) -> Verdict:
        """Return the verdict on a smaller program, within the time of a trial. Raises UnitTimeout."""
        left = max(min(self.seconds, self.until - time.time()), 0.01)
        # Within the context of a trial, at_most replaces the worker's own limit.
        limit = at_most(left, LONGEST_COMPILING) if self.seconds < math.inf else contextlib.nullcontext()
        with self.progress.trial(text), limit:
            verdict = judge_trial(trial, locate=locate, watch=watch_steps(trial.program, self.hang))
            # a call that fails as the first one is another finding, on a program of one call
            another = verdict.call is not None and fails_alone(trial, verdict.call)
            return Verdict() if another else verdict


def _is_shown(wrong: Sequence[Mismatch], there: Sequence[Mismatch]) -> bool:
    """Return whether another target shows these mismatches, too. If both runs end with an error, its text may differ:
    PyTorch may call a graph with one input too few, and each backend says so in other words."""
    ends = any(mismatch.where == WHOLE and mismatch.oracle == "error" for mismatch in there)
    others = [mismatch for mismatch in wrong if not (ends and mismatch.where == WHOLE and mismatch.oracle == "error")]
    return answers(others) <= answers(there)


def unexplained(trial: Trial, wrong: Sequence[Mismatch]) -> tuple[Sequence[Mismatch], str]:
    """The mismatches that PyTorch without the backend does not show, and the target without the backend that shows all
    of them, if there is one. Without such targets, all mismatches."""
    for spec in filter(trial.target.is_like, trial.target.facts.without_backend) if wrong else ():
        verdict = judge_trial(trial.on(loaded(spec)), locate=False, watch=watch_steps(trial.program))
        left = [mismatch for mismatch in wrong if not _is_shown([mismatch], verdict.mismatches)]
        if not left:
            return [], spec
        wrong = left
    return wrong, ""


def shrink(
    spec: str,
    finding: FailingProgram,
    trials: int,
    until: float = math.inf,
    progress: ShrinkProgress = NO_PROGRESS,
    hang: Collection[str] = (),
) -> FailingProgram:
    """Return the failure on a smaller program that is wrong in the same way, with its signature computed again. From
    `until` on, in seconds since the epoch, no smaller program is tried. `progress` is that of earlier workers."""
    target = loaded(spec)
    if finding.kind not in DEATHS:
        return Minimizer(target, finding, trials, until, progress).smallest()

    def exhausts(candidate: Trial, verdict: Verdict) -> bool:
        return finding.kind == MEMORY and verdict.exhausted

    hangs = finding.kind == TIMEOUT
    deadly = ShrinkTrials(target, progress, exhausts, hangs=hangs, hang=hang, until=until)
    small = finding.died_on(deadly.smallest(finding.program, CRASH_TRIALS, passes_of(finding)))
    return replace(small, tried=deadly.tried)


class Minimizer:
    """Minimization of one finding with mismatches.

    If the finding also shows on PyTorch without the backend, so must each smaller program. Otherwise each smaller
    program must keep a mismatch that PyTorch without the backend does not have. If the last layer of a target is slow,
    the trials run on the first layer that shows the failure, unless the result does not fail on the target. A finding
    of a drawn program may end as another operator's, which the program's own step calls; a finding that names its
    passes keeps its operator.
    """

    trials: ShrinkTrials
    leading: Mismatch
    """The mismatch that each smaller program must have too."""

    def __init__(
        self, target: Target, finding: FailingProgram, most: int, until: float, progress: ShrinkProgress
    ) -> None:
        self.target, self.finding, self.most, self.until, self.progress = target, finding, most, until, progress
        self.tried = 0

    def smallest(self) -> FailingProgram:
        """Return the finding on the smallest program, with its cause; the same finding if it does not fail again."""
        small, verdict = self._smallest()
        if not verdict.mismatches or verdict.vanished:
            return replace(self.finding, tried=self.tried)
        plain = None if passes_of(self.finding) else plainer(small, verdict, self._is_wrong)
        if plain is not None:
            small, verdict = plain, judge_program(plain, self.target)
        cause = cause_of(small, verdict, self._is_wrong)
        return replace(
            self.finding,
            signature=str(signature(small, verdict)),
            program=small,
            mismatches=verdict.mismatches,
            bad_step=verdict.bad_step,
            wrong_first=verdict.wrong_first,
            property=cause.property,
            op=cause.op,
            tried=self.tried,
        )

    def _smallest(self) -> tuple[Program, Verdict]:
        trial = Trial.of(self.finding.program, self.target)
        shown = self._own(trial, self.finding.mismatches) or self.finding.mismatches
        layer = shortest(trial, shown, judge_trial).target
        if layer is not self.target:
            small, verdict = self._smallest_on(layer, shown)
            if self._matches(small, verdict):
                return small.program, verdict
        small, verdict = self._smallest_on(self.target, shown)
        return small.program, verdict

    def _smallest_on(self, layer: Target, shown: Sequence[Mismatch]) -> tuple[Trial, Verdict]:
        """Return the trial of the smallest program that fails on a layer of the target, and the target's verdict.

        Steps after the first bad step may be wrong for other reasons, so they are removed first."""
        program, step = self.finding.program, self.finding.bad_step
        self.trials = ShrinkTrials(layer, self.progress, self._matches, seconds=LONGEST_TRIAL, until=self.until)
        if step:
            beginning = program.with_steps(program.steps[:step])
            mismatches = self._mismatches(beginning)
            if self.finding.shown is not None:
                program = beginning if shows(self.finding, beginning, mismatches) else program
            else:
                program, shown = (beginning, mismatches) if mismatches else (program, shown)
        self.leading = leading(shown)
        small = Trial.of(self.trials.smallest(program, self.most, passes_of(self.finding)), self.target)
        self.tried += self.trials.tried
        return small, judge_trial(small)

    def _matches(self, candidate: Trial, verdict: Verdict) -> bool:
        own = self._own(candidate, verdict.mismatches)
        if self.finding.shown is not None:
            return shows(self.finding, candidate.program, own)
        return bool(own) and shows_same_failure(self.leading, leading(own))

    def _own(self, candidate: Trial, mismatches: Sequence[Mismatch]) -> Sequence[Mismatch]:
        """Return the mismatches that PyTorch without the backend does not show; for a finding that shows there too, all
        of them or none."""
        own, layer = unexplained(candidate.on(self.target), mismatches)
        return (mismatches if layer else ()) if self.finding.layer else own

    def _mismatches(self, candidate: Program) -> Sequence[Mismatch]:
        trial = Trial.of(candidate, self.trials.target)
        with contextlib.suppress(UnitTimeout):
            return self._own(trial, self.trials.judged(trial).mismatches)
        return ()

    def _is_wrong(self, candidate: Program) -> bool:
        return bool(self._mismatches(candidate))


_culprits: dict[tuple[str, str], str] = {}
"""The culprits that this process has searched, by target and cause."""


def attributed(spec: str, finding: FailingProgram, until: float = math.inf) -> FailingProgram:
    """Return the finding with the culprit of its cause, if it is known by `until`, in seconds since the epoch. A worker
    searches once for each cause. Whatever a target raises while its parts are replaced, the finding stays."""
    if finding.kind != FAIL or not finding.mismatches:
        return finding
    key = (spec, finding.cause())
    if key not in _culprits:
        limit = min(LONGEST_ATTRIBUTION, max(until - time.time(), 0.01))
        with contextlib.suppress(UnitTimeout, Exception), at_most(limit):
            _culprits[key] = culprit(Trial.of(finding.program, loaded(spec)), finding.difference)
    return replace(finding, culprit=_culprits.get(key, ""))


def fails(spec: str, program: Program, limit: float) -> bool:
    """Whether the target is wrong on a program. Raises ProgramError if the program has no meaning on torch CPU."""
    try:
        with at_most(limit):
            return bool(judge_program(program, loaded(spec), locate=False).mismatches)
    except UnitTimeout:
        return True


def survives(spec: str, program: Program, hang: Collection[str] = ()) -> bool:
    """Run a program to see whether the process survives it. Return False if it only runs out of memory."""
    try:
        with unit("a smaller program"):
            return not judge_program(program, loaded(spec), locate=False, watch=watch_steps(program, hang)).exhausted
    except MemoryError:
        return False


SAME = "fails in the same way"
"""Answer for a related target that shows every difference of a finding with the same answers."""


def elsewhere(spec: str, finding: FailingProgram, limit: float) -> str:
    """The result of a finding's program on a related target: `agrees`, `fails` with the oracle, or why it did not
    run."""
    program = finding.program
    try:
        with at_most(limit):
            verdict = judge_program(program, loaded(spec), locate=False, watch=watch_steps(program))
    except UnitTimeout:
        return f"{SAME} (timeout)" if finding.kind == TIMEOUT else "runs too long"
    except TargetError as error:
        return f"cannot be used: {error}"
    except ProgramError as error:
        return f"cannot be judged: {error}"
    if verdict.unsupported:
        return f"leaves out {verdict.unsupported}"
    if not verdict.mismatches:
        return "agrees"
    same = finding.kind == FAIL and _is_shown(finding.mismatches, verdict.mismatches)
    return f"{SAME if same else 'fails'} ({verdict.mismatches[0].oracle})"


def died_elsewhere(finding: FailingProgram, death: Death) -> str:
    """The result of a finding's program on a related target whose worker died of it."""
    if death.reason is ExitReason.TIMEOUT:
        return f"{SAME} (timeout)" if finding.kind == TIMEOUT else "runs too long"
    return f"{SAME if finding.kind == CRASH and finding.said == death.said else 'fails'} (crash)"
