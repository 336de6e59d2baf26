"""Verdict on one program and one target: run the program, compare it with torch CPU, and find the first bad step.

The first run observes only the end, like a user's program, so that a lazy device can fuse steps. If it fails, a second
run observes after each step and locates the failure. If only the first run fails, the steps are correct one by one but
wrong together, which is a separate kind of finding. In this case, prefixes of the program run without observations in
between. The last step of the wrong prefix is the first bad step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from conformance.engine.executor import Watch, no_watch
from conformance.engine.judge import bounded, exceeding
from conformance.engine.layers import Layered
from conformance.engine.target import Capture
from conformance.program.model import Program, connected, digest
from conformance.program.recorded import is_recorded
from conformance.program.reduce import without_open_order
from conformance.program.shadow import Shadow, find_open_order
from conformance.program.steps.fusion import NAME as FUSION
from conformance.program.steps.layouts import layout_class
from conformance.program.steps.table import OPS
from conformance.program.trial import Trial
from conformance.program.unsupported import disabled_autocast, lacking_operator, missing_operator, unsupported_reason
from conformance.record.finding import MOVE, Signature, answers, gist
from conformance.record.measurements import COMPILED, NOT_COMPILED, UNMEASURED, Measurements
from conformance.record.names import MEASURED
from conformance.record.sentences import sentence
from conformance.standalone.observation import Observation, out_of_memory
from conformance.standalone.oracles import Mismatch, compare

FURTHER = "a further call with other {}"
"""The blamed place of a difference that only a further call shows; the field is the change against the first call."""


@dataclass(frozen=True)
class Verdict:
    """Result of comparing a program's run on a target with torch CPU.

    - `mismatches`: empty if the program passed.
    - `bad_step`: number of the first bad step; None if it was not searched or not found. 0: the inputs already differ.
    - `lazy_only`: observing after each step hides the failure.
    - `measured`: the target's counts, with the most that torch CPU allows.
    - `unsupported`: the reason why the program was not compared, such as a declared missing feature; else "". The
      program then has not passed.
    - `recorded`: the baseline has counts of the program.
    - `call`: number of the call that differs, 0 for the first; None for a program of one call.
    - `change`: the change of that call against the first call, in words.
    - `calls`: number of judged calls.
    - `relation`: the metamorphic relation that is broken; "" without one.
    - `arbitrated`: the program passed only because the target agrees with float64, and torch CPU is no nearer to it.
    - `tolerated`: the program passed only by a tolerance that the target declares.
    - `extent`: how much of the program the compiler received; see `extent_of`.
    """

    mismatches: tuple[Mismatch, ...] = ()
    bad_step: int | None = None
    lazy_only: bool = False
    measured: Measurements = UNMEASURED
    unsupported: str = ""
    recorded: bool = False
    arbitrated: bool = False
    tolerated: bool = False
    call: int | None = None
    change: str = ""
    calls: int = 0
    relation: str = ""
    extent: str = ""
    cause: Mismatch | None = None
    """First mismatch at the first bad step. At the end of the program, mismatches of other steps may precede it."""
    sides: tuple[Observation, Observation] | None = field(default=None, compare=False, repr=False)
    """Observations of torch CPU and of the target at the end of the program."""

    @property
    def wrong_first(self) -> str:
        """What is wrong at the first bad step, as a sentence, if the first mismatch does not say it: a wrong view, for
        example, before an error that ends the program. Otherwise ""."""
        cause, first = self.cause, self.mismatches[:1]
        same = cause is None or any(_is_same(cause, seen) or cause.oracle == "error" == seen.oracle for seen in first)
        return "" if cause is None or same else sentence(cause)

    @property
    def passed(self) -> bool:
        """True if the program ran and every oracle agreed."""
        return not self.mismatches and not self.unsupported

    @property
    def exhausted(self) -> bool:
        """True if the target ran out of memory."""
        errors = (mismatch for mismatch in self.mismatches if mismatch.oracle == "error")
        return any(out_of_memory(f"{mismatch.actual} {mismatch.detail}") for mismatch in errors)

    @property
    def vanished(self) -> bool:
        """True if the failure was not reproduced: the whole program passed when it ran again as its longest prefix."""
        return self.lazy_only and self.bad_step is None


WATCHED = "a program whose result depends on whether tensors are inspected between steps"
"""Reason to skip a program, since a target that runs it as one function inspects nothing on the way
(`CpuAnswer.same_unwatched`)."""

UNCAPTURED = "a program from which the compiler received nothing"
"""Reason to skip a program that ran in plain Python: no compiled code was compared."""


OPEN_ORDER = "an order that torch leaves open, of equal elements or of reads and writes"
"""Reason not to judge a program whose values differ: another order is as right."""

UNAVAILABLE = "a layout of an input that the device has no way to make"


def judge_call(
    trial: Trial,
    *,
    locate: bool = True,
    watch: Watch = no_watch,
    baseline: Mapping[str, Mapping[str, int]] | None = None,
) -> Verdict:
    """Return the verdict on a program of one call; see `calls.judge_program`."""
    program, target, cpu = trial.program, trial.target, trial.cpu
    unsupported = unsupported_reason(program, target.facts) or lacking_operator(program, target)
    unsupported = unsupported or disabled_autocast(program, target)
    if unsupported:
        return Verdict(unsupported=unsupported)
    if target.facts.transforms_program and not cpu.same_unwatched:
        return Verdict(unsupported=WATCHED)
    verdict = compare_call(trial, watch)
    if verdict.unsupported:
        return Verdict(unsupported=UNAVAILABLE)
    if not verdict.mismatches and verdict.extent == NOT_COMPILED:
        return Verdict(unsupported=UNCAPTURED)
    if verdict.sides and verdict.bad_step and (missing := missing_operator(verdict.sides[1].error, target)):
        start = Trial.of(program.with_steps(program.steps[: verdict.bad_step - 1]), target)
        verdict = judge_call(start, locate=locate, watch=watch, baseline=baseline)
        return verdict if verdict.mismatches else Verdict(unsupported=missing)
    if may_be_order(program, verdict.mismatches):
        rest = without_open_order(program, program) or program.with_steps(program.steps[: find_open_order(program) - 1])
        if not rest.steps or not judge_call(Trial.of(rest, target), locate=False).mismatches:
            return Verdict(unsupported=OPEN_ORDER)
    measured = verdict.measured
    before = baseline.get(digest(program), {}) if baseline and measured.counts else {}
    more = exceeding(measured, measured.most, "aten ops on CPU") + exceeding(measured, before, "in the baseline")
    verdict = replace(verdict, mismatches=(*verdict.mismatches, *more), recorded=bool(before))
    if verdict.passed and target.facts.lazy and any(OPS[step.op].family == FUSION for step in program.steps):
        return _step_by_step(trial, verdict, watch)
    if verdict.passed or not locate or verdict.mismatches[0].oracle in MEASURED:
        return verdict
    return _caused_before(trial, verdict, watch) if verdict.bad_step else located(trial, verdict, watch)


def may_be_order(program: Program, mismatches: Sequence[Mismatch]) -> bool:
    """Whether the mismatches may come from the step of `find_open_order`. Samples of op_db and recorded calls have
    rules of their own."""
    of_values = {mismatch.oracle for mismatch in mismatches} <= {"value", "storage", "grad"}
    drawn = not (program.given or is_recorded(program))
    return bool(mismatches) and of_values and drawn and find_open_order(program) > 0


def compare_call(trial: Trial, watch: Watch = no_watch, oracles: Collection[str] | None = None) -> Verdict:
    """Run a program of one call on the target, and return the verdict of the judge: without a search for the bad step,
    and without a comparison of the measured counts with their bounds. Only these oracles judge; all of the target's if
    they are None.

    `unsupported` is the layout that the device cannot make. If only one side raises, nothing is measured."""
    expected = trial.cpu.run.last  # torch CPU first: a worker that ends before the first step was ended by torch CPU
    target, execution = trial.target, trial.run(watch=watch)
    if execution.unavailable:
        return Verdict(unsupported=f"the device has no way to make {execution.unavailable}")
    actual = execution.last
    mismatches, arbitrated, tolerated = trial.judge(execution, oracles)
    if actual.error is not None and execution.failed_step is not None:
        where = f"step {execution.failed_step}"
        mismatches = [replace(wrong, where=where) if wrong.oracle == "error" else wrong for wrong in mismatches]
    measured = UNMEASURED
    if (expected.error is None) == (actual.error is None):
        counts_kernels = any(measure.name in MEASURED for measure in target.facts.measures)
        measured = bounded(execution.measured, trial.cpu.most_kernels if counts_kernels else None)
    return Verdict(
        tuple(mismatches),
        execution.failed_step,
        measured=measured,
        arbitrated=arbitrated,
        tolerated=tolerated,
        extent=extent_of(trial, execution.capture),
        sides=(expected, actual),
    )


def extent_of(trial: Trial, capture: Capture | None) -> str:
    """Return how much of the program the compiler received: COMPILED, PARTLY or NOT_COMPILED, or "" if the target
    counts no ops. An error that torch CPU raises too may end the tracing, and then counts as the compiler's answer."""
    if capture is None:
        return ""
    if trial.program.given:
        refused = trial.cpu.run.last.error is not None and not capture.breaks
    else:
        refused = all(step.raises for step in trial.program.steps)
    return COMPILED if refused and not capture.ops else capture.extent


