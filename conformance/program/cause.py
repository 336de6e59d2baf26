"""Why a program fails: the property that is wrong, and the op that is to blame for it.

Defines `cause_of`. The key insight: a view that does not share its memory is seen only when something is written, so of
a view and a write that are wrong together neither can be blamed by looking. Another write in its place tells: what is
wrong whatever is written is the view's fault, and what is right again was the write's. And a step that is made of
others is wrong where these are: where a plain use of such a feature is wrong too, that is the finding (`plainer`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from conformance.core.aten_ops import Operators
from conformance.core.executor import StepFailed
from conformance.core.features import FEATURES
from conformance.core.finding import MOVE, property_of
from conformance.core.oracles import Mismatch
from conformance.program.execute import Broken, RunningProgram
from conformance.program.model import Input, Program, Storage
from conformance.program.reduce import settle
from conformance.program.steps.op import VIEW, Json, Op, Step, tensor
from conformance.program.steps.table import OPS
from conformance.program.verdict import Verdict

NAMED = re.compile(r"\b(?:aten|prims)::(\w+)")
"""An op that the text of an error names."""

LAID_OUT = "metadata in place"
"""The family of steps that give a tensor another geometry."""

TELLING = ("error", "alias", "value", "grad", "storage", "version")
"""Oracles by how much they tell of a cause, before all others. What is wrong in a tensor is wrong in its storage."""

WRITES = (("fill_", 7), ("add_", 1))
"""Writes that are tried in place of another, with their argument."""

SLICE = Step("as_strided", (tensor("a"), [2], [2], 1), out=("b",))
PLAIN = {"as_strided": ((SLICE,), (SLICE, Step("fill_", (tensor("b"), 7))))}
"""Uses of a feature that have nothing else in them, on a tensor `a` of six elements."""


@dataclass(frozen=True)
class Cause:
    """The property that is wrong, one of `finding.PROPERTIES`, and the op, or the place, that is to blame."""

    property: str
    op: str

    def __str__(self) -> str:
        return f"{self.property} / {self.op}"


def cause_of(program: Program, verdict: Verdict, fails: Callable[[Program], bool] | None = None) -> Cause:
    """The cause of a failing verdict on a program, as small as it can be made. `fails` runs a program of other writes;
    without it, and for a program that was not shrunk, the first wrong step itself is blamed."""
    first = _worst(program, verdict)
    wrong = property_of(first.oracle, first.expected, first.actual, first.detail)
    if verdict.bad_step == 0:
        return Cause(wrong, MOVE)
    named = NAMED.search(first.detail) if wrong in ("error", "not implemented") else None
    if named:
        return Cause(wrong, named[1])
    if not program.steps:
        return Cause(wrong, "no step")
    at = (verdict.bad_step or len(program.steps)) - 1
    step = program.steps[at]
    op = OPS.get(step.op)
    name = op.call if op is not None and op.family == "errors" else step.op
    if verdict.lazy_only:
        family = op.family if op is not None else name  # which write came last is chance
        return Cause(wrong, f"only together, up to {family}")
    if op is None or wrong not in ("value", "aliasing", "error"):
        return Cause(wrong, name)
    written = _written(op, step)
    spoilt = [one.where.partition("[")[0] for one in verdict.mismatches if one.oracle == "value"]
    if wrong == "value" and spoilt and not {*spoilt} & {*step.out, written, f"step {at + 1}"}:
        wrong = "aliasing"  # the results of the step are right, and another tensor is wrong
    if fails is not None and written:
        view = next(filter(None, (_maker(program, at, name) for name in (*spoilt, written))), None)
        if view is not None and any(map(fails, _other_writes(program, at, written))):
            return Cause("error" if wrong == "error" else "aliasing", view.op)
    return Cause(wrong, name)


def plainer(program: Program, verdict: Verdict, fails: Callable[[Program], bool]) -> Program | None:
    """A plain use of a feature, where that fails and the first wrong step uses it within: a step of the harness's own,
    or a composite of torch's, as torch CPU runs it. None where there is none, or the step is that feature itself."""
    first = _worst(program, verdict)
    wrong = property_of(first.oracle, first.expected, first.actual, first.detail)
    if not verdict.bad_step or verdict.lazy_only or wrong not in ("value", "aliasing", "error"):
        return None
    at = verdict.bad_step - 1
    used = _operators(program, at)
    for name, uses in PLAIN.items():
        if name != program.steps[at].op and FEATURES[name].operators & used:
            for steps in uses:
                plain = Program((Storage("float32", 6),), (Input("a", 0, "float32", (6,), (1,)),), steps)
                if fails(plain):
                    return plain
    return None


def _operators(program: Program, at: int) -> set[str]:
    """The operators that torch CPU calls in this step."""
    noted, running = Operators(), RunningProgram(program)
    try:
        for step in program.steps[:at]:
            running.step(step)
        with noted:
            running.step(program.steps[at])
    except (Broken, StepFailed):  # it raises on torch CPU after what it has called
        pass
    return {*noted.names}


def _worst(program: Program, verdict: Verdict) -> Mismatch:
    """The difference that says most of what is wrong at the first wrong step: a result that is a copy where it should
    be a view has another offset, too."""
    only = (verdict.cause,) if verdict.cause and verdict.bad_step != len(program.steps) else verdict.mismatches
    return min(only, key=lambda one: TELLING.index(one.oracle) if one.oracle in TELLING else len(TELLING))


def _written(op: Op, step: Step) -> str:
    """The name of the tensor that a step writes; the empty string where it writes none that has a name."""
    argument: Json = step.kwargs.get("out") if op.writes == "out" else None
    if isinstance(op.writes, int) and op.writes < len(step.args):
        argument = step.args[op.writes]
    return str(argument.get("t", "")) if isinstance(argument, dict) else ""


def _maker(program: Program, before: int, name: str) -> Step | None:
    """The last step before this one that made the tensor as a view, or changed its metadata in place."""
    for step in reversed(program.steps[:before]):
        op = OPS.get(step.op)
        if op is None or step.raises:
            continue
        if (name in step.out and op.effect == VIEW) or (op.family == LAID_OUT and step.names()[:1] == [name]):
            return step
    return None


def _other_writes(program: Program, at: int, written: str) -> Iterator[Program]:
    """The program up to this step, with other writes to the same tensor in its place, where they mean something."""
    for op, value in WRITES:
        if op != program.steps[at].op:
            other = settle(program.with_steps((*program.steps[:at], Step(op, ({"t": written}, value)))))
            if other is not None and not other.steps[-1].raises:
                yield other
