"""A failing program as data: the finding of a drawn program, of a recorded call or of a sample of op_db.

Defines `FailingProgram`, and `ended` for a program that ends its worker. This module runs no program.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from conformance.program.model import Program
from conformance.program.steps.op import VIEW, Json
from conformance.program.steps.table import OPS
from conformance.record.finding import (
    ALSO,
    CRASH,
    FAIL,
    FLAKY,
    HARNESS,
    MEMORY,
    MOVE,
    TIMEOUT,
    cause_text,
    shown_by,
    with_signal_number,
)
from conformance.record.patterns import base_operator, by_culprit, pattern_of
from conformance.run.messages import ExitReason
from conformance.standalone.oracles import Mismatch

PRECISE = frozenset({"crash", "timeout", "memory", "metadata", "not implemented", "missing error", "wording"})
"""Properties that differ at the step with the fault, not at a later one."""

DEATHS = (CRASH, TIMEOUT, MEMORY)
"""The kinds of findings that end a worker."""

NOTHING = Program((), ())
"""Placeholder for a program that was never drawn."""

PLAIN = ("kind", "seed", "number", "property", "op", "before", "said", "part", "unjudged", "layer", "culprit", "cut")
"""Fields of a finding that are the same in its JSON form."""


@dataclass(frozen=True)
class FailingProgram:
    """A program on which the target is wrong, with the kind of failure, its group, and the mismatches.

    `kind` is INVALID for a fault of the generator, a program without a meaning on torch CPU. It is HARNESS if the
    harness itself failed while it judged the program. These kinds have no known cause. `before` is the program that the
    same worker ran before, and `said` tells how the process ended, if it did. `layer` is a target without the backend
    under test that shows each mismatch too; empty if there is none. `part` is 0 for the whole program, and n for the
    remainder behind its n-th difference. `unjudged` is the number of steps behind this difference that it masks.
    `culprit` is an operator that the wrong step calls and whose answer by torch CPU mends the program, or a
    compiler's layer and part (`compiler_attribution.py`); empty if unknown. `cut` says that a limit of time ended the
    shrinking, so that the program may not be the smallest one. `passes` names the passes that make the program smaller
    (`smaller.PASSES`), and `shown` the mismatch that each smaller program must show; by default the usual passes, and
    the mismatch nearest to the cause."""

    kind: str
    seed: int
    number: int
    group: str
    program: Program
    mismatches: tuple[Mismatch, ...] = ()
    step: int | None = None
    property: str = ""
    op: str = ""
    before: int | None = None
    said: str = ""
    part: int = 0
    unjudged: int = 0
    layer: str = ""
    culprit: str = ""
    cut: bool = False
    passes: str = ""
    shown: Mismatch | None = None

    def cause(self) -> str:
        """The wrong property and the op to blame; the empty string if they are unknown."""
        cause = cause_text(self.kind, self.property, self.op)
        return cause + ALSO * bool(self.layer and cause)

    @functools.cached_property
    def precise(self) -> bool:
        """Whether the first wrong step does not change when the program shrinks, so that the cause needs no shrinking.
        A wrong value or storage may come from an earlier view."""
        return self.property in PRECISE or (self.property == "aliasing" and self.difference.oracle == "alias")

    @functools.cached_property
    def difference(self) -> Mismatch:
        """The difference with the property of the cause."""
        if not self.mismatches:
            return Mismatch(self.property, self.op or "the program", "an answer", self.said)
        of_property = (mismatch for mismatch in self.mismatches if shown_by(mismatch) == self.property)
        return next(of_property, self.mismatches[0])

    @functools.cached_property
    def differences(self) -> tuple[Mismatch, ...]:
        """The differences in report order: first the one with the property of the cause."""
        first = self.difference
        return (first, *(mismatch for mismatch in self.mismatches if mismatch is not first)) if self.mismatches else ()

    @functools.cached_property
    def pattern(self) -> str:
        """The pattern that this finding shares with findings in other operators; empty without a known cause."""
        if not self.property:
            return ""
        is_view = self.op in OPS and OPS[self.op].effect == VIEW
        pattern = pattern_of(self.difference, self.property, self.op, is_view)
        pattern = by_culprit(pattern, self.property, self.op, self.culprit)
        return f"flaky: {pattern}" if self.kind == FLAKY else pattern

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        """The operators of all steps, by their base names."""
        return frozenset(base_operator(step.op) for step in self.program.every_step)

    @functools.cached_property
    def an_error(self) -> bool:
        """Whether the first difference is an error of one side, whose text may be that of several bugs. The text of a
        missing operator names it."""
        return self.kind == FAIL and self.property in ("error", "missing error")

    @functools.cached_property
    def shrinkable(self) -> bool:
        """Whether a smaller program can show the failure: the death of a worker, or a difference of the target."""
        if self.kind in DEATHS:
            return self.program != NOTHING
        return self.kind != HARNESS and bool(self.mismatches)

    @functools.cached_property
    def exit_reasons(self) -> frozenset[ExitReason]:
        """The deaths of a worker that count as the finding; none for a finding that ends no worker."""
        kinds = {self.kind, CRASH if self.kind == MEMORY else self.kind}
        return frozenset(map(ExitReason, kinds)) if self.kind in DEATHS else frozenset()

    def died_on(self, small: Program) -> FailingProgram:
        """This death of a worker on a smaller program."""
        if not self.step:
            return replace(self, program=small)
        step = len(small.steps) + (self.step > len(self.program.steps))
        died = ended(self.kind, self.seed, self.number, small, step)
        return replace(died, before=self.before, said=self.said, passes=self.passes)

    def death(self) -> str:
        """How and at which op the process ended; the empty string if it did not."""
        if self.kind not in DEATHS:
            return ""
        return f"{self.kind} at {self.op}: the device {with_signal_number(self.said) or 'ended its process'}"

    def flaky(self) -> FailingProgram:
        """This failure as FLAKY, after it did not repeat."""
        return replace(self, kind=FLAKY, group=f"flaky / {self.group}")

    def to_json(self) -> dict[str, Json]:
        """The finding as JSON; `--replay` reads it as it reads a program."""
        mismatches = [vars(mismatch) for mismatch in self.mismatches]
        changed = {"signature": self.group, "first_bad_step": self.step, "mismatches": mismatches}
        return {**{name: getattr(self, name) for name in PLAIN}, **changed, "program": self.program.to_json()}

    @classmethod
    def from_json(cls, data: Json) -> FailingProgram:
        """The finding that `to_json` wrote."""
        plain = {name: data[name] for name in PLAIN if name in data}
        mismatches = tuple(Mismatch(**mismatch) for mismatch in data["mismatches"])
        program, step = Program.from_json(data["program"]), data["first_bad_step"]
        return cls(group=data["signature"], program=program, mismatches=mismatches, step=step, **plain)


def ended(kind: str, seed: int, number: int, program: Program, step: int) -> FailingProgram:
    """A crash or a hang in this step, with the program up to it. Step 0 is the move of the inputs; the number after the
    last step is the observation."""
    where = [MOVE, *(step.op for step in program.steps), "the observation"][step]
    word, beginning = kind.lower(), program.with_steps(program.steps[:step])
    return FailingProgram(kind, seed, number, f"{word} / {where}", beginning, step=step, property=word, op=where)
