"""Reduction of a failing program: fewer steps, smaller and simpler inputs, simpler arguments.

A candidate is tried only if it has a defined meaning. The CPU shadow checks that for each candidate, and determines the
errors that its steps now raise. A function given by the caller decides whether the candidate still fails. So the same
reducer handles wrong values in this process and segmentation faults in another process.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.program.capture import NotAnInput, inputs_of
from conformance.program.execute import Broken, make_inputs
from conformance.program.model import (
    LOOP,
    Call,
    Input,
    Program,
    ProgramError,
    Storage,
    arguments_of,
    call_of,
    connected,
    spliced,
)
from conformance.program.shadow import Shadow, find_open_order
from conformance.program.steps.layouts import dense
from conformance.program.steps.op import COMPUTE, LOSSY, MOVE, Json, Step, StepError, dtype_of, tensor, walk
from conformance.program.steps.op import number as json_number
from conformance.program.steps.table import OPS
from conformance.program.steps.thresholds import LENGTHS

LONG = 8
"""Lengths up to this one shrink by one."""

COMPARISONS = frozenset("logical_and_ logical_xor_ eq_ ne_ lt_ ge_".split())
"""Ops that write truth values into a tensor of any dtype."""

MOST_TRIALS = 400
"""Default limit on the number of candidates that the reducer runs."""


def reduce_program(
    program: Program,
    fails: Callable[[Program], bool],
    trials: int = MOST_TRIALS,
    passes: Sequence[Callable[[Program], Iterator[Program]]] = (),
    until: float = math.inf,
    settled_by: Callable[[Program], Program | None] | None = None,
) -> Program:
    """Return a smaller program for which `fails` still holds. At most `trials` candidates run, all with a meaning on
    CPU, and none begins after `until`, in seconds since the epoch. `passes` propose the candidates; the default is
    `PASSES`. `settled_by` replaces `settle`, for steps that are not in the table."""
    seen = {repr(program.to_json())}
    left = trials

    def smaller(candidates: Iterator[Program]) -> Program | None:
        """Return the first candidate that fails and was not tried before."""
        nonlocal left
        for settled in map(settled_by or settle, candidates):
            if left <= 0 or time.time() >= until:
                return None
            if settled is not None and repr(settled.to_json()) not in seen:
                seen.add(repr(settled.to_json()))
                left -= 1
                if fails(settled):
                    return settled
        return None

    best, before = program, None
    while best is not before:
        before = best
        for propose in passes or PASSES:
            while (candidate := smaller(propose(best))) is not None:
                best = candidate
    return best


def settle(program: Program) -> Program | None:
    """Return the program with the errors that its steps now raise on CPU; None if it has no defined meaning.

    None too if a step returns fewer results than it names, for example a split of a smaller tensor."""
    program = replace(program, calls=tuple(_pruned(program, call) for call in program.calls))
    try:
        program.check()
        shadow = Shadow(program)
        for step in program.steps:
            refused = step.raises is not None  # drawing wanted an error, so each error has a meaning
            missing = step.raises == NotImplementedError.__name__
            if shadow.offer(replace(step, raises=None), aimed=refused, unimplemented=missing) is None:
                return None
    except (ProgramError, StepError, Broken):
        return None
    if any(name not in shadow.env for step in shadow.steps for name in step.out):
        return None
    settled = program.with_steps(tuple(shadow.steps))
    for number in range(1, len(settled.calls) + 1):
        call = call_of(settled, number)
        again = settle(call)
        if again is None or again != call:
            return None
    return settled


def _pruned(program: Program, call: Call) -> Call:
    """Return the call without changes of inputs and arguments that the program does not have any more."""
    known, arguments = {input_.name for input_ in program.inputs}, arguments_of(program)
    inputs = {name: changed for name, changed in call.inputs.items() if name in known}
    return replace(call, inputs=inputs, arguments={k: v for k, v in call.arguments.items() if k in arguments})


def fewer_calls(program: Program) -> Iterator[Program]:
    """Yield the program without one of its further calls."""
    for at in range(len(program.calls)):
        yield replace(program, calls=spliced(program.calls, at))


def plainer_calls(program: Program) -> Iterator[Program]:
    """Yield the program with one further call that changes less."""
    for at, call in enumerate(program.calls):
        for plainer in _plainer_call(program, call):
            yield replace(program, calls=spliced(program.calls, at, plainer))


def _plainer_call(program: Program, call: Call) -> Iterator[Call]:
    for name, changed in call.inputs.items():
        others = {key: value for key, value in call.inputs.items() if key != name}
        yield replace(call, inputs=others)
        for field in changed if len(changed) > 1 else ():
            yield replace(call, inputs={**others, name: {key: changed[key] for key in changed if key != field}})
        first = next(input_ for input_ in program.inputs if input_.name == name)
        geometry: dict[str, Any] = {key: tuple(changed[key]) for key in ("size", "stride") if key in changed}
        for plainer in plainer_input(replace(first, **geometry)) if geometry else ():
            yield replace(call, inputs={**others, name: {**changed, **_geometry(plainer)}})
    if call.restarted:
        yield replace(call, restarted=False)
    for name in call.arguments:
        yield replace(call, arguments={key: value for key, value in call.arguments.items() if key != name})
    for state in call.under:
        yield replace(call, under=tuple(other for other in call.under if other != state))


def _geometry(input_: Input) -> dict[str, Json]:
    return {"size": list(input_.size), "stride": list(input_.stride)}


def fewer_steps(program: Program) -> Iterator[Program]:
    """Yield the program without the steps that share no memory with its last one, then without runs of steps, long runs
    first. A user of a dropped result is dropped too, or uses the source of the dropped step instead."""
    count = len(program.steps)
    if count:
        yield program.with_steps(tuple(program.steps[number - 1] for number in connected(program, count)))
    length = count
    while length >= 1:
        for start in range(count - length, -1, -1):
            dropped = range(start, start + length)
            yield without(program, dropped, {})
            if length == 1:
                step = program.steps[start]
                if step.out and step.operands:
                    yield without(program, dropped, dict.fromkeys(step.out, step.operands[0]))
        length //= 2


def without(program: Program, dropped: range, instead: dict[str, str]) -> Program:
    """Return the program without some steps. `instead` maps their results to other tensors; users of the remaining
    results are dropped."""
    defined = {input_.name for input_ in program.inputs}
    kept = []
    for number, step in enumerate(program.steps):
        if number in dropped:
            continue
        renamed = step.renamed(instead)
        local = {name for inner in renamed.body for name in inner.out}
        if all(name in defined or name in local for name in renamed.names()):
            kept.append(renamed)
            defined |= {*renamed.out, *local}
    return program.with_steps(tuple(kept))


def without_open_order(program: Program, call: Program) -> Program | None:
    """Return the program without the step of `find_open_order` in this call of it, and without the users of its
    results. None if the rest has no defined meaning. Raises ValueError if there is no such step."""
    number = find_open_order(call)
    if not number:
        raise ValueError("no step has an open order")
    return settle(without(program, range(number - 1, number), {}))


def fewer_inputs(program: Program) -> Iterator[Program]:
    """Yield the program without an unused input and its storage, and with a smaller storage."""
    used = {name for step in program.steps for name in step.names()}
    for input_ in program.inputs:
        if input_.name not in used and len(program.inputs) > 1:
            yield tidy(replace(program, inputs=tuple(other for other in program.inputs if other is not input_)))
    for number, storage in enumerate(program.storages):
        for size in dict.fromkeys((_needed(program, number), storage.size // 2, storage.size - 1)):
            if 0 <= size < storage.size:
                values = storage.values[:size] if isinstance(storage.values, list) else storage.values
                yield with_storage(program, number, replace(storage, size=size, values=values))


def _needed(program: Program, number: int) -> int:
    """Return the number of cells of a storage that its inputs use, up to the last one."""
    width = dtype_of(program.storages[number].dtype).itemsize
    ends = [
        (input_.offset + 1 + sum((n - 1) * st for n, st in zip(input_.size, input_.stride)))
        * dtype_of(input_.dtype).itemsize
        for input_ in program.inputs
        if input_.storage == number and 0 not in input_.size
    ]
    return -(-max(ends, default=0) // width)


def plainer_values(program: Program) -> Iterator[Program]:
    """Yield the program with simpler values in one storage: zeros, ones, a range, then zeros and ones in parts of it.

    All zeros show that the values do not matter. The parts shrink by half, down to single cells."""
    for at, storage in enumerate(program.storages):
        for values in _plainer_values(storage):
            yield with_storage(program, at, replace(storage, values=values))


def plainer_floats(program: Program) -> Iterator[Program]:
    """Yield the program with simpler values in one storage of floats. Integers may be indices, which torch CPU need not
    check."""
    for at, storage in enumerate(program.storages):
        if dtype_of(storage.dtype).is_floating_point:
            for values in _plainer_values(storage):
                yield with_storage(program, at, replace(storage, values=values))


def _plainer_values(storage: Storage) -> Iterator[Json]:
    size, cells = storage.size, [json_number(value) for value in storage.literal()]
    usual: list[Json] = [[0] * size, [1] * size, "arange"]
    if storage.values in usual:
        yield from usual[: usual.index(storage.values)]
        return
    yield from usual
    length = size
    while length:
        for start in range(0, size, length):
            part = cells[start : start + length]
            for plain in (0, 1):
                plainer = [cell if cell in (0, plain) else plain for cell in part]
                if plainer != part:
                    yield [*cells[:start], *plainer, *cells[start + length :]]
        length //= 2


def with_storage(program: Program, number: int, storage: Storage) -> Program:
    """Return the program with one storage replaced."""
    return replace(program, storages=spliced(program.storages, number, storage))


def tidy(program: Program) -> Program:
    """Return the program without unused storages."""
    kept = sorted({input_.storage for input_ in program.inputs})
    return replace(
        program,
        storages=tuple(program.storages[number] for number in kept),
        inputs=tuple(replace(input_, storage=kept.index(input_.storage)) for input_ in program.inputs),
    )


def shorter_lengths(program: Program) -> Iterator[Program]:
    """Yield the program with one length shorter in all inputs that have it, so that their sizes still fit together.

    Lengths at which devices change their ways come first, then those that approach the length from its half on. So a
    call that is wrong from 65 columns on shrinks to 65 columns, whatever the length before. Before that, inputs of one
    size get one dimension: a call that is wrong beyond 1,024 elements shrinks to 1,025, which 33 rows cannot have."""
    flattened = [input_ for input_ in program.inputs if len(input_.size) > 1 and math.prod(input_.size) > LONG]
    for size in dict.fromkeys(input_.size for input_ in flattened if input_.stride == dense(input_.size)):
        yield replace(program, inputs=tuple(_flatten_input(input_, size) for input_ in program.inputs))
    for length in sorted({n for input_ in program.inputs for n in input_.size if n > LONG}, reverse=True):
        beside = (at for threshold in LENGTHS for at in (threshold, threshold + 1) if at < length)
        nearer = (length - length // 2**k for k in range(1, length.bit_length()))
        for fewer in dict.fromkeys((2, *beside, *nearer)):
            yield replace(program, inputs=tuple(_shorten_input(input_, length, fewer) for input_ in program.inputs))


def _flatten_input(input_: Input, size: tuple[int, ...]) -> Input:
    """Return the input with one dimension if it is dense and has this size."""
    if (input_.size, input_.stride) != (size, dense(size)):
        return input_
    return replace(input_, size=(math.prod(size),), stride=(1,))


def _shorten_input(input_: Input, length: int, fewer: int) -> Input:
    """Return the input with `fewer` in place of `length`. A dense input stays dense."""
    size = tuple(fewer if n == length else n for n in input_.size)
    return replace(input_, size=size, stride=dense(size) if input_.stride == dense(input_.size) else input_.stride)


def plainer_geometry(program: Program) -> Iterator[Program]:
    """Yield the program with one input's geometry or requires_grad made simpler."""
    for input_ in program.inputs:
        yield from _plainer_geometry(program, input_)


