"""Writes at the end of a program that show who shares memory with whom, for targets that show no storages.

The key insight: two tensors share memory exactly if a write to one is seen in the other. So each is written in turn,
each with another number, and what all of them hold at the end tells which of them were one.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from conformance.program.model import Program
from conformance.program.shadow import Shadow
from conformance.program.steps.layouts import overlaps_itself
from conformance.program.steps.op import Step, tensor


def with_alias_probes(program: Program, without: Collection[str] = ()) -> Program:
    """The program, and a write to each tensor that may be written, by steps that `without` does not name. Raises what
    the program's own steps raise."""
    shadow = Shadow(program)
    for step in program.steps:
        shadow.step(step)
    shadow.steps = list(program.steps)
    for number, (name, value) in enumerate(list(shadow.env.items())):
        flips = value.dtype is torch.bool
        write = Step("logical_not_", (tensor(name),)) if flips else Step("add_", (tensor(name), number + 1))
        if write.op not in without and not value.requires_grad and not overlaps_itself(value):
            shadow.offer(write)
    return program.with_steps(tuple(shadow.steps))
