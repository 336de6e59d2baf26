"""Description of an operator's inputs: one line of text for each argument, and ranges of sizes.

Defines `Description` and `parse`. An argument is a list of alternatives, separated by ` | `:

- `float32[n, m]`: a tensor; dimensions are expressions of the sizes. `float32/bfloat16[n]` has either dtype, and
  arguments with the same dtypes have the same one in each call.
- `int64[k] in 0..n-1`: its values lie in this range. `unique` or `sorted` may follow the range.
- `int in 0..n-1` and `float in 0.5..2`: a Python number.
- `None`, `True`, `1e-5`, `"mean"`, `[1, 2]`: a Python value.
- `[n, 2*m]`: a list of whole numbers, for example a shape.

The entry `sizes` maps each size to `LOW..HIGH` or `LOW..HIGH step S`, where the ends may use other sizes. This module
must not import torch.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.record.errors import UsageError
from conformance.record.names import DTYPES, nearest

SIZES = "sizes"
"""The entry of the sizes, which is no argument."""

WORDS = ("unique", "sorted")
"""Words that may follow the range of a tensor."""

TENSOR = re.compile(r"(?P<dtypes>[a-z0-9_]+(?:/[a-z0-9_]+)*)\s*\[(?P<dims>[^\[\]]*)\]\s*(?:in\s+(?P<range>.*))?$")
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


Alternative = Tensor | Number | Value | Lengths


@dataclass(frozen=True)
class Description:
    """The alternatives of each argument by name, and the range of each size, a size after those that its range uses."""

    arguments: Mapping[str, tuple[Alternative, ...]]
    sizes: Mapping[str, Range]


def parse(texts: Mapping[str, Any]) -> Description:
    """Parse a description. Raises UsageError for text that is not understood, for unknown sizes, and for ranges that
    contradict themselves."""
    sizes = {name: _size(name, str(text)) for name, text in dict(texts.get(SIZES, {})).items()}
    arguments = {name: _argument(name, text) for name, text in texts.items() if name != SIZES}
    if not arguments:
        raise UsageError('the inputs describe no argument: write for example {"x": "float32[n]", "sizes": ...}')
    for name, alternatives in arguments.items():
        for alternative in alternatives:
            dims = alternative.dims if isinstance(alternative, (Tensor, Lengths)) else ()
            ends = (
                (alternative.range.low, alternative.range.high)
                if isinstance(alternative, (Tensor, Number)) and alternative.range
                else ()
            )
            for used in [used for text in (*dims, *ends) for used in names_in(text)]:
                if used not in sizes:
                    raise UsageError(
                        f"input {name!r} uses the size {used!r}, which has no range{nearest(used, sizes)}; add it to "
                        f"{SIZES!r}, for example {used}: 0..100"
                    )
    return Description(arguments, _ordered(sizes))


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
    if not name.isidentifier():
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
    if not name.isidentifier():
        raise UsageError(f"an input is named {name!r}, which is not an identifier")
    parts = text.split(" | ") if isinstance(text, str) else [text]
    return tuple(_alternative(name, part) for part in parts)


def _alternative(name: str, text: Any) -> Alternative:
    if not isinstance(text, str):
        return Value(text)
    text = text.strip()
    if match := TENSOR.match(text):
        dtypes = tuple(match["dtypes"].split("/"))
        for dtype in dtypes:
            if dtype not in DTYPES:
                raise UsageError(f"input {name!r} has the dtype {dtype!r}, which torch has not{nearest(dtype, DTYPES)}")
        dims = _dims(match["dims"])
        words = (match["range"] or "").split()
        word = words.pop() if words and words[-1] in WORDS else ""
        span = _range(" ".join(words), f"input {name!r}") if words else None
        if word and (span is None or len(dims) != 1):
            raise UsageError(f"input {name!r} is {word}, which needs a range and one dimension")
        return Tensor(dtypes, dims, span, word)
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