def _plainer_geometry(program: Program, input_: Input) -> Iterator[Program]:
    for plainer in plainer_input(input_):
        yield replace(program, inputs=tuple(plainer if other is input_ else other for other in program.inputs))


def plainer_inputs(program: Program) -> Iterator[Program]:
    """Yield the program with one input's geometry, requires_grad or dtype made simpler."""
    for input_ in program.inputs:
        yield from _plainer_geometry(program, input_)
        if input_.dtype != "float32":
            for dtype in ("float32", "int64"):
                storage = replace(program.storages[input_.storage], dtype=dtype)
                inputs = (
                    replace(other, dtype=dtype) if other.storage == input_.storage else other
                    for other in program.inputs
                )
                yield with_storage(replace(program, inputs=tuple(inputs)), input_.storage, storage)


def plainer_input(input_: Input) -> Iterator[Input]:
    """Yield the input with a simpler geometry or without requires_grad."""
    if input_.requires_grad:
        yield replace(input_, requires_grad=False)
    if input_.stride != dense(input_.size):
        yield replace(input_, stride=dense(input_.size))
    if input_.offset:
        yield replace(input_, offset=0)
        yield replace(input_, offset=1)
    for dim, n in enumerate(input_.size):
        is_dense, others = input_.stride == dense(input_.size), spliced(input_.size, dim)
        yield replace(input_, size=others, stride=dense(others) if is_dense else spliced(input_.stride, dim))
        for fewer in {2, n - 1} - {n} if n > 1 else ():
            size = spliced(input_.size, dim, fewer)
            yield replace(input_, size=size, stride=dense(size) if is_dense else input_.stride)


