"""op_db's entries as steps of drawn programs: the entries available, their variants, dtypes and layouts.

Defines `OpDbCalls`, which plans the calls of one program. The key insight: an OpInfo's sample says which calls an op
accepts, so its sizes, dtypes and arguments stay. Drawing chooses the geometry of its tensors. Each tensor is an input
of the program with a layout class, on its own storage or on another operand's. It has the sample's values, or other
values if the op accepts any. A call is planned only after torch CPU has answered it, so every planned call can run.

Every entry has its turn. Each seed orders the entries, and each op_db program takes the next `ENTRIES` of them, so 500
programs contain every entry. The variants, dtypes and layouts of an entry take turns as well.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.program.model import Input, Program, Storage, fresh_names, spliced
from conformance.program.shadow import Shadow
from conformance.program.steps import functions
from conformance.program.steps.draw import Draw, Source
from conformance.program.steps.layouts import Layout, laid_out, layout_class
from conformance.program.steps.op import Json, Step, decode, dtype_of, number
from conformance.program.unsupported import WANTS_GRAD, WITH_OUT, operators_of
from conformance.record.names import REFUSED
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing.inputs import filled
from conformance.sources.fuzzing.op_db_calls import (
    FORWARD,
    OUT,
    Key,
    Operand,
    SampleStep,
    drawn_calls,
    entries,
    opinfo,
    variants,
)
from conformance.sources.opinfo import catalog, undefined

ENTRIES = 7
"""Number of entries that a program calls."""

LAYOUTS = ("contiguous", "window", "permuted", "gaps", "permuted gaps", "expanded", "overlapping", "non-divisible")
"""The layout classes that an operand of any size can have."""

ANY_VALUES = ("unary", "binary", "shape and views", "indexing")
"""Families of entries that accept any values in their floating-point tensors."""

WHOLE = {"bool": 2, "int8": 2**8, "uint8": 2**8, "bfloat16": 2**9, "float16": 2**12}
"""Number of whole numbers around 0 that a narrow dtype represents exactly."""

DISTINCT = tuple(name for name in LAYOUTS if name not in ("expanded", "overlapping"))
"""The layout classes without elements that share memory."""

NOT_DIFFERENTIATED = (
    *("nn.functional.embedding", "nn.functional.embedding_bag"),  # no gradient at `padding_idx`
    *("nn.functional.max_unpool1d", "nn.functional.max_unpool2d", "nn.functional.max_unpool3d"),  # equal indices
)
"""Entries whose gradient is by design not the derivative."""

NOT_CONVERTED = ("linalg", "fft", "factories", "casts", "signal windows", "sparse", "random")
"""Families of entries whose dtypes are not changed: slow ones, and ones without operands."""

NAMED = ("float32", "float64", "float16", "bfloat16", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Dtypes that a result may have only if the drawing includes them."""

TRIED = 6
"""Number of variants, dtypes and layouts of an entry to try before its plainest call. An entry is also given up after
this number of calls that need an operator declared lacking."""


class NeedsLacking(Exception):
    """A call needs an operator that is declared lacking."""


