"""Calls of op_db's entries with an argument that their samples leave out.

    torch.sub(a, b)           torch.sub(a, b, alpha=2)          an argument with a default
    torch.cat([a, b])         torch.cat([a, b, c])              a third operand
    a.mul_(2)                 a.mul_(2), where a has stride 3   an operand of one dimension that is not dense

The key insight: torch knows these arguments. The schema of an operator names each argument with a type and a default,
so a rule for each type (`VALUES`) draws values for all operators, and torch CPU says which calls it accepts. Each
combination of an entry and an argument is a `Variation`. Each seed orders the operators, those that real programs use
mostly before the others, and each program has the variations of the next `OPERATORS` of them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from conformance.engine.aten_ops import Tagged
from conformance.program.steps.draw import Draw, Source
from conformance.program.steps.layouts import STRIDED
from conformance.program.steps.op import Json, decode, dtype_name, dtype_of, tensor, torch_function
from conformance.program.steps.op_db import has_function
from conformance.program.steps.table import OPS
from conformance.record.usage import usage_of
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing.op_db import NeedsLacking, OpDbCalls, Planned
from conformance.sources.fuzzing.op_db_calls import (
    FORWARD,
    INPLACE,
    Key,
    Operand,
    SampleStep,
    drawn_calls,
    entries,
    opinfo,
    tensor_for,
    variants,
)
from conformance.sources.opinfo import catalog
from conformance.standalone.torch_compat import DRAWS_NUMBERS

OPERATORS = 3
"""Number of operators whose variations a program has. The samples of an operator take longer than all calls of it."""

TRIED = 5
"""Number of changed calls of a variation to try before it is given up."""

OPERANDS, STRIDES = "operands", tuple(STRIDED)
"""The variations that no schema names: a longer list of operands, and operands of one dimension with this stride."""

EXCLUDED = frozenset(
    {
        *("out", "device", "layout", "pin_memory", "generator", "requires_grad", "memory_format", "non_blocking"),
        *("dropout_p", "training", "train", "inplace"),  # random numbers, or a form of its own
        *("sorted", "driver", "check_errors", "pivot", "hermitian"),  # a choice that torch does not define
        *("rcond", "rtol", "atol", "tol", "path", "compute_mode", "cudnn_enabled", "cudnn_enable"),
        *("sparse", "sparse_grad", "size_average", "reduce", "sorter"),
    }
)
"""Arguments that are not varied."""

STRINGS: Mapping[str, tuple[str, ...]] = {
    "rounding_mode": ("floor", "trunc"),
    "norm": ("ortho", "forward", "backward"),
    "reduction": ("sum", "none"),
    "side": ("right", "left"),
    "approximate": ("tanh",),
    "UPLO": ("U",),
    "padding": ("same", "valid"),
    "mode": ("bilinear", "nearest", "constant", "reflect"),
    "padding_mode": ("border", "reflection"),
}
"""Values of arguments that are words; no other word is varied."""

PLACES = ("contiguous", "contiguous", "window", "permuted", "gaps", "expanded")
"""Layout classes of the first operand of a call that states an argument."""

SPECIAL_ARGUMENTS = ("nan", "posinf", "neginf")
"""Arguments that stand for special values, so the operand has some."""


class Argument(NamedTuple):
    """An argument that a call may leave out: its name, the type in torch's schema, and its default."""

    name: str
    type: str
    default: Any


class Variation(NamedTuple):
    """An entry, the form of its call, and the argument to state."""

    key: Key
    variant: str
    argument: Argument


def _a_bool(d: Draw, argument: Argument, call: SampleStep, dtypes: Sequence[str]) -> Json:
    return d.chance(1, 2) if argument.default is None else not argument.default


def _a_number(d: Draw, argument: Argument, call: SampleStep, dtypes: Sequence[str]) -> Json:
    if argument.name == "correction":  # torch warns of a number that leaves no degree of freedom
        return d.choice((0, 0.5))
    whole = all(not _is_float(operand) for operand in call.operands)
    return d.choice((2, 3, -1) if whole else (2, 0.5, 3, -1))


def _a_float(d: Draw, argument: Argument, call: SampleStep, dtypes: Sequence[str]) -> Json:
    return d.choice((0.5, 2.0, 0.25))


