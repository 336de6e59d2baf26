"""The minimized form of one failing sample, in a worker: trials on the target, and the failure of the smallest program.

Defines `Minimizer` and `programs_of`. A candidate fails in the same way if the verdict on it has a mismatch of the same
property: the same oracle, about a result or about an input as before, and for an error the same type and text.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.engine.target import Target
from conformance.program.capture import Unwritable
from conformance.program.model import Program
from conformance.program.reduce import SAMPLE_PASSES, plainer_values, written_names
from conformance.program.steps.op import snippet_sources
from conformance.program.steps.table import OPS
from conformance.program.trial import Trial
from conformance.program.verdict import Verdict
from conformance.record.finding import ON_CPU, shown_by
from conformance.record.result import Failure
from conformance.run.shrink_progress import DEATHS, ShrinkProgress
from conformance.run.shrink_trials import ShrinkTrials, shows_same_failure
from conformance.sources.opinfo import catalog, undefined
from conformance.sources.opinfo.finding import LONGEST_INPUTS, LONGEST_LINES, failure_of_program
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import RESULT, program_of, unrun
from conformance.sources.opinfo.sampling import samples
from conformance.sources.opinfo.variants import VARIANTS, SampleCall, Skip
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import bare, own_part
from conformance.standalone.torch_compat import op_db_unseeded

TRIALS, SECONDS = 250, 30.0
"""Limits on the trials of one failure in one worker: their number, and the time in which they begin."""

NOT_SHOWN = "the program does not show the failure"


class Minimizer:
    """Minimization of one failure of a case on the target; `worker.minimized` explains the arguments."""

    def __init__(self, target: Target, case: Case, failure: Failure, until: float, progress: ShrinkProgress) -> None:
        self.target, self.case, self.failure, self.reason = target, case, failure, NOT_SHOWN
        self.until = min(until, time.time() + SECONDS)
        self.late = time.time() >= until and not progress.best
        hangs = failure.oracle == "timeout"
        self.trials = ShrinkTrials(target, progress, self._matches, hangs=hangs, until=self.until)

    def smallest(self) -> Failure | str:
        """Return the failure on the smallest program, or the reason why there is none; "" if there is no time."""
        if self.late:
            return ""
        failing = self.trials.best
        if failing is None:
            programs, reason = programs_of(self.case, self.failure, self.target)
            if not programs:
                return f"it cannot be written as a program: {reason}"
            if self.failure.where == ON_CPU:  # the reference ends its process, so no smaller program can be judged
                return self._failure(programs[0])
            if self.trials.hangs and not (self.target.facts.lazy or self.target.facts.transforms_program):
                # A hang would take the time for kernels too, and only some devices build kernels for long.
                self.trials.hang = {"", *(step.op for program in programs for step in program.steps)}
            failing = next(filter(self.trials.fails, programs), None)
            if failing is None:
                return self.reason
        distinct = undefined.needs_distinct(self.case.op)
        passes = [reduction for reduction in SAMPLE_PASSES if not (distinct and reduction is plainer_values)]
        return self._failure(self.trials.smallest(failing, TRIALS, passes))

    def _matches(self, trial: Trial, verdict: Verdict) -> bool:
        if verdict.unsupported:
            self.reason = f"the target does not take the program: {verdict.unsupported}"
        return any(self._alike(trial.program, mismatch) for mismatch in verdict.mismatches)

    def _alike(self, program: Program, mismatch: Mismatch) -> bool:
        other = self.failure
        if shown_by(mismatch) != shown_by(other) or not shows_same_failure(mismatch, other):
            return False
        return mismatch.oracle == "error" or self._of_result(program, mismatch.where) == self._of_result(
            program, other.where
        )

    def _of_result(self, program: Program, where: str) -> bool:
        """Whether a mismatch is about a result or a written operand, and not about another input. Names are those of
        the program, or those of the call if its inputs are large."""
        name = where.removeprefix("grad of ").partition(" (")[0].partition("[")[0]
        written = {"out", *(["input"] if self.case.variant == "inplace" else [])}.union(
            *map(written_names, program.steps)
        )
        return name in written or name.startswith((RESULT, "step "))

    def _failure(self, program: Program) -> Failure | str:
        case, failure, verdict = self.case, self.failure, Verdict()
        if failure.oracle not in DEATHS:
            verdict = self.trials.judged(Trial.of(program, self.target), self.trials.progress.best, locate=True)
            first = next((mismatch for mismatch in verdict.mismatches if self._alike(program, mismatch)), None)
            if first is None:
                return NOT_SHOWN
            rest = tuple(mismatch for mismatch in verdict.mismatches if mismatch is not first)
            verdict = replace(verdict, mismatches=(first, *rest))
        smaller = failure_of_program(case, self.target, failure, program, verdict)
        smaller = replace(smaller, cut=time.time() >= self.until)
        helpers = snippet_sources(name for step in program.steps if (name := OPS[step.op].snippet))
        lines = len(own_part(smaller.script).splitlines()) - sum(len(text.splitlines()) for text in map(bare, helpers))
        short = lines <= LONGEST_LINES
        small = sum(storage.size for storage in program.storages) <= LONGEST_INPUTS
        return smaller if short and small else f"its script has more than {LONGEST_LINES} lines, or large inputs"


def programs_of(case: Case, failure: Failure, target: Target, checked: bool = True) -> tuple[list[Program], str]:
    """Return the failing sample's calls as programs, and the reason if none of them can be written. A call that ends
    torch CPU's own process does not run; without `checked`, no call does."""
    programs, reason = list[Program](), "a sample without a call"
    written = program_of if checked and failure.where != ON_CPU else unrun
    for call in _calls(case, failure.sample, target):
        if not call.note or failure.oracle in DEATHS or f"({call.note})" in failure.where:
            try:
                programs.append(written(case, call))
            except Unwritable as error:
                reason = str(error)
    return programs, reason


def _calls(case: Case, index: int, target: Target) -> Iterator[SampleCall]:
    """Yield the calls of the case's sample of this index."""
    op, dtype = catalog.find(case), getattr(torch, case.dtype)
    unseeded = op_db_unseeded() if target.facts.transforms_program else contextlib.nullcontext()
    with unseeded, contextlib.suppress(Skip):
        for sample in samples(op, case.variant, dtype, case.layout, None):
            if sample.index == index:
                yield from VARIANTS[case.variant](op, sample)
                return
