"""Drawing the further calls of a program: other values, and one changed property of its inputs or of global state.

Defines `with_calls`. The key insight: a compiled function is guarded by properties of its arguments, so each further
call changes one property. Calls with other values alone must not compile anything, so they cost almost nothing. One
program in `CHANGED_EVERY` also has a call with a changed property, which compiles the function again, and then a call
as before. A change counts only if torch CPU gives it a meaning with the same steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from conformance.engine.target import Target
from conformance.program.calls import has_meaning
from conformance.program.model import SPECIAL, Call, Input, Program, Storage, fresh_names, spliced
from conformance.program.steps import snippets
from conformance.program.steps.functions import SIDE_EFFECTS
from conformance.program.steps.layouts import dense
from conformance.program.steps.op import Json, Step, dtype_of, number, tensor

CHANGED_EVERY = 3
"""One program in this many has a call with a changed property."""

RESTARTED = 0.5
"""Share of the calls with a changed property before which the function is compiled anew, as in a new process, on a
target that saves graphs. Everything that a saved graph depends on must be in its cache key, as guards ensure within one
process."""

STATES = ("no_grad", "default_dtype:float64", "whole_autocast:bfloat16", "inference_mode", "deterministic")
"""Global states around a call."""

JOINED = 0.5
"""Share of the changes of aliasing that concern an input added for them. Of the drawn inputs, few have the same size,
and fewer are such that a write to one of them shows in the other."""

TRIED = 12
"""Largest number of candidates of one change to try on a program."""

OTHER_DTYPE = {"float32": "float64", "float64": "float32", "int64": "int32", "int32": "int64", "bool": "uint8",
               "uint8": "int16", "int8": "int16", "int16": "int32", "float16": "float32", "bfloat16": "float32",
               "complex64": "complex128"}  # fmt: skip


def with_calls(program: Program, seed: int, number: int, target: Target) -> Program:
    """Return program `number` of this seed with further calls that the target supports, at most three.
    A program with steps of its caller has none."""
    if any(step.after for step in program.steps):
        return program
    rng = random.Random(f"{seed}:calls:{number}")
    usable = [call for call in (_other_values(program, rng), _offset(program, rng)) if call is not None]
    turn, rest = divmod(number, CHANGED_EVERY)
    changed = None
    if rest == CHANGED_EVERY - 1:
        names = [name for name, change in CHANGES.items() if target.facts.compiles or not change.guarded]
        order = random.Random(f"{seed}:topics:{turn // len(names)}").sample(names, len(names))
        at = turn % len(names)
        changed = next(filter(None, (_changed(program, name, rng, target) for name in order[at:] + order[:at])), None)
    saves_graphs = target.facts.saves_graphs
    if changed is not None and saves_graphs and random.Random(f"{seed}:restart:{number}").random() < RESTARTED:
        changed = replace(changed, calls=tuple(replace(call, restarted=True) for call in changed.calls))
    base, calls = (program, []) if changed is None else (replace(changed, calls=()), [*changed.calls])
    for call in usable:
        if len(calls) < 3 and has_meaning(replace(base, calls=(call,)), target):
            calls.insert(0 if changed is None or len(calls) < 2 else len(calls), call)
    return replace(base, calls=tuple(calls))


def _changed(program: Program, name: str, rng: random.Random, target: Target) -> Program | None:
    """Return the program with one call with this change; None if no candidate that was tried has a meaning."""
    candidates = [*CHANGES[name].candidates(program, rng)]
    rng.shuffle(candidates)
    return next((candidate for candidate in candidates[:TRIED] if has_meaning(candidate, target)), None)


def _other_values(program: Program, rng: random.Random) -> Call | None:
    """Return a call with other values of the same kind in every storage."""
    changed: dict[str, dict[str, Json]] = {}
    known: set[int] = set()
    for input_ in program.inputs:
        if input_.storage not in known and not input_.same:
            known.add(input_.storage)
            changed[input_.name] = {"values": _values(program.storages[input_.storage], rng)}
    return Call(changed) if changed else None


def _values(storage: Storage, rng: random.Random) -> Json:
    if isinstance(storage.values, list):
        at = rng.randint(1, max(len(storage.values), 1))
        return [*storage.values[at:], *storage.values[:at]]
    kind = next(iter(storage.values), "seed") if isinstance(storage.values, dict) else "seed"
    return {kind: rng.randint(100, 199)}


def _offset(program: Program, rng: random.Random) -> Call | None:
    """Return a call with another offset of one input. No guard checks an offset."""
    inputs = [input_ for input_ in program.inputs if not input_.same]
    moved = rng.choice(inputs) if inputs else None
    return Call({moved.name: {"offset": moved.offset + rng.randint(1, 3)}}) if moved is not None else None


def _resized(input_: Input, size: tuple[int, ...]) -> dict[str, Json]:
    """Return the change to another size. A dense input stays dense, in the same order of dimensions."""
    if len(size) != len(input_.size):
        return {"size": list(size), "stride": list(dense(size))}
    order = sorted(range(len(size)), key=lambda dim: (input_.stride[dim], input_.size[dim]))
    stride, step = [0] * len(size), 1
    for dim in order:
        kept = input_.stride[dim]
        stride[dim] = 0 if kept == 0 else max(kept, step)
        step = max(step, stride[dim] * max(size[dim], 1))
    return {"size": list(size), "stride": stride}


def _shapes(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls with another length of a dimension: of all inputs with this length, or of one input."""
    lengths = sorted({n for input_ in program.inputs for n in input_.size})
    for n in lengths:
        for other in {n + 1, n + 3, max(n - 1, 1), 2 * n} - {n}:
            changed = {
                input_.name: _resized(input_, tuple(other if m == n else m for m in input_.size))
                for input_ in program.inputs
                if n in input_.size
            }
            yield replace(program, calls=(Call(changed),))
            for input_ in program.inputs:
                for dim in (dim for dim, m in enumerate(input_.size) if m == n):
                    size = spliced(input_.size, dim, other)
                    yield replace(program, calls=(Call({input_.name: _resized(input_, size)}),))


