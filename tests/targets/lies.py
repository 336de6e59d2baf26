"""Search for a planted lie: drawn programs that fail on a lying target and pass on the honest one."""

from __future__ import annotations

from conformance.engine.target import Target
from conformance.program.unsupported import unsupported_steps
from conformance.program.verdict import judge_program
from conformance.sources.fuzzing.drawing import Drawing


def first_found(honest: Target, lying: Target, most: int = 200, **options: object) -> int:
    """Return the number of the first drawn program of seed 5 that only the lying target fails; `most` if none does."""
    drawing = Drawing(without=unsupported_steps(honest), **options)
    for number in range(most):
        program = drawing.numbered(5, number)
        if judge_program(program, lying, locate=False).mismatches and judge_program(program, honest).passed:
            return number
    return most
