"""One case: the samples of an OpInfo, run on torch CPU and on the target, observed and compared.

Defines `run_case`, and `RunningCase`, a case in progress. The CPU runs first, on its own copy of the inputs. The target
must give the same answer, an error included. A sample without an answer from the CPU is skipped and counted, and never
passes. The judge and the oracles define equality, not this module.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch

from conformance.engine.aten_ops import AtenOps, OperatorNames, Tagged
from conformance.engine.executor import Execution, Executor, Watch
from conformance.engine.judge import bounded, exceeding, judge
from conformance.engine.kernel_tables import lacking
from conformance.engine.loading import reference
from conformance.engine.rules import LaidOut
from conformance.engine.target import Target, TargetFacts
from conformance.program.calls import judge_program
from conformance.program.relations import BROKEN, BY_STRIDES, LAYOUT
from conformance.program.unsupported import SPARSE, TAGGED, unsupported_names
from conformance.record.errors import UserError
from conformance.record.finding import TOGETHER
from conformance.record.measurements import COMPILED, NOT_COMPILED, Measurements
from conformance.record.names import CHANGED, MEASURED, NOT_COMPARED
from conformance.record.result import LONGEST_TEXT, Failure, Outcome, Result
from conformance.sources.opinfo import batch, catalog, surroundings, undefined
from conformance.sources.opinfo.arguments import Origin
from conformance.sources.opinfo.call import SampleCall, as_refused
from conformance.sources.opinfo.finding import failure_of, failure_of_program
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import Unwritable, program_of
from conformance.sources.opinfo.sampling import Sample, samples
from conformance.sources.opinfo.variants import NOTHING_THERE, Skip, calls_of
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


class RunningCase:
    """A case in progress on the target: its counts, its measurements, and the first failure of each oracle."""

    def __init__(self, case: Case, target: Target, note: Note) -> None:
        self.case, self.target, self.note = case, target, note
        self.op, self.dtype = catalog.find(case), getattr(torch, case.dtype)
        self.fault, self.fault_is_fatal = undefined.fault_of(case)
        self.compared = self.arbitrated = self.tolerated = self.failed = self.excused = 0
        self.skipped = Counter[str]()
        self.failures: dict[str, Failure] = {}
        self.measured = Measurements({measure.name: 0 for measure in target.facts.measures})
        self.worst: dict[str, tuple[int, SampleCall]] = {}
        """By measure, the call with the largest excess over its bound, and that excess."""

    def run(self, skipped: Collection[int], together: bool) -> None:
        """Run the samples; see `run_case`. Raises errors of the harness itself."""
        case, drawn = self.case, False
        most = batch.MOST_CALLS if together and self.target.facts.compiles and case.variant not in batch.APART else 1
        waiting: list[tuple[SampleCall, Execution]] = []
        for sample in samples(self.op, case.variant, self.dtype, case.layout, case.samples):
            if sample.index in skipped:
                continue
            self.note(sample.index, "sampling")
            drawn = True
            for call in self._calls(sample):
                expected = self._expected(call)
                waiting += [(call, expected)] if expected is not None else []
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
            excess, call = self.worst[mismatch.oracle]  # the sum exceeds its bound only if one call does
            more = replace(mismatch, detail=f"{mismatch.detail}, {excess} more in this sample")
            self.fail(failure_of(self.target, call, more, Observation(), Observation()))

    def result(self, seconds: float) -> Result:
        """Return the result of the case."""
        reason = "" if self.compared else ("; ".join(self.skipped) or "OpInfo has no sample for it")
        # A compiler may receive no ops from any sample.
        excused = self.measured.get(NOT_COMPILED) or 0 < self.excused == self.skipped.total()
        if not (self.compared or self.failures or excused):
            # A whole case may be skipped only if the target declares it beforehand; otherwise an expectation must
            # declare it.
            self.fail(Failure(NOT_COMPARED, "the whole case", "a comparison", "none", reason))
        passed = Outcome.PASS if self.compared else Outcome.SKIP
        outcome = Outcome.CRASH if "memory" in self.failures else Outcome.FAIL if self.failures else passed
        return self.case.result(
            outcome,
            samples=self.compared,
            arbitrated=self.arbitrated,
            tolerated=self.tolerated,
            skipped=self.skipped.total(),
            failed=self.failed,
            reason=reason,
            failures=tuple(self.failures.values()),
            measurements=self.measured,
            seconds=seconds,
        )

    def skip(self, reason: str, excused: bool = False) -> None:
        """Skip a sample. `excused` marks a reason that is no failure, even if it holds for every sample: a declaration
        of the target, or a sample with nothing to compare."""
        self.skipped[reason] += 1
        self.excused += excused

    def fail(self, failure: Failure) -> None:
        """Store the first failure of each oracle."""
        self.failures.setdefault(failure.oracle, failure)

    def take(
        self, call: SampleCall, mismatches: Sequence[Mismatch], expected: Observation, actual: Observation
    ) -> None:
        """Count a compared call, and store its mismatches."""
        self.compared += 1
        self.failed += bool(mismatches)
        for mismatch in mismatches:
            if mismatch.oracle not in self.failures:
                self.fail(failure_of(self.target, call, mismatch, expected, actual))

    def _watch(self, call: SampleCall) -> Watch:
        """Return a callback that notes each step of the call on the target."""
        return lambda number, builds: self.note(call.sample.index, "target", builds, call.sample.origin)

    def _calls(self, sample: Sample) -> Iterator[SampleCall]:
        try:
            yield from calls_of(self.case, sample)
        except Skip as reason:
            self.skip(str(reason), excused=str(reason) in NOTHING_THERE)

    def _expected(self, call: SampleCall) -> Execution | None:
        """Return the call's run on torch CPU. None if there is no run to compare: the call was skipped, counted as
        failed, or judged by relations."""
        reason = _undeclared(self.target, call) or (self.fault if self.fault_is_fatal else "")
        if reason:
            self.skip(reason, excused=True)
            return None
        if self.target.facts.relations:
            self._judge_by_relations(call)
            return None
        self.note(call.sample.index, "CPU", origin=call.sample.origin)
        expected = Executor(reference()).run(call)
        return None if self._says_nothing(call, expected) else expected

    def _says_nothing(self, call: SampleCall, expected: Execution) -> bool:
        """Whether torch CPU's run says nothing about the target; counts the call as skipped or failed."""
        changed, error = self.case.variant in CHANGED, expected.last.error
        if expected.failed_step == 0:
            # No declaration covers this skip, so it is a failure until an expectation declares it.
            text = f"{error.kind}: {error.text}"[:LONGEST_TEXT] if error else ""
            self.failed += 1
            detail = f"it cannot be moved: {text}"
            self.fail(Failure(NOT_COMPARED, "an input", "a comparison", "none", detail, call.sample.index))
        elif (left_out := _left_out(self.case, call, expected)) is not None:
            self.skip(*left_out)
        elif beside := changed and error is None and surroundings.faults(call, expected):
            if self.fault or self.target.name != reference().name:
                reason = self.fault or "torch CPU's answer depends on the memory beside its operands"
                self.skip(reason, excused=True)
            else:
                self.take(call, beside[:1], expected.last, expected.last)
        else:
            return False
        return True

    def _compare(self, pairs: Sequence[tuple[SampleCall, Execution]]) -> None:
        """Run calls on the target, and judge them against their runs on torch CPU. Several calls run together first,
        and those that do not pass that way run alone."""
        passed: set[int] = set()
        if len(pairs) > 1:
            first = pairs[0][0].sample.index

            def right(at: int, actual: Execution) -> bool:
                call, expected = pairs[at]
                judgement = judge(call, expected, actual, self.target, self.target.facts.oracles)
                return not (judgement.mismatches or judgement.arbitrated or judgement.tolerated)

            def watch(number: int, builds: bool) -> None:
                self.note(first, TOGETHER, builds)

            passed = batch.passing(pairs, self.target, watch, right)
            self.compared += len(passed)
            self.measured += Measurements({COMPILED: len(passed)})
        for at, (call, expected) in enumerate(pairs):
            if at not in passed:
                self._compare_call(call, expected)

    def _compare_call(self, call: SampleCall, expected: Execution) -> None:
        case, target, error = self.case, self.target, expected.last.error
        actual = Executor(target).run(call, watch=self._watch(call))
        if actual.unavailable:
            return self.skip(f"the device has no way to make {actual.unavailable}", excused=True)
        # If only one side raises, which the judge reports, the counts of the two sides are not comparable.
        if (error is None) == (actual.last.error is None):
            self._measure(call, expected, actual)
        # PyTorch does not define the content of operands after a refused call.
        oracles = {"error"} if case.variant in CHANGED and error is not None else target.facts.oracles
        mismatches, arbitrated, tolerated = judge(call, expected, actual, target, oracles)
        mismatches = [mismatch for mismatch in mismatches if not as_refused(call, expected.last, actual.last, mismatch)]
        if mismatches and self.fault:
            return self.skip(self.fault, excused=True)
        reached = self._reached(actual, error is not None)
        if not mismatches and not reached:
            # Counted separately, and never a pass: torch CPU would be compared with itself.
            return self.skip(f"{NOT_COMPILED}: the compiler received nothing", excused=True)
        self.arbitrated += arbitrated
        self.tolerated += tolerated
        return self.take(call, mismatches, expected.last, actual.last)

    def _measure(self, call: SampleCall, expected: Execution, actual: Execution) -> None:
        """Add the measurements of one call; remember the call with the largest excess."""
        judged = not {*MEASURED}.isdisjoint(actual.measured.counts)
        most = _under(AtenOps(), call).total + transfers(expected.last) if judged else None
        measured = bounded(actual.measured, most)
        self.measured += measured
        for name, bound in measured.most.items():
            excess = measured.counts[name] - bound
            if excess > self.worst.get(name, (0, call))[0]:
                self.worst[name] = excess, call

    def _reached(self, actual: Execution, raises: bool) -> bool:
        """Whether the target's compiler received at least a part of the call; counts the extent. An error during
        tracing counts as the compiler's own answer.
        """
        if actual.capture is None:
            return True
        extent = COMPILED if raises and not actual.capture.ops and not actual.capture.breaks else actual.capture.extent
        self.measured += Measurements({extent: 1})
        return extent != NOT_COMPILED

    def _judge_by_relations(self, call: SampleCall) -> None:
        """Judge a call by the target's relations, as a program."""
        case, target, watch = self.case, self.target, self._watch(call)
        watch(0, target.facts.transforms_program)
        if self._broken_by_layout(call, watch):
            return None
        try:
            program = program_of(call)
        except Unwritable as reason:
            return self.skip(f"no program holds {reason}", excused=True)
        verdict = judge_program(program, target, watch=watch)
        if verdict.unsupported:
            return self.skip(verdict.unsupported, excused=True)
        self.compared += 1
        self.failed += bool(verdict.mismatches)
        for mismatch in verdict.mismatches[:1]:
            failure = Failure(sample=call.sample.index, **vars(mismatch))
            self.fail(failure_of_program(case, target, failure, program, verdict))
        return None

    def _broken_by_layout(self, call: SampleCall, watch: Watch) -> bool:
        """Whether a call on tensors with a layout raises, and the same call on contiguous tensors does not; counts it
        as failed."""
        case, executor = self.case, Executor(self.target)
        plain = case.layout == "as_sampled" or case.variant not in ("forward", "method", "backward")
        if plain or BY_STRIDES.search(case.op):
            return False
        run = executor.run(call, watch=watch)
        error = run.last.error
        if error is None or run.unavailable or executor.run(LaidOut(call, "contiguous")).last.error is not None:
            return False
        detail = f"{headline(error.text)}; {BROKEN.format(LAYOUT)}"
        self.take(call, [Mismatch("error", WHOLE, "no error", error.kind, detail)], Observation(), run.last)
        return True