def _ranks(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls with one more or one fewer dimension."""
    for input_ in program.inputs:
        for size in ((2, *input_.size), (1, *input_.size), input_.size[1:], input_.size[:-1]):
            if len(size) != len(input_.size):
                yield replace(program, calls=(Call({input_.name: _resized(input_, size)}),))


def _strides(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls with other strides of the same size: permuted, with gaps, or expanded."""
    for input_ in program.inputs:
        for _ in range(4):
            order = rng.sample(range(len(input_.size)), len(input_.size))
            stride, step = [0] * len(order), rng.choice((1, 1, 2))
            for dim in order:
                stride[dim], step = step, step * max(input_.size[dim], 1)
            yield replace(program, calls=(Call({input_.name: {"stride": stride}}),))
        for dim in range(len(input_.size)):
            expanded = [*spliced(input_.stride, dim, 0)]
            yield replace(program, calls=(Call({input_.name: {"stride": expanded}}),))


def _dtypes(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls with another dtype of all inputs of one dtype, or of one input."""
    for dtype in dict.fromkeys(input_.dtype for input_ in program.inputs):
        for other in dict.fromkeys((OTHER_DTYPE[dtype], "float32", "int64", "float64") if dtype in OTHER_DTYPE else ()):
            if other == dtype:
                continue
            for chosen in ([input_ for input_ in program.inputs if input_.dtype == dtype], program.inputs):
                yield replace(program, calls=(Call({input_.name: _to(input_, other) for input_ in chosen}),))
            for input_ in program.inputs:
                if input_.dtype == dtype:
                    yield replace(program, calls=(Call({input_.name: _to(input_, other)}),))


def _to(input_: Input, dtype: str) -> dict[str, Json]:
    grad = input_.requires_grad and (dtype_of(dtype).is_floating_point or dtype_of(dtype).is_complex)
    return {"dtype": dtype, **({"requires_grad": False} if input_.requires_grad and not grad else {})}


def _grads(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls with `requires_grad` of one input changed."""
    for input_ in program.inputs:
        if dtype_of(input_.dtype).is_floating_point or dtype_of(input_.dtype).is_complex:
            yield replace(program, calls=(Call({input_.name: {"requires_grad": not input_.requires_grad}}),))


def _aliases(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls that change whether two inputs share a storage or are one tensor."""
    inputs = program.inputs
    if len(inputs) == 1 or (inputs and rng.random() < JOINED):
        yield from _joined(program, rng.choice(inputs))
        return
    for at, input_ in enumerate(inputs):
        if input_.same:
            yield replace(program, calls=(Call({input_.name: {"same": ""}}),))
        for other in inputs[:at]:
            if other.dtype != input_.dtype or other.same:
                continue
            if other.storage == input_.storage:
                yield replace(program, calls=(Call({input_.name: {"alone": True}}),))
            else:
                grad = {"requires_grad": other.requires_grad}
                for shift in (0, 1, rng.randint(0, 6)):
                    moved = {"beside": other.name, "offset": other.offset + shift, **grad}
                    yield replace(program, calls=(Call({input_.name: moved}),))
            if (other.size, other.stride, other.storage) == (
                input_.size,
                input_.stride,
                input_.storage,
            ) or other.size == input_.size:
                yield replace(program, calls=(Call({input_.name: {"same": other.name}}),))


def _joined(program: Program, first: Input) -> Iterator[Program]:
    """Yield calls in which a further input, like the first, joins it, or begins as a part of it and leaves it. One of
    two further steps writes one of these inputs, and then the other step reads the other input."""
    known = {input_.name: input_ for input_ in program.inputs} | {name: 0 for s in program.steps for name in s.out}
    name = next(fresh_names(known))
    apart = replace(first, name=name, storage=len(program.storages), same="")
    storages = (*program.storages, program.storages[first.storage])
    changes: list[tuple[Input, dict[str, Json]]] = [
        (apart, {"same": first.name}),
        (apart, {"beside": first.name}),
        (apart, {"beside": first.name, "offset": first.offset + 1}),
        (replace(apart, same=first.name), {"same": ""}),
        (replace(apart, storage=first.storage), {"alone": True}),
    ]
    for written, read in ((name, first.name), (first.name, name)):
        uses = Step("add_", (tensor(written), 1)), Step("mul", (tensor(read), 2), out=(f"{name}_1",))
        for further, change in changes:
            own = storages if further.storage == apart.storage else program.storages
            inputs, steps, calls = (*program.inputs, further), (*program.steps, *uses), (Call({name: change}),)
            yield replace(program, storages=own, inputs=inputs, steps=steps, calls=calls)


def _argument(value: Json) -> Json:
    """Return the marker of the function's Python argument with this value in the first call."""
    return {"arg": "arg_1", "value": value}


def _bindings(step: Step, wanted: Callable[[Json], bool]) -> Iterator[tuple[Json, Step]]:
    """Yield each wanted argument of a step, and the step with the function's argument in its place."""
    for at, value in enumerate(step.args):
        if wanted(value):
            yield value, replace(step, args=spliced(step.args, at, _argument(value)))
        elif isinstance(value, list):
            for inner, part in enumerate(value):
                if wanted(part):
                    bound = [*spliced(value, inner, _argument(part))]
                    yield part, replace(step, args=spliced(step.args, at, bound))
    for key, value in step.kwargs.items():
        if wanted(value):
            yield value, replace(step, kwargs={**step.kwargs, key: _argument(value)})


def _bound(program: Program, wanted: Callable[[Json], bool], others: Callable[[Json], list[Json]]) -> Iterator[Program]:
    """Yield programs in which a literal becomes a Python argument of the function, and a call that changes it."""
    for at, step in enumerate(program.steps):
        for value, bound in _bindings(step, wanted):
            for other in others(value):
                steps, call = spliced(program.steps, at, bound), Call(arguments={"arg_1": other})
                yield replace(program, steps=steps, calls=(call,))


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls with another Python number: another value, 0, 1, or the same value as a float."""
    yield from _bound(
        program,
        _is_number,
        lambda value: [
            other for other in (value + 1, value - 1, 0, 1, 2 * value, float(value)) if repr(other) != repr(value)
        ],
    )
    for input_ in program.inputs:
        if dtype_of(input_.dtype).is_floating_point:
            scaled = Step("mul", (tensor(input_.name), _argument(2.0)), out=(f"{input_.name}_1",))
            steps = (*program.steps, scaled)
            for value in (3.0, 2, *map(number, SPECIAL[:1])):
                yield replace(program, steps=steps, calls=(Call(arguments={"arg_1": value}),))


def _nones(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls with None for a Python number, or with a number for None."""
    yield from _bound(program, lambda value: value is None, lambda value: [0, 1, True])
    for at, step in enumerate(program.steps):
        for key, value in step.kwargs.items():
            if _is_number(value):
                bound = replace(step, kwargs={**step.kwargs, key: _argument(value)})
                yield replace(
                    program, steps=spliced(program.steps, at, bound), calls=(Call(arguments={"arg_1": None}),)
                )
    for input_ in program.inputs:
        if dtype_of(input_.dtype).is_floating_point:
            for first, second in ((None, 1), (1, None)):
                clamp = Step("clamp", (tensor(input_.name), _argument(first), 2), out=(f"{input_.name}_1",))
                steps = (*program.steps, clamp)
                yield replace(program, steps=steps, calls=(Call(arguments={"arg_1": second}),))


def _flags(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls with the other value of a bool, such as `training` or `keepdim`."""
    yield from _bound(program, lambda value: isinstance(value, bool), lambda value: [not value])


def _states(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls under a global state, with a step whose answer depends on it where that is possible."""
    for input_ in program.inputs:
        name, dtype = input_.name, dtype_of(input_.dtype)
        grads = tuple(replace(other, requires_grad=True) if other is input_ else other for other in program.inputs)
        doubled = Step("mul", (tensor(name), 2), out=(f"{name}_1",))
        if dtype.is_floating_point:
            for state in ("no_grad", "inference_mode"):
                steps = (*program.steps, doubled)
                yield replace(program, inputs=grads, steps=steps, calls=(Call(under=(state,)),))
        asks = (
            Step("eq", (tensor(name), 1), out=(f"{name}_1",)),
            Step("sigmoid", (tensor(f"{name}_1"),), out=(f"{name}_2",)),
        )
        yield replace(program, steps=(*program.steps, *asks), calls=(Call(under=("default_dtype:float64",)),))
        if input_.dtype == "float32":
            flat = Step("flatten", (tensor(name),), out=(f"{name}_1",))
            product = Step("matmul", (tensor(f"{name}_1"), tensor(f"{name}_1")), out=(f"{name}_2",))
            yield replace(
                program, steps=(*program.steps, flat, product), calls=(Call(under=("whole_autocast:bfloat16",)),)
            )
    without_step = ("deterministic",) if program.inputs else STATES
    yield from (replace(program, calls=(Call(under=(state,)),)) for state in without_step)


def _objects(program: Program, rng: random.Random) -> Iterator[Program]:
    """Yield calls after a change of a Python object that a further step of the function reads."""
    for input_ in program.inputs:
        for kind in snippets.OBJECTS:
            step = Step(f"{SIDE_EFFECTS}:{kind}", (tensor(input_.name), kind), out=(f"{input_.name}_1",))
            yield replace(program, steps=(*program.steps, step), calls=(Call(under=(f"object:{kind}",)),))


@dataclass(frozen=True)
class CallChange:
    """A kind of change between two calls of a function. `candidates` yields programs that each have one call with such
    a change. `guarded` says that only compilers depend on it, by a guard."""

    candidates: Callable[[Program, random.Random], Iterator[Program]]
    guarded: bool = False


CHANGES = {
    "shape": CallChange(_shapes),
    "argument": CallChange(_numbers),
    "aliasing": CallChange(_aliases),
    "stride": CallChange(_strides),
    "requires_grad": CallChange(_grads),
    "dtype": CallChange(_dtypes),
    "none": CallChange(_nones),
    "state": CallChange(_states),
    "rank": CallChange(_ranks),
    "flag": CallChange(_flags),
    "object": CallChange(_objects, guarded=True),
}
"""The changes between calls by name. Each occurs once before any repeats."""