def _an_integer(d: Draw, argument: Argument, call: SampleStep, dtypes: Sequence[str]) -> Json:
    if argument.name == "dtype":
        return {"dtype": d.choice(list(dict.fromkeys(dtypes)))}
    dims = len(call.operands[0].size) if argument.name.startswith("dim") and call.operands else 0
    return d.choice([n for n in (range(-dims, dims) if dims else (1, 2, -1, 0, 3)) if n != argument.default] or [0])


def _integers(d: Draw, argument: Argument, call: SampleStep, dtypes: Sequence[str]) -> Json:
    if argument.name.startswith("dim") and call.operands:
        dims = len(call.operands[0].size)
        return [dim - dims * d.chance(1, 3) for dim in d.subset(dims)] or [-1]
    return d.choice((2, 1, [2], [2, 1], [1, 2], [2, 2, 1]))


def _a_word(d: Draw, argument: Argument, call: SampleStep, dtypes: Sequence[str]) -> Json:
    return d.choice(STRINGS[argument.name])


def _a_tensor(d: Draw, argument: Argument, call: SampleStep, dtypes: Sequence[str]) -> Json:
    """Return an operand that is new in the call: as large as the first one, or as one of its dimensions."""
    first = call.operands[0]
    size = d.choice([first.size, *((n,) for n in first.size)])
    values = tuple(d.integer(1, 4) for _ in range(int(torch.Size(size).numel())))
    return Operand(first.dtype, tuple(size), values)


VALUES: Mapping[str, Callable[[Draw, Argument, SampleStep, Sequence[str]], Json]] = {
    "bool": _a_bool,
    "number": _a_number,
    "float": _a_float,
    "int": _an_integer,
    "List[int]": _integers,
    "str": _a_word,
    "Tensor": _a_tensor,
}
"""Rules for a value of an argument, by its type in torch's schema."""


def _is_float(operand: Operand) -> bool:
    dtype = dtype_of(operand.dtype)
    return dtype.is_floating_point or dtype.is_complex


@functools.cache
def arguments_of(name: str) -> tuple[Argument, ...]:
    """Return the arguments that a call of torch's operator of this name may leave out."""
    known: dict[str, Argument] = {}
    if has_function(name):
        with contextlib.suppress(TypeError, ValueError):  # a function in C++ has a schema instead
            for parameter in inspect.signature(torch_function(name)).parameters.values():
                if parameter.default is not inspect.Parameter.empty:
                    known[parameter.name] = Argument(parameter.name, _type_of(parameter), parameter.default)
    packet = getattr(torch.ops.aten, _plain(name), None) if not known and "." not in _plain(name) else None
    for overload in packet.overloads() if packet is not None else ():
        for one in getattr(packet, overload)._schema.arguments:
            if (one.has_default_value() or one.kwarg_only) and not one.is_out:
                known.setdefault(one.name, Argument(one.name, _of_optional(str(one.type)), one.default_value))
    usable = (one for one in known.values() if one.name not in EXCLUDED and one.type in VALUES)
    return tuple(one for one in usable if one.type != "str" or one.name in STRINGS)


def _of_optional(type_: str) -> str:
    return type_.removeprefix("Optional[").removesuffix("]") if type_.startswith("Optional[") else type_


def _type_of(parameter: inspect.Parameter) -> str:
    """Return the type of a parameter of a Python function as a schema names it."""
    names = {bool: "bool", int: "int", float: "float", str: "str"}
    if parameter.default is None:
        return {"dtype": "int", "weight": "Tensor", "bias": "Tensor", "pos_weight": "Tensor"}.get(parameter.name, "")
    return names.get(type(parameter.default), "")


@functools.cache
def find_variations() -> Mapping[str, tuple[Variation, ...]]:
    """Return the variations of each operator, in the order of op_db's entries. Of several entries of an operator, the
    first one with an argument states it."""
    result: dict[str, dict[tuple[str, str], Variation]] = {}
    for key in entries():
        op = opinfo(key)
        found = [(FORWARD, one) for one in arguments_of(op.name)]
        if op.name in SEVERAL:
            found.append((FORWARD, Argument(OPERANDS, "", None)))
        if catalog.family(op) in OF_ROWS:
            forms = [form for form in (FORWARD, INPLACE) if form in variants(key)]
            found += [(form, Argument(stride, "", None)) for form in forms for stride in STRIDES]
        for form, one in found:
            result.setdefault(op.name, {}).setdefault((form, one.name), Variation(key, form, one))
    return {name: tuple(each.values()) for name, each in result.items()}