def plainer_steps(program: Program) -> Iterator[Program]:
    """Yield the program with one simpler step, or with a loop replaced by its first turn."""
    for at, step in enumerate(program.steps):
        if step.op == LOOP and step.times:
            turn = tuple(map(_first_turn, step.inside()))
            yield program.with_steps(spliced(program.steps, at, *turn))
        for plainer in plainer_step(step):
            yield program.with_steps(spliced(program.steps, at, plainer))


def _first_turn(step: Step) -> Step:
    """Return a step of a loop's body as it runs in the first turn, outside of the loop."""
    return step.mapped(lambda marker: marker["i"][1] if "i" in marker else marker)


def plainer_step(step: Step) -> Iterator[Step]:
    """Yield simpler calls of the same op, or calls of a simpler op.

    The simpler ops are `add_(1)` for a write, `logical_not_()` for a comparison in place, and `neg` for a result. The
    reducer then turns a bug of many ops into one program, and one finding."""
    for name in step.under:
        yield replace(step, under=tuple(other for other in step.under if other != name))
    if step.op in OPS and step.op != "add_":
        for written in _written(step):
            yield replace(step, op="add_", args=(written, 1), kwargs={})
        yield from _negated(step)
    if step.op in COMPARISONS:
        yield replace(step, op="logical_not_", args=step.args[:1], kwargs={})
    if step.op == LOOP:
        for times in {1, 2, step.times - 1}:
            if 0 < times < step.times:
                yield replace(step, times=times)
        return
    if step.op in OPS and OPS[step.op].settled:
        return  # the arguments of an op_db sample are valid only together: other numbers may crash torch CPU
    yield from _fewer_keywords(step)
    for at, arg in enumerate(step.args):
        for plainer in plainer_argument(arg):
            yield replace(step, args=spliced(step.args, at, plainer))


