"""Further calls of a program: their changes in words, and the verdict on a program with several calls.

Defines `judge_program`, `judge_trial` and `resolved`. A transformed function may be right on the first call and wrong
on the next, for example because a guard is missing. So a program may have further calls (`model.Call`), which a target
makes without a reset in between. The key insight: each call is a program of its own, with the same steps. So the
reference, the float64 run and the comparison of a call are those of a program with one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace

from conformance.engine.executor import Executor, Watch, no_watch
from conformance.engine.target import Target
from conformance.program.execute import Broken, CallsSubject
from conformance.program.metamorphic import judge_relations
from conformance.program.model import Program, ProgramError, call_of
from conformance.program.reduce import without_open_order
from conformance.program.steps.op import StepError
from conformance.program.trial import CpuFunction, Trial
from conformance.program.unsupported import unsupported_names, unsupported_reason
from conformance.program.verdict import (
    OPEN_ORDER,
    UNAVAILABLE,
    UNCAPTURED,
    WATCHED,
    Verdict,
    extent_of,
    judge_call,
    located,
    may_be_order,
)
from conformance.record.measurements import NOT_COMPILED, RECOMPILED, Measurements
from conformance.standalone.oracles import compare

WORDS = {"size": "shape", "beside": "aliasing", "alone": "aliasing", "same": "aliasing"}
"""Changed fields of inputs in words, if the word is not the field's name."""

KEPT = "results after it"
"""The change of the last observation, which reads the results of the first call again."""

CHANGES = (
    *(
        "shape",
        "stride",
        "offset",
        "dtype",
        "requires_grad",
        "aliasing",
        "values",
        "arguments",
        "global state",
        "object",
        "process",
        "calls",
    ),
    KEPT,
)
"""The words for the changes of a call."""


def change_of(program: Program, number: int) -> str:
    """Return the change of call `number` against the first call, in words of `CHANGES`."""
    if number > len(program.calls):
        return KEPT
    call = program.calls[number - 1]
    fields = {field for changed in call.inputs.values() for field in changed}
    if "size" in fields:
        fields.discard("stride")
    if fields & {"beside", "same", "alone"}:
        fields -= {"offset", "requires_grad"}
    words = {WORDS.get(field, field) for field in fields}
    if words - {"values"}:  # a larger input has other values, too
        words.discard("values")
    words |= {"arguments"} if call.arguments else set()
    words |= {"object" if name.startswith("object:") else "global state" for name in call.under}
    words |= {"process"} if call.restarted else set()
    return " and ".join(word for word in CHANGES if word in words) or "calls"


def changes() -> Iterator[str]:
    """Yield every change that a finding can name, two joined changes included."""
    yield from CHANGES
    for at, first in enumerate(CHANGES):
        yield from (f"{first} and {second}" for second in CHANGES[at + 1 :])


def judge_program(
    program: Program,
    target: Target,
    *,
    locate: bool = True,
    watch: Watch = no_watch,
    baseline: Mapping[str, Mapping[str, int]] | None = None,
) -> Verdict:
    """Return the verdict on a program of which torch CPU's answer is not known yet; see `judge_trial`."""
    return judge_trial(Trial.of(program, target), locate=locate, watch=watch, baseline=baseline)