def located(trial: Trial, verdict: Verdict, watch: Watch) -> Verdict:
    """Return a failing verdict with the first bad step. Unless a missing error names it, the program runs again, so a
    failure may vanish."""
    transforms = trial.target.facts.transforms_program
    suspected = suspect(trial.program, verdict.mismatches)
    accepted = missing_error(suspected, verdict.mismatches) if transforms else None
    if accepted is not None:
        return replace(verdict, bad_step=suspected, cause=accepted)
    if suspected and transforms:
        apart = _located_apart(trial, suspected, verdict, watch)
        if apart is not None:
            return apart
    trial = shortest(trial, verdict.mismatches)
    wrong, together = first_bad_step(trial, watch, suspected), False
    if wrong is None:
        wrong, together = None if transforms else first_bad_beginning(trial, watch), True
    number, cause = wrong or (None, None)
    return replace(_with_cause(verdict, cause), bad_step=number, lazy_only=together)


def _caused_before(trial: Trial, verdict: Verdict, watch: Watch) -> Verdict:
    """Return a verdict on an error at a step with the first bad step: an earlier one, connected with the failed one,
    may be wrong already, such as a call that returns another dtype."""
    failed = verdict.bad_step or 0
    wrong = first_bad_step(trial, watch, failed)
    if wrong is None or not 0 < wrong[0] < failed or wrong[0] not in connected(trial.program, failed):
        return verdict
    return replace(_with_cause(verdict, wrong[1]), bad_step=wrong[0])