def _fewer_keywords(step: Step) -> Iterator[Step]:
    """Yield the step without one keyword argument. Without its device, a new tensor would lie on the CPU."""
    for key in step.kwargs:
        if key not in ("out", "device"):
            yield replace(step, kwargs={name: value for name, value in step.kwargs.items() if name != key})


def _written(step: Step) -> list[Json]:
    """Return the tensors that a call writes: one or several in `out`, or the argument that it writes in place."""
    writes = OPS[step.op].writes
    if isinstance(writes, int):
        first = step.args[writes]
        return list(first) if isinstance(first, list) else [first]
    out = step.kwargs.get("out") if writes == "out" else None
    return list(out["tuple"]) if isinstance(out, dict) and "tuple" in out else [out] if out is not None else []


def written_names(step: Step) -> list[str]:
    """Return the names of the tensors that a call writes."""
    result: list[str] = []
    walk(_written(step), lambda marker: result.append(marker["t"]) if "t" in marker else None)
    return result


def _negated(step: Step) -> Iterator[Step]:
    """Yield `neg` of each tensor argument, if the step returns a single new tensor."""
    row = OPS[step.op]
    if row.writes is None and row.effect in (MOVE, COMPUTE, LOSSY) and len(step.out) == 1 and step.op != "neg":
        yield from (replace(step, op="neg", args=(tensor(name),), kwargs={}) for name in step.operands)


