"""A finding with its program: of a drawn program, of a recorded call or of a sample of op_db.

Defines `FailingProgram`, and `ended` for a program that ends its worker. This module runs no program.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import ClassVar

from conformance.program.model import Program
from conformance.program.steps.op import VIEW, Json
from conformance.program.steps.table import OPS
from conformance.record.finding import (
    CRASH,
    DRAWING,
    FAIL,
    FLAKY,
    HARNESS,
    MEMORY,
    MOVE,
    ON_CPU,
    TIMEOUT,
    Finding,
    shown_by,
    with_signal_number,
)
from conformance.record.patterns import NOT_SHRUNK, base_operator, by_culprit, pattern_of
from conformance.record.result import NOT_RUN
from conformance.run.messages import ExitReason
from conformance.standalone.oracles import Mismatch

PRECISE = frozenset({"crash", "timeout", "memory", "metadata", "not implemented", "missing error", "wording"})
"""Properties that differ at the step with the fault, not at a later one."""

DEATHS = (CRASH, TIMEOUT, MEMORY)
"""The kinds of findings that end a worker."""

NOTHING = Program((), ())
"""Placeholder for a program that was never drawn."""

MOST_OTHERS = 8
"""Largest number of further programs that a finding keeps while its cause is not known."""

PLAIN = ("signature", "kind", "number", "property", "op", "seed", "bad_step", "before", "said", "part", "layer",
         "wrong_first", "culprit", "cut", "shrunk", "alone")  # fmt: skip
"""Fields of a finding that are the same in its JSON form."""


@dataclass(frozen=True)
class FailingProgram(Finding):
    """A finding with its smallest known program: what workers send, shrinkers make smaller, a campaign joins, and a
    result shows.

    A worker finds it in one program. The campaign joins the findings of equal signatures, and after shrinking those of
    equal causes, so that `numbers` grow. `masking` are those of these programs with steps behind the difference that
    are not judged because of it.

    `kind` is INVALID for a fault of the generator, a program without a meaning on torch CPU. It is HARNESS if the
    harness itself failed while it judged the program. These kinds have no known cause. `bad_step` is the number of the
    first wrong step. `before` is the program that the same worker ran before, and `said` tells how the process ended,
    if it did. `part` is 0 for the whole program, and n for the remainder behind its n-th difference. `cut` says that a
    limit of time ended the shrinking, so that the program may not be the smallest one. `passes` names the passes that
    make the program smaller (`shrink_program.PASSES`), and `shown` the mismatch that each smaller program must show; by
    default the usual passes, and the mismatch nearest to the cause. `shrunk`: the cause is known, and the finding
    failed again in a fresh worker or is flaky. `alone` says whether the script shows its headline in a fresh process
    (`result.Result.alone`).

    One error may have several causes. Until one program with it is shrunk, `others` keeps some of the others, the
    lowest numbers first. `needed` are the operators of the program that its shrunk form still has: a program with the
    same error that lacks one of them fails for another reason."""

    number: int = 0
    shrunk: bool = False
    program: Program = NOTHING
    mismatches: tuple[Mismatch, ...] = ()
    bad_step: int | None = None
    seed: int = 0
    before: int | None = None
    said: str = ""
    part: int = 0
    cut: bool = False
    passes: str = ""
    shown: Mismatch | None = None
    wrong_first: str = ""
    """See `Verdict.wrong_first`."""
    alone: str = NOT_RUN
    numbers: frozenset[int] = frozenset()
    masking: frozenset[int] = frozenset()
    others: tuple[FailingProgram, ...] = ()
    needed: frozenset[str] = frozenset()
    tried: int = 0
    """Number of smaller programs that the last shrinking judged. It is not kept."""

    # What follows from the program and its numbers. A result file keeps it.
    count: int = field(init=False)
    masked: int = field(init=False)
    steps: int = field(init=False)
    first_wrong_step: str = field(init=False)
    pattern: str = field(init=False)
    RECORD: ClassVar = Finding

    def __post_init__(self) -> None:
        numbers, steps = self.numbers or frozenset({self.number}), self.program.steps
        bad, known = self.bad_step or 0, not self.property or self.shrunk or self.precise
        derived = {
            "numbers": numbers,
            "count": len(numbers),
            "masked": len(self.masking),
            "steps": len(steps),
            "first_wrong_step": steps[bad - 1].op if 0 < bad <= len(steps) else "",
            "pattern": self.pattern_if_shrunk if known else NOT_SHRUNK.format(self.property),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

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
    def pattern_if_shrunk(self) -> str:
        """The pattern that this finding shares with findings in other operators, unless shrinking shows another cause;
        empty without a cause."""
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

    @property
    def every_signature(self) -> tuple[str, ...]:
        """The signatures of all programs, that of the smallest one first."""
        return self.signature, *self.signatures

    def explains(self, other: FailingProgram) -> bool:
        """Whether another finding may have the same cause, if it has the same signature."""
        return not other.an_error or self.needed <= other.operators

    def of_programs(self, *others: FailingProgram) -> FailingProgram:
        """This finding, shown by the programs of others too."""
        signatures = {*self.every_signature}.union(*(other.every_signature for other in others)) - {self.signature}
        times = [finding.seconds for finding in (self, *others) if finding.seconds is not None]
        return replace(
            self,
            seconds=min(times, default=None),
            numbers=self.numbers.union(*(other.numbers for other in others)),
            masking=self.masking.union(*(other.masking for other in others)),
            signatures=tuple(sorted(signatures)),
        )

    def joined(self, other: FailingProgram) -> FailingProgram:
        """One finding from two of one cause. It keeps a shrunk program if there is one, then the one with fewer
        steps."""
        least, more = sorted((self, other), key=lambda finding: (not finding.shrunk, finding.steps))
        return least.of_programs(more)

    def also_in(self, other: FailingProgram) -> FailingProgram:
        """This finding, shown by another program of the same signature too. The program with the lowest number stays,
        in whatever order they come, unless one is shrunk."""
        lower = not self.shrunk and other.number < self.number
        least, more = (other, self) if lower else (self, other)
        others = list(self.others)
        if more.an_error and not self.shrunk:
            own = frozenset({more.number})
            others.append(replace(more, numbers=own, masking=more.masking & own, others=()))
            others = sorted(others, key=lambda kept: kept.number)[:MOST_OTHERS]
        return replace(least.of_programs(more), others=tuple(others))

    def died_on(self, small: Program) -> FailingProgram:
        """This death of a worker on a smaller program."""
        if not self.bad_step:
            return replace(self, program=small)
        step = len(small.steps) + (self.bad_step > len(self.program.steps))
        program, op = ending_at(small, step)
        signature = f"{self.kind.lower()} / {op}"
        return replace(self, signature=signature, program=program, bad_step=step, property=self.kind.lower(), op=op)

    def death(self) -> str:
        """How and at which op the process ended; the empty string if it did not."""
        if self.kind not in DEATHS:
            return ""
        who = "torch CPU" if self.op in (ON_CPU, DRAWING) else "the device"
        return f"{self.kind} at {self.op}: {who} {with_signal_number(self.said) or 'ended its process'}"

    def flaky(self) -> FailingProgram:
        """This failure as FLAKY, after it did not repeat."""
        return replace(self, kind=FLAKY, signature=f"flaky / {self.signature}")

    def to_json(self) -> dict[str, Json]:
        """The finding as JSON; `--replay` reads it as it reads a program."""
        lists = {name: sorted(getattr(self, name)) for name in ("signatures", "numbers", "masking", "needed")}
        mismatches = [vars(mismatch) for mismatch in self.mismatches]
        others = [other.to_json() for other in self.others]
        plain = {**{name: getattr(self, name) for name in PLAIN}, "count": self.count, "seconds": self.seconds}
        plain |= lists | {"elsewhere": dict(self.elsewhere)}
        return {**plain, "mismatches": mismatches, "others": others, "program": self.program.to_json()}

    @classmethod
    def from_json(cls, data: Json) -> FailingProgram:
        """The finding that `to_json` wrote. `alone` is not read: the script runs again. Raises KeyError, TypeError,
        ValueError and ProgramError."""
        return cls(
            **{name: data[name] for name in PLAIN if name != "alone"},
            numbers=frozenset(data["numbers"]),
            masking=frozenset(data["masking"]),
            needed=frozenset(data["needed"]),
            signatures=tuple(data["signatures"]),
            elsewhere=data["elsewhere"],
            seconds=data.get("seconds"),  # files of earlier versions have none
            mismatches=tuple(Mismatch(**mismatch) for mismatch in data["mismatches"]),
            others=tuple(map(cls.from_json, data["others"])),
            program=Program.from_json(data["program"]),
        )


def ending_at(program: Program, step: int) -> tuple[Program, str]:
    """Return the program up to this step, and the step's op. Step 0 is the move of the inputs; the number after the
    last step is the observation."""
    op = [MOVE, *(step.op for step in program.steps), "the observation"][step]
    return program.with_steps(program.steps[:step]), op


def ended(kind: str, seed: int, number: int, program: Program, step: int) -> FailingProgram:
    """A crash or a hang in this step, with the program up to it."""
    beginning, op = ending_at(program, step)
    word = kind.lower()
    return FailingProgram(f"{word} / {op}", kind, number, word, op, program=beginning, bad_step=step, seed=seed)