ACCEPTED = {
    "error_inputs": ("the CPU accepts this input", False),
    "refused_device": ("torch CPU accepts a tensor without values", True),
}
"""Variants whose calls torch CPU must refuse: why a call that it accepts is skipped, and whether that is no failure."""


def _left_out(case: Case, call: SampleCall, expected: Execution) -> tuple[str, bool] | None:
    """Return the reason why torch CPU's run says nothing about the target, and whether that is no failure; None if the
    run can be compared."""
    error = expected.last.error
    if error is not None and error.not_implemented:
        return f"the CPU does not implement it either: {headline(error.text)}", case.variant in CHANGED
    if case.layout == "expanded" and _wrote_to_shared(call.tree, expected.inputs):
        return "it writes to an expanded input, which is undefined", False
    return ACCEPTED.get(case.variant) if error is None else None


def _undeclared(target: Target, call: SampleCall) -> str:
    """Return the declaration that exempts the target from this call, or the empty string if there is none."""
    inputs = tensors(call.tree)
    traits = unsupported_names(target.facts, "trait")
    if SPARSE in traits and any(tensor.layout is not torch.strided for tensor in inputs):
        return "the target declares that it does not support sparse tensors"
    held = target.facts.dtypes
    missing = sorted({str(t.dtype).removeprefix("torch.") for t in inputs if held is not None and t.dtype not in held})
    if missing:
        return f"the target declares that it does not hold {', '.join(missing)}"
    if target.facts.profile is not None and target.facts.profile.operators:
        operator = lacking(_under(OperatorNames(), call).names, target)
        if operator:
            return f"the target's profile declares that it lacks {operator}"
    for trait in traits & {*TAGGED}:
        if _under(Tagged(TAGGED[trait]), call, _Inside).seen:
            return f"the target declares that it does not support {trait}"
    if not target.facts.shows_values and depends_on_values(call):
        return "its metadata depends on values, which the target does not have"
    return ""


