"""A wrong call as a small script: the call becomes a program with one step, and the reducer of programs shrinks it.

Defines `scripted`. A trial compares the program on the device with torch CPU, as the fuzzer does. A call with many
elements becomes a program with drawn values first; if the operator is right for them, the call has no script.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from conformance.engine.loading import load_target
from conformance.engine.rules import LARGE
from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.program.capture import NotAnInput, Unwritable, as_inputs, inputs_of
from conformance.program.model import LARGEST_STORAGE, Input, Program, Storage
from conformance.program.reduce import CALL_PASSES, reduce_program
from conformance.program.script import script
from conformance.program.steps.op import Json, Step, dtype_name
from conformance.program.steps.table import OPS
from conformance.program.verdict import Verdict
from conformance.record.errors import DeviceLost, TargetError
from conformance.sources.trace.call import RESULT, NodeCall, TracedCall
from conformance.sources.trace.faults import FaultyOperator
from conformance.standalone.moving import storage_key, whole_storage
from conformance.standalone.observation import names_of

TRIALS, SECONDS = 150, 10.0
"""Limits on the trials of one call: their number, and the time in which they begin."""


def scripted(fault: FaultyOperator) -> str:
    """Return the script of a wrong call, minimized, and note in the fault if time ended this. If no script shows it,
    return a comment with the reason."""
    call, mismatch = fault.call, fault.mismatch
    reason = "the call alone is right on other values of the same sizes"
    try:
        if call is None:
            raise Unwritable("no operator of the graph is wrong by itself")
        target = fault.target
        if isinstance(call, NodeCall):
            target = load_target(f"compile:{fault.compiler}")
        for program in programs_of(call):
            verdict = _wrong(program, target)
            if verdict is not None:
                until = time.time() + SECONDS
                small = _smallest(program, verdict, target, until)
                fault.cut = time.time() >= until
                return small
    except (Unwritable, TargetError) as error:
        reason = str(error)
    return f'"""{fault.name}: {mismatch.oracle} of {mismatch.where}"""\n# No script: {reason}.\n'


def programs_of(call: TracedCall | NodeCall) -> Iterator[Program]:
    """Yield programs with the call as their step: with its inputs, and with drawn values. Raises Unwritable."""
    inputs, args, named = as_inputs(call.tensors, call.args, call.kwargs)
    inputs = {name: leaf.detach() for name, leaf in inputs.items()}
    step = _step(call, args, named) if isinstance(call, TracedCall) else _node_step(call, args, named)
    for make in inputs_of, _drawn:
        try:
            yield Program(*make(inputs), (step,), rules=(LARGE,))
        except NotAnInput as error:
            if make is _drawn:
                raise Unwritable(str(error)) from error


def _step(call: TracedCall, args: list[Json], kwargs: Mapping[str, Json]) -> Step:
    """Return the step that calls the operator by its path below `torch`."""
    if call.is_formula:
        raise Unwritable(f"torch CPU has no kernel of {call.name}, and the trace compared it with its formula")
    result = call.by_cpu()
    if result.last.error is not None:
        raise Unwritable("torch CPU refuses the call")
    leaves = [leaf for leaf in names_of(result.outcome, RESULT).values() if leaf is not None]
    is_row, many = isinstance(result.outcome, (tuple, list)), len(leaves)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        kind, out = "op_db.query", tuple[str, ...]()
    elif is_row and many != len(names_of(result.outcome, RESULT)):
        raise Unwritable("a result with empty places")
    else:
        kind = "op_db.many" if is_row else "op_db"
        out = tuple(f"{RESULT}_{at}" for at in range(many)) if is_row else (RESULT,) * bool(many)
    if call.func._schema.arguments[0].name in call.declared and not is_row:
        kind = "op_db.function.inplace"
    return Step(f"{kind}:ops.{call.name}", tuple(args), kwargs, out)


def _node_step(call: NodeCall, args: list[Json], kwargs: Mapping[str, Json]) -> Step:
    """Return the step that calls a function or a method of torch by its public name."""
    kind, name = "op_db", call.name.removeprefix("torch.")
    if call.name.startswith("Tensor."):
        kind, name = "op_db.method", call.name.removeprefix("Tensor.")
        kind = "op_db.inplace" if name.endswith("_") else kind
    step = Step(f"{kind}:{name}", tuple(args), kwargs, (RESULT,))
    if step.op not in OPS:
        raise Unwritable("the function has no public name")
    return step


def _drawn(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Storage, ...], tuple[Input, ...]]:
    """Return inputs of the same geometry. Floating storages get drawn values; others keep theirs. Raises
    NotAnInput."""
    kept = {name: tensor for name, tensor in tensors.items() if not tensor.is_floating_point()}
    storages, inputs = inputs_of(kept)
    drawn, by_name = [*storages], {input_.name: input_ for input_ in inputs}
    numbers = {storage_key(tensor): by_name[name].storage for name, tensor in kept.items()}
    for name, tensor in tensors.items():
        if name in kept:
            continue
        flat, key, dtype = whole_storage(tensor), storage_key(tensor), dtype_name(tensor.dtype)
        if flat.numel() > LARGEST_STORAGE:
            raise NotAnInput(f"a storage of more than {LARGEST_STORAGE:,} elements")
        if key not in numbers:
            numbers[key] = len(drawn)
            drawn.append(Storage(dtype, flat.numel(), {"seed": len(drawn)}))
        geometry = tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
        by_name[name] = Input(name, numbers[key], dtype, *geometry)
    return tuple(drawn), tuple(by_name[name] for name in tensors)


def _wrong(program: Program, target: Target) -> Verdict | None:
    """Return the verdict of a program that fails, else None. A call that loses the device tells nothing, and neither
    does any later one, but the calls that were saved before stay."""
    try:
        verdict = judge_program(program, target, locate=False)
    except (Exception, DeviceLost):  # a smaller call may have no meaning, and torch CPU may refuse it with any error
        return None
    return verdict if verdict.mismatches else None


def _smallest(program: Program, verdict: Verdict, target: Target, until: float) -> str:
    """Return the script of the smallest program with the same wrong oracle that is found by `until`, in seconds since
    the epoch."""
    oracle, small = verdict.mismatches[0].oracle, (program, verdict)

    def fails(candidate: Program) -> bool:
        nonlocal small
        verdict = _wrong(candidate, target)
        if verdict is None or verdict.mismatches[0].oracle != oracle:
            return False
        small = candidate, verdict
        return True

    reduce_program(program, fails, TRIALS, CALL_PASSES, until)
    best, judged = small
    return script(replace(best, note=""), target, judged.mismatches, bad_step=1)
