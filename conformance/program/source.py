"""A program as the text of one Python function: what compilers are given, and what a script shows.

The key insight: a compiler is wrong about what it sees together, so it must see the whole program, and must see torch
calls, not this package's machinery. The function's source is the program's own text. A step that must raise becomes a
function too, which `attempt` calls: some transforms cannot go on after an exception within the function that they were
given.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator

from conformance.program.model import LOOP, Program
from conformance.program.steps.op import AUGMENT, QUERY, SET_DATA, SETITEM, Step
from conformance.program.steps.states import shown
from conformance.program.steps.table import OPS


def source(program: Program, *, mark: int | None = None, attempts: bool = True, also: Collection[str] = ()) -> str:
    """The text of `def program(<inputs>)`, which returns a dict: what the steps made by name, and their answers.

    It uses `torch`, `device`, `attempt`, and the functions that the steps define. The first wrong step is `mark`;
    without `attempts` a step that must raise stands in a `try`; the inputs in `also` are returned too."""
    arguments = ", ".join(one.name for one in program.inputs)
    named = dict.fromkeys([*_results(program), *((name, name) for name in also)])
    results = ", ".join(f"{name!r}: {value}" for name, value in named)
    body: list[str] = []
    for number, step in enumerate(program.steps, 1):
        first, *rest = _under(number, step, attempts)
        body += [first + "  # the first wrong step" * (number == mark), *rest]
    return f"def program({arguments}):\n" + textwrap.indent("\n".join([*body, f"return {{{results}}}"]), "    ") + "\n"


def _under(number: int, step: Step, attempts: bool) -> Iterator[str]:
    """The lines of a step under its states."""
    managers, wrapper = shown(step.under)
    lines = _lines(number, step, attempts, wrapper)
    if not managers:
        yield from lines
        return
    yield f"with {managers}:"
    yield from (f"    {line}" for line in lines)


def _lines(number: int, step: Step, attempts: bool, wrapper: str = "") -> Iterator[str]:
    answer = f"answer_{number} = "
    if step.op == LOOP:
        yield f"for i in range({step.times}):"
        for inner in step.body:
            yield from (f"    {line}" for line in _under(number, inner, attempts))
        return
    call, value = OPS[step.op].show(step), OPS[step.op].form not in (SETITEM, AUGMENT, SET_DATA)
    if wrapper and not value:
        yield f"def within_{number}(): {call}"
    if wrapper:
        call, value = f"{wrapper}(lambda: {call})" if value else f"{wrapper}(within_{number})", True
    if not step.raises:
        yield answer * _answers(step) + OPS[step.op].line(step, call)
    else:
        if attempts and value:
            yield f"{answer}attempt(lambda: {call})"
        elif attempts:
            yield from (f"def step_{number}(): {call}", f"{answer}attempt(step_{number})")
        else:
            yield from ("try:", f"    {answer * value}{call}", *([] if value else [f"    {answer}None"]))
            yield from ("except Exception as error:", f"    {answer}error")


def _answers(step: Step) -> bool:
    return step.op != LOOP and (bool(step.raises) or (not step.out and OPS[step.op].effect == QUERY))


def _results(program: Program) -> Iterator[tuple[str, str]]:
    for number, step in enumerate(program.steps, 1):
        for inner in step.body if step.op == LOOP else (step,):
            yield from ((name, name) for name in inner.out if not step.raises)
        if _answers(step):
            yield f"step {number}", f"answer_{number}"
