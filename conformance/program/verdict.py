"""What one program says about one target: run it, compare it with torch CPU, and name the first bad step.

The key insight: a lazy run observes only the end, which is what a user's program does and what lets a device fuse; when
it is wrong, a second run that observes after each step says where. A failure that only the lazy run shows is a finding
of its own kind: the steps are right one by one, and wrong together. Then the program's beginnings are run, each lazily,
and the last step of the first that is wrong is the first bad step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.core.executor import Executor, Watch
from conformance.core.finding import gist
from conformance.core.observation import Observation
from conformance.core.oracles import Mismatch, compare
from conformance.core.target import Capture, Target
from conformance.program.execute import ProgramSubject
from conformance.program.float64 import differences
from conformance.program.model import Program, digest
from conformance.program.shadow import Reference, Shadow, reference
from conformance.program.steps.fusion import NAME as FUSION
from conformance.program.steps.layouts import layout_class
from conformance.program.steps.table import OPS
from conformance.program.unsupported import lacking_operator, unsupported_reason


@dataclass(frozen=True)
class Signature:
    """What makes two failures the same bug, as far as can be told: the oracle that saw it at the first bad step, that
    step's op, and the layout class of what it worked on.

    Of an error the type and text are enough, numbers and names left out, since they say more of the cause than the step
    does. Of what is wrong only when nobody looks in between, the step's family is: it is the write that came last."""

    oracle: str
    op: str
    layout: str = ""
    error: str = ""

    def __str__(self) -> str:
        return " / ".join(part for part in (self.oracle, self.op, self.layout, self.error) if part)


@dataclass(frozen=True)
class Verdict:
    """The mismatches (none: it passed), the number of the first bad step (None: it was not looked for, or not found),
    whether observing after each step hides the failure, and the kernels that the target ran against the most that it
    may run (None where it cannot count); `baseline` are the kernels that it took before, where the program was counted.
    `unsupported` says what the target had declared that it leaves out; then nothing ran, and nothing passed.
    `arbitrated` says that it passed only since the target agrees with torch CPU in float64, and the CPU rounds more."""

    mismatches: tuple[Mismatch, ...] = ()
    bad_step: int | None = None
    lazy_only: bool = False
    kernels: int | None = None
    allowed: int | None = None
    unsupported: str = ""
    baseline: int | None = None
    arbitrated: bool = False
    cause: Mismatch | None = None
    """What differed first at the first bad step: at the end, another step's fault may come before it."""

    @property
    def passed(self) -> bool:
        """Whether it ran and every oracle agreed."""
        return not self.mismatches and not self.unsupported

    @property
    def vanished(self) -> bool:
        """Whether the failure was gone when the program was run again: as the last of its own beginnings, it passed."""
        return self.lazy_only and self.bad_step is None


