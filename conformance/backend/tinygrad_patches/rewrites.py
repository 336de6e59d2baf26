"""Rules of tinygrad's rewriters that change values.

A wrong rewrite inside a compiler cannot be avoided by other graphs, since the same expression arises in many ways. So
the rule itself is replaced, when the matchers compile their rules.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tinygrad import codegen
from tinygrad.codegen import simplify
from tinygrad.codegen.late import gater
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops, symbolic, weak
from tinygrad.uop.ops import GroupOp, PatternMatcher, UOp, UPat, graph_rewrite

from .integer_bounds import fits, unwrapped_bounds
from .patch import REPLACED_RULES, Patch, RulePatch, arguments


def _keeps(a: UOp, narrow: UOp, wide: UOp) -> bool:
    """Whether the other branch of a where keeps its value as the alternative of a narrower load."""
    if narrow.dtype == wide.dtype or a.is_invalid:
        return True
    if a.op is Ops.CONST:
        number = narrow.const_like(a.val).val
        return bool(number == a.val) and type(number) is type(a.val)
    return a.op is Ops.CAST and a.src[0].dtype == narrow.dtype


def _move_where_load(gate: UOp, l: UOp, a: UOp, w: UOp) -> UOp | None:
    return gater.move_where_load(gate, l, a, w) if _keeps(a, l, w) else None


Patch(
    "tinygrad.codegen:pm_move_gates_from_index",
    "where(gate, cast(load(gate)), a) became cast(load(gate, else a)): all of `a` went through the narrower dtype, so "
    "that writing a bool into some elements of a float tensor turned the others into 0 and 1.",
    "test_rewrites.py::test_a_narrow_value_leaves_its_neighbours",
).apply(
    PatternMatcher(
        [(p, _move_where_load if f is gater.move_where_load else f) for p, f in gater.pm_move_gates_from_index.patterns]
    )
)

_GIVEN_VALID = Patch(
    "tinygrad.codegen.late.coalesce:uop_given_valid",
    "A load of an index runs where its result is not used, too: simplified by its reader's gate it read past the end.",
    "test_wrong_values.py::test_an_index_is_loaded_only_where_it_is_used",
)


def _index_given_valid(valid: UOp, index: UOp) -> UOp:
    """`index`, simplified under the condition `valid`, except for the gates of the loads in it."""
    inner = [u for u in index.toposort() if u.op in (Ops.LOAD, Ops.INDEX) and u.shape == ()]
    opaque = {u: UOp.variable(f"load{i}", u.vmin, u.vmax, u.dtype, param=True) for i, u in enumerate(inner)}
    simple = _GIVEN_VALID.original(valid.substitute(opaque), index.substitute(opaque))
    return simple.substitute({variable: load for load, variable in opaque.items()})


_GIVEN_VALID.apply(_index_given_valid)

RulePatch(
    "tinygrad.uop.symbolic:symbolic_simple",
    "x * 0",
    "x * 0 became 0 also where x is inf or nan.",
    "tests/backend/ops/test_pointwise.py::test_arithmetic_is_not_simplified",
    lambda pattern, function: "isinf" in function.__code__.co_names,  # it tests constants only
).apply(lambda x: None if dtypes.is_float(x.dtype) else x.const_like(0))

_LESS = RulePatch(
    "tinygrad.uop.symbolic:symbolic",
    "c0 + x < c1",
    "c0 + x < c1 became x < c1 - c0, which is not the same where c0 + x wraps.",
    "test_wrong_values.py::TestLeastConstant.test_is_of_its_dtype",
    arguments("x", "c0", "c1", op=Ops.CMPLT, inner=Ops.ADD),
)
_LESS.apply(lambda x, c0, c1: _LESS.original(x, c0, c1) if fits(x.dtype, x.vmin + c0.val, x.vmax + c0.val) else None)

_DIVIDED_TWICE = RulePatch(
    "tinygrad.uop.symbolic:symbolic",
    "(x // c1) // c2",
    "(x // c1) // c2 became x // (c1 * c2), also where the new product wraps.",
    "test_wrong_values.py::TestDivisions.test_by_two_numbers_in_turn",
    arguments("x", "c1", "c2", op=Ops.FLOORDIV, inner=Ops.FLOORDIV),
)
_DIVIDED_SUM = RulePatch(
    "tinygrad.uop.symbolic:div_and_mod_symbolic",
    "(x // c + a) // d",
    "(x // c + a) // d became (x + a * c) // (c * d), also where the new sum or products wrap.",
    "test_wrong_values.py::TestDivisions.test_by_two_numbers_in_turn",
    arguments("x", "c", "a", "d"),
)


def _divided_twice(x: UOp, c1: UOp, c2: UOp) -> UOp | None:
    by = c1.val * c2.val
    return _DIVIDED_TWICE.original(x, c1, c2) if fits(x.dtype, by, by) else None


def _divided_sum(x: UOp, c: UOp, a: UOp, d: UOp) -> UOp | None:
    quotient, more, by = x // c, a.val * c.val, c.val * d.val
    sums = ((quotient.vmin + a.val, quotient.vmax + a.val), (x.vmin + more, x.vmax + more), (by, by))
    return _DIVIDED_SUM.original(x, c, a, d) if all(fits(x.dtype, *bounds) for bounds in sums) else None


_DIVIDED_TWICE.apply(_divided_twice)
_DIVIDED_SUM.apply(_divided_sum)

_NARROWED = RulePatch(
    "tinygrad.uop.symbolic:symbolic",
    "longs whose values fit an int",
    "x >> 32 of such longs became a shift of an int, by more bits than it has.",
    "test_wrong_values.py::TestDivisions.test_shifts_of_longs",
    arguments("u", "x", "y"),
)


def _narrowed(u: UOp, x: UOp, y: UOp) -> UOp | None:
    return None if u.op in (Ops.SHL, Ops.SHR) and y.vmax >= dtypes.int32.bitsize else _NARROWED.original(u, x, y)


_NARROWED.apply(_narrowed)

_PRODUCTS = RulePatch(
    "tinygrad.uop.symbolic:reduce_mul_chain",
    "reduction of x * c",
    "A sum of x * c became c times the sum of x, which overflows where x is large and c small; and the largest of "
    "x * c became c times the largest of x, which is another number where an integer product wraps.",
    "test_wrong_values.py::TestReductions.test_the_largest_of_products_that_wrap",
)
_SCALED = RulePatch(
    "tinygrad.uop.symbolic:sym",
    "sum of x * c",
    "A sum of x * c became c times the sum of x, which overflows where x is large and is nan where c is 0.",
    "test_wrong_values.py::TestReductions.test_sums_of_scaled_numbers",
    arguments("x", "c", "r", op=Ops.REDUCE),
)


def _products(r: UOp) -> UOp | None:
    if dtypes.is_float(r.dtype):
        return _PRODUCTS.original(r) if r.arg[0] is Ops.MAX else None
    return _PRODUCTS.original(r) if r.arg[0] is Ops.ADD or fits(r.dtype, *unwrapped_bounds(r.src[0])) else None


_PRODUCTS.apply(_products)
_SCALED.apply(lambda x, c, r: None if dtypes.is_float(r.dtype) else _SCALED.original(x, c, r))

_expanded = codegen.expand_reduce
_EXPANDER = Patch(
    "tinygrad.codegen:expander2",
    "An unrolled sum begins with its first term, not at 0.0: of only -0.0 it was -0.0, and the sign depended on how a "
    "kernel was compiled.",
    "test_wrong_values.py::TestSumsOfNegativeZeros.test_are_zero",
)


def _sum_from_zero(r: UOp) -> UOp | None:
    result = _expanded(r)
    looped = any(u.op is Ops.RANGE for u in r.src[1:])
    if result is None or looped or r.arg[0] is not Ops.ADD or not dtypes.is_float(r.dtype):
        return result
    return result.alu(Ops.SUB, result.const_like(-0.0))  # x + 0.0, which would be folded to x


_EXPANDER.apply(PatternMatcher([(p, _sum_from_zero if f is _expanded else f) for p, f in _EXPANDER.original.patterns]))

# Elements read beyond a padding are invalid, and so are values computed from them; a store of such a value is omitted.
# A condition is not invalid: "inside and below 0" is false outside.
_INVALID = [f for p, f in symbolic.pm_data_invalid.patterns if f.__code__.co_varnames == ("cond", "x", "y", "alu", "i")]


def _invalid_operand(side: str, functions: list[Any]) -> RulePatch:
    return RulePatch(
        "tinygrad.uop.symbolic:pm_data_invalid",
        f"invalid {side} operand",
        "A condition on padded elements was taken for invalid outside, and a store that it guards was left out.",
        "test_wrong_values.py::test_what_lies_beyond_a_padding_is_stored",
        lambda pattern, function: function in functions,
    )


_INVALID_LEFT, _INVALID_RIGHT = _invalid_operand("left", _INVALID[:1]), _invalid_operand("right", _INVALID[1:])


def _is_condition(alu: UOp) -> bool:
    return alu.op in (Ops.AND, Ops.OR) and alu.dtype is dtypes.bool


def _invalid_left(cond: UOp, x: UOp, y: UOp, alu: UOp, i: UOp) -> UOp:
    return x.alu(alu.op, y) if _is_condition(alu) else _INVALID_LEFT.original(cond, x, y, alu, i)


def _invalid_right(cond: UOp, x: UOp, y: UOp, alu: UOp, i: UOp) -> UOp:
    return y.alu(alu.op, x) if _is_condition(alu) else _INVALID_RIGHT.original(cond, x, y, alu, i)


_INVALID_LEFT.apply(_invalid_left)
_INVALID_RIGHT.apply(_invalid_right)

_LOG2 = Patch(
    "tinygrad.codegen.decomp.transcendental:xlog2",
    "The logarithm tells -0.0 by its reciprocal, which is -inf of a negative subnormal number too: that was -inf.",
    "test_wrong_values.py::test_logarithms_of_negative_subnormal_numbers",
)
_log2 = _LOG2.original
_LOG2.apply(lambda d: (d < 0).where(math.nan, _log2(d)))

_LIFTED = (
    "x + y < c became x < c - y in a sum over what x depends on, and so did !=: of floats, which round, of integers "
    "that wrap, and behind a conversion that changes the sum. Where no operand depends on it != was turned round for "
    "ever."
)
_LIFTED_TEST = "test_wrong_values.py::test_a_sum_over_what_is_compared_with_a_sum"
_is_comparison = arguments("x", "y", "c", op=Ops.CMPLT)
_LIFTED_LESS = RulePatch(
    "tinygrad.codegen.simplify:pm_reduce_collapse", "x + y < c", _LIFTED, _LIFTED_TEST,
    lambda pattern, function: _is_comparison(pattern, function) and pattern.src[0][0].op != (Ops.MUL,),
)  # fmt: skip
_LIFTED_DIFFER = RulePatch(
    "tinygrad.codegen.simplify:pm_reduce_load_collapse", "x + y != c", _LIFTED, _LIFTED_TEST,
    arguments("x", "y", "c", op=Ops.CMPNE),
)  # fmt: skip


def _lifts(x: UOp, y: UOp, c: UOp) -> bool:
    if not (dtypes.is_int(x.dtype) and dtypes.is_int(c.dtype)) or simplify.no_range(x):
        return False
    total, rest = (x.vmin + y.vmin, x.vmax + y.vmax), (c.vmin - y.vmax, c.vmax - y.vmin)
    return fits(x.dtype, *total) and fits(c.dtype, *total) and fits(x.dtype, *rest)


_LIFTED_LESS.apply(lambda x, y, c: _LIFTED_LESS.original(x, y, c) if _lifts(x, y, c) else None)
_LIFTED_DIFFER.apply(lambda x, y, c: _LIFTED_DIFFER.original(x, y, c) if _lifts(x, y, c) else None)


def _merged(u: UOp) -> UOp | None:
    loops = u.ended_ranges
    if any(loop.op is not Ops.RANGE for loop in loops):
        return None
    sums = [inner.ranges for inner in u.backward_slice_with_self if inner.op is Ops.REDUCE]
    for outer, inner in itertools.pairwise(loops) if u.op is Ops.END else itertools.permutations(loops, 2):
        left = {*u.ended_ranges}
        alike = outer.arg[-1] == inner.arg[-1] and all((outer in within) == (inner in within) for within in sums)
        if not (alike and outer in left and inner in left):
            continue
        (times, each), name = (outer.src[0], inner.src[0]), f"merge {outer.arg[0]} {inner.arg[0]}"
        both = outer.replace(src=(times * each,))
        rules = simplify._substitute + symbolic.symbolic + simplify.pm_flatten_range
        merged = graph_rewrite(u, rules, ctx={outer: both // each, inner: both % each}, name=name)
        if simplify.count_divmod(merged) <= simplify.count_divmod(u):
            u = merged
    return u


RulePatch(
    "tinygrad.codegen.simplify:simplify_merge_adjacent",
    "two loops become one",
    "A loop that was merged already was merged once more with one that the index does not need, which then ran as "
    "often as both: a sum over a repeat counted each copy twice.",
    "test_wrong_values.py::test_sums_over_what_is_repeated",
).apply(_merged)

_COMPILE_RULE = Patch(
    "tinygrad.uop.upat:upat_compile",
    "x + 0 became x also where x is a number without a width: -1 of a uint8 stayed -1 when widened, and 2**63 of a "
    "uint64 was taken for an int. Here the rules above are put in place, too.",
    "test_rewrites.py::test_a_folded_constant_keeps_its_dtype",
)


# Many matchers hold the same rules, and each compiles them when first used.
def _compile_rule(pattern: UPat, function: Any) -> Any:
    """A compiled rule, or its replacement; if the rule folds a node to a constant, that keeps the node's dtype."""
    match = _COMPILE_RULE.original(pattern, REPLACED_RULES.get(function, function))
    if match is None or function.__globals__ is not vars(symbolic) or not set(pattern.op or ()) <= GroupOp.Binary:
        return match

    def committed(node: UOp, ctx: Any) -> UOp | None:
        result = match(node, ctx)
        if (
            result is None
            or result.op is not Ops.CONST
            or result.dtype not in dtypes.weaks
            or node.dtype in dtypes.weaks
        ):
            return result
        return weak.commit_weak(result, node.dtype)

    return committed


_COMPILE_RULE.apply(_compile_rule)
