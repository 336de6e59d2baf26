"""Aten overloads that no OpInfo of op_db calls, one entry each: `ops.aten.hann_window.periodic`.

Defines `infos`, the entries by name, and `Overload`, which stands in for an OpInfo. Most arguments of an overload come
from existing sources. PyTorch has OpInfos of foreach operators in lists outside op_db. An alias, an in-place or an out=
overload takes op_db's arguments for another function of the same schema, or arguments recorded further down in its
calls. Otherwise, arguments follow from the schema's types.

`overloads.toml` says which source applies to which overload, and why the remaining ones are not called.
`scripts/overloads.py` checks the table and counts in docs/checks.md. Only the catalog imports this module, so the
import comes after the target's `prepare()`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from conformance.record.names import CHANGED
from conformance.sources.opinfo.overload_rows import ROWS
from conformance.sources.opinfo.seeding import seed
from conformance.standalone.moving import MARKER, leaves
from conformance.standalone.torch_compat import (
    TorchDispatchMode,
    foreach_op_db,
    has_kernel,
    op_db,
    sample_input,
    tree_map,
)

TABLE = tomllib.loads((Path(__file__).parent / "overloads.toml").read_text())
PREFIX = "ops.aten."
CALLS_OF_A_SAMPLE = 3
"""Number of recorded calls of one operator that are used from each sample's call."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Overload:
    """One overload with the part of OpInfo's interface that the catalogue and the variants use."""

    name: str
    op: Any
    dtypes: frozenset[torch.dtype]
    calls: Callable[[torch.dtype], Iterator[Arguments]]
    """Positional and keyword arguments of calls, without out= tensors."""

    variant_test_name: str = ""
    method_variant: None = None
    inplace_variant: None = None
    supports_out: bool = False
    supports_autograd: bool = False
    supports_fwgrad_bwgrad: bool = False
    error_inputs_func: None = None
    decorators: tuple[Any, ...] = ()
    aliases: tuple[Any, ...] = ()
    has_nondeterministic_output: bool = False
    only: frozenset[str] = frozenset()
    """The only variants that are called; empty for all that apply."""

    def supported_backward_dtypes(self, device: str) -> frozenset[torch.dtype]:
        """Return an empty set: an overload is called as the dispatcher's table has it, without a gradient."""
        return frozenset()

    def sample_inputs(self, device: Any, dtype: torch.dtype, requires_grad: bool = False, **rest: Any) -> Iterator[Any]:
        """Yield samples as OpInfo draws them. For an out= overload, they include tensors of the result's sizes to write
        into.
        """
        only = os.environ.get("PYTORCH_OPINFO_SAMPLE_INPUT_INDEX")  # as in OpInfo's own iterators
        bounds = (0, None) if only is None else (int(only), int(only) + 1)
        for args, kwargs in itertools.islice(self.calls(dtype), *bounds):
            outs = _outs(self.op, args, kwargs)
            if any(out is None for out in outs.values()):
                continue  # the call does not return this result, so it cannot be written
            named = {**kwargs, **outs}
            if not args:  # an entry's first argument is positional
                first = next(iter(named), None)
                args = (named.pop(first),) if first is not None else ()
            yield sample_input(args[0], args[1:], named)

    reference_inputs = sample_inputs


@functools.cache
def infos() -> dict[str, Any]:
    """Return the entries by name that the installed torch supports: foreach operators, then overloads."""
    result: dict[str, Any] = {op.name: _narrowed(op) for op in foreach_op_db()}
    for name, source in TABLE["calls"].items():
        op = overload(name)
        if op is not None:
            result[PREFIX + name] = Overload(PREFIX + name, op, *source_of(op, source))
    for name, source in TABLE["internals"].items():
        op = overload(name)
        if op is not None:
            dtypes, calls = source_of(op, source, crossed=True)
            distinct = functools.partial(of_distinct_modes, calls)
            result[PREFIX + name] = Overload(PREFIX + name, op, dtypes, distinct, only=frozenset(CHANGED))
    return result


def of_distinct_modes(calls: Callable[[torch.dtype], Iterator[Arguments]], dtype: torch.dtype) -> Iterator[Arguments]:
    """Yield the first call of each mode. An internal operator may check its arguments in some modes only."""
    seen = set[tuple[str, ...]]()
    for args, kwargs in calls(dtype):
        mode = mode_of((args, kwargs))
        if mode not in seen:
            seen.add(mode)
            yield args, kwargs


def mode_of(tree: Any) -> tuple[str, ...]:
    """Return the mode of a call: its arguments beside tensors and floats, and the ranks of its tensors."""
    return tuple(
        str(leaf.dim() if isinstance(leaf, torch.Tensor) else leaf) for leaf in leaves(tree) if type(leaf) is not float
    )


def _narrowed(foreach: Any) -> Any:
    """Restrict a foreach operator's OpInfo, which claims every dtype, to op_db's dtypes of the operator itself."""
    near = next((op for op in op_db().ops if op.name == foreach.name.removeprefix("_foreach_")), None)
    if near is None:
        return foreach
    result = copy.copy(foreach)
    result.dtypes = {*foreach.dtypes} & {*near.dtypes}
    return result


