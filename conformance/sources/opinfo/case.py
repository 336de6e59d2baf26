"""One case: the samples of an OpInfo, run on torch CPU and on the target, observed and compared.

Defines `run_case`, and `RunningCase`, a case in progress. The CPU runs first, on its own copy of the inputs. The target
must give the same answer, an error included. A sample without an answer from the CPU is skipped and counted, and never
passes. The judge and the oracles define equality, not this module.
"""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from conformance.engine.executor import Execution, Executor, Watch
from conformance.engine.judge import exceeding
from conformance.engine.loading import reference
from conformance.engine.rules import LaidOut
from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.program.capture import Unwritable
from conformance.program.execute import ProgramSubject
from conformance.program.model import Program
from conformance.program.relations import BROKEN, BY_STRIDES, LAYOUT
from conformance.program.unsupported import SPARSE, TAGGED, lacking_operator, runs_tagged, unsupported_names
from conformance.program.verdict import compare_call
from conformance.record.case_counts import CaseCounts
from conformance.record.errors import UserError
from conformance.record.finding import TOGETHER
from conformance.record.measurements import COMPILED, NOT_COMPILED, Measurements
from conformance.record.names import CHANGED, NOT_COMPARED
from conformance.record.result import LONGEST_TEXT, Failure, Result
from conformance.sources.opinfo import batch, catalog, guard_bytes, undefined
from conformance.sources.opinfo.arguments import Origin
from conformance.sources.opinfo.finding import failure_of, failure_of_program
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import written
from conformance.sources.opinfo.sampling import Sample, samples
from conformance.sources.opinfo.variants import NOTHING_THERE, SampleTrial, Skip, trials_of
from conformance.standalone.moving import tensors
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import WHOLE, Mismatch, headline
from conformance.standalone.torch_compat import VALUE_DEPENDENT, op_db_unseeded


class Note(Protocol):
    """Callback that receives the sample index, the phase, whether the target may compile kernels in it, and the changed
    argument.
    """

    def __call__(self, sample: int, phase: str, builds: bool = False, origin: Origin | None = None) -> None: ...


def run_case(
    case: Case,
    target: Target,
    note: Note = lambda sample, phase, builds=False, origin=None: None,
    skipped: Collection[int] = (),
    together: bool = True,
) -> Result:
    """Compare up to `case.samples` samples of the case.

    `note` receives the sample and the phase before each step that may crash, so that another process can report the
    place. The samples in `skipped` do not run: they have ended a worker. With `together`, a target that compiles
    functions gets several calls in one function first; the phase is then `TOGETHER`.
    """
    begin = time.perf_counter()
    running = RunningCase(case, target, note)
    # A compiler must see the op and not a wrapper that sets a seed; each run of a call sets the seed anyway.
    unseeded = op_db_unseeded() if target.facts.transforms_program else contextlib.nullcontext()
    with warnings.catch_warnings(), unseeded:
        warnings.simplefilter("ignore")
        try:
            running.run(skipped, together)
        except UserError:
            raise
        except Exception as error:
            running.failed += 1
            running.fail(Failure.of_harness(error))
    running.judge_measured()
    return running.result(time.perf_counter() - begin)


