"""Cause of a failing program: the wrong property, and the op that is blamed.

Defines `cause_of` and `plainer`. A view that wrongly has its own memory shows only after a write. So a failing pair of
view and write does not tell which of the two is wrong. `cause_of` replaces the write by another one. If the program
still fails, the view is blamed, otherwise the write. A composite step may fail because of an op that it calls. If a
minimal program of that op alone also fails, `plainer` returns that program as the finding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from conformance.declare.features import FEATURES
from conformance.engine.aten_ops import OperatorNames
from conformance.program.execute import RunningProgram
from conformance.program.model import Input, Program, Storage
from conformance.program.reduce import settle
from conformance.program.steps.op import VIEW, Json, Op, Step, tensor
from conformance.program.steps.table import OPS
from conformance.program.verdict import FURTHER, Verdict
from conformance.record.finding import MOVE, shown_by
from conformance.standalone.moving import storage_key
from conformance.standalone.oracles import Mismatch

NAMED = re.compile(r"\b(?:aten|prims)::(\w+)")
"""Pattern of an op's name in the text of an error."""

LAID_OUT = "metadata in place"
"""Family of the steps that change a tensor's geometry in place."""

TELLING = ("error", "alias", "value", "grad", "storage", "version")
"""Oracles in order of how precisely they identify a cause; all others follow. "value" precedes "storage", since a
wrong value also makes the storage wrong."""

WRITES = (("fill_", 7), ("add_", 1))
"""Replacement writes with their argument."""
OUTS = ("add.out", "mul.out")
"""Replacement writes that resize an empty tensor, to which the others write nothing."""

SLICE = Step("as_strided", (tensor("a"), [2], [2], 1), out=("b",))
PLAIN = {"as_strided": ((SLICE,), (SLICE, Step("fill_", (tensor("b"), 7))))}
"""Minimal uses of a feature on a tensor `a` of six elements."""


@dataclass(frozen=True)
class Blame:
    """The wrong property, one of `finding.PROPERTIES`, and the op or place that is blamed."""

    property: str
    op: str

    def __str__(self) -> str:
        return f"{self.property} / {self.op}"


def cause_of(program: Program, verdict: Verdict, fails: Callable[[Program], bool] | None = None) -> Blame:
    """Return the cause of a failing verdict on a minimized program.

    `fails` runs a program with another write. Without it, the first wrong step itself is blamed; pass None for a
    program that was not shrunk."""
    first = _worst(program, verdict)
    wrong = shown_by(first)
    if verdict.call:
        return Blame(wrong, FURTHER.format(verdict.change))
    if verdict.bad_step == 0:
        return Blame(wrong, MOVE)
    named = NAMED.search(first.detail) if wrong in ("error", "not implemented") else None
    if named:
        return Blame(wrong, named[1])
    if not program.steps:
        return Blame(wrong, "no step")
    at = (verdict.bad_step or len(program.steps)) - 1
    step = program.steps[at]
    op = OPS.get(step.op)
    name = op.call if op is not None and op.family == "errors" else step.op
    if verdict.lazy_only:
        family = op.family if op is not None else name  # the last write is accidental, its family is not
        return Blame(wrong, f"only together, up to {family}")
    if op is None or wrong not in ("value", "aliasing", "error"):
        return Blame(wrong, name)
    written = _written(op, step)
    values = [mismatch for mismatch in verdict.mismatches if mismatch.oracle == "value"]
    spoilt = [mismatch.where.partition("[")[0] for mismatch in values]
    hidden = [name for name in written if name.startswith("_")]
    unseen = bool(values) and any(_in_written(program, at, name, values[0]) for name in hidden)
    if wrong == "value" and spoilt and not unseen and not {*spoilt} & {*step.out, *written, f"step {at + 1}"}:
        wrong = "aliasing"  # the step's results are right, but another tensor is wrong
    if fails is not None:
        view = next(filter(None, (_maker(program, at, name) for name in (*spoilt, *written))), None)
        others = (other for name in written for other in _other_writes(program, at, name))
        if view is not None and any(map(fails, others)):
            return Blame("error" if wrong == "error" else "aliasing", view.op)
    return Blame(wrong, name)