def overload(name: str) -> Any:
    """Return `torch.ops.aten.add.Tensor` for `add.Tensor`, `.default` for a name without overload, or None if torch has
    none.
    """
    packet, _, rest = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), rest or "default", None)


def source_of(
    op: Any, source: str, crossed: bool = False
) -> tuple[frozenset[torch.dtype], Callable[[torch.dtype], Iterator[Arguments]]]:
    source, _, names = source.partition("; ")
    dtypes = frozenset(getattr(torch, name) for name in names.split(", "))
    how, _, rest = source.partition(" ")
    if how == "schema":
        return dtypes, lambda dtype: by_schema(op, dtype)
    if how == "row":
        return dtypes, lambda dtype: by_row(op, ROWS[rest], dtype)
    entry, _, below = rest.partition(" > ")
    below_entry = _entry(entry.removesuffix(" backward"))
    if how == "sample":
        return dtypes & below_entry.dtypes, lambda dtype: samples_of(op, below_entry, dtype)
    backward = entry.endswith(" backward")
    held = below_entry.supported_backward_dtypes("cpu") if backward else below_entry.dtypes
    return dtypes & held, lambda dtype: calls_below(below_entry, overload(below), dtype, backward, crossed)


@functools.cache
def _entry(name: str) -> Any:
    return next(op for op in op_db().ops if f"{op.name}.{op.variant_test_name}".removesuffix(".") == name)


def _seeded(drawn: Iterator[Any]) -> Iterator[Any]:
    """Yield samples, each drawn after seeding, so that its values do not depend on earlier samples."""
    drawn = iter(drawn)
    while True:
        seed()
        try:
            yield next(drawn)
        except StopIteration:
            return


def samples_of(op: Any, entry: Any, dtype: torch.dtype) -> Iterator[Arguments]:
    """Yield op_db's arguments for a function of the same meaning, if torch CPU accepts them for the overload."""
    for sample in _seeded(entry.sample_inputs_func(entry, MARKER, dtype, False)):
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        if fits(op, args, kwargs):
            yield args, kwargs


def calls_below(
    entry: Any, below: Any, dtype: torch.dtype, backward: bool, crossed: bool = False
) -> Iterator[Arguments]:
    """Yield the arguments of calls of an operator below autograd while op_db's entry is called and differentiated.

    With `crossed`, each sample also takes the words and bools that other samples give to the same keyword."""
    words = _words(entry, dtype) if crossed else []
    for sample in _seeded(entry.sample_inputs_func(entry, MARKER, dtype, backward)):
        for kwargs in _crossed(sample.kwargs, words):
            recorder = Recorder(below)
            with recorder, contextlib.suppress(*[Exception] * crossed):
                result = entry.op(sample.input, *sample.args, **kwargs)
                differentiable = [
                    leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
                ]
                if backward and differentiable:
                    torch.autograd.backward(differentiable, [torch.ones_like(tensor) for tensor in differentiable])
            yield from recorder.calls[:CALLS_OF_A_SAMPLE]


