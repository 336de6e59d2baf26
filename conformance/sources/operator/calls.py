"""Calls of the operator under test: from the samples of op_db, or from a description of the inputs.

Defines `DrawnCall`, `CallPlan`, `from_op_db` and `from_description`. The kind of a call says what it varies: layouts,
empty tensors, 0-dim tensors, sizes around blocks, special values, dtypes. A call belongs to the plan only if the
reference accepts it, so a relation between arguments never has to be guessed.
"""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from conformance.record.errors import UsageError
from conformance.record.names import DTYPES, LAYOUTS, nearest
from conformance.sources.operator.inputs import (
    Description,
    described_sizes,
    draw_again,
    draw_inputs,
    evaluated,
    tensors_in,
)
from conformance.sources.operator.subject import Operator
from conformance.sources.operator.table import TIERS
from conformance.standalone import specials
from conformance.standalone.moving import leaves, map_leaves, tensors
from conformance.standalone.operator_checks import MIXED, NEGATIVE, OTHER_DTYPES, SPECIAL, STRIDED, lay_inputs
from conformance.standalone.torch_compat import neg_view

T = TypeVar("T")

SAMPLED, EMPTY, SCALARS, BLOCKS, SCALED = "values", "empty", "scalars", "blocks", "magnitudes"
OVERLAP = "overlap"
"""Kind of calls beside those of `operator_checks`. Each kind is also the name of the check that compares the values of
such calls."""

REFUSES_OVERLAP = "more than one element of the written-to tensor"
"""Words of torch about a write to elements that share memory."""


