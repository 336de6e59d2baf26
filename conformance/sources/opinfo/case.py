"""One case: the samples of an OpInfo, run on torch CPU and on the target, observed and compared.

Defines `run_case`. The CPU runs first, on its own copy of the inputs. The target must give the same answer, an error
included. A sample without an answer from the CPU is skipped and counted, and never passes. The judge and the oracles
define equality, not this module.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from conformance.engine.aten_ops import TAGGED, AtenOps, Operators, Tagged
from conformance.engine.executor import Execution, Executor
from conformance.engine.judge import bounded, exceeding, judge
from conformance.engine.kernel_tables import lacking
from conformance.engine.loading import reference
from conformance.engine.rules import LaidOut
from conformance.engine.target import SPARSE, Target
from conformance.program.calls import judge_program
from conformance.program.relations import BROKEN, BY_STRIDES, LAYOUT
from conformance.record.errors import UserError
from conformance.record.finding import TOGETHER
from conformance.record.measurements import COMPILED, NOT_COMPILED, UNMEASURED, Measurements
from conformance.record.names import CHANGED, MEASURED, NOT_COMPARED
from conformance.record.result import LONGEST_TEXT, Failure, Outcome, Result
from conformance.sources.opinfo import batch, catalog, surroundings, undefined
from conformance.sources.opinfo.arguments import Origin
from conformance.sources.opinfo.finding import failure_of, failure_of_program
from conformance.sources.opinfo.judge import JudgedCall, as_refused
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import Unwritable, program_of
from conformance.sources.opinfo.sampling import Sample, samples
from conformance.sources.opinfo.variants import NOTHING_THERE, VARIANTS, Call, Skip
from conformance.standalone.moving import tensors
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import WHOLE, Mismatch, headline
from conformance.standalone.torch_compat import VALUE_DEPENDENT, op_db_unseeded


@dataclass
class _Tally:
    compared: int = 0
    arbitrated: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    excused: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    measured: Measurements = UNMEASURED
    worst: dict[str, tuple[int, Call]] = field(default_factory=dict)
    """By measure, the call with the largest excess over its bound, and that excess."""

    def skip(self, reason: str, excused: bool = False) -> None:
        """Skip a sample. `excused` marks a reason that is no failure, even if it holds for every sample."""
        self.skipped[reason] += 1
        self.excused += excused

    def fail(self, failure: Failure) -> None:
        """Store the first failure of each oracle."""
        self.failures.setdefault(failure.oracle, failure)

    def measure(self, call: Call, measured: Measurements) -> None:
        """Add the measurements of one call; remember the call with the largest excess."""
        self.measured += measured
        for name, most in measured.most.items():
            excess = measured.counts[name] - most
            if excess > self.worst.get(name, (0, call))[0]:
                self.worst[name] = excess, call


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
    op, dtype = catalog.find(case), getattr(torch, case.dtype)
    target.reset_state()
    tally = _Tally(measured=Measurements({measure.name: 0 for measure in target.measures}))
    # A compiler must see the op and not a wrapper that sets a seed; each run of a call sets the seed anyway.
    unseeded = op_db_unseeded() if target.transforms_program else contextlib.nullcontext()
    drawn = False
    most = batch.MOST_CALLS if together and target.compiles and case.variant not in batch.APART else 1
    waiting: list[tuple[Call, Execution]] = []
    with warnings.catch_warnings(), unseeded:
        warnings.simplefilter("ignore")
        try:
            for sample in samples(op, case.variant, dtype, case.layout, case.samples):
                if sample.index in skipped:
                    continue
                note(sample.index, "sampling")
                drawn = True
                for call in _calls(op, case, sample, tally):
                    expected = _expected(case, target, call, tally, note)
                    waiting += [(call, expected)] if expected is not None else []
                    if len(waiting) == most:
                        _compare(case, target, waiting, tally, note)
                        waiting = []
            _compare(case, target, waiting, tally, note)
        except UserError:
            raise
        except Exception as error:
            tally.failed += 1
            tally.fail(Failure.of_harness(error))
    if case.variant in CHANGED and not (drawn or skipped or tally.failures):
        tally.skip("no argument of the op has such a change", excused=True)
    _judge_measured(case, target, tally)
    reason = "" if tally.compared else ("; ".join(tally.skipped) or "OpInfo has no sample for it")
    if not (tally.compared or tally.failures or _excused(tally)):
        # A whole case may be skipped only if the target declares it beforehand; otherwise an expectation must declare
        # it.
        tally.fail(Failure(NOT_COMPARED, "the whole case", "a comparison", "none", reason))
    return case.result(
        _outcome(tally),
        samples=tally.compared,
        arbitrated=tally.arbitrated,
        skipped=sum(tally.skipped.values()),
        failed=tally.failed,
        reason=reason,
        failures=tuple(tally.failures.values()),
        measurements=tally.measured,
        seconds=time.perf_counter() - begin,
    )


def _judge_measured(case: Case, target: Target, tally: _Tally) -> None:
    """Compare the measurements of all samples with their summed bounds, since a case's total is also compared with the
    baseline. One sample may then cost a kernel more if another saves one.
    """
    if case.variant in ("error_inputs", *CHANGED):
        return
    for mismatch in exceeding(tally.measured, tally.measured.most, "aten ops on CPU and storages moved"):
        excess, call = tally.worst[mismatch.oracle]  # the sum exceeds its bound only if one call does
        more = replace(mismatch, detail=f"{mismatch.detail}, {excess} more in this sample")
        tally.fail(failure_of(case, target, call, more, Observation(), Observation()))


def _excused(tally: _Tally) -> bool:
    """Whether nothing was compared for reasons that are no failure.

    Such reasons are declarations of the target, samples with nothing to compare, and a compiler that received no ops
    from any other sample.
    """
    return bool(tally.measured.get(NOT_COMPILED)) or (0 < tally.excused == sum(tally.skipped.values()))


def _outcome(tally: _Tally) -> Outcome:
    if "memory" in tally.failures:
        return Outcome.CRASH
    if tally.failures:
        return Outcome.FAIL
    return Outcome.PASS if tally.compared else Outcome.SKIP


def _calls(op: Any, case: Case, sample: Sample, tally: _Tally) -> Iterator[Call]:
    try:
        yield from VARIANTS[case.variant](op, sample)
    except Skip as reason:
        tally.skip(str(reason), excused=str(reason) in NOTHING_THERE)


def _expected(case: Case, target: Target, call: Call, tally: _Tally, note: Note) -> Execution | None:
    """Return the call's run on torch CPU. None if there is no run to compare: the call was skipped, counted as failed,
    or judged by relations."""
    index, origin = call.sample.index, call.sample.origin
    reason = _undeclared(target, call)
    if reason:
        tally.skip(reason, excused=True)
        return None
    fault, dies = undefined.fault_of(case)
    if dies:
        tally.skip(fault, excused=True)
        return None
    if target.relations:
        _run_related(case, target, call, tally, note)
        return None
    note(index, "CPU", origin=origin)
    expected = Executor(reference()).run(call)
    if expected.failed_step == 0:
        # No declaration covers this skip, so it is a failure until an expectation declares it.
        error = expected.last.error
        text = f"{error.kind}: {error.text}"[:LONGEST_TEXT] if error else ""
        tally.failed += 1
        tally.fail(Failure(NOT_COMPARED, "an input", "a comparison", "none", f"it cannot be moved: {text}", index))
        return None
    left_out = _left_out(case, call, expected)
    if left_out is not None:
        tally.skip(*left_out)
        return None
    if case.variant in CHANGED and expected.last.error is None:
        beside = surroundings.faults(catalog.find(case), call, getattr(torch, case.dtype), expected)
        if beside and not fault and target.name == reference().name:
            tally.compared, tally.failed = tally.compared + 1, tally.failed + 1
            tally.fail(failure_of(case, target, call, beside[0], expected.last, expected.last))
            return None
        if beside:
            tally.skip(fault or "torch CPU's answer depends on the memory beside its operands", excused=True)
            return None
    return expected


ACCEPTED = {
    "error_inputs": ("the CPU accepts this input", False),
    "refused_device": ("torch CPU accepts a tensor without values", True),
}
"""Variants whose calls torch CPU must refuse: why a call that it accepts is skipped, and whether that is no failure."""


def _left_out(case: Case, call: Call, expected: Execution) -> tuple[str, bool] | None:
    """Return the reason why torch CPU's run says nothing about the target, and whether that is no failure; None if the
    run can be compared."""
    error = expected.last.error
    if error is not None and error.not_implemented:
        return f"the CPU does not implement it either: {headline(error.text)}", case.variant in CHANGED
    if case.layout == "expanded" and _wrote_to_shared(call.tree, expected.inputs):
        return "it writes to an expanded input, which is undefined", False
    return ACCEPTED.get(case.variant) if error is None else None


def _compare(case: Case, target: Target, pairs: Sequence[tuple[Call, Execution]], tally: _Tally, note: Note) -> None:
    """Run calls on the target, and judge them against their runs on torch CPU. Several calls run together first, and
    those that do not pass that way run alone."""
    passed: set[int] = set()
    if len(pairs) > 1:
        first = pairs[0][0].sample.index

        def right(at: int, actual: Execution) -> bool:
            call, expected = pairs[at]
            mismatches, arbitrated = judge(JudgedCall(case, call), expected, actual, target, target.oracles)
            return not (mismatches or arbitrated)

        passed = batch.passing(pairs, target, lambda number, builds: note(first, TOGETHER, builds), right)
        tally.compared += len(passed)
        tally.measured += Measurements({COMPILED: len(passed)})
    for at, (call, expected) in enumerate(pairs):
        if at not in passed:
            _compare_call(case, target, call, expected, tally, note)


def _compare_call(case: Case, target: Target, call: Call, expected: Execution, tally: _Tally, note: Note) -> None:
    index, origin, error = call.sample.index, call.sample.origin, expected.last.error
    fault, _ = undefined.fault_of(case)

    def watch(number: int, builds: bool) -> None:
        note(index, "target", builds, origin)

    actual = Executor(target).run(call, watch=watch)
    if actual.unavailable:
        return tally.skip(f"the device has no way to make {actual.unavailable}", excused=True)
    # If only one side raises, which the judge reports, the counts of the two sides are not comparable.
    if (error is None) == (actual.last.error is None):
        judged = not {*MEASURED}.isdisjoint(actual.measured.counts)
        most = _eager_ops(call) + transfers(expected.last) if judged else None
        tally.measure(call, bounded(actual.measured, most))
    # PyTorch does not define the content of operands after a refused call.
    oracles = {"error"} if case.variant in CHANGED and error is not None else target.oracles
    mismatches, arbitrated = judge(JudgedCall(case, call), expected, actual, target, oracles)
    mismatches = [mismatch for mismatch in mismatches if not as_refused(call, expected.last, actual.last, mismatch)]
    if mismatches and fault:
        return tally.skip(fault, excused=True)
    reached = _reached(actual, error is not None, tally)
    if not mismatches and not reached:
        # Counted separately, and never a pass: torch CPU would be compared with itself.
        return tally.skip(f"{NOT_COMPILED}: the compiler was handed nothing", excused=True)
    tally.compared += 1
    tally.arbitrated += arbitrated
    tally.failed += bool(mismatches)
    for mismatch in mismatches:
        if mismatch.oracle not in tally.failures:
            tally.fail(failure_of(case, target, call, mismatch, expected.last, actual.last))
    return None


def _run_related(case: Case, target: Target, call: Call, tally: _Tally, note: Note) -> None:
    """Judge a call by the target's relations, as a program. A call on tensors with a layout must not raise either, if
    the same call on contiguous tensors does not."""
    index, origin = call.sample.index, call.sample.origin

    def watch(number: int, builds: bool) -> None:
        note(index, "target", builds, origin)

    watch(0, target.transforms_program)
    if (
        case.layout != "as_sampled"
        and case.variant in ("forward", "method", "backward")
        and not BY_STRIDES.search(case.op)
    ):
        run = Executor(target).run(call, watch=watch)
        error = run.last.error
        if (
            error is not None
            and not run.unavailable
            and Executor(target).run(LaidOut(call, "contiguous")).last.error is None
        ):
            tally.compared, tally.failed = tally.compared + 1, tally.failed + 1
            detail = f"{headline(error.text)}; {BROKEN.format(LAYOUT)}"
            wrong = Mismatch("error", WHOLE, "no error", error.kind, detail)
            return tally.fail(failure_of(case, target, call, wrong, Observation(), run.last))
    try:
        program = program_of(case, call)
    except Unwritable as reason:
        return tally.skip(f"no program holds {reason}", excused=True)
    verdict = judge_program(program, target, watch=watch)
    if verdict.unsupported:
        return tally.skip(verdict.unsupported, excused=True)
    tally.compared += 1
    tally.failed += bool(verdict.mismatches)
    for mismatch in verdict.mismatches[:1]:
        failure = Failure(sample=index, **vars(mismatch))
        tally.fail(failure_of_program(case, target, failure, program, verdict))
    return None


def _reached(actual: Execution, raises: bool, tally: _Tally) -> bool:
    """Whether the target's compiler received at least a part of the call; counts the extent. An error during tracing
    counts as the compiler's own answer.
    """
    if actual.capture is None:
        return True
    extent = COMPILED if raises and not actual.capture.ops and not actual.capture.breaks else actual.capture.extent
    tally.measured += Measurements({extent: 1})
    return extent != NOT_COMPILED


def _undeclared(target: Target, call: Call) -> str:
    """Return the declaration that exempts the target from this call, or the empty string if there is none."""
    inputs = tensors(call.tree)
    if SPARSE in target.unsupported("trait") and any(tensor.layout is not torch.strided for tensor in inputs):
        return "the target declares that it does not support sparse tensors"
    held = target.dtypes
    missing = sorted({str(t.dtype).removeprefix("torch.") for t in inputs if held is not None and t.dtype not in held})
    if missing:
        return f"the target declares that it does not hold {', '.join(missing)}"
    if target.profile is not None and target.profile.operators:
        operators = Operators()
        Executor(_Watched(operators)).run(call)
        operator = lacking(operators.names, target)
        if operator:
            return f"the target's profile declares that it lacks {operator}"
    for trait in target.unsupported("trait") & {*TAGGED}:
        ops = Tagged(TAGGED[trait])
        Executor(_Inside(ops)).run(call)
        if ops.seen:
            return f"the target declares that it does not support {trait}"
    if not target.shows_values and depends_on_values(call):
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

    transforms_program = True

    def active(self) -> Any:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function in the mode."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.mode:
                return function(*args, **kwargs)

        return watched


def _eager_ops(call: Call) -> int:
    """Return the number of aten ops that the call runs on torch CPU."""
    ops = AtenOps()
    Executor(_Watched(ops)).run(call)
    return ops.total


def depends_on_values(call: Call) -> bool:
    """Whether the call, on torch CPU, runs an aten op whose result metadata depends on the values of its inputs."""
    ops = Tagged(VALUE_DEPENDENT)
    Executor(_Watched(ops)).run(call)
    return ops.seen