SEVERAL = frozenset(
    {
        *("cat", "stack", "hstack", "vstack", "dstack", "column_stack", "block_diag", "broadcast_tensors"),
        *("atleast_1d", "atleast_2d", "atleast_3d", "meshgrid", "cartesian_prod", "einsum", "linalg.multi_dot"),
    }
)
"""Entries whose operands are a list of any length."""

OF_ROWS = (
    *("unary", "binary", "special", "activations", "reductions", "scans", "indexing", "sorting and counting"),
    *("shape and views", "other"),
)
"""Families of entries that mostly take operands of one dimension."""


@functools.lru_cache(4)
def _ordered(seed: int, turn: int) -> tuple[str, ...]:
    """Return the operators in the order of a turn: at random, with the more weight the more programs use one."""
    rng = random.Random(f"further arguments:{seed}:{turn}")
    places = {name: rng.random() ** (1 / (1 + usage_of(_plain(name))[0]) ** 2) for name in find_variations()}
    return tuple(sorted(places, key=lambda name: -places[name]))


def _plain(name: str) -> str:
    """Return the name of an entry as the dispatcher names its operator."""
    return name.removeprefix("nn.functional.").replace(".", "_")


@dataclass(frozen=True)
class FurtherArguments:
    """The calls of a drawing's programs with further arguments. `operators` plans a call on operands with a layout."""

    operators: OpDbCalls

    def calls(self, source: Source, seed: int, number: int, tally: Tally) -> list[Planned]:
        """Return the calls of program `number` of this kind and seed."""
        d, planned = Draw(source), list[Planned]()
        for at in range(number * OPERATORS, (number + 1) * OPERATORS):
            turn, place = divmod(at, len(find_variations()))
            place_of_dtype = d.integer(0, 99)  # of one dtype, since its samples take the longest
            for variation in find_variations()[_ordered(seed, turn)[place]]:
                held = [name for name in self.operators.dtypes if dtype_of(name) in opinfo(variation.key).dtypes]
                dtypes = [held[place_of_dtype % len(held)], held[0]] if held else []
                call = self.plan(d, variation, dtypes, sum(len(other.inputs) for other in planned))
                if call is not None:
                    planned.append(call)
        return planned

    def plan(self, d: Draw, variation: Variation, dtypes: Sequence[str], first: int) -> Planned | None:
        """Return a call of the variation in the first of these dtypes in which torch CPU accepts one; None if it
        accepts none of those that were tried. The names of its inputs begin with the name of number `first`."""
        stride = variation.argument.name if variation.argument.name in STRIDES else ""
        for call in self._tries(d, variation, dtypes):
            several = variation.variant == FORWARD and len(call.operands) > 1 and d.chance(1, 3)
            layout = ("contiguous" if several else stride) if stride else d.choice(PLACES)
            others = (stride, "contiguous") if stride else ()
            try:
                planned = self.operators.place(
                    d, variation.key, call, variation.variant, layout, first, others=others, keeps_values=d.chance(1, 2)
                )
            except NeedsLacking:
                return None
            if planned is not None and not planned.raises:
                entry, variant, *place = planned.cell
                return replace(planned, cell=(entry, f"{variant}, {variation.argument.name}", place[0], place[1]))
        return None

    def _tries(self, d: Draw, variation: Variation, dtypes: Sequence[str]) -> Iterator[SampleStep]:
        """Yield changed calls that torch CPU accepts."""
        for dtype in dict.fromkeys(dtypes):
            for call in itertools.islice(_telling(d, variation, dtype), TRIED):
                changed = self._changed(d, variation.argument, call)
                accepted = _accepted(changed) if changed is not None else None
                if accepted is not None:
                    yield accepted

    def _changed(self, d: Draw, argument: Argument, call: SampleStep) -> SampleStep | None:
        """Return the call with the argument, or with more operands; None if none of its arguments is a list. Its first
        two operands may have equal elements, at which some arguments decide."""
        if argument.name == OPERANDS:
            return _with_more_operands(d, call)
        if argument.name in STRIDES:
            return _of_rows(call)
        value, operands = VALUES[argument.type](d, argument, call, self.operators.dtypes), call.operands
        if isinstance(value, Operand):
            value, operands = tensor(f"#{len(operands)}"), (*operands, value)
        if argument.name in SPECIAL_ARGUMENTS and _is_float(operands[0]):
            operands = (replace(operands[0], values=_with_ends(operands[0].values)), *operands[1:])
        if len(operands) > 1 and _is_float(operands[0]) and operands[1].dtype == operands[0].dtype and d.chance(1, 4):
            equal = tuple(itertools.islice(itertools.cycle(operands[0].values), len(operands[1].values)))
            if len(equal) == len(operands[1].values):
                operands = (operands[0], replace(operands[1], values=equal), *operands[2:])
        others = {} if d.chance(1, 2) else call.step.kwargs  # torch takes some arguments only without others
        kwargs = {**others, argument.name: value}
        if argument.name == "keepdim" and len(call.step.args) == 1:  # of a dimension
            kwargs.setdefault("dim", d.integer(-1, len(operands[0].size) - 1))
        return replace(call, step=replace(call.step, kwargs=kwargs), operands=operands)


