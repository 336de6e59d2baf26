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
from conformance.program.execute import Broken, RunningProgram
from conformance.program.model import Input, Program, ProgramError, Storage
from conformance.program.reduce import without
from conformance.program.shadow import Shadow
from conformance.program.steps.op import StepError, dtype_name
from conformance.program.steps.op import number as json_number
from conformance.standalone.moving import storage_key, whole_storage

LARGEST = 10_000
"""Largest number of cells of a storage that becomes an input. With a larger storage, the remainder is the whole program
without the wrong step."""


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
        for one in program.steps[:step]:
            running.step(one)
    except (StepFailed, StepError, RuntimeError):
        return None
    later = program.steps[step:]
    wanted = {name for one in later for name in one.names()} & running.env.keys()
    keys = {storage_key(running.env[name]) for name in wanted}
    tensors = {name: tensor for name, tensor in running.env.items() if storage_key(tensor) in keys}
    if not all(map(_can_be_input, tensors.values())):
        return None
    storages: dict[int, tuple[int, Storage]] = {}
    inputs = []
    for name, tensor in tensors.items():
        key = storage_key(tensor)
        if key not in storages:
            storages[key] = len(storages), _storage(tensor)
        geometry = tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
        inputs.append(Input(name, storages[key][0], dtype_name(tensor.dtype), *geometry, tensor.requires_grad))
    made = replace(program, storages=tuple(s for _, s in storages.values()), inputs=tuple(inputs), steps=later)
    try:
        made.with_steps(()).check()
    except ProgramError:
        return None
    return made


def _can_be_input(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
    leaf = tensor.is_leaf and tensor.grad is None
    return plain and leaf and whole_storage(tensor.detach()).numel() <= LARGEST


def _storage(tensor: torch.Tensor) -> Storage:
    """Return a storage with the same bits as the tensor's: numbers of its dtype if these keep the bits, else uint8."""
    flat = whole_storage(tensor.detach())
    as_numbers = Storage(dtype_name(flat.dtype), flat.numel(), [json_number(value) for value in flat.tolist()])
    data = flat.view(torch.uint8)
    if flat.numel() * flat.element_size() == tensor.untyped_storage().nbytes() and torch.equal(
        as_numbers.make().view(torch.uint8), data
    ):
        return as_numbers
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return Storage("uint8", whole.numel(), whole.tolist())


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
