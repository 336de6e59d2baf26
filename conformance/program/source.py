"""A program as the text of one Python function: what compilers are given, and what a script shows.

The key insight: a compiler is wrong about what it sees together, so it must see the whole program, and must see torch
calls, not this package's machinery. The function's source is the program's own text. A step that must raise becomes a
function too, which `attempt` calls: some transforms cannot go on after an exception within the function that they were
given.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from conformance.program.model import LOOP, Program
from conformance.program.steps.op import AUGMENT, QUERY, SET_DATA, SETITEM, Step
from conformance.program.steps.table import OPS


def source(program: Program) -> str:
    """The text of `def program(<inputs>)`, which returns a dict: what the steps made by name, and their answers.

    It uses `torch`, `device`, `attempt`, and the functions that the steps define."""
    arguments = ", ".join(one.name for one in program.inputs)
    results = ", ".join(f"{name!r}: {value}" for name, value in _results(program))
    body = textwrap.indent("\n".join([*_steps(program), f"return {{{results}}}"]), "    ")
    return "".join([*_raising(program), f"def program({arguments}):\n{body}\n"])


def _raising(program: Program) -> Iterator[str]:
    for number, step in enumerate(program.steps, 1):
        if step.raises:
            written = OPS[step.op].form in (SETITEM, AUGMENT, SET_DATA)
            call = f"{'' if written else 'return '}{OPS[step.op].show(step)}"
            yield f"def step_{number}({', '.join(_named(step))}):\n    {call}\n\n\n"


def _named(step: Step) -> list[str]:
    return list(dict.fromkeys(step.names()))


def _steps(program: Program) -> Iterator[str]:
    for number, step in enumerate(program.steps, 1):
        if step.op == LOOP:
            yield f"for i in range({step.times}):"
            yield from (f"    {OPS[inner.op].line(inner)}" for inner in step.body)
        elif step.raises:
            yield f"answer_{number} = attempt({', '.join([f'step_{number}', *_named(step)])})"
        else:
            yield (f"answer_{number} = " if _answers(step) else "") + OPS[step.op].line(step)


def _answers(step: Step) -> bool:
    return step.op != LOOP and (bool(step.raises) or (not step.out and OPS[step.op].effect == QUERY))


def _results(program: Program) -> Iterator[tuple[str, str]]:
    for number, step in enumerate(program.steps, 1):
        for inner in step.body if step.op == LOOP else (step,):
            yield from ((name, name) for name in inner.out if not step.raises)
        if _answers(step):
            yield f"step {number}", f"answer_{number}"
