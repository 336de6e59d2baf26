"""What one program says about one target: run it, compare it with torch CPU, and name the first bad step.

The key insight: a lazy run observes only the end, which is what a user's program does and what lets a device fuse; when
it is wrong, a second run that observes after each step says where. A failure that only the lazy run shows is a finding
of its own kind: the steps are right one by one, and wrong together. Then the program's beginnings are run, each lazily,
and the last step of the first that is wrong is the first bad step.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from conformance.kernel_baseline import digest
from conformance.oracle import Mismatch, compare
from conformance.program import Program, run, table
from conformance.shadow import Shadow, reference
from conformance.steps.layouts import layout_class
from conformance.support import left_out
from conformance.target import Target
from conformance.whole import run_whole


@dataclass(frozen=True)
class Signature:
    """What makes two failures the same bug, as far as can be told: the oracle that saw it, the first bad step's op and
    the layout class of what it worked on; or the step's family and the error's type and text, numbers and names left
    out, since the text says more of the cause than op and layout do."""

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
    `unsupported` says what the target had declared that it leaves out; then nothing ran, and nothing passed."""

    mismatches: tuple[Mismatch, ...] = ()
    bad_step: int | None = None
    lazy_only: bool = False
    kernels: int | None = None
    allowed: int | None = None
    unsupported: str = ""
    baseline: int | None = None

    @property
    def passed(self) -> bool:
        """Whether it ran and every oracle agreed."""
        return not self.mismatches and not self.unsupported


class CpuFunction(Target):
    """torch CPU running a program as one function, and no compiler."""

    name, whole = "cpu function", True


WATCHED = "a program that means something else when nobody looks between its steps"
"""A view whose base has come to require grad learns of it when it is looked at (see the findings): step by step
somebody does, in one function nobody."""


def judge(program: Program, target: Target, *, locate: bool = True,
          watch: Callable[[int], None] = lambda number: None, baseline: Mapping[str, int] | None = None) -> Verdict:
    """Run the program on the target and on torch CPU and compare. `locate` names the first bad step of a failure;
    `watch` is told each step before the target runs it; `baseline` has the kernels that programs took before, by
    digest.

    Raises ProgramError when the program has no defined meaning on torch CPU."""
    unsupported = left_out(program, target)
    if unsupported:
        return Verdict(unsupported=unsupported)
    count = "kernels" in target.oracles
    expected = reference(program, count=count)
    if target.whole and compare(expected.observation, run_whole(program, CpuFunction()).observations[-1],
                                oracles=CpuFunction.oracles, exact=expected.exact):
        return Verdict(unsupported=WATCHED)
    outcome = run_whole(program, target) if target.whole else run(program, target, count=count, watch=watch)
    actual = outcome.observations[-1]
    mismatches = compare(expected.observation, actual, oracles=target.oracles, exact=expected.exact)
    if actual.error is not None and outcome.failed_step is not None:
        mismatches = [replace(mismatch, where=f"step {outcome.failed_step}") if mismatch.oracle == "error" else mismatch
                      for mismatch in mismatches]
    before = baseline.get(digest(program)) if baseline and count else None
    if before is not None and actual.kernels is not None and actual.kernels > before:
        mismatches.append(Mismatch("kernels", "the whole run", f"at most {before}", str(actual.kernels),
                                   "more kernels than in the baseline"))
    verdict = Verdict(tuple(mismatches), outcome.failed_step, False, actual.kernels, expected.observation.kernels,
                      baseline=before)
    if verdict.passed or verdict.bad_step or not locate or mismatches[0].oracle == "kernels":
        return verdict
    bad = first_bad_step(program, target)
    if bad is not None:
        return replace(verdict, bad_step=bad)
    return replace(verdict, bad_step=None if target.whole else first_bad_beginning(program, target), lazy_only=True)


def first_bad_step(program: Program, target: Target) -> int | None:
    """The number of the first step after which the target differs from CPU, observing after each; 0 when the inputs
    already differ, None when no step does."""
    oracles = target.oracles - {"kernels"}
    start = program.with_steps(())
    runs = run_whole if target.whole else run
    if compare(reference(start).observation, runs(start, target).observations[-1], oracles=oracles, exact=True):
        return 0
    observations = runs(program, target, eager=True).observations
    shadow = Shadow(program)
    for number, (step, actual) in enumerate(zip(program.steps, observations, strict=False), 1):
        shadow.step(step)
        if compare(shadow.observe(), actual, oracles=oracles, exact=shadow.exact_names()):
            return number
    return None


def first_bad_beginning(program: Program, target: Target) -> int | None:
    """The number of steps in the shortest beginning of the program that is wrong when nobody looks before its end; None
    when the failure is gone."""
    shadow = Shadow(program)
    for number, step in enumerate(program.steps, 1):
        shadow.step(step)
        actual = run(program.with_steps(program.steps[:number]), target).observations[-1]
        if compare(shadow.observe(), actual, oracles=target.oracles - {"kernels"}, exact=shadow.exact_names()):
            return number
    return None


def signature(program: Program, verdict: Verdict) -> Signature:
    """The group that a failure belongs to."""
    first = verdict.mismatches[0]
    error = f"{first.actual}{_gist(first.detail)}" if first.oracle == "error" else ""
    if verdict.bad_step == 0:
        return Signature(first.oracle, "the move of the inputs", error=error)
    together = "only together, up to " if verdict.lazy_only else ""
    if verdict.bad_step is None:
        last = program.steps[-1].op if program.steps else "no step"
        return Signature(first.oracle, f"{together}{last}", error=error)
    step = program.steps[verdict.bad_step - 1]
    shadow = Shadow(program)
    for earlier in program.steps[:verdict.bad_step - 1]:
        shadow.step(earlier)
    if error:
        return Signature(first.oracle, together + (table()[step.op].family if step.op in table() else step.op),
                         error=error)
    names = [name for name in step.names() if name in shadow.env]
    layout = layout_class(shadow.env[names[0]]) if names else ""
    return Signature(first.oracle, together + step.op, layout)


def _gist(text: str) -> str:
    """The first words of an error's text, without what differs from program to program."""
    words = re.sub(r"not implemented is never a pass: |'[^']*'|\"[^\"]*\"|[^A-Za-z_ ]+", " ", text).split()
    return f": {' '.join(words[:9])}" if words else ""
