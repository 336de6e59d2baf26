"""A program as one Python function: for targets that transform functions, such as compilers.

The key insight: a compiler is wrong about what it sees together, so it must see the whole program, and must see torch
calls, not this package's machinery. The function's source is the program's own text, the same calls that its script
shows. Which step is the first wrong one is found by running ever longer beginnings, each as a function of its own.

It knows programs and targets; what differs is the oracle's and the verdict's business.
"""
from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.oracle import Observation, Raised, observe
from conformance.program import LOOP, Outcome, Program, make_inputs, table
from conformance.steps import definitions
from conformance.steps.op import DEFINED, QUERY, Step
from conformance.target import Target


def source(program: Program) -> str:
    """The text of `def program(<inputs>)`, which returns a dict: what the steps made by name, and their answers.

    It uses `torch`, `device`, and the functions that the steps define. Steps that raise have no place in it."""
    arguments = ", ".join(one.name for one in program.inputs)
    results = ", ".join(f"{name!r}: {value}" for name, value in _results(program))
    body = textwrap.indent("\n".join([*_steps(program), f"return {{{results}}}"]), "    ")
    return f"def program({arguments}):\n{body}\n"


def _steps(program: Program) -> Iterator[str]:
    for number, step in enumerate(program.steps, 1):
        if step.op == LOOP:
            yield f"for i in range({step.times}):"
            yield from (f"    {_call(inner)}" for inner in step.body)
        else:
            yield (f"answer_{number} = " if _answers(step) else "") + _call(step)


def _call(step: Step) -> str:
    call = table()[step.op].show(step)
    return f"{', '.join(step.out)}{' = ' if table()[step.op].results else ', = '}{call}" if step.out else call


def _answers(step: Step) -> bool:
    return step.op != LOOP and not step.out and table()[step.op].effect == QUERY


def _results(program: Program) -> Iterator[tuple[str, str]]:
    for number, step in enumerate(program.steps, 1):
        for inner in step.body if step.op == LOOP else (step,):
            yield from ((name, name) for name in inner.out)
        if _answers(step):
            yield f"step {number}", f"answer_{number}"


def function(program: Program) -> Callable[..., dict[str, Any]]:
    """The program as a function of its inputs."""
    scope: dict[str, Any] = {"torch": torch, "device": "cpu"}
    steps = [inner for step in program.steps for inner in (step, *step.body) if inner.op != LOOP]
    for name in {table()[step.op].call or step.op for step in steps if table()[step.op].form is DEFINED}:
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
            outcome = target.transform(function(program))(*inputs.values())
        return observe(outcome, inputs, target=target)
    except Exception as error:
        return Observation(error=Raised.of(error))