@dataclass(frozen=True)
class Planned:
    """A call on operands with a geometry: its storages and inputs, and its step."""

    cell: tuple[str, str, str, str]
    """The entry, the variant, the layout class and the dtype of the first operand."""
    storages: tuple[Storage, ...]
    inputs: tuple[Input, ...]
    step: Step
    results: int
    raises: bool = False
    """Whether torch CPU rejects the call."""
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def _placed(
    step: Step,
    places: Sequence[tuple[Operand, Layout]],
    d: Draw,
    cell: tuple[str, str, str, str],
    results: Sequence[Operand],
    drawn: bool,
    first: int = 0,
    grad: bool = False,
) -> Planned:
    """The step with its operands in these layouts. With `drawn`, an operand may lie on another operand's storage and so
    have other values. Input names begin with the name of number `first`."""
    storages: list[Storage] = []
    inputs: list[Input] = []
    for operand, layout in places:
        shared = [at for at, storage in enumerate(storages) if storage.dtype == operand.dtype]
        if drawn and shared and layout.cells and d.chance(1, 3):
            at = d.choice(shared)
            storages[at] = _longer(storages[at], layout.cells)
        else:
            at = len(storages)
            # An empty tensor with an offset lies within its storage, as x[2:2] does, so that views can build it.
            storages.append(_longer(filled(operand.dtype, operand.values, layout), layout.offset))
        name = _name(first + len(inputs))
        wants = grad and not inputs and dtype_of(operand.dtype).is_floating_point
        inputs.append(Input(name, at, operand.dtype, layout.size, layout.stride, layout.offset, wants))
    named = step.renamed({f"#{at}": tensor.name for at, tensor in enumerate(inputs)})
    return Planned(cell, tuple(storages), tuple(inputs), named, len(results))


def _can_be_distinct(operand: Operand) -> bool:
    """Whether the dtype represents as many whole numbers as the operand has elements."""
    return len(operand.values) <= WHOLE.get(operand.dtype, len(operand.values))


