"""The steps after a wrong step, as a new program.

Defines `remainder`. A wrong step must not hide bugs in the steps after it. The remainder starts from torch CPU's state
after the wrong step: each tensor that a later step uses becomes an input with the same values, geometry and storage.
Some tensors cannot be inputs, for example those in an autograd graph or with lazy conjugation. In this case the
remainder is the whole program without the wrong step. Steps without a meaning in the remainder are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from conformance.engine.executor import StepFailed
from conformance.program.capture import NotAnInput, inputs_of
from conformance.program.execute import Broken, RunningProgram
from conformance.program.model import Program, ProgramError
from conformance.program.reduce import without
from conformance.program.shadow import Shadow
from conformance.program.steps.op import StepError
from conformance.standalone.moving import storage_key


@dataclass(frozen=True)
class Remainder:
    """A program of the steps after a wrong step; `dropped` is the number of these steps that it lacks."""

    program: Program
    dropped: int = 0


def remainder(program: Program, step: int) -> Remainder | None:
    """Return the remainder after step `step`, counted from 1; None if no later step has a meaning in it."""
    behind = len(program.steps) - step
    if not 0 < step < len(program.steps):
        return None
    rest = _from_state(program, step) or without(program, range(step - 1, step), {})
    kept = _meaningful(rest)
    earlier = len(rest.steps) - behind if len(rest.steps) > behind else 0
    left = len(kept.steps) - earlier
    return Remainder(kept, behind - left) if left > 0 else None


def _from_state(program: Program, step: int) -> Program | None:
    """Return the later steps on torch CPU's state after `step`; None if a tensor that they use cannot be an input."""
    running = RunningProgram(program)
    try:
        for earlier in program.steps[:step]:
            running.step(earlier)
    except (StepFailed, StepError, RuntimeError):
        return None
    later = program.steps[step:]
    wanted = {name for step in later for name in step.names()} & running.env.keys()
    keys = {storage_key(running.env[name]) for name in wanted}
    tensors = {name: tensor for name, tensor in running.env.items() if storage_key(tensor) in keys}
    if not all(map(_can_be_input, tensors.values())):
        return None
    try:
        storages, inputs = inputs_of(tensors)
        result = replace(program, storages=storages, inputs=inputs, steps=later, calls=())
        result.with_steps(()).check()
    except (NotAnInput, ProgramError):
        return None
    return result


def _can_be_input(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and tensor.grad is None


def _meaningful(program: Program) -> Program:
    """Return the program without steps that have no meaning on torch CPU, and with the errors that the others raise."""
    shadow = Shadow(program)
    for step in program.steps:
        names: Collection[str] = step.names()
        local = {name for inner in step.body for name in inner.out}
        if any(name not in shadow.env and name not in local for name in names):
            continue
        try:
            shadow.offer(replace(step, raises=None))
        except (Broken, StepError):
            break
    return program.with_steps(tuple(shadow.steps))