class CpuFunction(Target):
    """torch CPU running a program as one function, and no compiler."""

    name, transforms_program = "cpu function", True

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called as it is, in another: what gives its function back transforms nothing."""
        return functools.partial(function)


WATCHED = "a program that means something else when nobody looks between its steps"
"""A view whose base has come to require grad learns of it when it is looked at (see the findings): step by step
somebody does, in one function nobody."""

UNCAPTURED = "a program of which the compiler was handed nothing"
"""What was not compiled was not compared: it ran in plain Python."""


UNAVAILABLE = "a layout of an input that the device has no way to make"


def judge_program(
    program: Program,
    target: Target,
    *,
    locate: bool = True,
    watch: Watch = lambda number, builds: None,
    baseline: Mapping[str, int] | None = None,
) -> Verdict:
    """Run the program on the target and on torch CPU and compare. `locate` names the first bad step of a failure;
    `watch` is told each step before the target runs it, as by `Executor.run`; `baseline` has the kernels that programs
    took before, by digest.

    Raises ProgramError when the program has no defined meaning on torch CPU."""
    unsupported = unsupported_reason(program, target) or lacking_operator(program, target)
    if unsupported:
        return Verdict(unsupported=unsupported)
    count = "kernels" in target.oracles
    expected = reference(program, count=count)
    if target.transforms_program:
        unwatched = Executor(CpuFunction()).run(ProgramSubject(program)).last
        if compare(expected.observation, unwatched, oracles=CpuFunction.oracles, exact=expected.exact):
            return Verdict(unsupported=WATCHED)
    execution = Executor(target).run(ProgramSubject(program), count=count, watch=watch)
    if execution.unavailable:
        return Verdict(unsupported=UNAVAILABLE)
    actual = execution.last
    mismatches, arbitrated = differences(program, expected, actual, target.oracles)
    if execution.capture is not None and not mismatches and not _reached(program, execution.capture):
        return Verdict(unsupported=UNCAPTURED)
    if actual.error is not None and execution.failed_step is not None:
        where = f"step {execution.failed_step}"
        mismatches = [replace(one, where=where) if one.oracle == "error" else one for one in mismatches]
    before = baseline.get(digest(program)) if baseline and count else None
    if before is not None and actual.kernels is not None and actual.kernels > before:
        detail = "more kernels than in the baseline"
        mismatches.append(Mismatch("kernels", "the whole run", f"at most {before}", str(actual.kernels), detail))
    ran, allowed = actual.kernels, expected.observation.kernels
    verdict = Verdict(
        tuple(mismatches), execution.failed_step, False, ran, allowed, baseline=before, arbitrated=arbitrated
    )
    if (
        verdict.passed
        and target.lazy
        and any(OPS[step.op].family == FUSION for step in program.steps if step.op in OPS)
    ):
        return _step_by_step(program, target, verdict, watch)
    if verdict.passed or verdict.bad_step or not locate or mismatches[0].oracle == "kernels":
        return verdict
    found, together = first_bad_step(program, target, watch), False
    if found is None:
        found, together = None if target.transforms_program else first_bad_beginning(program, target, watch), True
    number, cause = found or (None, None)
    return replace(verdict, bad_step=number, cause=cause, lazy_only=together)


def _step_by_step(program: Program, target: Target, together: Verdict, watch: Watch) -> Verdict:
    """The verdict on expressions that are right as a whole: each result, computed by itself, must be right too."""
    seen = Executor(target).run(ProgramSubject(program), each=True, watch=watch).observations
    found = _first_wrong(program, target, seen)
    if found is None:
        return together
    number, cause = found
    cause = replace(cause, detail="; ".join(filter(None, (cause.detail, "only when each step is computed by itself"))))
    return replace(together, mismatches=(cause,), bad_step=number, cause=cause)


def _reached(program: Program, capture: Capture) -> bool:
    """Whether the compiler took part. Where every step must raise, each may do so while the compiler traces it, which
    is its own answer."""
    return bool(capture.ops) or all(step.raises for step in program.steps)


def leading(mismatches: Sequence[Mismatch]) -> Mismatch:
    """The one that says most of the cause: an error, or the absence of one, has wrong values as its consequence."""
    return next((mismatch for mismatch in mismatches if mismatch.oracle == "error"), mismatches[0])


def first_bad_step(
    program: Program, target: Target, watch: Watch = lambda number, builds: None
) -> tuple[int, Mismatch] | None:
    """The number of the first step after which the target differs from CPU, observing after each, and how; 0 when the
    inputs already differ, None when no step does. Where the target transforms functions, ever longer beginnings of the
    program are functions of their own."""
    start = program.with_steps(())
    executor = Executor(target)
    sent = executor.run(ProgramSubject(start), watch=watch).last
    moved = compare(reference(start).observation, sent, oracles=target.oracles - {"kernels"}, exact=True)
    if moved:
        return 0, leading(moved)
    if target.transforms_program:
        return first_bad_beginning(program, target, watch)
    return _first_wrong(program, target, executor.run(ProgramSubject(program), each=True, watch=watch).observations)


def first_bad_beginning(
    program: Program, target: Target, watch: Watch = lambda number, builds: None
) -> tuple[int, Mismatch] | None:
    """The number of steps in a beginning of the program that is wrong when nothing is observed before its end, while
    the beginning without its last step is right; and how it is wrong. None when the failure is gone.

    Bisected, since each beginning is compiled anew. It is the shortest wrong one unless a later step hides the
    difference again."""
    executor, shadow = Executor(target), Shadow(program)
    expected = []
    for step in program.steps:
        shadow.step(step)
        expected.append(Reference(shadow.observe(), shadow.exact_names(), shadow))

    def wrong(number: int) -> Mismatch | None:
        beginning = program.with_steps(program.steps[:number])
        actual = executor.run(ProgramSubject(beginning), watch=watch).last
        return _difference(beginning, target, expected[number - 1], actual)

    right, bad = 0, len(program.steps)
    how = wrong(bad) if bad else None
    while how is not None and bad - right > 1:
        middle = (right + bad) // 2
        found = wrong(middle)
        right, bad, how = (middle, bad, how) if found is None else (right, middle, found)
    return None if how is None else (bad, how)


def _first_wrong(program: Program, target: Target, seen: Iterable[Observation]) -> tuple[int, Mismatch] | None:
    shadow = Shadow(program)
    for number, (step, actual) in enumerate(zip(program.steps, seen, strict=False), 1):
        shadow.step(step)
        expected = Reference(shadow.observe(), shadow.exact_names(), shadow)
        wrong = _difference(program.with_steps(program.steps[:number]), target, expected, actual)
        if wrong is not None:
            return number, wrong
    return None


def _difference(program: Program, target: Target, expected: Reference, actual: Observation) -> Mismatch | None:
    """The difference that tells most of the cause, kernels left out; None where there is none."""
    wrong = differences(program, expected, actual, target.oracles - {"kernels"}).mismatches
    return leading(wrong) if wrong else None


def signature(program: Program, verdict: Verdict) -> Signature:
    """The group that a failure belongs to."""
    first = verdict.cause or leading(verdict.mismatches)
    said = gist(first.detail) if first.oracle == "error" else ""
    error = f"{first.actual}{': ' if said else ''}{said}" if first.oracle == "error" else ""
    if verdict.bad_step == 0:
        return Signature(first.oracle, "the move of the inputs", error=error)
    together = "only together, up to " if verdict.lazy_only else ""
    if verdict.bad_step is None:
        last = program.steps[-1].op if program.steps else "no step"
        return Signature(first.oracle, f"{together}{last}", error=error)
    step = program.steps[verdict.bad_step - 1]
    if said:
        return Signature(first.oracle, "only together" if verdict.lazy_only else "", error=error)
    if error or verdict.lazy_only:
        return Signature(first.oracle, together + (OPS[step.op].family if step.op in OPS else step.op), error=error)
    shadow = Shadow(program)
    for earlier in program.steps[: verdict.bad_step - 1]:
        shadow.step(earlier)
    names = [name for name in step.names() if name in shadow.env]
    return Signature(first.oracle, step.op, layout_class(shadow.env[names[0]]) if names else "")
