"""A program as a standalone Python script that needs torch and the target only, and shows both answers side by side.

The key insight: a report is read by somebody who has neither this package nor its vocabulary, so the script is the
calls themselves, the very function that a compiler is given. Its shape is `core/script.py`'s.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import torch

from conformance.core.oracles import Mismatch
from conformance.core.script import render, unjudged
from conformance.core.target import Target
from conformance.core.tensor_source import input_lines
from conformance.program.model import LOOP, Program
from conformance.program.shadow import reference
from conformance.program.source import source
from conformance.program.steps.op import DEFINED, Step, definitions_of, dtype_of
from conformance.program.steps.table import OPS

ATTEMPT = """
def attempt(step, *tensors):
    try:
        step(*tensors)
    except Exception as error:
        return error
    return "no error"
"""
ATTEMPT_COMPILED = """
@torch.compiler.disable(recursive=False)
def attempt(step, *tensors):
    try:
        step(*tensors)
    except Exception as error:
        while type(error).__module__ == "torch._dynamo.exc" and error.__context__ is not None:
            error = error.__context__
        return error
    return "no error"
"""
"""For programs with steps that raise, each of which is a function of its own."""

OWN_TENSORS = {"metadata in place", "autograd", "questions", "errors"}
"""Families of steps that can tell a tensor from a view of a hidden base."""


def script(
    program: Program,
    target: Target,
    mismatches: Sequence[Mismatch] = (),
    notes: Sequence[str] = (),
    bad_step: int | None = None,
) -> str:
    """The program as Python source. `mismatches` become its docstring, with the first bad step and the `notes`, one a
    line, such as the command that runs it again."""
    about = [textwrap.shorten(str(mismatch), 300) for mismatch in mismatches[:3]]
    about = about or [program.note or "A program of view and in-place steps."]
    if bad_step and bad_step <= len(program.steps):
        about.append(f"First wrong in step {bad_step}: {_text(program.steps[bad_step - 1])}")
    steps = [inner for step in program.steps for inner in (step, *step.body) if inner.op != LOOP]
    used = dict.fromkeys(OPS[step.op].call or step.op for step in steps if OPS[step.op].form is DEFINED)
    attempt = [ATTEMPT_COMPILED if target.transforms_program else ATTEMPT] if any(s.raises for s in steps) else []
    # What was compared has run on the CPU; a program that ended a worker is not run here.
    exact = sorted(reference(program).exact) if any(mismatch.by_bits for mismatch in mismatches) else []
    options = {"unjudged": str(unjudged(target.oracles)), "exact": str(exact)}
    return render(
        [*about, *(["", *notes] if notes else [])],
        target.script(),
        [*definitions_of(used), *attempt],
        _inputs(program, target, steps),
        source(program),
        options,
    )


def _inputs(program: Program, target: Target, steps: Sequence[Step]) -> list[str]:
    flats = [storage.make() for storage in program.storages]
    named = []
    for one in program.inputs:
        tensor = torch.empty(0, dtype=dtype_of(one.dtype))
        tensor.set_(flats[one.storage].untyped_storage(), one.offset, one.size, one.stride)
        named.append((one.name, tensor.requires_grad_() if one.requires_grad else tensor))
    own = any(one.requires_grad for one in program.inputs) or any(OPS[s.op].family in OWN_TENSORS for s in steps)
    lines = input_lines(named, flats, own=own, exposes=target.exposes_storages)
    return [*lines, f"return {{{', '.join(f'{name!r}: {name}' for name, _ in named)}}}"]


def _text(step: Step) -> str:
    if step.op == LOOP:
        return f"for i in range({step.times}): {'; '.join(OPS[inner.op].line(inner) for inner in step.body)}"
    return textwrap.shorten(OPS[step.op].line(step), 200)
