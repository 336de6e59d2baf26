"""Source of a program as one Python function, and of its caller, for compilers and for scripts.

A compiler's bugs depend on the calls that it compiles together. So it must receive the whole program, as torch calls
without code of this package. A step that must raise becomes an inner function that `attempt` calls. Some transforms
cannot continue after an exception inside the transformed function.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Collection, Iterable, Iterator

from conformance.program.model import LOOP, Program, arguments_of
from conformance.program.steps.op import AUGMENT, QUERY, SET_DATA, SETITEM, Step, is_local
from conformance.program.steps.states import shown
from conformance.program.steps.table import OPS

FIRST_WRONG = "the first wrong step"
"""Comment at the first wrong step."""


def source(
    program: Program,
    *,
    mark: int | None = None,
    attempts: bool = True,
    also: Collection[str] = (),
    name: str = "program",
    numbers: Iterable[int] = (),
    label: str = FIRST_WRONG,
) -> str:
    """Return the text of `def program(<inputs>)`, which returns a dict of results by name and of the steps' answers.

    The text uses `torch`, `device`, `attempt`, and the functions of `snippets` that the steps call. A comment marks
    step `mark` with the `label`. Without `attempts`, a step that must raise is inside a `try`. The function also
    returns the inputs in `also`. Its name is `name`, and `numbers` are the numbers of the steps if not 1, 2, ..."""
    steps = [(number, step) for number, step in zip(numbers or itertools.count(1), program.steps) if not step.after]
    named = dict.fromkeys([*_results(steps), *((name, name) for name in also)])
    results = ", ".join(f"{name!r}: {value}" for name, value in named)
    body = [*_body(steps, mark, attempts, label), f"return {{{results}}}"]
    return _function(name, [*(input_.name for input_ in program.inputs), *arguments_of(program)], body)


def caller(program: Program, *, mark: int | None = None, attempts: bool = True, label: str = FIRST_WRONG) -> str:
    """Return the text of `def after(made, <inputs>)`, the calls that the program's caller makes with its results; "" if
    there are none. The function returns the results of the program and of these calls."""
    steps = [(number, step) for number, step in enumerate(program.steps, 1) if step.after]
    if not steps:
        return ""
    used = dict.fromkeys(name for _, step in steps for name in step.names())
    bound = {name for step in program.steps if not step.after for inner in (step, *step.body) for name in inner.out}
    taken = [f"{name} = made[{name!r}]" for name in used if name in bound]
    results = "".join(f", {name!r}: {value}" for name, value in _results(steps))
    body = [*taken, *_body(steps, mark, attempts, label), f"return {{**made{results}}}"]
    return _function("after", ["made", *(input_.name for input_ in program.inputs)], body)


def _function(name: str, arguments: Iterable[str], body: Iterable[str]) -> str:
    return f"def {name}({', '.join(arguments)}):\n" + textwrap.indent("\n".join(body), "    ") + "\n"


def _body(steps: Iterable[tuple[int, Step]], mark: int | None, attempts: bool, label: str) -> Iterator[str]:
    for number, step in steps:
        first, *rest = _under(number, step, attempts)
        yield first + f"  # {label}" * (number == mark)
        yield from rest


def _under(number: int, step: Step, attempts: bool) -> Iterator[str]:
    """Yield the lines of a step under its states."""
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
            yield from ("try:", f"    {answer}{call}" if value else f"    {call}; {answer}None")
            yield from ("except Exception as error:", f"    {answer}error")


def _answers(step: Step) -> bool:
    return step.op != LOOP and (bool(step.raises) or (not step.out and OPS[step.op].effect == QUERY))


def _results(steps: Iterable[tuple[int, Step]]) -> Iterator[tuple[str, str]]:
    for number, step in steps:
        for inner in step.body if step.op == LOOP else (step,):
            yield from ((name, name) for name in inner.out if not (step.raises or is_local(name)))
        if _answers(step):
            yield f"step {number}", f"answer_{number}"