class RunningCase(CaseCounts):
    """A case in progress on the target."""

    case: Case

    def __init__(self, case: Case, target: Target, note: Note) -> None:
        super().__init__(case)
        self.target, self.note = target, note
        self.op, self.dtype = catalog.find(case), getattr(torch, case.dtype)
        self.fault, self.fault_is_fatal = undefined.fault_of(case)
        self.measured = Measurements({measure.name: 0 for measure in target.facts.measures})
        self.worst: dict[str, tuple[int, SampleTrial]] = {}
        """By measure, the trial with the largest excess over its bound, and that excess."""

    def run(self, skipped: Collection[int], together: bool) -> None:
        """Run the samples; see `run_case`. Raises errors of the harness itself."""
        case, drawn = self.case, False
        most = batch.MOST_CALLS if together and self.target.facts.compiles and case.variant not in batch.APART else 1
        waiting: list[SampleTrial] = []
        for sample in samples(self.op, case.variant, self.dtype, case.layout, case.samples):
            if sample.index in skipped:
                continue
            self.note(sample.index, "sampling")
            drawn = True
            for trial in self._trials(sample):
                waiting += [trial] if self._can_compare(trial) else []
                if len(waiting) == most:
                    self._compare(waiting)
                    waiting = []
        self._compare(waiting)
        if case.variant in CHANGED and not (drawn or skipped):
            self.skip("no argument of the op has such a change", excused=True)

    def judge_measured(self) -> None:
        """Compare the measurements of all samples with their summed bounds, since a case's total is also compared with
        the baseline. One sample may then cost a kernel more if another saves one.
        """
        if self.case.variant in ("error_inputs", *CHANGED):
            return
        for mismatch in exceeding(self.measured, self.measured.most, "aten ops on CPU and storages moved"):
            excess, trial = self.worst[mismatch.oracle]  # the sum exceeds its bound only if one call does
            more = replace(mismatch, detail=f"{mismatch.detail}, {excess} more in this sample")
            self.fail(failure_of(trial, more, Observation(), Observation()))

    def take(
        self, trial: SampleTrial, mismatches: Sequence[Mismatch], expected: Observation, actual: Observation
    ) -> None:
        """Count a compared call, and store its mismatches."""
        self.compared += 1
        self.failed += bool(mismatches)
        for mismatch in mismatches:
            if mismatch.oracle not in self.failures:
                self.fail(failure_of(trial, mismatch, expected, actual))

    def _watch(self, sample: Sample) -> Watch:
        """Return a callback that notes each step of the sample's program on the target."""
        return lambda number, builds: self.note(sample.index, "target", builds, sample.origin)

    def _trials(self, sample: Sample) -> Iterator[SampleTrial]:
        try:
            yield from trials_of(self.case, sample, self.target)
        except Skip as reason:
            self.skip(str(reason), excused=str(reason) in NOTHING_THERE)

    def _can_compare(self, trial: SampleTrial) -> bool:
        """Whether torch CPU's answer can be compared with the target's. If not, the program was skipped, counted as
        failed, or judged by relations."""
        reason = _undeclared(trial) or (self.fault if self.fault_is_fatal else "")
        if reason:
            self.skip(reason, excused=True)
            return False
        if self.target.facts.relations:
            self._judge_by_relations(trial)
            return False
        self.note(trial.sample.index, "CPU", origin=trial.sample.origin)
        return not self._says_nothing(trial, trial.cpu.run)

    def _says_nothing(self, trial: SampleTrial, expected: Execution) -> bool:
        """Whether torch CPU's run says nothing about the target; counts the program as skipped or failed."""
        changed, error = self.case.variant in CHANGED, expected.last.error
        if expected.failed_step == 0:
            # No declaration covers this skip, so it is a failure until an expectation declares it.
            text = f"{error.kind}: {error.text}"[:LONGEST_TEXT] if error else ""
            self.failed += 1
            detail = f"it cannot be moved: {text}"
            self.fail(Failure(NOT_COMPARED, "an input", "a comparison", "none", detail, trial.sample.index))
        elif (left_out := _left_out(self.case, trial.program, expected)) is not None:
            self.skip(*left_out)
        elif beside := changed and error is None and guard_bytes.faults(trial):
            if self.fault or self.target.name != reference().name:
                reason = self.fault or "torch CPU's answer depends on the memory beside its operands"
                self.skip(reason, excused=True)
            else:
                self.take(trial, beside[:1], expected.last, expected.last)
        else:
            return False
        return True

    def _compare(self, trials: Sequence[SampleTrial]) -> None:
        """Run programs on the target, and judge them against their runs on torch CPU. Several run together first, and
        those that do not pass that way run alone."""
        passed: set[int] = set()
        if len(trials) > 1:
            first = trials[0].sample.index

            def right(at: int, actual: Execution) -> bool:
                judgement = trials[at].judge(actual)
                return not (judgement.mismatches or judgement.arbitrated or judgement.tolerated)

            def watch(number: int, builds: bool) -> None:
                self.note(first, TOGETHER, builds)

            passed = batch.passing(trials, self.target, watch, right)
            self.compared += len(passed)
            self.measured += Measurements({COMPILED: len(passed)})
        for at, trial in enumerate(trials):
            if at not in passed:
                self._compare_alone(trial)

    def _compare_alone(self, trial: SampleTrial) -> None:
        expected, error = trial.cpu.run.last, trial.cpu.run.last.error
        # PyTorch does not define the content of operands after a refused call.
        oracles = {"error"} if self.case.variant in CHANGED and error is not None else None
        verdict = compare_call(trial, self._watch(trial.sample), oracles)
        if verdict.unsupported:
            return self.skip(verdict.unsupported, excused=True)
        assert verdict.sides is not None
        self._measure(trial, verdict.measured)
        origin, actual = trial.sample.origin, verdict.sides[1]
        mismatches = [wrong for wrong in verdict.mismatches if not as_refused(origin, expected, actual, wrong)]
        if mismatches and self.fault:
            return self.skip(self.fault, excused=True)
        self.measured += Measurements({verdict.extent: 1} if verdict.extent else {})
        if not mismatches and verdict.extent == NOT_COMPILED:
            # Counted separately, and never a pass: torch CPU would be compared with itself.
            return self.skip(f"{NOT_COMPILED}: the compiler received nothing", excused=True)
        self.arbitrated += verdict.arbitrated
        self.tolerated += verdict.tolerated
        return self.take(trial, mismatches, expected, actual)

    def _measure(self, trial: SampleTrial, measured: Measurements) -> None:
        """Add the measurements of one program; remember the one with the largest excess."""
        self.measured += measured
        for name, bound in measured.most.items():
            excess = measured.counts[name] - bound
            if excess > self.worst.get(name, (0, trial))[0]:
                self.worst[name] = excess, trial

    def _judge_by_relations(self, trial: SampleTrial) -> None:
        """Judge a sample by the target's relations, as a program that is data."""
        case, target, watch = self.case, self.target, self._watch(trial.sample)
        watch(0, target.facts.transforms_program)
        if self._broken_by_layout(trial, watch):
            return None
        try:
            program = written(trial)[0]
        except Unwritable as reason:
            return self.skip(f"no program holds {reason}", excused=True)
        verdict = judge_program(program, target, watch=watch)
        if verdict.unsupported:
            return self.skip(verdict.unsupported, excused=True)
        self.compared += 1
        self.failed += bool(verdict.mismatches)
        for mismatch in verdict.mismatches[:1]:
            failure = Failure(sample=trial.sample.index, **vars(mismatch))
            self.fail(failure_of_program(case, target, failure, program, verdict))
        return None

    def _broken_by_layout(self, trial: SampleTrial, watch: Watch) -> bool:
        """Whether a call on tensors with a layout raises, and the same call on contiguous tensors does not; counts it
        as failed."""
        case = self.case
        plain = case.layout == "as_sampled" or case.variant not in ("forward", "method", "backward")
        if plain or BY_STRIDES.search(case.op):
            return False
        run = trial.run(watch=watch)
        error, contiguous = run.last.error, LaidOut(ProgramSubject(trial.program), "contiguous")
        if error is None or run.unavailable or Executor(self.target).run(contiguous).last.error is not None:
            return False
        detail = f"{headline(error.text)}; {BROKEN.format(LAYOUT)}"
        self.take(trial, [Mismatch("error", WHOLE, "no error", error.kind, detail)], Observation(), run.last)
        return True


