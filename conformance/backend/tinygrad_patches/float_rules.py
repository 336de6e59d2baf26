"""Rules of tinygrad's rewriters that are valid for integers and real numbers, but not for floats.

Defines `structure`, the name of such a rule, and excludes values of float dtypes from the rules listed here.

A float sum or product is rounded, may overflow to infinity, and infinity and nan do not cancel. Terms cannot be
reordered, combined or factored out in any graph. A single operator may be unaffected, but fused with another one the
same rule matches. IEEE 754 alone determines the exact rules: x + x is x * 2, x * 1 is x, and a where moves through
anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat

from .patch import Patch, RulePatch

_TEST = "test_float_rules.py::"
_COMBINED = (
    "Terms of a float sum were combined, which loses inf - inf, sums that overflow, and the rounding of each.",
    _TEST + "test_sums_are_not_combined",
)
_REGROUPED = (
    "Constants of a float sum or product were folded or moved outwards, so that others overflowed or none did.",
    _TEST + "test_constants_stay_where_they_are",
)
_NEGATED = ("-(x + y) became -x + -y, which is 0.0 and not -0.0 where they cancel.", _TEST + "test_signs_of_zeros")
_ZERO = ("x + 0 became x, also where x is -0.0.", _TEST + "test_signs_of_zeros")
_QUOTIENT = (
    "A product with a reciprocal was cancelled or split, which is wrong at 0, inf and nan and where one overflows.",
    _TEST + "test_reciprocals_are_not_cancelled",
)
_GREATEST = (
    "Operands of a float maximum were exchanged or left out: which of them is taken decides where one is nan.",
    _TEST + "test_maxima_keep_their_operands",
)
_MASKED = (
    "A sum over a range of masked or split terms was computed in closed form: inf times a count or a mask of 0 is nan "
    "where the term was left out, and the reverse.",
    _TEST + "test_sums_over_masks",
)

_SITES: dict[str, dict[str, tuple[str, str]]] = {
    "tinygrad.uop.symbolic:symbolic_simple": {
        "ADD|XOR|OR(x, CONST 0)": _ZERO,
        "MUL(x, RECIPROCAL(x))": _QUOTIENT,
        "MUL(MUL(x, x2), RECIPROCAL(x2))": _QUOTIENT,
    },
    "tinygrad.uop.symbolic:symbolic": {
        "ADD(MUL(x, CONST c0), MUL(x, CONST c1))": _COMBINED,
        "ADD(ADD(y, MUL(x, CONST c0)), MUL(x, CONST c1))": _COMBINED,
        "ADD(x, MUL(x, CONST c))": _COMBINED,
        "ADD(ADD(y, x), MUL(x, CONST c))": _COMBINED,
        "ADD(ADD(y, MUL(x, CONST c)), x)": _COMBINED,
        "ADD(ADD(y, x), x)": _COMBINED,
        "ADD(ADD(y, WHERE(c, t, f)), WHERE(c, tt, ff))": _COMBINED,
        "ADD(WHERE(c, t, CONST 0), WHERE(c, CONST 0, f))": _ZERO,
        "MUL(MUL(x, RECIPROCAL(x2)), RECIPROCAL(x3))": _QUOTIENT,
        "MUL(CONST -1, ADD(x, CONST c))": _NEGATED,
        "WHERE(CMPLT(CONST a, b), b, CONST c)": _GREATEST,
        "WHERE(CMPLT(a, CONST b), CONST c, a)": _GREATEST,
        "MAX(x, y)": _GREATEST,
        "ADD(ADD(x, CONST c1), CONST c2)": _REGROUPED,
        "MUL(MUL(x, CONST c1), CONST c2)": _REGROUPED,
        "MAX(MAX(x, CONST c1), CONST c2)": _GREATEST,
        "ADD(ADD(x, CONST c1), y)": _REGROUPED,
        "MUL(MUL(x, CONST c1), y)": _REGROUPED,
    },
    "tinygrad.uop.symbolic:sym": {
        "RECIPROCAL(MUL(x, x))": _QUOTIENT,
        "RECIPROCAL(MUL(MUL(x, x), x))": _QUOTIENT,
        "RECIPROCAL(MUL(x, CONST c))": _QUOTIENT,
        "MUL(x, RECIPROCAL(ADD(CONST 1, x)))": _QUOTIENT,
        "MUL(x, MUL(RECIPROCAL(ADD(CONST 1, x)), y))": _QUOTIENT,
        "MUL(x, ADD(RECIPROCAL(ADD(CONST 1, x)), y))": _QUOTIENT,
        "MUL(CONST -1, ADD(x, y))": _NEGATED,
    },
    "tinygrad.codegen.simplify:pm_reduce_collapse": {"REDUCE(ADD(x, y))": _MASKED, "MUL(x, CAST(gate))": _MASKED},
}


def structure(pattern: UPat) -> str:
    """The operations of a pattern, with its names of values and its constants."""
    operations = "ANY" if pattern.op is None else "|".join(op.name for op in pattern.op)
    if pattern.src is None:
        if pattern.op == (Ops.CONST,):
            return f"CONST {pattern.name if pattern.arg is None else pattern.arg}"
        return pattern.name or operations
    operands = pattern.src[0]
    return f"{operations}({', '.join(map(structure, operands)) if isinstance(operands, tuple) else '*'})"


def _of_integers(original: Any) -> Any:
    """A rule's function that ignores values of a float dtype.

    The original is bound as a default argument, because a matcher recreates the function without its closure.
    """

    def integers_only(original: Any = original, /, **values: UOp) -> UOp | None:
        return None if any(dtypes.is_float(u.dtype) for u in values.values()) else original(**values)

    return integers_only


def _is(rule: str) -> Callable[[UPat, Any], bool]:
    """Matches the one rule of this structure that accepts floats."""
    return lambda pattern, function: structure(pattern) == rule and pattern.match_dtype is None


for _site, _rules in _SITES.items():
    for _rule, _why in _rules.items():
        _patch = RulePatch(_site, _rule, *_why, _is(_rule))
        _patch.apply(_of_integers(_patch.original))

_COUNTED = RulePatch(
    "tinygrad.codegen.simplify:pm_reduce_collapse",
    "sum of a value over a part of a range",
    *_MASKED,
    lambda pattern, function: "upper" in function.__code__.co_varnames,
)
_GATED = RulePatch(
    "tinygrad.codegen.simplify:pm_reduce_collapse",
    "sum under a condition",
    *_MASKED,
    _is("REDUCE(WHERE(AND(x, y), c, CONST 0))"),
)


def _counted(r: UOp, val: UOp, lower: UOp | None = None, upper: UOp | None = None) -> UOp | None:
    return _COUNTED.original(r, val, lower, upper) if not dtypes.is_float(val.dtype) or val.op is Ops.CONST else None


def _gated(x: UOp, y: UOp, c: UOp, r: UOp) -> UOp:
    total = y.where(c, 0).reduce(*r.src[1:], arg=Ops.ADD)
    return x.where(total, total.const_like(0))


_COUNTED.apply(_counted)
_GATED.apply(_gated)

_LATE = Patch("tinygrad.codegen:get_late_rewrite_patterns", *_QUOTIENT)


@functools.cache  # like tinygrad's: a new matcher would be compiled for each kernel, and never freed
def _late_rules(ops: tuple[Ops, ...], disable_fast_idiv: bool) -> PatternMatcher:
    rules = _LATE.original(ops, disable_fast_idiv)
    return PatternMatcher([(p, f) for p, f in rules.patterns if structure(p) != "MUL(a, FDIV(CONST 1, b))"])


_LATE.apply(_late_rules)
