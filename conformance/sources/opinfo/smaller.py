"""The minimized form of one failing sample, in a worker: trials on the target, and the failure of the smallest program.

Defines `Trials`. A candidate fails in the same way if the verdict on it has a mismatch of the same property: the
same oracle, about a result or about an input as before, and for an error the same type and text.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterator
from dataclasses import replace

import torch

from conformance.engine.target import Target
from conformance.program.execute import Broken
from conformance.program.model import Program, ProgramError
from conformance.program.reduce import SAMPLE_PASSES, plainer_values, reduce_program, written_names
from conformance.program.verdict import Verdict, judge_program
from conformance.record.finding import gist, property_of
from conformance.record.result import Failure
from conformance.run.messages import COMPILING
from conformance.run.worker import UnitTimeout, step, unit
from conformance.sources.opinfo import catalog, undefined
from conformance.sources.opinfo.finding import LONGEST_INPUTS, LONGEST_LINES, failure_of_program
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import RESULT, Unwritable, program_of
from conformance.sources.opinfo.sampling import samples
from conformance.sources.opinfo.variants import VARIANTS, Call, Skip
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import own_part
from conformance.standalone.torch_compat import op_db_unseeded

TRIALS, SECONDS = 250, 30.0
"""Limits on the trials of one failure in one worker: their number, and the time in which they begin."""

DEATHS = ("crash", "timeout")
"""Oracles of failures that end a worker."""

NOT_SHOWN = "the program does not show the failure"


class Trials:
    """Trials of programs on the target for one failure of a case; `worker.minimized` explains the arguments. Each
    trial is noted before it runs, with the smallest failing program so far."""

    def __init__(
        self, target: Target, case: Case, failure: Failure, until: float, program: str, skipped: Collection[str]
    ) -> None:
        self.target, self.case, self.failure = target, case, failure
        self.until, self.best, self.skipped, self.reason = until, program, skipped, NOT_SHOWN

    def smallest(self) -> Failure | str:
        """Return the failure on the smallest program, or the reason why there is none; "" if there is no time."""
        if time.time() >= self.until and not self.best:
            return ""
        if self.best:
            start: Program | None = Program.from_json(json.loads(self.best))
        else:
            programs, reason = self._programs()
            if not programs:
                return f"it cannot be written as a program: {reason}"
            start = next(filter(self.fails, programs), None)
        if start is None:
            return self.reason
        until = min(self.until, time.time() + SECONDS)
        distinct = undefined.needs_distinct(self.case.op)
        passes = [one for one in SAMPLE_PASSES if not (distinct and one is plainer_values)]
        small = reduce_program(start, self.fails, TRIALS, passes, until)
        return self._failure(small)

    def fails(self, program: Program) -> bool:
        """Whether the target fails on the program in the same way."""
        text = json.dumps(program.to_json())
        if text in self.skipped:
            return False
        try:
            verdict = self._judged(program, text, locate=False)
        except UnitTimeout:
            failed = self.failure.oracle == "timeout"
        except (ProgramError, Broken):
            return False
        else:
            failed = any(self._alike(program, mismatch) for mismatch in verdict.mismatches)
            self.reason = (
                f"the target does not take the program: {verdict.unsupported}" if verdict.unsupported else self.reason
            )
        self.best = text if failed else self.best
        return failed

    def _judged(self, program: Program, text: str, locate: bool) -> Verdict:
        # A hang would take the time for kernels too, and only some devices build kernels for long.
        slow = self.failure.oracle != "timeout" or self.target.lazy or self.target.transforms_program

        def watch(number: int, builds: bool) -> None:
            step(str(number), COMPILING if builds and slow else "")

        with unit(json.dumps([self.best, text])):
            return judge_program(program, self.target, locate=locate, watch=watch)

    def _alike(self, program: Program, one: Mismatch) -> bool:
        other = self.failure
        if _property(one) != _property(other) or one.oracle != other.oracle:
            return False
        if one.oracle == "error":
            return (one.expected, one.actual, gist(one.detail)) == (other.expected, other.actual, gist(other.detail))
        return self._of_result(program, one.where) == self._of_result(program, other.where)

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
            verdict = self._judged(program, self.best, locate=True)
            first = next((one for one in verdict.mismatches if self._alike(program, one)), None)
            if first is None:
                return NOT_SHOWN
            rest = tuple(one for one in verdict.mismatches if one is not first)
            verdict = replace(verdict, mismatches=(first, *rest))
        made = failure_of_program(case, self.target, failure, program, verdict)
        short = len(own_part(made.script).splitlines()) <= LONGEST_LINES
        small = sum(storage.size for storage in program.storages) <= LONGEST_INPUTS
        return made if short and small else f"its script has more than {LONGEST_LINES} lines, or large inputs"

    def _programs(self) -> tuple[list[Program], str]:
        """Return the failing sample's calls as programs, and the reason if none of them can be written."""
        made, reason = list[Program](), "a sample without a call"
        for call in self._calls():
            if not call.note or self.failure.oracle in DEATHS or f"({call.note})" in self.failure.where:
                try:
                    made.append(program_of(self.case, call))
                except Unwritable as error:
                    reason = str(error)
        return made, reason

    def _calls(self) -> Iterator[Call]:
        case, index = self.case, self.failure.sample
        op, dtype = catalog.find(case), getattr(torch, case.dtype)
        unseeded = op_db_unseeded() if self.target.transforms_program else contextlib.nullcontext()
        with unseeded, contextlib.suppress(Skip):
            for sample in samples(op, case.variant, dtype, case.layout, None):
                if sample.index == index:
                    yield from VARIANTS[case.variant](op, sample)
                    return


def _property(one: Mismatch | Failure) -> str:
    return property_of(one.oracle, one.expected, one.actual, one.detail)
