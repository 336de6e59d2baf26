"""Drawn programs that show a lie, or the need of a declaration: they fail on one target and pass on another."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.program.gradients import with_gradient
from conformance.program.model import Program
from conformance.program.steps.table import OPS
from conformance.program.unsupported import SPARSE, TRAITS, unsupported_steps
from conformance.sources.fuzzing.drawing import Drawing


def posed(program: Program, target: Target) -> Program:
    """Return a drawn program as a campaign runs it on the target."""
    return with_gradient(program) if target.facts.differentiates else program


def first_found(honest: Target, lying: Target, most: int = 200, **options: object) -> int:
    """Return the number of the first drawn program of seed 5 that only the lying target fails; `most` if none does."""
    drawing = Drawing(without=unsupported_steps(honest.facts), **options)
    for number in range(most):
        program = posed(drawing.numbered(5, number), honest)
        if judge_program(program, lying, locate=False).mismatches and judge_program(program, honest).passed:
            return number
    return most


def needed(target: Target, most: int = 400, also: Sequence[Program] = ()) -> list[bool]:
    """Return for each declaration about programs whether a program fails on the target without it: one of `also`, or a
    drawn program of seed 7."""
    every, answers = target.facts.declarations, []
    for one in every:
        names = {*one.scope.step, *one.scope.trait} - {SPARSE}
        if not names:
            continue
        target.facts = replace(target.facts, declarations=tuple(other for other in every if other is not one))
        steps = {OPS[name].family if name in OPS else name for name in one.scope.step}
        drawing = Drawing(without=unsupported_steps(target.facts), only=tuple(steps))
        programs = itertools.chain(also, (posed(drawing.numbered(7, number), target) for number in range(most)))
        answers.append(any(_fails(program, target, names) for program in programs))
        target.facts = replace(target.facts, declarations=every)
    return answers


def _fails(program: Program, target: Target, names: Collection[str]) -> bool:
    """Whether the program has one of these steps or traits, is supported, and fails."""
    used = {part for step in program.steps for part in (step.op, OPS[step.op].family)}
    if not (used & names or any(TRAITS[name](program) for name in names if name in TRAITS)):
        return False
    verdict = judge_program(program, target, locate=False)
    return not verdict.unsupported and bool(verdict.mismatches)
