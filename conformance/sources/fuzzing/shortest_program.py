"""Finds the shortest program that ends with a given step.

`conformance init` tries each step of the table with such a program. Defines `subject_of` and `program_with`. The
program depends on the step's name and on the dtypes alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from conformance.engine.target import Target
from conformance.program.execute import Broken, ProgramSubject
from conformance.program.model import Program
from conformance.program.shadow import Shadow
from conformance.program.steps.draw import Draw, DrawContext
from conformance.program.steps.op import dtype_name
from conformance.program.steps.stateful import NAME as STATE
from conformance.program.steps.table import OPS
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing.choosing import draw_step
from conformance.sources.fuzzing.drawing import families_of
from conformance.sources.fuzzing.inputs import draw_inputs
from conformance.sources.fuzzing.kinds import DTYPES

TRIED = 40
"""Number of programs drawn with no earlier step, then with one, two, and so on. The plainest one is used."""
MOST_BEFORE = 4


def subject_of(target: Target, name: str) -> ProgramSubject | str:
    """The program of the step of this name, or the reason why there is none."""
    held = {dtype_name(dtype) for dtype in target.facts.dtypes} if target.facts.dtypes is not None else {*DTYPES}
    program = program_with(name, [dtype for dtype in dict.fromkeys(DTYPES) if dtype in held])
    if program is None:
        return "no program of it could be drawn in the dtypes that the device holds"
    return ProgramSubject(program)


def program_with(name: str, dtypes: Sequence[str]) -> Program | None:
    """The plainest program whose last step is this one, in the first of the dtypes if possible; None if drawing finds
    none."""
    for before in range(MOST_BEFORE):
        for among in dict.fromkeys((tuple(dtypes[:1]), tuple(dtypes))):
            drawn = [_drawn(name, among, before, number) for number in range(TRIED)] if among else []
            candidates = [program for program in drawn if program is not None]
            if candidates:
                return min(candidates, key=_complexity)
    return None


def _drawn(name: str, dtypes: tuple[str, ...], before: int, number: int) -> Program | None:
    source, op = random.Random(f"{name}:{before}:{number}").randint, OPS[name]
    program = draw_inputs(Draw(source), dtypes, op.family in ("autograd", STATE))
    shadow = Shadow(program)
    k = DrawContext(source, shadow, dtypes, False)
    try:
        while len(shadow.steps) < before:
            count = len(shadow.steps)
            draw_step(k, families_of(op.family), Tally())
            if len(shadow.steps) == count:
                return None
        if op.fits is not None and not k.holds(op.fits):
            return None
        drawn = op.draw(k)
        offered = shadow.offer(drawn) if drawn is not None else None
    except Broken:
        return None
    if offered is None or (offered.raises is not None and op.family != "errors"):
        return None
    return program.with_steps(tuple(shadow.steps))


def _complexity(program: Program) -> tuple[int, int, int]:
    """Sort key of parts that do not concern the last step: inputs that are not dense, inputs, elements."""
    dense = sum(
        input_.offset == 0 and list(input_.stride) == sorted(input_.stride, reverse=True) for input_ in program.inputs
    )
    elements = sum(storage.size for storage in program.storages)
    return len(program.inputs) - dense, len(program.inputs), elements
