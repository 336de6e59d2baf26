"""Calls of the operator under test: from the samples of op_db, or from a description of the inputs.

Defines `Call`, `Plan`, `from_op_db` and `from_description`. The kind of a call says what it varies: layouts, empty
tensors, 0-dim tensors, sizes around blocks, special values, dtypes. A call belongs to the plan only if the reference
accepts it, so a relation between arguments never has to be guessed.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from conformance.record.errors import UsageError
from conformance.record.names import LAYOUTS, nearest
from conformance.sources.operator.inputs import Description, Lengths, Number, Tensor, Value, evaluated
from conformance.sources.operator.subject import Operator
from conformance.standalone import specials
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import leaves, map_leaves, tensors

SAMPLED, STRIDED, EMPTY, SCALARS, BLOCKS, SPECIAL, MIXED = (
    *("values", "layouts", "empty", "scalars", "blocks", "specials", "mixed"),
)  # fmt: skip
"""Kinds of calls. Each is also the name of the check that compares the values of such calls."""

TIERS = tuple(f"specials_{name}" for name in ("zeros", "ties", "equal", "negative", "inf", "nan"))
"""Special values that calls contain. Numbers near the ends of a dtype are missing: an intermediate result may overflow
in one correct algorithm and not in another."""

SIZES = (1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025)
"""Sizes around vector widths and blocks."""

MOST = MappingProxyType({SAMPLED: 24, BLOCKS: 48})
"""Limits on the calls of a kind; the usual one is 12."""

LARGEST = 100_000
"""Limit on the elements of an input."""

OTHERS = MappingProxyType({torch.float32: (torch.bfloat16, torch.float64), torch.int64: (torch.int32,)})
"""Dtypes that replace the dtype of one argument in calls of the kind MIXED."""


@dataclass(frozen=True)
class Call:
    """One call: the arguments by name, the first `positional` of them passed by position. `note` says how the inputs
    were made, and `rtol` and `atol` are the tolerances (None: torch.testing's)."""

    kind: str
    values: Mapping[str, Any]
    positional: int
    note: str = ""
    rtol: float | None = None
    atol: float | None = None

    def arguments(self, values: Mapping[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments, those of the call or others by the same names."""
        items = [*(self.values if values is None else values).items()]
        return [value for _, value in items[: self.positional]], dict(items[self.positional :])

    def on(self, values: Mapping[str, Any], **changes: Any) -> Call:
        """Return the same call on other inputs."""
        return replace(self, values=values, **changes)


@dataclass
class Plan:
    """The calls, and counts of those that are missing, by reason."""

    calls: list[Call] = field(default_factory=list)
    missing: Counter[str] = field(default_factory=Counter)

    def of(self, *kinds: str) -> list[Call]:
        """Return the calls of these kinds."""
        return [call for call in self.calls if call.kind in kinds]


Accepts = Callable[[Call], bool]
"""Whether the reference accepts a call."""


def entry_of(like: Any) -> Any:
    """Return the entry of op_db for a function of torch, or for a name. Raises UsageError if there is none."""
    from conformance.sources.opinfo import catalog

    known = catalog.by_name()
    if isinstance(like, str):
        name = like.removeprefix("torch.")
        for (op, overload), entry in known.items():
            if name in (op, f"{op}.{overload}"):
                return entry
        raise UsageError(f"op_db has no operator {like!r}{nearest(name, [op for op, _ in known])}")
    for entry in known.values():
        if like in (entry.op, entry.method_variant, entry.inplace_variant):
            return entry
    name = getattr(like, "__name__", "")
    if name and like in (getattr(torch, name, None), getattr(torch.nn.functional, name, None)):
        for (op, _), entry in known.items():
            if op.rpartition(".")[2] == name:
                return entry
    raise UsageError(f"op_db has no operator that calls {name or like!r}; give reference= and inputs= instead")


def from_op_db(entry: Any, operator: Operator, accepts: Accepts, dtypes: Iterable[str], limit: int) -> Plan:
    """Return calls on the samples of an entry of op_db, in these dtypes. Raises UsageError if the operator takes the
    arguments of no sample."""
    from conformance.sources.opinfo import catalog
    from conformance.sources.opinfo.sampling import samples

    plan, refused = Plan(), ""
    for name in dtypes:
        dtype = getattr(torch, name)
        if dtype not in entry.dtypes:
            raise UsageError(f"op_db has no samples of {entry.name} in {name}")
        rtol, atol = catalog.tolerances(entry, dtype).get(str(dtype).removeprefix("torch."), (None, None))

        def add(variant: str, kind: str, count: int, dtype: torch.dtype = dtype, tol: Any = (rtol, atol)) -> None:
            nonlocal refused
            for sample in samples(entry, variant, dtype, "as_sampled", count):
                args, kwargs = (sample.input, *sample.args), sample.kwargs
                bound = operator.bound(args, kwargs)
                if bound is None:
                    refused = refused or f"{len(args)} positional arguments" + "".join(f", {key}=" for key in kwargs)
                    plan.missing["the operator does not take the arguments"] += 1
                    continue
                if any(not _usable(leaf) for leaf in leaves(bound)):
                    plan.missing["an argument that is sparse, or a device"] += 1
                    continue
                inputs = map_leaves(bound, lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)
                if variant != "forward" and not sample.changed:
                    continue
                call = Call(kind, inputs, len(args), "" if variant == "forward" else variant, *tol)
                _add(plan, call if kind != SAMPLED else _sorted(call), accepts)

        add("forward", SAMPLED, limit)
        for tier in TIERS:
            add(tier, SPECIAL, 2)
    if not plan.calls:
        raise UsageError(
            f"{operator.name} takes the arguments of no sample of {entry.name}, which are {refused or 'not tensors'}: "
            "wrap the operator in a function with the signature of the reference"
        )
    _vary(plan, accepts, entry)
    return plan


def _usable(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is torch.strided and not leaf.is_meta and not leaf.is_conj() and not leaf.is_neg()
    return not isinstance(leaf, (torch.device, torch.Generator))


def _any_empty(call: Call) -> bool:
    return any(not tensor.numel() for tensor in tensors(call.values))


def _sorted(call: Call) -> Call:
    """Return a sampled call under the kind that its sizes say."""
    inputs = tensors(call.values)
    kind = EMPTY if _any_empty(call) else SCALARS if any(not tensor.dim() for tensor in inputs) else ""
    return replace(call, kind=kind or SAMPLED)


def _add(plan: Plan, call: Call, accepts: Accepts) -> bool:
    """Add a call that the reference accepts, up to the limit of its kind."""
    if len(plan.of(call.kind)) >= MOST.get(call.kind, 12) or (call.kind == EMPTY and not _any_empty(call)):
        return False
    if any(call.note == other.note for other in plan.of(call.kind) if call.note and call.kind in (EMPTY, BLOCKS)):
        return False
    if sum(tensor.numel() for tensor in tensors(call.values)) > LARGEST or not accepts(call):
        return False
    plan.calls.append(call)
    return True


def _vary(plan: Plan, accepts: Accepts, entry: Any = None) -> None:
    """Add calls that differ from sampled ones in layout, size or dtype."""
    base = plan.of(SAMPLED) or plan.calls[:]
    for call in _shapes(base):
        for layout in LAYOUTS:
            if layout != "as_sampled":
                _add(plan, _laid(call, layout), accepts)
    if entry is not None:
        for size, call in itertools.product((0, *SIZES), _shapes(base)):
            stretched = _stretched(call, size)
            if stretched is not None:
                _add(plan, stretched, accepts)
    for call in _shapes(base):
        for name, other in ((name, other) for name, value in call.values.items() for other in _others(value)):
            changed = {**call.values, name: call.values[name].to(other)}
            if len(tensors(changed)) > 1:
                _add(
                    plan,
                    call.on(changed, kind=MIXED, note=f"{name} in {str(other)[6:]}", rtol=None, atol=None),
                    accepts,
                )


def _others(value: Any) -> tuple[torch.dtype, ...]:
    return OTHERS.get(value.dtype, ()) if isinstance(value, torch.Tensor) else ()


def _shapes(calls: Iterable[Call]) -> list[Call]:
    """Return one call of each number of dimensions."""
    by_dims: dict[tuple[int, ...], Call] = {}
    for call in calls:
        by_dims.setdefault(tuple(tensor.dim() for tensor in tensors(call.values)), call)
    return [*by_dims.values()][:3]


def _laid(call: Call, layout: str) -> Call:
    copies: dict[int, Any] = {}
    inputs = map_leaves(dict(call.values), lambda leaf: copies.setdefault(id(leaf), laid_out(leaf, layout)))
    return call.on(inputs, kind=STRIDED, note=f"{layout} inputs")


def _stretched(call: Call, size: int) -> Call | None:
    """Return the call with its last length, in every tensor and tuple that has it, replaced by a size. The values are
    a sample of the call's values. None if an index could leave its range."""
    inputs = tensors(call.values)
    length = next((tensor.shape[-1] for tensor in inputs if tensor.dim() and tensor.shape[-1] > 1), None)
    if length is None or any(length in tensor.shape and not tensor.dtype.is_floating_point for tensor in inputs):
        return None
    drawn = torch.Generator().manual_seed(size)

    def longer(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or length not in leaf.shape:
            return leaf
        shape = [size if n == length else n for n in leaf.shape]
        flat = leaf.flatten()
        return flat[torch.randint(flat.numel(), shape, generator=drawn)] if flat.numel() else leaf.new_empty(shape)

    def number(value: Any) -> Any:
        if type(value) in (tuple, list, torch.Size) and value and all(type(size) is int for size in value):
            return type(value)(size if number == length else number for number in value)
        return value

    values = {name: number(map_leaves(value, longer)) for name, value in call.values.items()}
    return call.on(
        values, kind=BLOCKS if size else EMPTY, note=f"{tuple(inputs[0].shape)} with length {length} made {size}"
    )


def from_description(description: Description, operator: Operator, accepts: Accepts, tolerances: Any) -> Plan:
    """Return calls on drawn inputs. Raises UsageError if the operator has other arguments, or the reference accepts
    none of the calls."""
    plan = Plan()
    names = [*description.arguments]
    if operator.signature is not None:
        parameters = operator.signature.parameters
        unknown = [name for name in names if name not in parameters]
        if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            known = ", ".join(parameters)
            raise UsageError(f"{operator.name} has no argument {unknown[0]!r}: its arguments are {known}")
        names.sort(key=lambda name: [*parameters].index(name) if name in parameters else len(parameters))
        plain = [
            name for name in names if name in parameters and parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        needed = [
            parameter.name
            for parameter in parameters.values()
            if parameter.default is parameter.empty and parameter.kind < parameter.VAR_POSITIONAL
        ]
        if missing := [name for name in needed if name not in names]:
            raise UsageError(f"{operator.name} needs the argument {missing[0]!r}, which the inputs do not describe")
        gap = next((at for at, name in enumerate(parameters) if at >= len(plain) or name != plain[at]), len(plain))
        positional = min(gap, len(plain))
    else:
        positional = len(names)
    for kind, sizes, choice, tier in _draws(description):
        values = _drawn(description, names, sizes, choice, random.Random(f"{kind} {sizes} {choice}"))
        if values is None:
            continue
        call = Call(
            kind, values, positional, ", ".join(f"{name} = {size}" for name, size in sizes.items()), *tolerances
        )
        if tier:
            special = _special(call, description, tier)
            if special is None:
                continue
            call = special
        _add(plan, _sorted(call) if kind == SAMPLED else call, accepts)
    if not plan.calls:
        raise UsageError("the reference raises on every call that the inputs describe; run it by hand on one of them")
    _vary(plan, accepts)
    return plan


Sizes = dict[str, int]


def _draws(description: Description) -> Iterator[tuple[str, Sizes, int, str]]:
    """Yield the kind, the sizes, the number of the choice of alternatives, and the tier of special values."""
    rng = random.Random(0)
    most = max((len(argument) for argument in description.arguments.values()), default=1)
    if not description.sizes:
        yield from ((SAMPLED, {}, choice, "") for choice in range(2 * max(most, 2)))
    for choice in range(MOST[SAMPLED] if description.sizes else 0):
        yield (
            SAMPLED,
            _sized(description, lambda low, high: rng.randint(max(low, min(high, 2)), max(low, min(high, 12)))),
            choice,
            "",
        )
    for name in description.sizes:
        yield EMPTY, _sized(description, lambda low, high: min(high, 5), {name: 0}), 0, ""
    for size in SIZES if description.sizes else ():
        for name in description.sizes:
            yield BLOCKS, _sized(description, lambda low, high: min(high, 4), {name: size}), size, ""
    for choice, tier in itertools.product(range(2), TIERS):
        yield SPECIAL, _sized(description, lambda low, high: min(high, 7)), choice, tier


def _sized(description: Description, chosen: Callable[[int, int], int], wanted: Sizes | None = None) -> Sizes:
    """Return sizes in their ranges; those in `wanted` are as near to that number as the range allows."""
    sizes: Sizes = {}
    for name, one in description.sizes.items():
        low, high = (int(end) for end in one.within(sizes))
        low = max(low, 0)
        high = max(high, low)
        size = min(max((wanted or {}).get(name, -1), low), high) if name in (wanted or {}) else chosen(low, high)
        sizes[name] = low + (min(max(size, low), high) - low) // one.step * one.step
    return sizes


def _drawn(
    description: Description, names: Iterable[str], sizes: Sizes, choice: int, rng: random.Random
) -> dict[str, Any] | None:
    """Return inputs by name. None if the sizes are not those of the kind."""
    values: dict[str, Any] = {}
    torch_rng = torch.Generator().manual_seed(rng.randrange(2**31))
    for name in names:
        alternatives = description.arguments[name]
        one = alternatives[choice % len(alternatives)]
        if isinstance(one, Value):
            values[name] = one.value
        elif isinstance(one, Lengths):
            values[name] = [int(evaluated(dim, sizes)) for dim in one.dims]
        elif isinstance(one, Number):
            low, high = one.range.within(sizes)
            if low > high:
                return None
            values[name] = rng.randint(int(low), int(high)) if one.kind == "int" else rng.uniform(low, high)
        else:
            value = _tensor(one, sizes, choice, torch_rng)
            if value is None:
                return None
            values[name] = value
    return values


def _tensor(tensor: Tensor, sizes: Sizes, choice: int, rng: torch.Generator) -> torch.Tensor | None:
    shape = [int(evaluated(dim, sizes)) for dim in tensor.dims]
    dtype = getattr(torch, tensor.dtypes[choice % len(tensor.dtypes)])
    if min(shape, default=0) < 0:
        return None
    low, high = tensor.range.within(sizes) if tensor.range else _usual(dtype)
    if low > high:
        return torch.empty(shape, dtype=dtype) if 0 in shape else None
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.float64
        drawn = torch.rand(shape, generator=rng, dtype=wide) * (high - low) + low
        value = (torch.randn(shape, generator=rng, dtype=wide) if tensor.range is None else drawn).to(dtype)
    elif tensor.word == "unique":
        if high - low + 1 < shape[0]:
            return None
        value = (torch.randperm(int(high - low) + 1, generator=rng)[: shape[0]] + int(low)).to(dtype)
    else:
        value = torch.randint(int(low), int(high) + 1, shape, generator=rng).to(dtype)
    return value.sort().values if tensor.word == "sorted" else value


def _usual(dtype: torch.dtype) -> tuple[float, float]:
    """Return the usual range of values of a dtype."""
    return (0, 1) if dtype is torch.bool else (0, 8) if not dtype.is_signed else (-8, 8)


def _special(call: Call, description: Description, tier: str) -> Call | None:
    """Return the call with special values in the floating tensors that have no range; None if nothing changes."""
    free = [
        name
        for name, value in call.values.items()
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and not any(isinstance(argument, Tensor) and argument.range for argument in description.arguments[name])
    ]
    values = dict(call.values)
    for dtype in {values[name].dtype for name in free}:
        values = specials.placed(values, tier, dtype, names=free)
    changed = any(values[name] is not call.values[name] for name in free)
    return call.on(values, note=tier) if changed else None
