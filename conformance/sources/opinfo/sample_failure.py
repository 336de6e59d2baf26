"""The program of one failing sample, and the failure as its smallest program shows it, in a worker.

Defines `failing_programs` and `failure_on`, between which `run/shrinking.py` shrinks the program, and `programs_of`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.engine.target import Target
from conformance.program.calls import judge_trial
from conformance.program.capture import Unwritable
from conformance.program.model import Program
from conformance.program.reduce import written_names
from conformance.program.steps.op import snippet_sources
from conformance.program.steps.table import OPS
from conformance.program.trial import Trial
from conformance.program.verdict import Verdict
from conformance.record.finding import CRASH, FAIL, FLAKY, ON_CPU, TIMEOUT, shown_by
from conformance.record.result import Failure
from conformance.run.failing_program import FailingProgram
from conformance.run.shrink_program import (
    DISTINCT_SAMPLE,
    SAMPLE,
    is_shown,
    shows_same_failure,
    unexplained,
    watch_steps,
)
from conformance.run.worker import loaded, unit
from conformance.sources.opinfo import catalog, seeding, undefined
from conformance.sources.opinfo.finding import LONGEST_INPUTS, LONGEST_LINES, failure_of_program
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import RESULT, unrun, written
from conformance.sources.opinfo.sampling import samples
from conformance.sources.opinfo.variants import SampleTrial, Skip, trials_of
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import bare, own_part
from conformance.standalone.torch_compat import op_db_unseeded

NOT_SHOWN = "the program does not show the failure"

NOT_REPEATED = "a new process does not repeat it"

TOO_LONG = f"its script has more than {LONGEST_LINES} lines, or large inputs"

DEATHS = {"crash": CRASH, "timeout": TIMEOUT}
"""Kinds of failing programs, by the oracle of a failure that ended its worker."""


def failing_programs(spec: str, case: Case, failure: Failure) -> list[FailingProgram] | str:
    """Return the program of the sample's call that shows the failure, or the reason why there is none. After a failure
    that ended its worker no call is tried, and the programs of all calls of the sample are returned."""
    target = loaded(spec)
    programs, reason = programs_of(case, failure, target)
    if not programs:
        return f"it cannot be written as a program: {reason}"
    wrong, passes = shown_by(failure), DISTINCT_SAMPLE if undefined.needs_distinct(case.op) else SAMPLE
    new = functools.partial(FailingProgram, wrong, seed=seeding.SEED, number=failure.sample, passes=passes)
    if failure.oracle in DEATHS:
        kind, said = DEATHS[failure.oracle], failure.actual
        return [new(kind, program=program, property=wrong, op=case.op, said=said) for program in programs]
    reason = NOT_SHOWN
    for program in programs:
        trial = Trial.of(program, target)
        with unit(case.id):
            verdict = judge_trial(trial, locate=True, watch=watch_steps(program))
            shown = next((one for one in verdict.mismatches if _is_failure_of_call(case, failure, program, one)), None)
            layer = unexplained(trial, [shown])[1] if shown is not None else ""
        if shown is not None:
            finding = new(FAIL, program=program, mismatches=verdict.mismatches, bad_step=verdict.bad_step, shown=shown)
            return [replace(finding, property=wrong, op=case.op, layer=layer)]
        if verdict.unsupported:
            reason = f"the target does not take the program: {verdict.unsupported}"
    return reason


def failure_on(spec: str, case: Case, failure: Failure, small: FailingProgram) -> Failure | str:
    """Return the failure as its smallest program shows it, or the reason why it stays as it is. If only the program is
    too long to be read, the failure keeps its script and gets the culprit."""
    target, program, verdict = loaded(spec), small.program, Verdict()
    if small.kind == FLAKY:
        return NOT_REPEATED
    if failure.oracle not in DEATHS:
        with unit(case.id):
            verdict = judge_trial(Trial.of(program, target), locate=True, watch=watch_steps(program))
        first = next((mismatch for mismatch in verdict.mismatches if is_shown(small, program, mismatch)), None)
        if first is None:
            return NOT_SHOWN
        rest = tuple(mismatch for mismatch in verdict.mismatches if mismatch is not first)
        verdict = replace(verdict, mismatches=(first, *rest))
    smaller = failure_of_program(case, target, failure, program, verdict)
    smaller = replace(smaller, cut=small.cut, culprit=small.culprit)
    helpers = snippet_sources(name for step in program.steps if (name := OPS[step.op].snippet))
    lines = len(own_part(smaller.script).splitlines()) - sum(len(text.splitlines()) for text in map(bare, helpers))
    short = lines <= LONGEST_LINES and sum(storage.size for storage in program.storages) <= LONGEST_INPUTS
    if short:
        return smaller
    return replace(failure, culprit=small.culprit) if small.culprit else TOO_LONG


def _is_failure_of_call(case: Case, failure: Failure, program: Program, mismatch: Mismatch) -> bool:
    """Whether a mismatch of the sample's program is the failure of its call, in which names may differ."""
    if shown_by(mismatch) != shown_by(failure) or not shows_same_failure(mismatch, failure):
        return False
    of_result = _is_of_result(case, program, mismatch.where) == _is_of_result(case, program, failure.where)
    return mismatch.oracle == "error" or of_result


def _is_of_result(case: Case, program: Program, where: str) -> bool:
    """Whether a mismatch is about a result or a written operand, and not about another input. Names are those of the
    program, or those of the call if its inputs are large."""
    name = where.removeprefix("grad of ").partition(" (")[0].partition("[")[0]
    written = {"out", *(["input"] if case.variant == "inplace" else [])}.union(*map(written_names, program.steps))
    return name in written or name.startswith((RESULT, "step "))


def programs_of(case: Case, failure: Failure, target: Target, checked: bool = True) -> tuple[list[Program], str]:
    """Return the failing sample's calls as programs, and the reason if none of them can be written. A call that ends
    torch CPU's own process does not run; without `checked`, no call does."""
    programs, reason = list[Program](), "a sample without a call"
    runs = checked and failure.where != ON_CPU
    for trial in _trials(case, failure.sample, target):
        note = trial.program.note
        if not note or failure.oracle in DEATHS or f"({note})" in failure.where:
            try:
                programs.append(written(trial)[0] if runs else unrun(trial))
            except Unwritable as error:
                reason = str(error)
    return programs, reason


def _trials(case: Case, index: int, target: Target) -> Iterator[SampleTrial]:
    """Yield the trials of the case's sample of this index."""
    op, dtype = catalog.find(case), getattr(torch, case.dtype)
    unseeded = op_db_unseeded() if target.facts.transforms_program else contextlib.nullcontext()
    with unseeded, contextlib.suppress(Skip):
        for sample in samples(op, case.variant, dtype, case.layout, None):
            if sample.index == index:
                yield from trials_of(case, sample, target)
                return