def plainer(program: Program, verdict: Verdict, fails: Callable[[Program], bool]) -> Program | None:
    """Return a failing minimal use of a feature that the first wrong step calls internally on torch CPU.

    The step is one of the harness's own functions or a composite of torch. Return None if no such use fails, or if the
    step is the feature itself."""
    first = _worst(program, verdict)
    wrong = shown_by(first)
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
    """Return the operators that torch CPU calls in this step."""
    noted, running = OperatorNames(), RunningProgram(program)
    if running.run(program.steps[:at]):
        with noted:
            running.run([program.steps[at]])  # if it raises, the operators before the error count
    return {*noted.names}


def _worst(program: Program, verdict: Verdict) -> Mismatch:
    """Return the mismatch at the first wrong step that identifies the cause best, by the order of `TELLING`. For
    example, a copy returned instead of a view may also have a wrong offset."""
    only = (verdict.cause,) if verdict.cause and verdict.bad_step != len(program.steps) else verdict.mismatches
    return min(
        only, key=lambda mismatch: TELLING.index(mismatch.oracle) if mismatch.oracle in TELLING else len(TELLING)
    )


def _written(op: Op, step: Step) -> list[str]:
    """Return the names of the tensors that a step writes. Some calls write a list or tuple of them."""
    argument: Json = step.kwargs.get("out") if op.writes == "out" else None
    if isinstance(op.writes, int) and op.writes < len(step.args):
        argument = step.args[op.writes]
    return Step(step.op, (argument,)).names()


def _in_written(program: Program, at: int, written: str, mismatch: Mismatch) -> bool:
    """Return whether the first wrong element lies in the memory that the step writes. If the written view is not
    observed, such an element of its base shows a wrong write."""
    running = RunningProgram(program)
    running.run(program.steps[:at])
    view, base = running.env.get(written), running.env.get(mismatch.where)
    if view is None or base is None or {view.layout, base.layout} != {torch.strided}:
        return False
    index = [int(number) for number in re.findall(r"\d+", mismatch.first)]
    if len(index) != base.dim() or storage_key(view) != storage_key(base) or view.dtype is not base.dtype:
        return False  # the mismatch names no element, or the view cannot contain it
    cell = base.storage_offset() + sum(number * step for number, step in zip(index, base.stride(), strict=True))
    cells = torch.arange(base.untyped_storage().nbytes() // base.itemsize)
    return cell in cells.as_strided(view.size(), view.stride(), view.storage_offset())


def _maker(program: Program, before: int, name: str) -> Step | None:
    """Return the last earlier step that returned the tensor as a view or changed its metadata in place."""
    for step in reversed(program.steps[:before]):
        op = OPS.get(step.op)
        if op is None or step.raises:
            continue
        if (name in step.out and op.effect == VIEW) or (op.family == LAID_OUT and step.names()[:1] == [name]):
            return step
    return None


def _other_writes(program: Program, at: int, written: str) -> Iterator[Program]:
    """Yield the program up to this step, with the step replaced by another write to the same tensor.

    Other writes without a meaning, or that raise, are skipped."""
    before, step = program.steps[:at], program.steps[at]
    writes = [Step(op, ({"t": written}, value), after=step.after) for op, value in WRITES]
    if OPS[step.op].writes == "out" and _is_empty(program.with_steps(before), written):
        writes = [replace(step, op=op) for op in OUTS]
    for write in writes:
        other = settle(program.with_steps((*before, write))) if write.op != step.op else None
        if other is not None and not other.steps[-1].raises:
            yield other


def _is_empty(program: Program, name: str) -> bool:
    """Return whether a tensor has no elements after the program."""
    running = RunningProgram(program)
    running.run(program.steps)
    return name in running.env and running.env[name].numel() == 0