def _telling(d: Draw, variation: Variation, dtype: str) -> Iterator[SampleStep]:
    """Yield the calls of a variation, first those with several elements."""
    others: list[SampleStep] = []
    for call in drawn_calls(d, variation.key, variation.variant, dtype):
        if call.operands and len(call.operands[0].values) > 1:
            yield call
        elif call.operands:
            others.append(call)
    yield from others


def _of_rows(call: SampleStep) -> SampleStep:
    """Return the call with operands of one dimension: it has one already, or those as large as the first are flat."""
    first = call.operands[0].size
    if any(len(operand.size) == 1 and operand.size[0] > 1 for operand in call.operands):
        return call
    flat = (replace(one, size=(len(one.values),)) if one.size == first else one for one in call.operands)
    return replace(call, operands=tuple(flat))


def _with_ends(values: Sequence[Json]) -> tuple[Json, ...]:
    ends = ("nan", "inf", "-inf")
    return tuple({"number": ends[at // 2 % 3]} if at % 2 else value for at, value in enumerate(values))


def _with_more_operands(d: Draw, call: SampleStep) -> SampleStep | None:
    """Return the call with one or two more operands of its list, each with the values of one in reverse. A function
    may take the list as its arguments."""
    args = [*call.step.args]
    at = next((at for at, argument in enumerate(args) if isinstance(argument, list)), None)
    listed = args if at is None else args[at]
    if not all(isinstance(part, dict) and "t" in part for part in listed):
        return None
    operands = list(call.operands)
    for _ in range(d.choice((1, 2))):
        like = operands[int(d.choice(listed)["t"].removeprefix("#"))]
        listed = [*listed, tensor(f"#{len(operands)}")]
        operands.append(replace(like, values=like.values[::-1]))
    if at is not None:
        args[at] = listed
    step = replace(call.step, args=tuple(listed if at is None else args))
    return replace(call, step=step, operands=tuple(operands))


def _accepted(call: SampleStep) -> SampleStep | None:
    """Return the call with its results, if torch CPU accepts it and its results are tensors of the same form."""
    cpu, env = torch.device("cpu"), {f"#{at}": tensor_for(operand) for at, operand in enumerate(call.operands)}
    try:
        kwargs = {key: decode(value, env, cpu) for key, value in call.step.kwargs.items()}
        with Tagged(DRAWS_NUMBERS) as random_numbers:
            answer = OPS[call.step.op].run(decode([*call.step.args], env, cpu), kwargs)
    except Exception:  # torch does not take this value, or not with these operands
        return None
    several = isinstance(answer, (tuple, list))
    results = list(answer) if several else [answer]
    same_form = several == (OPS[call.step.op].results == 0)
    if random_numbers.seen or not same_form or not all(isinstance(one, torch.Tensor) for one in results):
        return None
    return replace(call, results=tuple(Operand(dtype_name(one.dtype), tuple(one.size()), ()) for one in results))