def _distinct(d: Draw, operand: Operand) -> Operand:
    """The operand; if it has equal elements, with distinct whole numbers instead."""
    count = len(operand.values)
    if len({*map(str, operand.values)}) == count:
        return operand
    least = 0 if operand.dtype.startswith("uint") else -(count // 2)
    return replace(operand, values=tuple(random.Random(d.integer(0, 99)).sample(range(least, least + count), count)))


@functools.cache
def _name(at: int) -> str:
    return next(itertools.islice(fresh_names({}), at, None))


def _longer(storage: Storage, cells: int) -> Storage:
    if cells <= storage.size:
        return storage
    if not isinstance(storage.values, list) or not storage.values:
        return replace(storage, size=cells, values=storage.values or "arange")
    repeated = itertools.islice(itertools.cycle(storage.values), cells)
    return replace(storage, size=cells, values=list(repeated))


@dataclass(frozen=True)
class OpDbCalls:
    """The calls in the programs of a drawing. Entries have these `dtypes`, and their calls need none of the
    dispatcher's operators in `lacking` on torch CPU, and have none of the `traits`."""

    dtypes: tuple[str, ...]
    lacking: frozenset[str] = frozenset()
    per_program: int = ENTRIES
    traits: frozenset[str] = frozenset()

    def turn(self, seed: int, number: int) -> Iterator[tuple[Key, int]]:
        """The entries in the op_db program `number` of this seed, each with its number of earlier turns."""
        known = entries()
        turn, at = divmod(number, -(-len(known) // self.per_program))
        order = random.Random(f"op_db:{seed}:{turn}").sample(range(len(known)), len(known))
        for position in order[at * self.per_program : (at + 1) * self.per_program]:
            yield known[position], turn

    def calls(self, source: Source, seed: int, number: int, tally: Tally) -> list[Planned]:
        """The calls of the op_db program `number` of this seed. The tally counts the entries given up."""
        planned: list[Planned] = []
        for key, turn in self.turn(seed, number):
            planned += self.plan(Draw(source), key, turn, seed, sum(len(other.inputs) for other in planned), tally)
        return planned

    def plan(self, d: Draw, key: Key, turn: int, seed: int, first: int, tally: Tally) -> list[Planned]:
        """Calls of the entry: first any calls that torch CPU rejects, then one with an answer. Empty if there is no
        such call in these dtypes. The names of the inputs begin with the name of number `first`."""
        planned: list[Planned] = []
        lacking: list[str] = []
        for call, variant, layout, plain in self._tries(d, key, turn, seed):
            try:
                candidate = self.place(d, key, call, variant, layout, first, plain)
            except NeedsLacking as needs:
                lacking.append(str(needs))
                if len(lacking) == TRIED:
                    break
                continue
            if candidate is not None:
                planned.append(candidate)
                first += len(candidate.inputs)
                if not candidate.raises:
                    return planned
        if lacking:
            tally.lacking[f"{lacking[-1]}|{'.'.join(filter(None, key))}"] += 1
        return [call for call in planned if not call.raises]

    def _tries(self, d: Draw, key: Key, turn: int, seed: int) -> Iterator[tuple[SampleStep, str, str, bool]]:
        """Calls of the entry with variant and layout: first some of its cells, then contiguous forward calls."""
        for variant, dtype, layout in itertools.islice(self._cells(key, turn, seed), TRIED):
            for name, call in zip((layout, "contiguous"), drawn_calls(d, key, variant, dtype)):
                yield call, variant, name, False
        for dtype, plain in itertools.product(dict.fromkeys(self.dtypes), (False, True)):
            for call in drawn_calls(d, key, FORWARD, dtype):
                yield call, FORWARD, "contiguous", plain

    def _cells(self, key: Key, turn: int, seed: int) -> Iterator[tuple[str, str, str]]:
        """The entry's variants, dtypes and layouts, starting at its turn, in an order that depends on the seed."""
        held = [name for name in dict.fromkeys(self.dtypes) if dtype_of(name) in opinfo(key).dtypes]
        known = [name for name in variants(key) if name != OUT or WITH_OUT not in self.traits]
        cells = list(itertools.product(known, held, LAYOUTS))
        order = random.Random(f"{key}:{seed}").sample(cells, len(cells))
        return (order[(turn + k) % len(order)] for k in range(len(order)))

    def place(
        self,
        d: Draw,
        key: Key,
        call: SampleStep,
        variant: str,
        layout: str,
        first: int,
        plain: bool = False,
        others: Sequence[str] = (),
        keeps_values: bool = False,
    ) -> Planned | None:
        """The call on operands in drawn layouts, the first one in `layout` if it can have it, and others in classes of
        `others`, if given. Unless `keeps_values`, operands may have other values than the sample's. None if torch CPU
        does not answer the call, or if its dtypes are not drawn. Raises NeedsLacking."""
        op, step, operands = opinfo(key), call.step, list(call.operands)
        if variant == OUT:
            targets = [_target(d, result, self.dtypes) for result in call.results]
            markers = [{"t": f"#{len(operands) + k}"} for k in range(len(targets))]
            operands += targets
            step = replace(step, kwargs={**step.kwargs, "out": markers[0] if len(markers) == 1 else {"tuple": markers}})
        result_dtypes = {result.dtype for result in call.results} & {*NAMED}
        if not {operand.dtype for operand in operands} | result_dtypes <= {*self.dtypes}:
            return None
        distinct, ordered = undefined.needs_distinct(op.name), undefined.needs_order(op.name)
        if distinct and any(operand.dtype == "bool" and math.prod(operand.size) > 2 for operand in operands):
            return None  # no distinct elements, and a device may order equal ones as it likes
        if ordered and not _can_be_distinct(operands[0]):
            return None
        classes = others or (DISTINCT if distinct else LAYOUTS)
        layout = layout if layout in classes or layout in DISTINCT or not distinct else "contiguous"
        places = []
        for at, operand in enumerate(operands):
            name = (
                "contiguous" if plain else layout if not at else d.choice(classes) if d.chance(1, 2) else "contiguous"
            )
            own = _distinct(d, operand) if ordered and not at else self._valued(d, op, operand, plain or keeps_values)
            places.append((own, laid_out(d, operand.size, name)))
        grad = WANTS_GRAD not in self.traits and call.differentiable and not plain and d.chance(1, 4)
        where, dtype = (_class_of(places[0][1]), operands[0].dtype) if places else ("none", "none")
        cell = (".".join(filter(None, key)), variant, where, dtype)
        planned = _placed(
            step, places, d, cell, call.results if variant == FORWARD else (), not (plain or distinct), first, grad
        )
        answered = self._answered(planned)
        if answered is None:
            return None
        granted = catalog.tolerances(op, dtype_of(dtype), (dtype,)) if places else {}
        return replace(planned, tolerance=granted, raises=answered.raises is not None)

    def _valued(self, d: Draw, op: Any, operand: Operand, plain: bool) -> Operand:
        """The operand. If the entry accepts any values, half of the operands get whole numbers and halves instead."""
        takes = dtype_of(operand.dtype).is_floating_point and catalog.family(op) in ANY_VALUES
        if plain or not takes or not d.chance(1, 2):
            return operand
        cells = Storage(operand.dtype, len(operand.values), {"seed": d.integer(0, 99)}).literal()
        return replace(operand, values=tuple(map(number, cells)))

    def _answered(self, planned: Planned) -> Step | None:
        """The step as it runs on torch CPU in a separate program, or None if it fails. Raises NeedsLacking."""
        program = Program(planned.storages, planned.inputs)
        try:
            shadow = Shadow(program, self.traits)
            step = replace(planned.step, out=shadow.fresh(planned.results))
            # Only the operators of the step: the shadow calls others to create and inspect inputs.
            needs = self.lacking & {*operators_of(program, [step])} if self.lacking else ()
            offered = shadow.offer(step) if not needs else None
        except Exception:  # the program cannot be created: try another call
            return None
        if needs:
            raise NeedsLacking(min(needs))
        return offered


def converted(
    d: Draw, topic: str, dtypes: Sequence[str], seed: int, turn: int, first: int, most: int
) -> Iterator[Planned]:
    """Yield at most `most` changed calls of entries, as steps of the topic.

    The topic PROMOTION changes the dtype of one operand of a binary operator. DTYPES changes the dtype of one operand
    or all, REFUSALS one number, value or size, and both yield only calls that torch CPU refuses. TRANSFORMED
    differentiates the call. The entries take turns in an order that depends on the seed. The names of the inputs begin
    with the name of number `first`."""
    known, change = _entries_of(topic), CHANGES[topic]
    order = random.Random(f"{topic}:{seed}:{turn * most // len(known)}").sample(known, len(known))
    count, start = 0, turn * most % len(known)
    for key in (*order[start:], *order[:start])[: 4 * most]:
        held = [name for name in dict.fromkeys(dtypes) if dtype_of(name) in opinfo(key).dtypes]
        call = next(drawn_calls(d, key, FORWARD, d.choice(held)), None) if held else None
        if call is None or count == most:
            continue
        changed = change(d, call, dtypes)
        planned = changed and _planned(d, topic, *changed, first)
        if planned and planned.raises in RAISES.get(topic, (True, False)):
            count, first = count + 1, first + len(planned.inputs)
            yield planned


@functools.cache
def _entries_of(topic: str) -> list[Key]:
    """The entries whose calls a topic changes."""
    families = {key: catalog.family(opinfo(key)) for key in entries()}
    if topic == functions.TRANSFORMED:
        smooth = [key for key in families if opinfo(key).supports_autograd and opinfo(key).supports_forward_ad]
        return [key for key in smooth if opinfo(key).name not in NOT_DIFFERENTIATED]
    binary = {functions.PROMOTION: (True,), functions.DTYPES: (False,)}.get(topic, (True, False))
    return [key for key, name in families.items() if name not in NOT_CONVERTED and (name == "binary") in binary]


Changed = tuple[Step, list[Operand], int]
"""A changed call: its step, its operands, and the number of its results."""


def _planned(d: Draw, topic: str, step: Step, operands: Sequence[Operand], results: int, first: int) -> Planned | None:
    """The changed call as a step of the topic, or None if it cannot be one."""
    places = [
        (operand, laid_out(d, operand.size, d.choice(DISTINCT) if d.chance(1, 3) else "contiguous"))
        for operand in operands
    ]
    outputs = [Operand("float32", (), ())] * results
    planned = _placed(step, places, d, (topic, "", "", operands[0].dtype), outputs, False, first)
    shadow = Shadow(Program(planned.storages, planned.inputs))
    try:
        out = shadow.fresh(planned.results)
        offered = shadow.offer(replace(planned.step, out=out), aimed=True, unimplemented=True)
    except Exception:  # the results are not tensors, or cannot be observed
        return None
    if offered is None or (not offered.raises and any(name not in shadow.env for name in out)):
        return None
    raises = offered.raises is not None
    if topic == functions.TRANSFORMED and not raises and not all(shadow.env[name].isfinite().all() for name in out):
        return None  # the line leaves the domain of the operator
    return replace(planned, raises=raises)


RAISES = {functions.DTYPES: (True,), functions.REFUSALS: (True,), functions.TRANSFORMED: (False,)}
"""Whether the calls of a topic raise on torch CPU; a topic that is not listed has both."""


def _form_of(call: SampleStep) -> tuple[str, str]:
    """The form and the operator of a call, as in the names of op_db's rows."""
    form, _, name = call.step.op.removeprefix("op_db").removeprefix(".").partition(":")
    return form, name


def _named(topic: str, call: SampleStep) -> Step | None:
    """The call as a step of a topic, or None if the topic cannot make it."""
    form, name = _form_of(call)
    if form not in functions.FORMS or form == "inplace" or not call.operands:
        return None
    return replace(call.step, op=f"{topic}{'.' if form else ''}{form}:{name}")


def _of_other_dtypes(topic: str, d: Draw, call: SampleStep, dtypes: Sequence[str]) -> Changed | None:
    """Change the dtype of one operand or, for DTYPES, of all."""
    step, operands = _named(topic, call), list(call.operands)
    if step is None or len(operands) < (2 if topic == functions.PROMOTION else 1):
        return None
    at, every = d.integer(0, len(operands) - 1), topic == functions.DTYPES and d.chance(2, 3)
    before = operands[0 if every else at].dtype
    to = d.choice([name for name in dict.fromkeys(dtypes) if name != before] or [before])
    for place, operand in enumerate(operands):
        if place == at or (every and operand.dtype == before):
            operands[place] = replace(operand, dtype=to, values=tuple(_number(value, to) for value in operand.values))
    return step, operands, len(call.results)


FAR: dict[type, tuple[Json, ...]] = {
    int: (-1, 0, 7, -7, 2, 20),
    float: (-1.0, 0.0, 1.5, -0.5, number(math.nan), number(-math.inf), 1e39),
}
"""Numbers in place of an argument, which many operators refuse."""


def _of_refused_arguments(d: Draw, call: SampleStep, dtypes: Sequence[str]) -> Changed | None:
    """Change a number among the arguments, or a value or the size of an operand."""
    step, operands = _named(functions.REFUSALS, call), list(call.operands)
    if step is None or any(undefined.faulty(_form_of(call)[1], variant) for variant in REFUSED):
        return None
    places: list[tuple[str | int, Json]] = [*((at, value) for at, value in enumerate(step.args)), *step.kwargs.items()]
    numbers = [(place, value) for place, value in places if type(value) in FAR or _sizes(value)]
    if numbers and d.chance(1, 2):
        place, value = d.choice(numbers)
        new = [d.choice(FAR[int]), *value[1:]] if _sizes(value) else d.choice(FAR[type(value)])
        if isinstance(place, int):
            return replace(step, args=spliced(step.args, place, new)), operands, len(call.results)
        return replace(step, kwargs={**step.kwargs, place: new}), operands, len(call.results)
    at = d.integer(0, len(operands) - 1)
    operand = operands[at]
    if not operand.values or operand.dtype.startswith(("bool", "complex")):
        return None
    if operand.size and d.chance(1, 3):  # one row less
        size = (operand.size[0] - 1, *operand.size[1:])
        operands[at] = replace(operand, size=size, values=operand.values[: math.prod(size)])
    else:
        whole = not dtype_of(operand.dtype).is_floating_point
        far = d.choice((-1, -7, 7, 100) if whole else (1.5, -1.5, -0.5, number(math.nan)))
        if operand.dtype == "uint8" and isinstance(far, int):
            far = abs(far)
        operands[at] = replace(operand, values=spliced(operand.values, d.integer(0, len(operand.values) - 1), far))
    return step, operands, len(call.results)


def _sizes(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and type(value[0]) is int


def _differentiated(d: Draw, call: SampleStep, dtypes: Sequence[str]) -> Changed | None:
    """Differentiate the call along a line of float64 numbers."""
    form, name = _form_of(call)
    if form not in ("", "many") or not call.differentiable or "float64" not in dtypes:
        return None
    operands = [
        replace(operand, dtype="float64") if dtype_of(operand.dtype).is_floating_point else operand
        for operand in call.operands
    ]
    mode, at = d.choice(functions.MODES), d.choice((0.37, 0, -0.81))
    return Step(f"{functions.TRANSFORMED}:{name}", (name, mode, at, *call.step.args), call.step.kwargs), operands, 1


CHANGES: Mapping[str, Callable[[Draw, SampleStep, Sequence[str]], Changed | None]] = {
    functions.PROMOTION: functools.partial(_of_other_dtypes, functions.PROMOTION),
    functions.DTYPES: functools.partial(_of_other_dtypes, functions.DTYPES),
    functions.REFUSALS: _of_refused_arguments,
    functions.TRANSFORMED: _differentiated,
}
"""The change of a call by topic; None if the topic cannot change the call."""


def _number(value: Json, dtype: str) -> Json:
    """The value as a number of the dtype; 1 in place of an integer 0, by which another operand may be divided."""
    plain = complex(decode(value, {}, torch.device("cpu"))).real
    if dtype_of(dtype).is_floating_point or dtype_of(dtype).is_complex:
        return number(plain)
    whole = int(plain) if math.isfinite(plain) else 1
    return bool(whole) if dtype == "bool" else min(abs(whole), 100) or 1


def _target(d: Draw, result: Operand, dtypes: Sequence[str]) -> Operand:
    """A tensor for `out=`. Usually it has the result's size; otherwise as many elements in another size, another size,
    or another dtype."""
    size, dtype = result.size, result.dtype
    count = int(torch.Size(size).numel())
    form = d.choice(("same", "same", "same", "as many", "another size", "another dtype"))
    if form == "as many":
        size = d.choice(((count,), (1, count), (count, 1), size[::-1]))
    elif form == "another size":
        size = d.choice(((0,), (count + 1,), (2, *size), size[1:]))
    elif form == "another dtype":
        dtype = d.choice([name for name in ("float64", "float32", "int64", "complex64") if name in dtypes] or [dtype])
    return Operand(dtype, tuple(size), (0,) * int(torch.Size(size).numel()))


def _class_of(layout: Layout) -> str:
    return layout_class(torch.empty(layout.cells).as_strided(layout.size, layout.stride, layout.offset))


def inputs_of(planned: Sequence[Planned]) -> Program:
    """A program with the inputs of all these calls, without steps."""
    storages: list[Storage] = []
    inputs: list[Input] = []
    tolerance: dict[str, tuple[float, float]] = {}
    for call in planned:
        inputs += [replace(tensor, storage=tensor.storage + len(storages)) for tensor in call.inputs]
        storages += call.storages
        for name, pair in call.tolerance.items():
            tolerance[name] = (max(pair[0], tolerance.get(name, pair)[0]), max(pair[1], tolerance.get(name, pair)[1]))
    return Program(tuple(storages), tuple(inputs), tolerance=tolerance)
