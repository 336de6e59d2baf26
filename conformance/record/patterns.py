"""Patterns: the common form of differences that one bug shows in many operators.

Defines `pattern_of` and `base_operator`. If a device's views are copies, forty operators are wrong; if a compiler does
not round float16, four are. Each is one bug. A pattern names such a bug without naming an operator. A wrong value has
no form that several operators share, so its pattern is the operator itself, in all of its spellings (`relu`, `relu_`,
`nn.functional.relu`). Reports list findings and op_db cases by pattern; declarations may name one. This module must not
import torch.
"""

from __future__ import annotations

import cmath
import re
from collections.abc import Callable, Mapping

from conformance.record.finding import gist, layer_and_part
from conformance.record.sentences import ELEMENTS, MismatchLike

COPIES = "results are copies instead of views"
SHARED = "results share memory instead of having their own"
OTHER_MEMORY = "results share memory with the wrong tensor"
UNSEEN_WRITES = "writes through a view and its base do not see each other"
DENSE = "results are laid out densely where torch keeps strides, gaps or an offset"
NAN_LOST = "nan becomes a number"
NAN_MADE = "a number becomes nan"
OVERFLOW = "a number becomes infinite"
ZERO_SIGN = "the sign of zero is lost"
BITS_READ = "a number becomes subnormal, as if its bits were those of another dtype"
LESS_PRECISE = "values are less precise"
PERMUTED = "strides are permuted"
NOT_RESIZED = "out= has another shape"
VALUE = "value of {}"
"""The pattern of a wrong value that no several operators share, and of an operator that others call."""
NOT_SHRUNK = "not shrunk: {}"
"""The pattern of findings whose programs are not shrunk yet, so that their causes are unknown."""

NEARLY = 0.05
"""Relative distance up to which a wrong value is "less precise": a few units in the last place of bfloat16."""
SUBNORMAL = 1e-37
"""Positive numbers below this are subnormal in float32, or nearly so."""

NOT_ONE_BUG = frozenset({NAN_LOST, NAN_MADE, OVERFLOW, ZERO_SIGN, BITS_READ, LESS_PRECISE})
"""Patterns that several bugs may share. Reports list their findings together; each operator needs its own
declaration."""

COMPILER_LAYERS = ("Dynamo", "AOTAutograd", "decompositions", "Inductor")
"""Names of the layers of torch.compile, from outside in."""
BACKEND = "backend "
"""First word of the layer of a backend that is not PyTorch's, such as `backend openvino`."""
SETTING = "without "
"""First word of the part of a compiler that is a setting, such as `without vectorization`."""

_OUT = re.compile(r"^op_db\.out:|\.out$")
_PREFIX = re.compile(r"^(?:\w+[.])*\w+(?:\(\))?: ")
_MODULES = re.compile(
    r"^(?:torch\.|(?:ops\.)?aten\.|\w+\.(?=\w+\.default$)"
    r"|nn\.functional\.|nn\.(?=[A-Z])|optim\.|linalg\.|special\.|fft\.|masked\.|signal\.windows\.)"
)
_REFLECTED = re.compile(r"^__[ri]?(\w+?)__$")


def base_operator(name: str) -> str:
    """The operator behind its spellings: `relu` for `relu_`, `relu.edge`, `op_db.inplace:relu_`, `nn.functional.relu`,
    `aten.relu.default`; `add` for `__radd__`."""
    path = _MODULES.sub("", name.rpartition(":")[2])
    word = path.partition(".")[0]
    if reflected := _REFLECTED.match(word):
        word = reflected[1]
    return word.rstrip("_") or word


def pattern_of(difference: MismatchLike, wrong: str, op: str, is_view: bool = False) -> str:
    """The pattern of a difference.

    `wrong` is the property (`finding.PROPERTIES`). `op` is the operator to blame, as a step or an op_db entry names it.
    `is_view` tells whether that operator makes views."""
    base = base_operator(op)
    if wrong in ("crash", "timeout", "memory", "device", "harness"):
        return f"{wrong} in {base}"
    if wrong == "aliasing" and difference.oracle in ("value", "storage") and is_view:
        return UNSEEN_WRITES
    if _OUT.search(op) and (difference.oracle == "shape" or wrong == "error"):
        return NOT_RESIZED if difference.oracle == "shape" else f"out= raises {difference.actual}"
    return _OF_ORACLE.get(difference.oracle, _by_operator)(difference, wrong, base)


def by_culprit(pattern: str, wrong: str, op: str, culprit: str) -> str:
    """The pattern of a finding with a culprit: an operator of a device, or a compiler's layer and part.

    An operator or a pass is one bug. A pattern that names an operator, or that several bugs may share, follows the
    other parts of a compiler too. A setting concerns many operators, so the operator stays."""
    base = base_operator(op)
    _, part = layer_and_part(culprit)
    if not part:
        blamed = blamed_operator(op, culprit)
        if blamed == base or pattern == LESS_PRECISE or wrong == "metadata":
            return pattern
        return f"{wrong} of {blamed}" if wrong == "error" else VALUE.format(blamed)
    of_operator = pattern.endswith(f" of {base}")
    if part.startswith("pass ") or (of_operator and not part.startswith(SETTING)):
        return f"{wrong} by {culprit}"
    return f"{pattern} by {culprit}" if of_operator or pattern in NOT_ONE_BUG else pattern