def plainer_argument(arg: Json) -> Iterator[Json]:
    """Yield simpler JSON arguments: numbers nearer to zero, shorter lists, simpler slices, constants on the device."""
    if isinstance(arg, bool) or arg is None or isinstance(arg, str):
        return
    if isinstance(arg, (int, float)):
        yield from (number for number in (0, 1, int(arg) // 2) if abs(number) < abs(arg))
    elif isinstance(arg, list):
        for at, part in enumerate(arg):
            yield [*spliced(arg, at)]
            yield from ([*spliced(arg, at, plainer)] for plainer in plainer_argument(part))
    elif isinstance(arg, dict) and "arg" in arg:
        yield arg["value"]
    elif isinstance(arg, dict) and "tuple" in arg:
        parts = arg["tuple"]
        if len(parts) == 1:
            yield parts[0]
        yield from ({"tuple": plainer} for plainer in plainer_argument(parts))
    elif isinstance(arg, dict) and "slice" in arg:
        start, stop, step = arg["slice"]
        simpler = ([None, stop, step], [start, None, step], [start, stop, None])
        yield from ({"slice": parts} for parts in simpler if parts != arg["slice"])
    elif isinstance(arg, dict) and "tensor" in arg:
        if "host" in arg:
            yield {key: value for key, value in arg.items() if key != "host"}
        values = arg["tensor"]
        if isinstance(values, list):
            yield from (
                {**arg, "tensor": fewer} for fewer in (*values[:1], *([values[:-1]] if len(values) > 1 else []))
            )
        elif dtype_of(arg["dtype"]).is_signed:
            yield values


PASSES = (
    fewer_calls,
    fewer_steps,
    plainer_calls,
    shorter_lengths,
    fewer_inputs,
    plainer_steps,
    plainer_inputs,
    plainer_values,
)


def fewer_elements(program: Program) -> Iterator[Program]:
    """Yield the program with shorter or fewer dimensions, each cut in all inputs alike. The remaining elements keep
    their values, and a dense input stays dense."""
    for index in _cuts([input_.size for input_ in program.inputs]):
        tensors = make_inputs(program)
        cut = {name: _cut(tensor, index.get(tuple(tensor.size()), ())) for name, tensor in tensors.items()}
        if any(
            cut[name].numel() < tensor.numel() or cut[name].dim() < tensor.dim() for name, tensor in tensors.items()
        ):
            yield from _on(program, cut)


def _cuts(sizes: Sequence[tuple[int, ...]]) -> Iterator[dict[tuple[int, ...], tuple[slice | int, ...]]]:
    """Yield indices by size: first of every dimension, then of the dimensions of one length, then of one size."""
    for most in (1, 2):
        yield {size: (*(slice(most) for _ in size),) for size in sizes}
    for n in sorted({n for size in sizes for n in size if n > 1}, reverse=True):
        for start, stop in dict.fromkeys(((0, 1), (0, n // 2), (n // 2, n), (0, n - 1), (1, n))):
            yield {size: (*(slice(start, stop) if n == m else slice(m) for m in size),) for size in sizes}
    for size in dict.fromkeys(sizes):
        for dim, n in enumerate(size):
            for at in dict.fromkeys((0, n - 1)) if n else ():
                yield {size: (*(slice(None) for _ in range(dim)), at)}


def _cut(tensor: torch.Tensor, index: tuple[slice | int, ...]) -> torch.Tensor:
    part = tensor.detach()[index]
    return (part.clone() if tensor.is_contiguous() else part).requires_grad_(tensor.requires_grad)


def _on(program: Program, tensors: dict[str, torch.Tensor]) -> Iterator[Program]:
    """Yield the program on other inputs, if these can be inputs."""
    with contextlib.suppress(NotAnInput):
        storages, inputs = inputs_of(tensors)
        yield replace(program, storages=storages, inputs=inputs)


def dense_inputs(program: Program) -> Iterator[Program]:
    """Yield the program with dense inputs of the same values, each on a storage of its own: all inputs, then each."""
    odd = [input_.name for input_ in program.inputs if input_.stride != dense(input_.size) or input_.offset]
    keys = [input_.storage for input_ in program.inputs]
    odd += [input_.name for input_ in program.inputs if keys.count(input_.storage) > 1 and input_.name not in odd]
    for names in ([odd] if len(odd) > 1 else []) + [[name] for name in odd]:
        tensors = make_inputs(program)
        copies = {name: tensors[name].detach().contiguous().clone() for name in names}
        wanted = {name: copy.requires_grad_(tensors[name].requires_grad) for name, copy in copies.items()}
        yield from _on(program, {**tensors, **wanted})


def merged_inputs(program: Program) -> Iterator[Program]:
    """Yield the program without an input, whose users use another input of the same dtype and size instead."""
    for at, input_ in enumerate(program.inputs):
        for other in program.inputs[:at]:
            if (input_.dtype, input_.size) == (other.dtype, other.size):
                steps = tuple(step.renamed({input_.name: other.name}) for step in program.steps)
                inputs = tuple(kept for kept in program.inputs if kept is not input_)
                yield tidy(replace(program, inputs=inputs, steps=steps))


def fewer_arguments(program: Program) -> Iterator[Program]:
    """Yield the program with one call that has fewer arguments: without a keyword, or without its last positional
    argument."""
    for at, step in enumerate(program.steps):
        fewer = [replace(step, args=step.args[:-1])] if len(step.args) > max(OPS[step.op].least, 1) else []
        for other in (*_fewer_keywords(step), *fewer):
            yield program.with_steps(spliced(program.steps, at, other))


def fewer_last_steps(program: Program) -> Iterator[Program]:
    """Yield the beginnings of the program, the shortest first."""
    yield from (program.with_steps(program.steps[:count]) for count in range(1, len(program.steps)))


SAMPLE_PASSES = (
    fewer_last_steps,
    fewer_elements,
    dense_inputs,
    fewer_arguments,
    fewer_inputs,
    merged_inputs,
    plainer_geometry,
    plainer_values,
)
"""Passes for a sample of op_db. They keep its operator and dtypes, which the sample tests, and change values in the
last pass only."""

CALL_PASSES = tuple(propose for propose in SAMPLE_PASSES if propose not in (fewer_last_steps, fewer_arguments))
"""Passes for one call of an operator, on its inputs."""

RECORDED_PASSES = (*SAMPLE_PASSES[:-1], plainer_floats)
"""Passes for a recorded call, which keep its operator and dtypes too."""