def _with_cause(verdict: Verdict, cause: Mismatch | None) -> Verdict:
    """Return the verdict with the mismatch at the first bad step. If the end of the program has it, too, it comes first
    there, behind errors: a headline about another tensor would contradict the step that the script marks."""
    if cause is None:
        return verdict
    ordered = sorted(verdict.mismatches, key=lambda seen: (seen.oracle != "error", not _is_same(cause, seen)))
    return replace(verdict, cause=cause, mismatches=tuple(ordered))


def _is_same(mismatch: Mismatch, other: Mismatch) -> bool:
    return (mismatch.oracle, mismatch.where) == (other.oracle, other.where)


def _located_apart(trial: Trial, suspected: int, verdict: Verdict, watch: Watch) -> Verdict | None:
    """Return the failing verdict with the first bad step, searched among the steps up to the suspected one that share
    memory with it; None if these steps, as a program, do not give its wrong answer. They compile faster."""
    program = trial.program
    numbers = [number for number in connected(program, suspected) if number <= suspected]
    if len(numbers) == suspected:
        return None
    part = Trial.of(program.with_steps(tuple(program.steps[number - 1] for number in numbers)), trial.target)
    seen = judge_call(part, locate=False, watch=watch)
    if not answers([leading(verdict.mismatches)]) <= answers(seen.mismatches):
        return None
    layer = shortest(part, seen.mismatches)
    wrong = first_bad_step(layer, watch, len(numbers), leading(seen.mismatches))
    return replace(_with_cause(verdict, wrong[1]), bad_step=numbers[wrong[0] - 1]) if wrong and wrong[0] else None


