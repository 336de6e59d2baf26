"""Description of an operator's inputs: one line of text for each argument, and ranges of sizes.

    parse({"x": "float32[n, m]", "cu_seqlens": "int32[b+1] in 0..n offsets", "sizes": {"b": "1..4", ...}})

An argument is a list of alternatives, separated by ` | `:

- `float32[n, m]`: a tensor; dimensions are expressions of the sizes. `float32/bfloat16[n]` has either dtype, and
  arguments with the same dtypes have the same one in each call.
- `int64[k] in 0..n-1`: its values lie in this range. A word of `structures.WORDS` may follow, such as `unique`.
- `k * float32[n]`: a list of `k` tensors. A Python list of texts describes a list of different tensors.
- `int in 0..n-1` and `float in 0.5..2`: a Python number.
- `None`, `True`, `1e-5`, `"mean"`, `[1, 2]`: a Python value.
- `[n, 2*m]`: a list of whole numbers, for example a shape.

The entry `sizes` maps each size to `LOW..HIGH` or `LOW..HIGH step S`, where the ends may use other sizes. A dict whose
entry `type` is a dataclass describes an argument of this class by its fields (`take_apart`).
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math
import operator
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from conformance.record.errors import UsageError
from conformance.record.names import DTYPES, nearest
from conformance.sources.operator.structures import WORDS, arranged, has_structure

Sizes = Mapping[str, int]

SIZES = "sizes"
"""The entry of the sizes, which is no argument."""

TYPE = "type"
"""The entry of a described dataclass that names its class."""

REPEATED = re.compile(r"(?P<count>[^\[\]]+?)\s*\*\s*(?P<each>[a-z0-9_/]+\s*\[.*)$")
TENSOR = re.compile(r"(?P<dtypes>[a-z0-9_]+(?:/[a-z0-9_]+)*)\s*\[(?P<dims>[^\[\]]*)\]\s*(?P<rest>.*)$")
NUMBER = re.compile(r"(?P<kind>int|float)(?:\s+in\s+(?P<range>.*))?$")

OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included, `step` apart. The ends are expressions of the sizes."""

    low: str
    high: str
    step: int = 1

    def within(self, sizes: Mapping[str, int]) -> tuple[float, float]:
        """Return the two ends."""
        return evaluated(self.low, sizes), evaluated(self.high, sizes)


@dataclass(frozen=True)
class Tensor:
    """A tensor argument."""

    dtypes: tuple[str, ...]
    dims: tuple[str, ...]
    range: Range | None = None
    word: str = ""


@dataclass(frozen=True)
class Number:
    """An argument that is a Python number of this kind."""

    kind: str
    range: Range


@dataclass(frozen=True)
class Value:
    """An argument with one Python value."""

    value: Any


@dataclass(frozen=True)
class Lengths:
    """An argument that is a list of whole numbers, which are expressions of the sizes."""

    dims: tuple[str, ...]


@dataclass(frozen=True)
class Items:
    """An argument that is a list of tensors: the given ones, all of them `count` times."""

    each: tuple[Tensor, ...]
    count: str = "1"


Alternative = Tensor | Number | Value | Lengths | Items


@dataclass(frozen=True)
class Description:
    """The alternatives of each argument by name, and the range of each size, a size after those that its range uses."""

    arguments: Mapping[str, tuple[Alternative, ...]]
    sizes: Mapping[str, Range]


def take_apart(texts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[type, list[str]]]]:
    """Return the descriptions of plain arguments, with the fields of each dataclass as arguments of their own, and the
    class and the fields of each such argument. Raises UsageError for a name that occurs twice."""
    plain: dict[str, Any] = {}
    classes: dict[str, tuple[type, list[str]]] = {}
    for name, one in texts.items():
        parts = {name: one}
        if name != SIZES and isinstance(one, Mapping):
            if not dataclasses.is_dataclass(one.get(TYPE)) or not isinstance(one[TYPE], type):
                raise UsageError(f"input {name!r} is described by a dict without a dataclass: give it as {TYPE!r}")
            parts = {key: text for key, text in one.items() if key != TYPE}
            classes[name] = one[TYPE], [*parts]
        if twice := next((key for key in parts if key in plain), None):
            raise UsageError(f"the inputs describe {twice!r} twice: rename the field, or the argument")
        plain |= parts
    return plain, classes