def shrink_rows(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor with every other row a million times smaller, and one without rows unchanged."""
    if value.dim() < 2:
        return value
    result = value.clone()
    result[1::2] *= 1e-6
    return result


MAGNITUDES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "with a zero": lambda value: value.masked_fill(
        (torch.arange(value.numel()) == value.numel() // 2).view(value.shape), 0
    ),
    "around 10": lambda value: value * 10,
    "around 100": lambda value: value * 100,
    "around 10000": lambda value: value * 10000,
    "nearly equal ones around 10000": lambda value: value * 10 + 10000,
    "around 0.001": lambda value: value * 1e-3,
    "around 0.000001": lambda value: value * 1e-6,
    "around 0.000001 in every other row": shrink_rows,
}
"""Values of floating inputs whose range the user leaves open: powers overflow, sums cancel, results are below the usual
absolute tolerance, or below that of their neighbours, and a derivative is that at a kink. An operator may choose among
ties, so there is one zero. It comes first: the checks of derivatives take some of these calls, always the first one."""

SIZES = (
    1, 3, *(power + step for power in (8, 16, 32, 64, 128, 256, 1024, 2048, 4096, 8192, 65536) for step in (-1, 0, 1))
)  # fmt: skip
"""Sizes around vector widths, blocks, thresholds between two algorithms, and the ends of short integers."""

TOGETHER, LOW, HIGH = 6, 17, 130
"""Calls with several sizes between these two ends at once: their remainders in blocks meet in one corner."""

HALVES = ("float16", "bfloat16")
"""Dtypes of half precision; the first that an entry of op_db has is a usual one."""

EVERY_DTYPE = "all"
"""In place of names of dtypes: those that an entry of op_db has."""

FEWER = 6
"""Samples of op_db in each of the other usual dtypes."""

MOST = MappingProxyType({SAMPLED: 24, BLOCKS: 56, OTHER_DTYPES: 3 * FEWER, SCALED: 2 * len(MAGNITUDES)})
"""Limits on the calls of a kind; the usual one is 12."""

LARGEST = 100_000
"""Limit on the elements of an input."""

DOWN_FROM_LARGEST = [int(LARGEST * 0.8**step) for step in range(40)]
"""Lengths to try, the longest first, until an input with several of them is small enough."""

OTHERS = MappingProxyType({torch.float32: (torch.bfloat16, torch.float64), torch.int64: (torch.int32,)})
"""Dtypes that replace the dtype of one argument in calls of the kind MIXED."""


@dataclass(frozen=True)
class DrawnCall:
    """One call: the arguments by name, the first `positional` of them passed by position. `note` says how the inputs
    were made, and `rtol` and `atol` are the tolerances (None: torch.testing's). `again` has other values of the same
    sizes, if they were drawn, and `sizes` are the described sizes by name."""

    kind: str
    values: dict[str, Any]
    positional: int
    note: str = ""
    rtol: float | None = None
    atol: float | None = None
    again: dict[str, Any] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def arguments(self, values: Mapping[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments, those of the call or others by the same names."""
        items = [*(self.values if values is None else values).items()]
        return [value for _, value in items[: self.positional]], dict(items[self.positional :])

    def on(self, values: dict[str, Any], **changes: Any) -> DrawnCall:
        """Return the same call on other inputs."""
        return replace(self, values=values, **changes)

    @property
    def has_empty(self) -> bool:
        """Whether a tensor among the inputs has no elements."""
        return any(not tensor.numel() for tensor in tensors(self.values))


@dataclass
class CallPlan:
    """The calls. `refusal` is the reference's error in a call, "" if it answers; `refused` is the first one."""

    refusal: Callable[[DrawnCall], str]
    refused: str = ""
    calls: list[DrawnCall] = field(default_factory=list)

    def accepts(self, call: DrawnCall) -> bool:
        """Whether the reference answers a call."""
        said = self.refusal(call)
        self.refused = self.refused or said
        return not said

    def of(self, *kinds: str) -> list[DrawnCall]:
        """Return the calls of these kinds."""
        return [call for call in self.calls if call.kind in kinds]

    def add(self, call: DrawnCall) -> None:
        """Add a call that the reference accepts, up to the limit of its kind. Calls of one kind for empty tensors or
        for sizes have different notes."""
        known = self.of(call.kind)
        if len(known) >= MOST.get(call.kind, 12) or (call.kind == EMPTY and not call.has_empty):
            return
        if call.kind in (EMPTY, BLOCKS) and call.note and any(call.note == other.note for other in known):
            return
        if sum(tensor.numel() for tensor in tensors(call.values)) <= LARGEST and self.accepts(call):
            self.calls.append(call)


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


def usual_dtypes(entry: Any) -> list[str]:
    """Return the dtypes of `conformance opinfo` for an entry: float32, a half dtype, int64 and bool, if it has them."""
    names = ["float32", next((name for name in HALVES if getattr(torch, name) in entry.dtypes), ""), "int64", "bool"]
    held = [name for name in names if name and getattr(torch, name) in entry.dtypes]
    return held or [str(dtype).removeprefix("torch.") for dtype in sorted(entry.dtypes, key=str)][:1]


def from_op_db(
    entry: Any, operator: Operator, refusal: Callable[[DrawnCall], str], dtypes: Sequence[str] | None, limit: int
) -> CallPlan:
    """Return calls on the samples of an entry of op_db, in these dtypes. By default, these are those of `conformance
    opinfo`; the operator may refuse all but the first. Raises UsageError if the operator takes the arguments of no
    sample."""
    from conformance.sources.opinfo import catalog
    from conformance.sources.opinfo.sampling import samples

    plan, refused = CallPlan(refusal), ""
    if dtypes is not None and [*dtypes] == [EVERY_DTYPE]:
        dtypes = [name for name in DTYPES if getattr(torch, name, None) in entry.dtypes]
    for name in dtypes or usual_dtypes(entry):
        dtype, is_other = getattr(torch, name), dtypes is None and bool(plan.calls)
        if dtype not in entry.dtypes:
            raise UsageError(f"op_db has no samples of {entry.name} in {name}")
        tolerances = catalog.tolerances(entry, dtype).get(str(dtype).removeprefix("torch."), (None, None))
        for variant in ("forward", *(TIERS if not is_other else ())):
            is_special = variant != "forward"
            count = 2 if is_special else FEWER if is_other else limit
            for sample in samples(entry, variant, dtype, "as_sampled", count):
                args, kwargs = (sample.input, *sample.args), sample.kwargs
                bound = operator.bound(args, kwargs)
                if bound is None:
                    refused = refused or f"{len(args)} positional arguments" + "".join(f", {key}=" for key in kwargs)
                elif all(map(_usable, leaves(bound))) and (sample.changed or not is_special):
                    inputs = map_leaves(bound, lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)
                    kind, note = (SPECIAL, variant) if is_special else (SAMPLED, "")
                    call = DrawnCall(kind, inputs, len(args), note, *tolerances)
                    by_kind = replace(call, kind=OTHER_DTYPES, note=f"{name} samples") if is_other else _by_size(call)
                    plan.add(call if is_special else by_kind)
    if not plan.calls:
        raise UsageError(
            f"{operator.name} takes the arguments of no sample of {entry.name}, which are {refused or 'not tensors'}: "
            "wrap the operator in a function with the signature of the reference"
        )
    base = plan.of(SAMPLED) or plan.calls[:]
    _vary_layouts(plan, base)
    varied = [_stretched(call, size) for size, call in itertools.product((0, *SIZES), _shapes(base))]
    for call in evenly([call for call in varied if call is not None], MOST[BLOCKS]):
        plan.add(call)
    _vary_dtypes(plan, base)
    for call, tier in itertools.product(_shapes(base), MAGNITUDES):
        if scaled := _scaled(call, [*call.values], tier):
            plan.add(scaled)
    return plan


def _usable(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is torch.strided and not leaf.is_meta and not leaf.is_conj() and not leaf.is_neg()
    return not isinstance(leaf, (torch.device, torch.Generator))


def _by_size(call: DrawnCall) -> DrawnCall:
    """Return a sampled call under the kind that its sizes say."""
    has_scalar = any(not tensor.dim() for tensor in tensors(call.values))
    return replace(call, kind=EMPTY if call.has_empty else SCALARS if has_scalar else SAMPLED)


def _vary_layouts(plan: CallPlan, base: Sequence[DrawnCall], description: Description | None = None) -> None:
    """Add calls with other strides and offsets. An expanded input has other values, which a description may exclude."""
    for call in _shapes(base):
        for layout in LAYOUTS:
            if layout == "as_sampled":
                continue
            values = lay_inputs(call.values, layout)
            if description is not None and described_sizes(description, values, call.sizes) is None:
                continue
            strided = call.on(values, kind=STRIDED, note=f"{layout} inputs")
            plan.add(strided)
            if layout == "expanded" and REFUSES_OVERLAP in plan.refusal(strided):
                plan.calls.append(replace(strided, kind=OVERLAP))
        for kind, note, change in LAZY:
            values = {name: map_leaves(value, change) for name, value in call.values.items()}
            if lazy := changed_in(call, values, kind, note):
                plan.add(lazy)


def conjugate_view(leaf: Any) -> Any:
    """Return a complex tensor as a view that torch conjugates when it is read, with the same values."""
    return leaf.conj_physical().conj() if isinstance(leaf, torch.Tensor) and leaf.is_complex() else leaf


def negative_view(leaf: Any) -> Any:
    """Return a floating tensor as a view that torch negates when it is read, with the same values."""
    return neg_view(-leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


LAZY = ((STRIDED, "conjugate views", conjugate_view), (NEGATIVE, "negative views", negative_view))
"""Views whose elements torch changes when it reads them: the kind of the calls, its note, and the view."""


def _vary_dtypes(plan: CallPlan, base: Sequence[DrawnCall]) -> None:
    """Add calls with one argument in another dtype than the other ones."""
    for call in _shapes(base):
        for name, value in call.values.items():
            for dtype in OTHERS.get(value.dtype, ()) if isinstance(value, torch.Tensor) else ():
                changed = {**call.values, name: value.to(dtype)}
                if len(tensors(changed)) > 1:
                    note = f"{name} in {str(dtype)[6:]}"
                    plan.add(call.on(changed, kind=MIXED, note=note, rtol=None, atol=None))


def _shapes(calls: Iterable[DrawnCall]) -> list[DrawnCall]:
    """Return one call of each number of dimensions."""
    by_dims: dict[tuple[int, ...], DrawnCall] = {}
    for call in calls:
        by_dims.setdefault(tuple(tensor.dim() for tensor in tensors(call.values)), call)
    return [*by_dims.values()][:3]


def evenly(row: Sequence[T], most: int) -> list[T]:
    """Return at most `most` elements of a row, evenly spread over it, with both ends."""
    return [row[at * (len(row) - 1) // max(most - 1, 1)] for at in range(most)] if len(row) > most else [*row]


def _stretched(call: DrawnCall, size: int) -> DrawnCall | None:
    """Return the call with its last length, in every tensor and tuple that has it, replaced by a size. The values are
    a sample of the call's values. None if an index could leave its range, or an input gets too large."""
    inputs = tensors(call.values)
    length = next((tensor.shape[-1] for tensor in inputs if tensor.dim() and tensor.shape[-1] > 1), None)
    if length is None or any(length in tensor.shape and not tensor.dtype.is_floating_point for tensor in inputs):
        return None
    if sum(math.prod(size if n == length else n for n in tensor.shape) for tensor in inputs) > LARGEST:
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


def from_description(
    description: Description,
    operator: Operator,
    refusal: Callable[[DrawnCall], str],
    tolerances: tuple[float | None, float | None],
    seed: int = 0,
) -> CallPlan:
    """Return calls on inputs drawn with this seed. Raises UsageError if the operator has other arguments, or the
    reference accepts none of the calls."""
    plan, (names, positional) = CallPlan(refusal), _passed([*description.arguments], operator)
    for kind, sizes, choice, tier in _draws(description, seed):
        if elements_of(description, sizes, choice) > LARGEST:
            continue
        name = f"{kind} {sizes} {choice}" + f" {seed}" * bool(seed)
        values = draw_inputs(description, names, sizes, choice, random.Random(name))
        if values is None:
            continue
        note = note_of(sizes)
        again = draw_again(description, values, sizes, choice) if kind == SAMPLED else None
        call = DrawnCall(kind, values, positional, note, *tolerances, again, sizes)
        if kind == SPECIAL:
            changed = _special(call, description, tier)
        elif kind == SCALED:
            changed = _scaled(call, _open_inputs(call, description), tier)
        else:
            changed = _by_size(call) if kind == SAMPLED else call
        if changed is not None:
            plan.add(changed)
    if not plan.calls and not plan.refused:
        least = elements_of(description, _sized(description, lambda low, high: low))
        raise UsageError(
            f"the smallest inputs that are described have {least:,} elements, and at most {LARGEST:,} are drawn: "
            "describe smaller ones"
            if least > LARGEST
            else "no inputs have the described sizes and values: an input's range holds nothing for each size"
        )
    if not plan.calls:
        raise UsageError(f"the reference raises on every call that the inputs describe, first with {plan.refused}")
    base = plan.of(SAMPLED) or plan.calls[:]
    _vary_layouts(plan, base, description)
    _vary_dtypes(plan, base)
    return plan


def note_of(sizes: Mapping[str, int]) -> str:
    """Return the sizes of a call as its note: `n = 8, m = 3`."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _passed(names: list[str], operator: Operator) -> tuple[list[str], int]:
    """Return the names of described arguments in the order of the operator, and how many of them are passed by
    position. Raises UsageError if the operator has other arguments."""
    if operator.signature is None:
        return names, len(names)
    parameters = operator.signature.parameters
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    unknown = [name for name in names if name not in kinds]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds.values():
        raise UsageError(f"{operator.name} has no argument {unknown[0]!r}: its arguments are {', '.join(kinds)}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind < parameter.VAR_POSITIONAL and name not in names:
            raise UsageError(f"{operator.name} needs the argument {name!r}, which the inputs do not describe")
    names = sorted(names, key=lambda name: [*kinds].index(name) if name in kinds else len(kinds))
    plain = [name for name in names if name in kinds and kinds[name] is not inspect.Parameter.KEYWORD_ONLY]
    return names, sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(plain, kinds)))


Sizes = dict[str, int]


def _draws(description: Description, seed: int = 0) -> Iterator[tuple[str, Sizes, int, str]]:
    """Yield the kind, the sizes, the number of the choice of alternatives, and the tier of special values."""
    rng = random.Random(seed)

    def small(low: int, high: int) -> int:
        return rng.randint(max(low, min(high, 2)), max(low, min(high, 12)))

    if not description.sizes:
        most = max((len(argument) for argument in description.arguments.values()), default=1)
        yield from ((SAMPLED, {}, choice, "") for choice in range(2 * max(most, 2)))
    else:
        yield from ((SAMPLED, _sized(description, small), choice, "") for choice in range(MOST[SAMPLED]))
    for name in description.sizes:
        yield EMPTY, _sized(description, lambda low, high: min(high, 5), {name: 0}), 0, ""
    blocks = [(max(sizes.values()), sizes) for sizes in _together(description, rng)]
    left = MOST[BLOCKS] - len(blocks)
    for name in description.sizes:
        by_text = dict[str, tuple[int, Sizes]]()
        for size in (*SIZES, LARGEST):
            others = 4 if size <= 8193 else 1
            sizes = _sized(description, lambda low, high, others=others: min(high, others), {name: size})  # type: ignore[misc]
            if elements_of(description, sizes) <= LARGEST:
                by_text.setdefault(str(sizes), (size, sizes))
        blocks += evenly([*by_text.values()], left // len(description.sizes))
    for size, sizes in sorted(blocks, key=lambda block: block[0]):
        yield BLOCKS, sizes, size, ""
    for choice, tier in itertools.product(range(2), TIERS):
        yield SPECIAL, _sized(description, lambda low, high: min(high, 7)), choice, tier
    for choice, tier in itertools.product(range(2), MAGNITUDES):
        yield SCALED, _sized(description, lambda low, high: min(high, 7 + 10 * choice)), choice, tier  # noqa: B023


def _together(description: Description, rng: random.Random) -> list[Sizes]:
    """Return sizes that are large at once: all at their upper ends, or as far as inputs may be large, and some with two
    or three sizes between LOW and HIGH."""
    if not description.sizes:
        return []
    found: list[Sizes] = []
    for most in DOWN_FROM_LARGEST:
        sizes = _sized(description, lambda low, high, most=most: min(high, most))  # type: ignore[misc]
        if elements_of(description, sizes) <= LARGEST:
            found.append(sizes)
            break
    for _ in range(5 * TOGETHER if len(description.sizes) > 1 else 0):
        large = rng.sample([*description.sizes], min(len(description.sizes), rng.choice((2, 3))))
        for most in (HIGH, *(most for most in DOWN_FROM_LARGEST if LOW < most < HIGH)):
            drawn = {name: rng.randint(LOW, most) for name in large}
            sizes = _sized(description, lambda low, high: min(high, 2), drawn)
            if elements_of(description, sizes) <= LARGEST:
                break
        else:
            continue
        if sizes not in found and len(found) <= TOGETHER:
            found.append(sizes)
    return found


def elements_of(description: Description, sizes: Sizes, choice: int | None = None) -> int:
    """Return the number of elements of all tensors together, for a choice of their alternatives or the largest ones."""
    chosen = (row if choice is None else (row[choice % len(row)],) for row in description.arguments.values())
    rows = [[form for one in row for form in tensors_in(one)] for row in chosen]
    return sum(max(math.prod(int(evaluated(dim, sizes)) for dim in one.dims) for one in row) for row in rows if row)


def _sized(
    description: Description, chosen: Callable[[int, int], int], wanted: Mapping[str, int] = MappingProxyType({})
) -> Sizes:
    """Return sizes in their ranges; those in `wanted` are as near to that number as the range allows."""
    sizes: Sizes = {}
    for name, one in description.sizes.items():
        low, high = (int(end) for end in one.within(sizes))
        low = max(low, 0)
        high = max(high, low)
        size = wanted[name] if name in wanted else chosen(low, high)
        sizes[name] = low + (min(max(size, low), high) - low) // one.step * one.step
        if size and not sizes[name] and one.step <= high:  # special values need an element
            sizes[name] = one.step
    return sizes


def _open_inputs(call: DrawnCall, description: Description) -> list[str]:
    """Return the inputs with floating tensors whose values have neither a range nor a structure."""
    forms = {name: [form for one in row for form in tensors_in(one)] for name, row in description.arguments.items()}
    return [
        name
        for name, value in call.values.items()
        if any(tensor.is_floating_point() for tensor in tensors(value))
        and not any(form.range or form.word for form in forms[name])
    ]


def _scaled(call: DrawnCall, names: Collection[str], tier: str) -> DrawnCall | None:
    """Return the call with values of a magnitude in the floating tensors of these inputs; None if nothing changes. A
    dtype whose numbers end below the squares of the magnitude has no such values."""

    def scaled(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
            return value
        result = MAGNITUDES[tier](value)
        largest = float(result.abs().max())
        return result if largest**2 < torch.finfo(value.dtype).max / value.numel() else value

    return changed_in(call, {name: map_leaves(call.values[name], scaled) for name in names}, SCALED, f"values {tier}")


def changed_in(call: DrawnCall, values: Mapping[str, Any], kind: str, note: str) -> DrawnCall | None:
    """Return the call with other values of some inputs; None if they are the same tensors."""
    after = {**call.values, **values}
    if all(one is other for one, other in zip(tensors(call.values), tensors(after), strict=True)):
        return None
    return call.on(after, kind=kind, note=note)


def _special(call: DrawnCall, description: Description, tier: str) -> DrawnCall | None:
    """Return the call with special values in the floating tensors that have no range; None if nothing changes."""
    free = _open_inputs(call, description)
    values = dict(call.values)
    for dtype in {tensor.dtype for name in free for tensor in tensors(values[name]) if tensor.is_floating_point()}:
        values = specials.placed(values, tier, dtype, names=free)
    return changed_in(call, {name: values[name] for name in free}, SPECIAL, tier)