ACCEPTED = {
    "error_inputs": ("the CPU accepts this input", False),
    "refused_device": ("torch CPU accepts a tensor without values", True),
}
"""Variants whose calls torch CPU must refuse: why a call that it accepts is skipped, and whether that is no failure."""


def _left_out(case: Case, program: Program, expected: Execution) -> tuple[str, bool] | None:
    """Return the reason why torch CPU's run says nothing about the target, and whether that is no failure; None if the
    run can be compared."""
    error = expected.last.error
    if error is not None and error.not_implemented:
        return f"the CPU does not implement it either: {headline(error.text)}", case.variant in CHANGED
    if case.layout == "expanded" and _wrote_to_shared(program.trees, expected.inputs):
        return "it writes to an expanded input, which is undefined", False
    return ACCEPTED.get(case.variant) if error is None else None


def _undeclared(trial: SampleTrial) -> str:
    """Return the declaration that exempts the target from this program, or "" if there is none."""
    program, target = trial.program, trial.target
    inputs = tensors(program.trees)
    traits = unsupported_names(target.facts, "trait")
    if SPARSE in traits and any(tensor.layout is not torch.strided for tensor in inputs):
        return "the target declares that it does not support sparse tensors"
    held = target.facts.dtypes
    missing = sorted({str(t.dtype).removeprefix("torch.") for t in inputs if held is not None and t.dtype not in held})
    if missing:
        return f"the target declares that it does not hold {', '.join(missing)}"
    operator = lacking_operator(program, target)
    if operator:
        return f"the target's profile declares that it lacks {operator}"
    for trait in traits & {*TAGGED}:
        if runs_tagged(program, TAGGED[trait]):
            return f"the target declares that it does not support {trait}"
    if not target.facts.shows_values and runs_tagged(program, VALUE_DEPENDENT):
        return "its metadata depends on values, which the target does not have"
    return ""


def _wrote_to_shared(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether inputs whose elements share memory have changed. The schema cannot answer this: some operators write to
    inputs without declaring it.
    """
    for old, new in zip(tensors(before), tensors(after), strict=True):
        strides = zip(old.stride(), old.shape, strict=True) if old.layout is torch.strided else ()
        shared = any(stride == 0 and size > 1 for stride, size in strides)
        if shared and not bool(((old == new) | (old.isnan() & new.isnan())).all()):
            return True
    return False


CLEAR = frozenset({"RuntimeError", "TypeError", "ValueError", "IndexError"})
"""Errors by which torch refuses a call. A device may check the arguments of a call in another order than torch CPU."""


def as_refused(origin: Origin | None, expected: Observation, actual: Observation, mismatch: Mismatch) -> bool:
    """Whether the mismatch is about a call with a changed argument, which the target may refuse in its own way.

    The target must refuse what torch CPU refuses, by an error of a kind of `CLEAR`. It may refuse a tensor on another
    device, and copying a tensor without values is not implemented on any.
    """
    if origin is None or actual.error is None or mismatch.oracle != "error":
        return False
    if origin.change.variant == "kind_scalar" and re.search(r"(?i)\bdevice|on (the )?cpu\b", actual.error.text):
        return True  # torch's rules for tensors on two devices, which torch CPU cannot show
    there = not actual.error.not_implemented or origin.change.variant == "refused_device"
    return expected.error is not None and there and not CLEAR.isdisjoint(actual.error.ancestors)