def _step_by_step(trial: Trial, together: Verdict, watch: Watch) -> Verdict:
    """Return the verdict on fused expressions that passed as a whole: each step's result must also be right if it is
    computed separately."""
    wrong = _first_wrong(trial, trial.run(stepwise=True, watch=watch).observations)
    if wrong is None:
        return together
    number, cause = wrong
    cause = replace(cause, detail="; ".join(filter(None, (cause.detail, "only when each step is computed by itself"))))
    return replace(together, mismatches=(cause,), bad_step=number, cause=cause)


def leading(mismatches: Sequence[Mismatch]) -> Mismatch:
    """Return the mismatch nearest to the cause: an error or a missing error, since wrong values follow from it."""
    return next((mismatch for mismatch in mismatches if mismatch.oracle == "error"), mismatches[0])


def shortest(trial: Trial, mismatches: Sequence[Mismatch], judge: Callable[..., Verdict] = judge_call) -> Trial:
    """Return the trial on the first layer of the target that gives all the wrong answers. Return the trial itself if no
    earlier layer does, if the last layer is not slow, or if the target is no stack of layers.

    Each search of a failure runs many programs, and Inductor takes several times as long for each as AOTAutograd."""
    target = trial.target
    if isinstance(target, Layered) and target.slow:
        for _, layer in target.layers()[:-1]:
            on_layer = trial.on(layer)
            if answers(mismatches) <= answers(judge(on_layer, locate=False).mismatches):
                return on_layer
    return trial


def missing_error(number: int, mismatches: Sequence[Mismatch]) -> Mismatch | None:
    """Return the mismatch if step `number`, which must raise, does not; else None.

    All observed results of the steps before the suspected one are right, and whether a call must raise rarely depends
    on more. So no search is needed, which compiles two functions or more."""
    here = (
        mismatch
        for mismatch in mismatches
        if (mismatch.oracle, mismatch.where, mismatch.actual) == ("error", f"step {number}", "no error")
    )
    return next(here, None)


def suspect(program: Program, mismatches: Sequence[Mismatch]) -> int:
    """Return the number of the first step whose answer, results or written tensors differ at the end of the program; 0
    if the mismatches name none."""
    differing = {mismatch.where.partition("[")[0] for mismatch in mismatches}
    for number, step in enumerate(program.steps, 1):
        writes = step.op in OPS and OPS[step.op].writes is not None
        if differing & {f"step {number}", *step.out, *(step.names() if writes else ())}:
            return number
    return 0


def first_bad_step(
    trial: Trial, watch: Watch, suspected: int, known: Mismatch | None = None
) -> tuple[int, Mismatch] | None:
    """Run with an observation after each step, and return the number of the first bad step with its mismatch.

    The number is 0 if the inputs already differ. Return None if no step differs. If the target transforms functions,
    prefixes of the program are compiled as separate functions, first up to the suspected step. `known` is the mismatch
    of this first prefix, if it has run."""
    if trial.target.facts.transforms_program:
        wrong = first_bad_beginning(trial, watch, suspected, known)
        return wrong if wrong is None or wrong[0] > 1 else _wrong_inputs(trial, watch) or wrong
    return _wrong_inputs(trial, watch) or _first_wrong(trial, trial.run(stepwise=True, watch=watch).observations)


