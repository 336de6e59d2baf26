"""Trials of smaller programs on a target, in a worker that one of them may end. All sources shrink with them.

Defines `ShrinkTrials`, and `watch_steps`, which records each step before it runs.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from conformance.engine.executor import Watch
from conformance.engine.target import Target
from conformance.program.calls import fails_alone, judge_trial
from conformance.program.execute import Broken
from conformance.program.model import Program, ProgramError
from conformance.program.reduce import reduce_program
from conformance.program.trial import Trial
from conformance.program.verdict import Verdict
from conformance.record.finding import gist
from conformance.record.result import Failure
from conformance.run.messages import COMPILING
from conformance.run.shrink_progress import ShrinkProgress
from conformance.run.worker import UnitTimeout, at_most, step
from conformance.standalone.oracles import Mismatch


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
        try:
            trial = Trial.of(program, self.target)
            failed, timed_out = self.matches(trial, self.judged(trial, text)), False
        except UnitTimeout:
            failed, timed_out = self.hangs, self.hangs
        except (ProgramError, Broken):  # a program without a meaning on torch CPU shows nothing
            return False
        if failed:
            self.progress = self.progress.failed(text, timed_out)
        return failed

    def judged(self, trial: Trial, text: str = "", locate: bool = False) -> Verdict:
        """Return the verdict on a smaller program, within the time of a trial. Raises UnitTimeout."""
        left = max(min(self.seconds, self.until - time.time()), 0.01)
        # Within the context of a trial, at_most replaces the worker's own limit.
        with self.progress.trial(text), at_most(left) if self.seconds < math.inf else contextlib.nullcontext():
            verdict = judge_trial(trial, locate=locate, watch=watch_steps(trial.program, self.hang))
            # a call that fails as the first one is another finding, on a program of one call
            another = verdict.call is not None and fails_alone(trial, verdict.call)
            return Verdict() if another else verdict