def parse(texts: Mapping[str, Any]) -> Description:
    """Parse a description. Raises UsageError for text that is not understood, for unknown sizes, and for ranges that
    contradict themselves."""
    ranges = texts.get(SIZES, {})
    if not isinstance(ranges, Mapping):
        raise UsageError(f"{SIZES!r} is a {type(ranges).__name__}: map each size to its range, {{'n': '1..9'}}")
    sizes = {name: _size(name, str(text)) for name, text in ranges.items()}
    arguments = {name: _argument(name, text) for name, text in texts.items() if name != SIZES}
    if not arguments:
        raise UsageError('the inputs describe no argument: write for example {"x": "float32[n]", "sizes": ...}')
    for name, alternatives in arguments.items():
        for alternative in alternatives:
            for used in [used for text in expressions_of(alternative) for used in names_in(text)]:
                if used not in sizes:
                    raise UsageError(
                        f"input {name!r} uses the size {used!r}, which has no range{nearest(used, sizes)}; add it to "
                        f"{SIZES!r}, for example {used}: 0..100"
                    )
    return Description(arguments, _ordered(sizes))


def expressions_of(alternative: Alternative) -> list[str]:
    """Return the expressions of sizes in an alternative."""
    if isinstance(alternative, Items):
        return [alternative.count, *(text for one in alternative.each for text in expressions_of(one))]
    dims = [*alternative.dims] if isinstance(alternative, (Tensor, Lengths)) else []
    one = alternative.range if isinstance(alternative, (Tensor, Number)) else None
    return dims + ([one.low, one.high] if one else [])


def tensors_in(alternative: Alternative) -> tuple[Tensor, ...]:
    """Return the tensors that an alternative describes."""
    if isinstance(alternative, Items):
        return alternative.each
    return (alternative,) if isinstance(alternative, Tensor) else ()


def _ordered(sizes: Mapping[str, Range]) -> dict[str, Range]:
    ordered: dict[str, Range] = {}
    left = dict(sizes)
    while left:
        for name, one in left.items():
            used = {*names_in(one.low), *names_in(one.high)}
            if used - {*sizes}:
                raise UsageError(f"the range of size {name!r} uses {min(used - {*sizes})!r}, which has no range")
            if used <= {*ordered}:
                break
        else:
            raise UsageError(
                f"the ranges of the sizes {', '.join(left)} depend on each other: give one of them numbers"
            )
        ordered[name] = left.pop(name)
    widest: dict[str, tuple[int, int]] = {}
    for name, one in ordered.items():
        low, high = (_extreme(text, widest, largest) for text, largest in ((one.low, False), (one.high, True)))
        if low > high or high < 0:
            raise UsageError(f"size {name!r} has the range {one.low}..{one.high}, which holds no size")
        widest[name] = max(low, 0), high
    return ordered


def _extreme(text: str, ranges: Mapping[str, tuple[int, int]], largest: bool) -> int:
    """Return the least or largest value of an expression at the ends of its sizes."""
    used = sorted({*names_in(text)})
    values = []
    for corner in range(2 ** len(used)):
        at = {name: ranges[name][corner >> number & 1] for number, name in enumerate(used)}
        values.append(int(evaluated(text, at)))
    return max(values) if largest else min(values)


def _size(name: str, text: str) -> Range:
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"a size is named {name!r}, which is not an identifier")
    ends, _, step = text.partition(" step ")
    one = _range(ends, f"size {name!r}") if ".." in ends else Range(ends.strip(), ends.strip())
    names_in(one.low)
    if step and not (step.strip().isdecimal() and int(step)):
        raise UsageError(f"size {name!r} has the step {step.strip()!r}: write a whole number of 1 or more")
    return Range(one.low, one.high, int(step or 1))


def _range(text: str, where: str) -> Range:
    low, dots, high = text.partition("..")
    if not dots or not low.strip() or not high.strip():
        raise UsageError(f"{where} has the range {text.strip()!r}: write LOW..HIGH, for example 0..n-1")
    result = Range(low.strip(), high.strip())
    if not (*names_in(result.low), *names_in(result.high)) and evaluated(result.low, {}) > evaluated(result.high, {}):
        raise UsageError(f"{where} has the range {text.strip()}, which holds nothing")
    return result


