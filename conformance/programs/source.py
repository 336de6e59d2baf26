"""A program as one Python function: for targets that transform functions, such as compilers.

The key insight: a compiler is wrong about what it sees together, so it must see the whole program, and must see torch
calls, not this package's machinery. The function's source is the program's own text, the same calls that its script
shows. Which step is the first wrong one is found by running ever longer beginnings, each as a function of its own.

A step that must raise becomes a function too, which the target's own `attempt` calls: some transforms cannot go on
after an exception within the function that they were given.

It knows programs and targets; what differs is the oracle's and the verdict's business.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.core.observation import Observation, Raised, observe
from conformance.core.target import Target
from conformance.programs.execute import Outcome, make_inputs
from conformance.programs.model import LOOP, Program
from conformance.programs.steps import definitions
from conformance.programs.steps.op import AUGMENT, DEFINED, QUERY, SET_DATA, SETITEM, Step
from conformance.programs.steps.table import OPS


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


def function(program: Program, target: Target) -> Callable[..., dict[str, Any]]:
    """The program as a function of its inputs, for a target to transform."""
    scope: dict[str, Any] = {"torch": torch, "device": "cpu", "attempt": target.attempt}
    steps = [inner for step in program.steps for inner in (step, *step.body) if inner.op != LOOP]
    for name in {OPS[step.op].call or step.op for step in steps if OPS[step.op].form is DEFINED}:
        scope[name] = getattr(definitions, name)
    exec(compile(source(program), "<program>", "exec"), scope)  # noqa: S102 - the text is rendered from checked steps
    made: Callable[..., dict[str, Any]] = scope["program"]
    return made


def run_whole(program: Program, target: Target, *, eager: bool = False) -> Outcome:
    """Run a program as one function that the target transforms, and observe it at the end; when `eager`, do so for each
    of its beginnings, up to the first that raises."""
    observations: list[Observation] = []
    for count in range(min(1, len(program.steps)), len(program.steps) + 1) if eager else [len(program.steps)]:
        observations.append(_observed(program.with_steps(program.steps[:count]), target))
        if observations[-1].error is not None:
            break
    return Outcome(tuple(observations))


def _observed(program: Program, target: Target) -> Observation:
    inputs = target.send(make_inputs(program))
    try:
        with target.active():
            outcome = target.transform(function(program, target))(*inputs.values())
        return observe(
            {name: Raised.of(value) if isinstance(value, Exception) else value for name, value in outcome.items()},
            inputs,
            target=target,
        )
    except Exception as error:
        return Observation(error=Raised.of(error))
