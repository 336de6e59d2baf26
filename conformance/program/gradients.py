"""Programs that end with `backward`, for targets that transform gradients."""

from __future__ import annotations

from dataclasses import replace

import torch

from conformance.program.execute import Broken, RunningProgram
from conformance.program.model import Program
from conformance.program.shadow import Shadow
from conformance.program.steps.layouts import overlaps_itself
from conformance.program.steps.op import COMPUTE, LOSSY, Step, StepError, is_local, tensor
from conformance.program.steps.table import OPS
from conformance.standalone.torch_compat import version_of


def with_gradient(program: Program) -> Program:
    """Return the program with inputs that require grad, followed by a backward from its last result that has a graph.

    Floating inputs that no step writes and that share no storage require grad. Steps without a meaning on such inputs
    are left out. A program with a backward, or without such a result, stays as it is."""
    if any(step.op == "backward" for step in program.steps):
        return program
    run, storages = RunningProgram(program), [input_.storage for input_ in program.inputs]
    for step in program.steps:
        run.step(step)
    wanted = {
        input_.name
        for input_ in program.inputs
        if storages.count(input_.storage) == 1 and not version_of(run.env[input_.name]) and _fits(run.env[input_.name])
    }
    changed = replace(
        program,
        inputs=tuple(
            replace(input_, requires_grad=input_.name in wanted or input_.requires_grad) for input_ in program.inputs
        ),
    )
    shadow = Shadow(changed)
    try:
        for step in program.steps:
            if set(step.names()) <= shadow.env.keys():
                shadow.offer(replace(step, raises=None))
    except (Broken, StepError):
        return program
    if any(shadow.env[input_.name].requires_grad and input_.name not in wanted for input_ in program.inputs):
        return program  # a tracked value was written to an input
    results = [name for step in shadow.steps if OPS[step.op].effect in (COMPUTE, LOSSY) for name in step.out]
    for name in reversed(results):
        value = shadow.env.get(name)
        if isinstance(value, torch.Tensor) and value.grad_fn is not None and not is_local(name):
            numbers = (torch.arange(value.numel()) % 5 + 1).reshape(value.shape).tolist()
            constant = {"tensor": numbers, "dtype": str(value.dtype).removeprefix("torch.")}
            offered = shadow.offer(Step("backward", (tensor(name), constant), after=True))
            if offered is not None and not offered.raises:
                return changed.with_steps(tuple(shadow.steps))
    return program


def _fits(value: torch.Tensor) -> bool:
    return (value.is_floating_point() or value.is_complex()) and not overlaps_itself(value)