def _crossed(kwargs: dict[str, Any], words: Sequence[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the keyword arguments of a sample, and those with one of the words."""
    yield kwargs
    for name, value in words:
        if kwargs.get(name) != value:
            yield {**kwargs, name: value}


def _words(entry: Any, dtype: torch.dtype) -> list[tuple[str, Any]]:
    """Return the words and bools of the keyword arguments of an entry's samples."""
    drawn = _seeded(entry.sample_inputs_func(entry, MARKER, dtype, False))
    words = [(name, value) for sample in drawn for name, value in sample.kwargs.items() if type(value) in (str, bool)]
    return list(dict.fromkeys(words))


@dataclass
class Recorder(TorchDispatchMode):
    """Mode that copies the arguments of each call of one operator."""

    operator: Any
    calls: list[Arguments] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.operator:
            self.calls.append(_copied((tuple(args), dict(kwargs or {}))))
        return func(*args, **(kwargs or {}))


def _copied(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def fits(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch CPU accepts these arguments for the overload, without out=."""
    plain = functional(op)
    try:
        plain(*_copied(args), **_copied(kwargs))
    except Exception:
        return False
    return True


def functional(op: Any) -> Any:
    """Return the overload of the same arguments without out=, or the overload itself if it has none."""
    if not any(argument.is_out for argument in op._schema.arguments):
        return op
    packet = op._schema.name.partition("::")[2]
    for name in (packet, f"_{packet}", f"{packet}_forward"):
        near = getattr(torch.ops.aten, name, None)
        for other in [getattr(near, word) for word in near.overloads()] if near is not None else ():
            if not any(argument.is_out for argument in other._schema.arguments) and types(other) == types(op):
                return other
    raise LookupError(f"{op} has no functional overload")


def types(op: Any) -> list[str]:
    """Return the types of its arguments, without out= arguments and those for the result's dtype, layout and device."""
    return [
        str(argument.type)
        for argument in op._schema.arguments
        if not (
            argument.is_out or (argument.kwarg_only and argument.name in ("dtype", "layout", "device", "pin_memory"))
        )
    ]


def _outs(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return tensors for out=, filled with sevens so that an unwritten element shows."""
    names = [argument.name for argument in op._schema.arguments if argument.is_out]
    if not names:
        return {}
    result = functional(op)(*_copied(args), **_copied(kwargs))
    wanted = list(result) if isinstance(result, (tuple, list)) and len(names) > 1 else [result]

    def sevens(value: Any) -> Any:
        return torch.full_like(value, 7).to(value.dtype) if isinstance(value, torch.Tensor) else value

    return dict(zip(names, tree_map(sevens, wanted), strict=True))


# Arguments that follow from a schema.


def by_schema(op: Any, dtype: torch.dtype, most: int = 8) -> Iterator[Arguments]:
    """Yield up to `most` calls with arguments of the schema's types; the sizes include an empty tensor and a scalar."""
    taken = 0
    for turn in range(4 * most):
        args = tuple(_drawn(argument, dtype, turn, place) for place, argument in enumerate(_positional(op)))
        kwargs = _keywords(op, dtype, turn)
        if fits(op, args, kwargs):
            yield args, kwargs
            taken += 1
            if taken == most:
                return


def by_row(op: Any, row: Callable[[Any], tuple[Any, ...]], dtype: torch.dtype) -> Iterator[Arguments]:
    """Yield the call of a row of `ROWS`, if torch CPU accepts it in this dtype."""
    places = itertools.count()
    args, kwargs = row(lambda *size: _filled(size, dtype, next(places))), _keywords(op, dtype, 0)
    if fits(op, args, kwargs):
        yield args, kwargs


def _positional(op: Any) -> list[Any]:
    return [argument for argument in op._schema.arguments if not argument.is_out and not argument.kwarg_only]


def _keywords(op: Any, dtype: torch.dtype, turn: int) -> dict[str, Any]:
    """Return the required keyword arguments, and the device."""
    wanted = [argument for argument in op._schema.arguments if argument.kwarg_only and not argument.is_out]
    needed = {
        argument.name: argument for argument in wanted if not argument.has_default_value() or argument.name == "device"
    }
    return {
        name: MARKER if name == "device" else _drawn(argument, dtype, turn, place)
        for place, (name, argument) in enumerate(needed.items())
    }


SHAPES = ((3, 4), (5,), (), (0, 3), (2,), (2, 1, 3))
DRAWN: dict[str, tuple[Any, ...]] = {
    "number": (2, 1, 3, 0), "int": (4, 1, 7, 0), "float": (0.5, 0.25, 2.5), "bool": (True, False),
    "Optional[str]": ("trunc", "floor", None), "Optional[number]": (2, None, 0), "List[number]": ([2, 3],),
}  # fmt: skip
"""Values of arguments that are no tensors, by type in the schema."""


def _drawn(argument: Any, dtype: torch.dtype, turn: int, place: int) -> Any:
    kind = str(argument.type)
    if argument.name == "scalars" and kind == "Tensor":  # every device expects these on the host
        return torch.tensor([2, 3], dtype=dtype)
    if kind in ("Tensor", "List[Tensor]"):
        tensor = _filled(SHAPES[turn % len(SHAPES)], dtype, place)
        return tensor if kind == "Tensor" else [tensor, tensor + 1]
    among = DRAWN.get(kind)
    if among is None and kind.startswith("Optional"):
        return None
    if among is None:
        raise LookupError(f"no argument is drawn for {argument.name} of type {kind}")
    if kind == "number" and dtype.is_floating_point:
        among = (2, 0.5, 1.5, 3)
    return among[(turn // len(SHAPES) + place + turn) % len(among)]


def _filled(size: Sequence[int], dtype: torch.dtype, place: int) -> torch.Tensor:
    """Return small numbers that differ by place among the arguments."""
    values = torch.arange(1 + place, 1 + place + math.prod(size)) % 5
    return (values / 2 + 0.25 if dtype.is_floating_point else values).to(dtype).reshape(tuple(size))


KERNELS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


def excluded(name: str) -> str:
    """Return why this overload is not called: the first matching reason, or a missing CPU kernel; else ""."""
    result = next((reason for pattern, reason in _reasons() if pattern.search(name)), "")
    if result:
        return result
    op, names = overload(name), [name]
    with contextlib.suppress(LookupError):
        names += [name_of(functional(op))] if op is not None else []
    if not all(any(has_kernel(f"aten::{name}", key) for key in KERNELS) for name in names):
        return "without a kernel for the CPU, whose answer is the reference"
    return ""


def name_of(op: Any) -> str:
    """Return `add.Tensor`, the name in the table."""
    return str(op).removeprefix("aten.").removesuffix(".default")


@functools.cache
def _reasons() -> list[tuple[Any, str]]:
    return [(re.compile(pattern), reason) for reason, patterns in TABLE["excluded"].items() for pattern in patterns]