def judge_trial(
    trial: Trial,
    *,
    locate: bool = True,
    watch: Watch = no_watch,
    baseline: Mapping[str, Mapping[str, int]] | None = None,
) -> Verdict:
    """Run the program on the target, compare all its calls with torch CPU's, and return the verdict. If the target
    transforms no functions, or is judged by relations, the program has its first call only.

    With `locate`, search the first bad step of a failure. The executor calls `watch` before each step (see
    `Executor.run`). `baseline` has the counts of an earlier run by digest of the program and measure. Raises
    ProgramError if the program has no defined meaning on torch CPU."""
    program, target = trial.program, trial.target
    if target.facts.relations:
        return judge_relations(trial.of_call(0), locate=locate, watch=watch)
    if not program.calls or not target.facts.transforms_program:
        return judge_call(trial.of_call(0), locate=locate, watch=watch, baseline=baseline)
    reason = unsupported_call(program, target)
    if reason:
        return Verdict(unsupported=reason)
    if not _same_unwatched(trial):
        return Verdict(unsupported=WATCHED)
    with target.saving_graphs() if program.restarts else nullcontext():
        execution = Executor(target).run(CallsSubject(program), stepwise=True, watch=watch)
    if execution.unavailable:
        return Verdict(unsupported=UNAVAILABLE)
    arbitrated = tolerated = False
    after = execution.capture.after if execution.capture else []
    recompiled = sum(now > before for before, now in zip(after, after[1:], strict=False))
    measured = Measurements({RECOMPILED.name: recompiled})
    for number, actual in enumerate(execution.observations):
        call = trial.of_call(number % len(trial.calls))
        wrong, by_float64, declared = call.judge(actual)
        arbitrated, tolerated = arbitrated or by_float64, tolerated or declared
        if may_be_order(call.cpu.program, wrong):
            rest = without_open_order(program, call.cpu.program)
            if rest is None or not rest.steps or not judge_program(rest, target, locate=False).mismatches:
                return Verdict(unsupported=OPEN_ORDER)
        if wrong:
            sides, change = (call.cpu.end.observation, actual), change_of(program, number) if number else ""
            return Verdict(tuple(wrong), call=number, change=change, calls=number + 1, sides=sides)
    if extent_of(trial, execution.capture) == NOT_COMPILED:
        return Verdict(unsupported=UNCAPTURED)
    return Verdict(arbitrated=arbitrated, tolerated=tolerated, calls=len(trial.calls), measured=measured)


def unsupported_call(program: Program, target: Target) -> str:
    """Return the reason why the target does not support one of the calls; "" if it supports all."""
    states = unsupported_names(target.facts, "state")
    for number in range(len(program.calls) + 1):
        under = program.calls[number - 1].under if number else ()
        if number and program.calls[number - 1].restarted and not target.facts.saves_graphs:
            return "a new process with saved graphs"
        for name in under:
            if {name, name.partition(":")[0]} & states:
                return f"under {name}"
        inside = call_of(program, number).with_steps(program.steps)
        reason = unsupported_reason(inside, target.facts)
        if reason:
            return reason
    return ""


def has_meaning(program: Program, target: Target) -> bool:
    """Whether torch CPU defines every call, with the errors that the steps declare, and the target supports it."""
    try:
        program.check()
        return not unsupported_call(program, target) and _same_unwatched(Trial.of(program, target))
    except (ProgramError, StepError, Broken):
        return False


def _same_unwatched(trial: Trial) -> bool:
    """Whether each call on torch CPU gives the same answer without observations between its steps."""
    expected = [call.end for call in trial.calls]
    seen = Executor(CpuFunction()).run(CallsSubject(trial.program), stepwise=True).observations
    return len(seen) == len(expected) + (len(expected) > 1) and not any(
        compare(want.observation, got, oracles=CpuFunction.facts.oracles, exact=want.exact)
        for want, got in zip([*expected, expected[0]], seen, strict=False)
    )


def resolved(trial: Trial, verdict: Verdict, watch: Watch = no_watch) -> tuple[Trial, Verdict]:
    """Return the trial to report for a failing verdict, and its verdict.

    If a call also fails as the first call of the function, it is reported as a program of one call. Otherwise the calls
    after the wrong one are removed."""
    if verdict.call is None or not verdict.mismatches:
        return trial, verdict
    if verdict.call == 0:  # it ran before the others
        alone = trial.of_call(0)
        return alone, located(alone, Verdict(verdict.mismatches, sides=verdict.sides), watch)
    count = len(trial.program.calls)
    alone = trial.of_call(min(verdict.call, count) if verdict.change != KEPT else 0)
    first = judge_call(alone, watch=watch)
    if first.mismatches:
        return alone, first
    kept = min(verdict.call, count)
    return replace(
        trial, program=replace(trial.program, calls=trial.program.calls[:kept]), calls=trial.calls[: kept + 1]
    ), verdict


def fails_alone(trial: Trial, number: int) -> bool:
    """Whether a call fails as the first call of the function."""
    at = number % len(trial.calls)
    actual = Executor(trial.target).run(CallsSubject(trial.program, at)).last
    return bool(trial.of_call(at).judge(actual).mismatches)