def blamed_operator(op: str, culprit: str) -> str:
    """The operator to blame, by its base name: the culprit on a device, else the operator that was wrong first."""
    layer, part = layer_and_part(culprit)
    is_layer = part or layer in COMPILER_LAYERS or layer.startswith(BACKEND)
    return base_operator(op if is_layer else layer or op)


def _by_operator(difference: MismatchLike, wrong: str, base: str) -> str:
    return f"{wrong} of {base}"


def _alias(difference: MismatchLike, wrong: str, base: str) -> str:
    if difference.expected == difference.where:
        return SHARED
    return COPIES if difference.actual == difference.where else OTHER_MEMORY


def _value(difference: MismatchLike, wrong: str, base: str) -> str:
    return _kind_of(difference) or _by_operator(difference, wrong, base)


def _kind_of(difference: MismatchLike) -> str:
    """The shared pattern of the first elements that differ; empty if the pattern is the operator."""
    match = ELEMENTS.match(difference.detail)
    expected, actual = (match[4], match[5]) if match and match[4] else (difference.expected, difference.actual)
    return ZERO_SIGN if {expected, actual} == {"0.0", "-0.0"} else _kind(_number(expected), _number(actual))


def _number(text: str) -> complex | None:
    try:
        return complex(text.strip("()"))
    except ValueError:
        return None


def _kind(expected: complex | None, actual: complex | None) -> str:
    """The shared pattern of two numbers that differ; empty if there is none."""
    if expected is None or actual is None:
        return ""
    if cmath.isnan(expected) != cmath.isnan(actual):
        return NAN_LOST if cmath.isnan(expected) else NAN_MADE
    if cmath.isinf(expected) or cmath.isinf(actual):
        return OVERFLOW if not cmath.isinf(expected) else ""
    if 0 < abs(actual) < SUBNORMAL < abs(expected):
        return BITS_READ
    distance = abs(expected - actual)
    return LESS_PRECISE if expected and 0 < distance <= NEARLY * abs(expected) else ""


def _dtype(difference: MismatchLike, wrong: str, base: str) -> str:
    expected, actual = (side.removeprefix("torch.") for side in (difference.expected, difference.actual))
    return f"results are {actual} instead of {expected}"


def _stride(difference: MismatchLike, wrong: str, base: str) -> str:
    expected, actual = (_strides(side) for side in (difference.expected, difference.actual))
    falls = sorted(actual, reverse=True) == actual and 0 not in actual
    if sorted(expected) == sorted(actual) and not falls:
        return PERMUTED
    shorter = len(expected) == len(actual) and all(0 < here <= there for here, there in zip(actual, expected))
    dense = (falls and sorted(expected, reverse=True) != expected) or shorter or (0 in expected and 0 not in actual)
    return DENSE if dense else f"strides of {base}"


def _strides(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _contiguity(difference: MismatchLike, wrong: str, base: str) -> str:
    gained = {*difference.actual.split()} - {*difference.expected.split()}
    return DENSE if "contiguous" in gained else f"contiguity flags of {base}"


def _shape(difference: MismatchLike, wrong: str, base: str) -> str:
    return f"shape of {base}"


def _offset(difference: MismatchLike, wrong: str, base: str) -> str:
    return DENSE if difference.actual == "0" else f"storage offset of {base}"


def _grad(difference: MismatchLike, wrong: str, base: str) -> str:
    if difference.detail == "requires_grad":
        return f"requires_grad is {difference.actual} instead of {difference.expected}"
    return _kind_of(difference) or f"gradient of {base}"


def _error(difference: MismatchLike, wrong: str, base: str) -> str:
    if wrong == "not implemented":
        return "operators are not implemented"
    if wrong == "error":
        text = gist(_PREFIX.sub("", difference.detail))  # many texts begin with the operator's name
        return f"raises {difference.actual}: {text}" if text else f"raises {difference.actual}"
    if wrong == "missing error":
        return f"accepts what torch refuses with {difference.expected}"
    return f"raises {difference.actual} instead of {difference.expected}"


_OF_ORACLE: Mapping[str, Callable[[MismatchLike, str, str], str]] = {
    "alias": _alias,
    "value": _value,
    "dtype": _dtype,
    "shape": _shape,
    "stride": _stride,
    "contiguity": _contiguity,
    "storage_offset": _offset,
    "version": lambda mismatch, wrong, base: "in-place writes are counted differently",
    "grad": _grad,
    "error": _error,
}
"""The function that gives a difference's pattern, by oracle. For other oracles it is the property and the operator."""