def _wrong_inputs(trial: Trial, watch: Watch) -> tuple[int, Mismatch] | None:
    """Return step 0 and a mismatch if the inputs differ before any step."""
    start = Trial.of(trial.program.with_steps(()), trial.target)
    sent = start.run(watch=watch).last
    moved = compare(start.cpu.end.observation, sent, oracles=trial.target.facts.oracles, exact=True)
    return (0, leading(moved)) if moved else None


def first_bad_beginning(
    trial: Trial, watch: Watch, suspected: int = 0, known: Mismatch | None = None
) -> tuple[int, Mismatch] | None:
    """Return the length of a wrong prefix of the program, and its mismatch; None if the failure is not reproduced.

    Each prefix is observed only at its end. The returned prefix is wrong, and without its last step it is right. Each
    prefix is compiled anew, so the search runs few: first the two that end with the suspected step and before it, and
    if these do not settle it, it bisects. It finds the shortest wrong prefix unless a later step hides the difference
    again."""
    count = len(trial.program.steps)

    def wrong(number: int) -> Mismatch | None:
        beginning = trial.beginning(number)
        return _difference(beginning, beginning.run(watch=watch).last)

    right, bad = 0, suspected or count
    how = known or (wrong(bad) if bad else None)
    if how is None and bad < count:
        right, bad = bad, count
        how = wrong(bad)
    while how is not None and bad - right > 1:
        middle = bad - 1 if bad == suspected else (right + bad) // 2
        fault = wrong(middle)
        right, bad, how = (middle, bad, how) if fault is None else (right, middle, fault)
    return None if how is None else (bad, how)


def _first_wrong(trial: Trial, seen: Iterable[Observation]) -> tuple[int, Mismatch] | None:
    numbers = range(1, len(trial.program.steps) + 1)
    for number, actual in zip(numbers, seen, strict=False):
        wrong = _difference(trial.beginning(number), actual)
        if wrong is not None:
            return number, wrong
    return None


def _difference(trial: Trial, actual: Observation) -> Mismatch | None:
    """Return the mismatch nearest to the cause; None if there is none."""
    wrong = trial.judge(actual).mismatches
    return leading(wrong) if wrong else None


def signature(program: Program, verdict: Verdict) -> Signature:
    """Return the signature of a failing verdict."""
    return replace(_signature(program, verdict), relation=verdict.relation)


def _signature(program: Program, verdict: Verdict) -> Signature:
    first = verdict.cause or leading(verdict.mismatches)
    text = gist(first.detail) if first.oracle == "error" else ""
    error = f"{first.actual}{': ' if text else ''}{text}" if first.oracle == "error" else ""
    if verdict.call:
        return Signature(first.oracle, FURTHER.format(verdict.change), error=error)
    if verdict.bad_step == 0:
        return Signature(first.oracle, MOVE, error=error)
    together = "only together, up to " if verdict.lazy_only else ""
    if verdict.bad_step is None:
        last = program.steps[-1].op if program.steps else "no step"
        return Signature(first.oracle, f"{together}{last}", error=error)
    step = program.steps[verdict.bad_step - 1]
    if text:
        place = "only together" if verdict.lazy_only else step.op * is_recorded(program)
        return Signature(first.oracle, place, error=error)
    if error or verdict.lazy_only:
        return Signature(first.oracle, together + (OPS[step.op].family if step.op in OPS else step.op), error=error)
    shadow = Shadow(program)
    for earlier in program.steps[: verdict.bad_step - 1]:
        shadow.step(earlier)
    names = [name for name in step.names() if name in shadow.env]
    return Signature(first.oracle, step.op, layout_class(shadow.env[names[0]]) if names else "")