def _argument(name: str, text: Any) -> tuple[Alternative, ...]:
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"an input is named {name!r}, which is not an identifier")
    parts = text.split(" | ") if isinstance(text, str) else [text]
    return tuple(_alternative(name, part) for part in parts)


def _alternative(name: str, text: Any) -> Alternative:
    if isinstance(text, (list, tuple)) and any(isinstance(one, str) and TENSOR.match(one) for one in text):
        each = [_alternative(name, one) for one in text]
        if not all(isinstance(one, Tensor) for one in each):
            raise UsageError(f"input {name!r} is a list of tensors and other things: describe tensors only")
        return Items(tuple(one for one in each if isinstance(one, Tensor)))
    if isinstance(text, (torch.Tensor, numpy.ndarray)):
        dtype, shape = str(text.dtype).removeprefix("torch."), [*text.shape]
        raise UsageError(f"input {name!r} is a {type(text).__name__}: describe it, for example '{dtype}{shape}'")
    if not isinstance(text, str):
        return Value(text)
    text = text.strip()
    if match := REPEATED.match(text):
        one = _alternative(name, match["each"])
        names_in(match["count"])
        assert isinstance(one, Tensor)
        return Items((one,), match["count"])
    if match := TENSOR.match(text):
        return _described_tensor(name, text, match)
    if match := NUMBER.match(text):
        return Number(match["kind"], _range(match["range"] or ("0..8" if match["kind"] == "int" else "-2..2"), name))
    try:
        return Value(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        if text.startswith("[") and text.endswith("]"):
            return Lengths(_dims(text[1:-1]))
        raise UsageError(
            f"input {name!r} is described as {text!r}: write a tensor such as float32[n, m], a number such as "
            "int in 0..n-1, or a Python value; ' | ' separates alternatives"
        ) from None


def _described_tensor(name: str, text: str, match: re.Match[str]) -> Tensor:
    dtypes = tuple(match["dtypes"].split("/"))
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UsageError(f"input {name!r} has the dtype {dtype!r}, which torch has not{nearest(dtype, DTYPES)}")
    dims, words = _dims(match["dims"]), match["rest"].split()
    word = words.pop() if words and words[-1] in WORDS else ""
    if words and words[0] != "in":
        known = nearest(words[0], WORDS) or f"; choose from {', '.join(WORDS)}"
        raise UsageError(f"input {name!r} is described as {text!r}, and {words[0]!r} is no word for a tensor{known}")
    span = _range(" ".join(words[1:]), f"input {name!r}") if words else None
    if word and (reason := WORDS[word].obstacle(len(dims), dtypes, span is not None)):
        raise UsageError(f"input {name!r} is {word}, which needs {reason}")
    return Tensor(dtypes, dims, span, word)


def _dims(text: str) -> tuple[str, ...]:
    """Return the expressions between commas. Raises UsageError if one is no size."""
    dims = tuple(part.strip() for part in text.split(",") if part.strip())
    for dim in dims:
        names_in(dim)
    return dims


def names_in(text: str) -> list[str]:
    """Return the names in an expression. Raises UsageError if it is no arithmetic of whole numbers and names."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        tree = None
    allowed = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.USub, ast.Name, ast.Load, ast.Constant, *OPERATORS)
    if tree is None or not all(isinstance(node, allowed) for node in ast.walk(tree)):
        raise UsageError(f"{text!r} is no size: write a number, or arithmetic of sizes such as 2*n+1")
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def evaluated(text: str, sizes: Mapping[str, int]) -> Any:
    """Return the value of an expression."""

    def value(node: Any) -> Any:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand)
        return sizes[node.id] if isinstance(node, ast.Name) else node.value

    return value(ast.parse(text.strip(), mode="eval").body)


# Drawing inputs


def draw_inputs(
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
            count = max(int(evaluated(one.count, sizes)), 0) if isinstance(one, Items) else 1
            drawn = [draw_tensor(form, sizes, choice, torch_rng) for form in tensors_in(one) * count]
            if any(value is None for value in drawn):
                return None
            values[name] = drawn if isinstance(one, Items) else drawn[0]
    return values


def draw_again(description: Description, values: Mapping[str, Any], sizes: Sizes, choice: int) -> dict[str, Any] | None:
    """Return the inputs with other values. Every other element of a tensor stays, the first one too, so that a few
    elements do not tell both inputs apart; tensors with a structure change as a whole."""
    again = draw_inputs(description, values, sizes, choice, random.Random(f"again {sizes} {choice}"))
    for name, value in (again or {}).items():
        ordered = any(form.word for one in description.arguments[name] for form in tensors_in(one))
        if isinstance(value, torch.Tensor) and value.numel() > 1 and not ordered:
            value.view(-1)[::2] = values[name].view(-1)[::2]
    return again


def draw_tensor(form: Tensor, sizes: Sizes, choice: int, rng: torch.Generator) -> torch.Tensor | None:
    """Return a tensor with random values; None if the sizes allow none."""
    shape = [int(evaluated(dim, sizes)) for dim in form.dims]
    dtype = getattr(torch, form.dtypes[choice % len(form.dtypes)])
    if min(shape, default=0) < 0:
        return None
    low, high = form.range.within(sizes) if form.range else usual_range(dtype)
    if low > high:
        return torch.empty(shape, dtype=dtype) if 0 in shape else None
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        drawn = torch.rand(shape, generator=rng, dtype=wide) * (high - low) + low
        value = (torch.randn(shape, generator=rng, dtype=wide) if form.range is None else drawn).to(dtype)
    elif form.word == "unique":
        count = math.prod(shape)
        if high - low + 1 < count:
            return None
        return (torch.randperm(int(high - low) + 1, generator=rng)[:count] + int(low)).to(dtype).view(shape)
    else:
        value = torch.randint(int(low), int(high) + 1, shape, generator=rng).to(dtype)
    return arranged(WORDS[form.word], value, low, high) if form.word else value


def usual_range(dtype: torch.dtype) -> tuple[float, float]:
    """Return the usual range of values of a dtype."""
    return (0, 1) if dtype is torch.bool else (0, 8) if not dtype.is_signed else (-8, 8)


# Whether inputs are described ones, and smaller ones


def described_sizes(
    description: Description, values: Mapping[str, Any], near: Mapping[str, int], any_dtype: bool = False
) -> dict[str, int] | None:
    """Return the sizes of inputs that the description allows; None for others. Sizes that no dimension tells are those
    in `near`. With `any_dtype`, tensors may have other dtypes."""
    if {*values} != {*description.arguments}:
        return None
    for chosen in itertools.product(*description.arguments.values()):
        forms = dict(zip(description.arguments, chosen))
        if all(has_form(forms[name], value, any_dtype) for name, value in values.items()):
            sizes = sizes_of_forms(description, forms, values, near)
            if sizes is not None and all(is_allowed(forms[name], value, sizes) for name, value in values.items()):
                return sizes
    return None


def has_form(form: Alternative, value: Any, any_dtype: bool) -> bool:
    """Whether a value is of the kind of an alternative: for a tensor, its dtype and number of dimensions."""
    if isinstance(form, Tensor):
        if not isinstance(value, torch.Tensor) or value.dim() != len(form.dims):
            return False
        return any_dtype or str(value.dtype).removeprefix("torch.") in form.dtypes
    if isinstance(form, Items):
        if not isinstance(value, list) or (form.count == "1" and len(value) != len(form.each)):
            return False
        return all(has_form(one, part, any_dtype) for one, part in zip(itertools.cycle(form.each), value))
    if isinstance(form, Number):
        return type(value) is (int if form.kind == "int" else float)
    return repr(value) == repr(form.value) if isinstance(form, Value) else isinstance(value, list)


def sizes_of_forms(
    description: Description, forms: Mapping[str, Alternative], values: Mapping[str, Any], near: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the sizes that the dimensions have, if they lie in their ranges."""
    sizes = dict(near)
    for name, form in forms.items():
        for dims, lengths in lengths_of(form, values[name]):
            if len(lengths) != len(dims):
                return None
            sizes |= dict(pair for pair in map(solve_dimension, dims, lengths) if pair is not None)
    known: dict[str, int] = {}
    for name, one in description.sizes.items():
        low, high = ends_of(one, known)
        if not low <= sizes[name] <= high or (sizes[name] - low) % one.step:
            return None
        known[name] = sizes[name]
    return known


def solve_dimension(dim: str, length: int) -> tuple[str, int] | None:
    """Return the size that a dimension tells, such as `n` of `n` or of `2*n+1`, and its value there; None if it tells
    none."""
    used = {*names_in(dim)}
    if len(used) != 1:
        return None
    (name,) = used
    start, slope = evaluated(dim, {name: 0}), evaluated(dim, {name: 1}) - evaluated(dim, {name: 0})
    value = (length - start) // slope if slope > 0 else -1
    return (name, value) if value >= 0 and evaluated(dim, {name: value}) == length else None


def lengths_of(form: Alternative, value: Any) -> list[tuple[Sequence[str], Sequence[int]]]:
    """Return the described dimensions with the lengths that a value has there. The number of tensors in a list counts
    as a length."""
    if isinstance(form, Items):
        parts = [pair for one, part in zip(itertools.cycle(form.each), value) for pair in lengths_of(one, part)]
        return [((form.count,), (len(value) // len(form.each),)), *parts]
    if isinstance(form, Lengths):
        return [(form.dims, value)]
    return [(form.dims, tuple(value.shape))] if isinstance(form, Tensor) else []


def ends_of(one: Range, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the least and the largest value of a size."""
    low, high = (max(int(end), 0) for end in one.within(sizes))
    return low, max(high, low)


def is_allowed(form: Alternative, value: Any, sizes: Sizes) -> bool:
    """Whether a value of the right kind has the lengths, and lies in the range, that these sizes give."""
    for dims, lengths in lengths_of(form, value):
        if [*lengths] != [int(evaluated(dim, sizes)) for dim in dims]:
            return False
    if isinstance(form, Items):
        return all(is_allowed(one, part, sizes) for one, part in zip(itertools.cycle(form.each), value))
    if isinstance(form, Number):
        low, high = form.range.within(sizes)
        return bool(low <= value <= high)
    if not isinstance(form, Tensor) or not value.numel():
        return True
    low, high = form.range.within(sizes) if form.range else usual_range(value.dtype)
    if form.range is not None and form.word != "clustered":
        # The ends are rounded as the drawn values are.
        low, high = torch.tensor((low, high), dtype=torch.float64).to(value.dtype).tolist()
        if not is_within(value, form, low, high):
            return False
    return not form.word or has_structure(WORDS[form.word], value, low, high)


def is_within(value: torch.Tensor, form: Tensor, low: float, high: float) -> bool:
    """Whether all elements lie in the range of a described tensor, if it has one."""
    return form.range is None or bool(((value.detach() >= low) & (value.detach() <= high)).all())


def smaller_inputs(description: Description, values: Mapping[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the inputs with one size smaller: the first elements of each tensor, and values cut to their range."""
    known: dict[str, int] = {}
    for name, one in description.sizes.items():
        low, _ = ends_of(one, known)
        now = known[name] = sizes[name]
        half = low + (now - low) // 2 // one.step * one.step
        for size in dict.fromkeys((low, half, now - one.step)):
            if low <= size < now:
                yield {key: fitted(description, key, value, {**sizes, name: size}) for key, value in values.items()}


def fitted(description: Description, name: str, value: Any, sizes: Sizes) -> Any:
    """Return an input as smaller sizes need it."""
    for form in description.arguments[name]:
        if isinstance(form, Lengths) and isinstance(value, list):
            return [int(evaluated(dim, sizes)) for dim in form.dims]
        if isinstance(form, Items) and isinstance(value, list):
            count = max(int(evaluated(form.count, sizes)), 0) * len(form.each)
            return [fitted_tensor(one, part, sizes) for one, part in zip(itertools.cycle(form.each), value[:count])]
        if isinstance(form, Tensor) and isinstance(value, torch.Tensor) and value.dim() == len(form.dims):
            return fitted_tensor(form, value, sizes)
    return value


def fitted_tensor(form: Tensor, value: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Return the first elements of a tensor, in the range that smaller sizes give, with its structure."""
    lengths = [max(int(evaluated(dim, sizes)), 0) for dim in form.dims]
    part = value.detach()[tuple(map(slice, lengths))]
    low, high = form.range.within(sizes) if form.range else usual_range(value.dtype)
    if part.numel() and low <= high:
        part = part.clamp(low, high) if form.range and form.word not in ("unique", "clustered") else part
        if form.word and not (has_structure(WORDS[form.word], part, low, high) and is_within(part, form, low, high)):
            part = arranged(WORDS[form.word], part, low, high)
    return part.clone() if value.is_contiguous() else part