def transfers(seen: Observation) -> int:
    """Return the kernels allowed for moving data: one for each storage that is sent or fetched."""
    fetched = {tensor.alias for tensor in seen.tensors.values()}
    return len(seen.storages) + len(fetched) + sum(grad is not None for grad in seen.grads.values())


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


class _Watched(Target):
    """Torch CPU with a dispatch mode around the call, but not around the moves. It needs a separate run, because a mode
    that counts ops changes the behaviour of some ops.
    """

    name = "cpu"

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.mode = mode

    def active(self) -> Any:
        """Return the mode."""
        return self.mode


class _Inside(_Watched):
    """Torch CPU with a dispatch mode around the function under test only, not around the drawing of cotangents."""

    facts = TargetFacts(transforms_program=True)

    def active(self) -> Any:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function in the mode."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.mode:
                return function(*args, **kwargs)

        return watched


Mode = TypeVar("Mode")


def _under(mode: Mode, call: SampleCall, cpu: type[_Watched] = _Watched) -> Mode:
    """Run the call on torch CPU with a dispatch mode, and return the mode."""
    Executor(cpu(mode)).run(call)
    return mode


def depends_on_values(call: SampleCall) -> bool:
    """Whether the call, on torch CPU, runs an aten op whose result metadata depends on the values of its inputs."""
    return _under(Tagged(VALUE_DEPENDENT), call).seen
