"""Writes at the end of a program that reveal shared memory, for targets without observable storages.

Two tensors share memory exactly if a write to one changes the other. The probes write a different number to each tensor
in turn. The final values show which tensors share memory. Tensors that require grad or overlap themselves are skipped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from conformance.program.model import Program
from conformance.program.shadow import Shadow
from conformance.program.steps.layouts import overlaps_itself
from conformance.program.steps.op import Step, is_local, tensor


def with_alias_probes(program: Program, without: Collection[str] = ()) -> Program:
    """Return the program followed by a write to each writable tensor. Steps named in `without` are not used.

    Errors of the program's own steps propagate."""
    shadow = Shadow(program)
    for step in program.steps:
        shadow.step(step)
    shadow.steps = list(program.steps)
    for number, (name, value) in enumerate(list(shadow.env.items())):
        flips = value.dtype is torch.bool
        write = Step("logical_not_", (tensor(name),)) if flips else Step("add_", (tensor(name), number + 1))
        write = replace(write, after=any(step.after for step in program.steps))
        unreachable = value.requires_grad or overlaps_itself(value) or (write.after and is_local(name))
        if write.op not in without and not unreachable:
            shadow.offer(write)
    return program.with_steps(tuple(shadow.steps))
