"""Faults of tinygrad 0.14 that give wrong values, mended in its tables when this module is imported.

The key insight: a wrong rewrite deep in a compiler cannot be worked around by building other graphs, since the same
expression arises in many ways. So the rule itself is replaced; docs/findings.md has a reproducer of each.
Must not know torch. Compiled programs on disk depend on this file's content (see `programs`).
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import struct
from typing import Any

from tinygrad import codegen
from tinygrad.codegen import simplify
from tinygrad.codegen.decomp import dtype as decomposed
from tinygrad.codegen.decomp import transcendental
from tinygrad.codegen.late import coalesce, gater
from tinygrad.dtype import AddrSpace, DType, dtypes, float_to_bf16, truncate
from tinygrad.renderer import cstyle
from tinygrad.renderer.cstyle import ClangRenderer, CStyleLanguage
from tinygrad.renderer.isa.x86 import X86Renderer
from tinygrad.renderer.llvmir import LLVMRenderer
from tinygrad.runtime.support.compiler_cpu import ClangCompiler
from tinygrad.uop import Ops, symbolic, upat, weak
from tinygrad.uop.ops import GroupOp, PatternMatcher, UOp, UPat, graph_rewrite, python_alu


def _python_division(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


# tinygrad folds constants by this table, which lacks the division that its renderers have.
python_alu.setdefault(Ops.FDIV, _python_division)


def _python_differ(a: Any, b: Any) -> bool:
    return float(a) != float(b) if isinstance(a, float) or isinstance(b, float) else bool(a != b)


# Its constants count two nans as equal, so that a search for nan found none among constants.
python_alu[Ops.CMPNE] = _python_differ
python_alu[Ops.CMPEQ] = lambda a, b: not _python_differ(a, b)
# Its C renderers write a - (-b) as a--b. A space is all that is missing.
for _renderer in (CStyleLanguage, ClangRenderer):
    _renderer.code_for_op[Ops.SUB] = lambda a, b, dtype: f"({a}- {b})"


def _wrapped(ctx: Any, x: UOp) -> str:
    return f"({ctx.render_cast(x, ctx.code_for_op[x.op](*(ctx[source] for source in x.src), x.dtype))})"


# C computes narrow integers in int, so a sum of two bytes that is not stored does not wrap: cast it back.
_NARROW = UPat(
    (Ops.ADD, Ops.SUB, Ops.MUL, Ops.SHL, Ops.NEG, Ops.CDIV),
    (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16),
    name="x",
)
# C has no negative constants: -2147483648 is the negative of a long, 9223372036854775808l is unsigned, and what is
# computed with them is of that type, too. A folded constant may lie outside its dtype; an int is then a long as well.
_SIGNED = UPat.cvar("c").cast((dtypes.int32, dtypes.int64), name="x")


def _signed_text(number: int, dtype: DType) -> str:
    suffix = "l" if dtype is dtypes.int64 else ""
    return f"({number + 1}{suffix}-1{suffix})" if number == dtype.min else f"{number}{suffix}"


def _signed(ctx: Any, x: UOp, c: UOp) -> str:
    return _signed_text(truncate[x.dtype](c.val), x.dtype)


for _renderer in vars(cstyle).values():
    if isinstance(_renderer, type) and "string_rewrite" in vars(_renderer):
        _typed = PatternMatcher([(_NARROW, _wrapped), (_SIGNED, _signed)])
        _renderer.string_rewrite = _typed + _renderer.string_rewrite  # type: ignore[attr-defined]


def _keeps(a: UOp, narrow: UOp, wide: UOp) -> bool:
    """Whether the other branch of a where survives being the other value of a narrower load."""
    if narrow.dtype == wide.dtype or a.is_invalid:
        return True
    if a.op is Ops.CONST:
        number = narrow.const_like(a.val).val
        return bool(number == a.val) and type(number) is type(a.val)
    return a.op is Ops.CAST and a.src[0].dtype == narrow.dtype


def _move_where_load(gate: UOp, l: UOp, a: UOp, w: UOp) -> UOp | None:
    return gater.move_where_load(gate, l, a, w) if _keeps(a, l, w) else None


# where(gate, cast(load(gate)), a) became cast(load(gate, else a)): all of `a` went through the narrower dtype, so that
# writing a bool into some elements of a float tensor turned the others into 0 and 1.
codegen.pm_move_gates_from_index = PatternMatcher(
    [(p, _move_where_load if f is gater.move_where_load else f) for p, f in gater.pm_move_gates_from_index.patterns]
)

_given_valid = coalesce.uop_given_valid


def _index_given_valid(valid: UOp, index: UOp) -> UOp:
    """`index`, simplified where `valid` is true, but for the gates of the loads in it.

    A load of an index runs where its result is not used, too: without its own gate it read past the end of a buffer.
    """
    inner = [u for u in index.toposort() if u.op in (Ops.LOAD, Ops.INDEX) and u.shape == ()]
    opaque = {u: UOp.variable(f"load{i}", u.vmin, u.vmax, u.dtype, param=True) for i, u in enumerate(inner)}
    simple = _given_valid(valid.substitute(opaque), index.substitute(opaque))
    return simple.substitute({variable: load for load, variable in opaque.items()})


coalesce.uop_given_valid = _index_given_valid  # type: ignore[assignment]

# C leaves undefined what a float becomes that fits no integer: of constants that clang finds by itself, it made what a
# register happened to hold. Say what the processor gives: the least integer.
_FLOATS, _CONVERTED = {dtypes.float32: ("float", "f"), dtypes.float64: ("double", "")}, (dtypes.int32, dtypes.int64)
_CONVERSIONS = {
    f"{to.name}_of_{name}": (
        f"static inline __attribute__((always_inline)) {to.name} {to.name}_of_{name}({name} x) {{ return "
        f"{to.min:.1f}{suffix} <= x & x < {-to.min:.1f}{suffix} ? ({to.name})x : {_signed_text(to.min, to)}; }}\n"
    )
    for to in _CONVERTED
    for name, suffix in _FLOATS.values()
}


def _converted(ctx: Any, x: UOp) -> str:
    return f"{x.dtype.name}_of_{_FLOATS[x.src[0].dtype][0]}({ctx[x.src[0]]})"


_CONVERSION = UPat(Ops.CAST, _CONVERTED, src=(UPat(dtype=tuple(_FLOATS)),), name="x")
ClangRenderer.string_rewrite = PatternMatcher([(_CONVERSION, _converted)]) + ClangRenderer.string_rewrite


# A contiguous part of a buffer is handed to a kernel as a pointer into it, which need not be aligned as a vector's
# typedef says: clang's aligned load of x[1:] was a segmentation fault. Elements are aligned, so say no more than that.
def _vector_typedef(self: ClangRenderer, dtype: DType, count: int) -> str:
    vector = self._render_dtype(dtype, count, AddrSpace.REG)
    attributes = f"aligned({dtype.itemsize}),ext_vector_type({count})"
    return f"typedef {self.render_dtype(dtype)} {vector} __attribute__(({attributes}));"


ClangRenderer.render_vector_prefix = _vector_typedef  # type: ignore[assignment, method-assign]

# clang passes what is stored as __bf16 through float32 by an instruction that turns denormals into 0 and changes the
# bits of nans. The renderer computes bfloat16 by its bits already; so let them be that in memory and as constants too.
_BITS = "unsigned short"
ClangRenderer.type_map = {**ClangRenderer.type_map, dtypes.bfloat16: _BITS}
_BFLOAT16_CONSTANT = UPat.cvar("c").cast((dtypes.bfloat16,))


def bfloat16_bits(number: float) -> int:
    """The bits of a number as bfloat16."""
    rounded = float_to_bf16(float(number))
    return 0x7FC0 if math.isnan(rounded) else int(struct.unpack("<I", struct.pack("<f", rounded))[0]) >> 16


def _bfloat16_bits(ctx: Any, c: UOp) -> str:
    return f"(({_BITS}){bfloat16_bits(c.val)}u)"


ClangRenderer.string_rewrite = PatternMatcher([(_BFLOAT16_CONSTANT, _bfloat16_bits)]) + ClangRenderer.string_rewrite


def _zero_if_exact(x: UOp) -> UOp | None:
    return None if dtypes.is_float(x.dtype) else x.const_like(0)


# x * 0 became 0 where x is inf or nan, too; tinygrad's rule asks so of constants only, which is how it is known here.
(_TIMES_ZERO,) = (f for _, f in symbolic.symbolic_simple.patterns if "isinf" in f.__code__.co_names)

# Integers wrap, but the bounds of a sum did not: x + 255 of a byte was at least 255, and so never 0. Nor did those of a
# conversion: a byte that had become an int8 was at least 0.
_WRAPPING = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.SHL, Ops.NEG})
_unwrapped = UOp._min_max.func  # type: ignore[attr-defined]


def _fits(dtype: DType, low: Any, high: Any) -> bool:
    return dtype is dtypes.weakint or bool(dtype.min <= low and high <= dtype.max)


def _bounds(self: UOp) -> tuple[Any, Any]:
    low, high = _unwrapped(self)
    if self.op is Ops.CAST and dtypes.is_int(self.dtype) and dtypes.is_int(self.src[0].dtype):
        wraps = not _fits(self.dtype, *self.src[0]._min_max)
    else:
        wraps = self.op in _WRAPPING and dtypes.is_int(self.dtype) and not _fits(self.dtype, low, high)
    return (self.dtype.min, self.dtype.max) if wraps else (low, high)


UOp._min_max = functools.cached_property(_bounds)  # type: ignore[assignment]
UOp._min_max.__set_name__(UOp, "_min_max")  # type: ignore[attr-defined]

# C leaves undefined what a sum beyond 32 or 64 bits is, and clang simplifies comparisons by that, unless told that
# integers wrap. Then it knows less of indices, too, and a matrix product takes 1.7 times as long: tell it only of
# kernels in which a result may not fit.
_WRAPS = "// integers wrap\n"


def may_wrap(u: UOp) -> bool:
    """Whether an operation on integers may have a result that does not fit its dtype, by its operands' bounds."""
    if u.op not in _WRAPPING or not dtypes.is_int(u.dtype) or u.dtype in (dtypes.uint32, dtypes.uint64):
        return False
    bounds = (-u.src[0].vmax, -u.src[0].vmin) if u.op is Ops.NEG else _unwrapped(u)  # which knows none of a negative
    return not _fits(u.dtype, *bounds)


def _marked(self: ClangRenderer, uops: list[UOp]) -> str:
    source = CStyleLanguage.render(self, uops)
    conversions = [text for name, text in _CONVERSIONS.items() if f"{name}(" in source]
    return (_WRAPS if any(map(may_wrap, uops)) else "") + "".join(conversions) + source


ClangRenderer.render = _marked  # type: ignore[method-assign, assignment]
_compile_source = ClangCompiler.compile


def _told(self: ClangCompiler, src: str) -> bytes:
    told = copy.copy(self)
    told.args = [*self.args, *(["-fwrapv"] if src.startswith(_WRAPS) else [])]
    return _compile_source(told, src)


ClangCompiler.compile = _told  # type: ignore[method-assign]

# c0 + x < c1 became x < c1 - c0, which is not the same where c0 + x wraps.
(_LESS,) = (
    f
    for p, f in symbolic.symbolic.patterns
    if p.op == (Ops.CMPLT,) and f.__code__.co_varnames == ("x", "c0", "c1") and p.src[0][0].op == (Ops.ADD,)
)


def _less(x: UOp, c0: UOp, c1: UOp) -> UOp | None:
    return _LESS(x, c0, c1) if _fits(x.dtype, x.vmin + c0.val, x.vmax + c0.val) else None


# (x // c1) // c2 became x // (c1 * c2), and (x // c + a) // d became (x + a * c) // (c * d): the new sums and products
# wrap where the old ones did not. A shift by as many bits as there are is one of these.
(_TWICE,) = (
    f
    for p, f in symbolic.symbolic.patterns
    if p.op == (Ops.FLOORDIV,) and f.__code__.co_varnames == ("x", "c1", "c2") and p.src[0][0].op == (Ops.FLOORDIV,)
)
(_SHARED,) = (f for _, f in symbolic.div_and_mod_symbolic.patterns if f.__code__.co_varnames == ("x", "c", "a", "d"))


def _twice(x: UOp, c1: UOp, c2: UOp) -> UOp | None:
    by = c1.val * c2.val
    return _TWICE(x, c1, c2) if _fits(x.dtype, by, by) else None


def _shared(x: UOp, c: UOp, a: UOp, d: UOp) -> UOp | None:
    quotient, more, by = x // c, a.val * c.val, c.val * d.val
    sums = ((quotient.vmin + a.val, quotient.vmax + a.val), (x.vmin + more, x.vmax + more), (by, by))
    return _SHARED(x, c, a, d) if all(_fits(x.dtype, *bounds) for bounds in sums) else None


# Of longs whose values fit an int, x >> 32 became a shift of an int, by more bits than it has.
(_NARROWED,) = (f for _, f in symbolic.symbolic.patterns if f.__code__.co_varnames == ("u", "x", "y"))


def _narrowed(u: UOp, x: UOp, y: UOp) -> UOp | None:
    return None if u.op in (Ops.SHL, Ops.SHR) and y.vmax >= dtypes.int32.bitsize else _NARROWED(u, x, y)


# A sum of x * c became c times the sum of x, which overflows where x is large and c small, and is nan where c is 0. And
# the largest of x * c became c times the largest of x, which is another number where an integer product wraps.
_PRODUCTS = symbolic.reduce_mul_chain
(_SCALED,) = (
    f for p, f in symbolic.sym.patterns if p.op == (Ops.REDUCE,) and f.__code__.co_varnames == ("x", "c", "r")
)


def _products(r: UOp) -> UOp | None:
    if dtypes.is_float(r.dtype):
        return _PRODUCTS(r) if r.arg[0] is Ops.MAX else None
    return _PRODUCTS(r) if r.arg[0] is Ops.ADD or _fits(r.dtype, *_unwrapped(r.src[0])) else None


def _scaled(x: UOp, c: UOp, r: UOp) -> UOp | None:
    return None if dtypes.is_float(r.dtype) else _SCALED(x, c, r)


# A sum in a loop begins at 0.0, but an unrolled one with its first term: of only -0.0 it was -0.0, and so the sign
# depended on how a kernel was compiled. The difference from -0.0 is x + 0.0, which would be folded to x.
_expanded = codegen.expand_reduce


def _sum_from_zero(r: UOp) -> UOp | None:
    result = _expanded(r)
    looped = any(u.op is Ops.RANGE for u in r.src[1:])
    if result is None or looped or r.arg[0] is not Ops.ADD or not dtypes.is_float(r.dtype):
        return result
    return result.alu(Ops.SUB, result.const_like(-0.0))


codegen.expander2 = PatternMatcher(
    [(p, _sum_from_zero if f is _expanded else f) for p, f in codegen.expander2.patterns]
)

# What is read beyond a padding is invalid, and so is what is computed of it; a store of that is left out. A condition
# is not: "inside and below 0" is false outside, where tinygrad took it for invalid and left out a store that it guards.
_LEFT, _RIGHT = [  # by which operand is invalid
    f for p, f in symbolic.pm_data_invalid.patterns if f.__code__.co_varnames == ("cond", "x", "y", "alu", "i")
]


def _is_condition(alu: UOp) -> bool:
    return alu.op in (Ops.AND, Ops.OR) and alu.dtype is dtypes.bool


def _invalid_left(cond: UOp, x: UOp, y: UOp, alu: UOp, i: UOp) -> UOp:
    return x.alu(alu.op, y) if _is_condition(alu) else _LEFT(cond, x, y, alu, i)


def _invalid_right(cond: UOp, x: UOp, y: UOp, alu: UOp, i: UOp) -> UOp:
    return y.alu(alu.op, x) if _is_condition(alu) else _RIGHT(cond, x, y, alu, i)


# The logarithm tells -0.0 by its reciprocal, which is -inf of a negative subnormal number, too: that had -inf for nan.
_log2 = transcendental.xlog2
transcendental.xlog2 = lambda d: (d < 0).where(math.nan, _log2(d))


# tinygrad's assembler takes -x as 0 - x, so that the negative of 0.0 was 0.0.
def _negative(x: UOp) -> UOp | None:
    return UOp(Ops.SUB, src=(x.const_like(-0.0), *x.src)) if dtypes.is_float(x.dtype) else None


X86Renderer.extra_matcher = PatternMatcher([(UPat(Ops.NEG, name="x"), _negative)]) + X86Renderer.extra_matcher

# -128 / -1 is 128, which C takes in an int; without C the processor refused to put it into a byte, and stopped.
_NARROW_QUOTIENT = UPat((Ops.CDIV, Ops.CMOD), (dtypes.int8, dtypes.uint8, dtypes.int16), name="x")


def _divided(x: UOp) -> UOp:
    a, b = (source.cast(dtypes.int32) for source in x.src)
    return a.alu(x.op, b).cast(x.dtype)


for _without_c in (LLVMRenderer, X86Renderer):
    _without_c.extra_matcher = PatternMatcher([(_NARROW_QUOTIENT, _divided)]) + _without_c.extra_matcher

# A renderer that lacks a 16-bit float converts it by its bits, where subnormal numbers became 0, and what is rounded
# down to the largest number infinity.
_by_bits = decomposed.f2f


def _with_subnormals(v: UOp, fr: DType, to: DType, sat: bool = True) -> UOp:
    """The bits `v` of a number of `fr` as `to`: a number if `to` is wider, else its bits."""
    narrow, wide = sorted((fr, to), key=lambda dtype: dtype.itemsize)
    if narrow not in (dtypes.float16, dtypes.bfloat16) or wide is not dtypes.float32:
        return _by_bits(v, fr, to, sat)
    (exponent, fraction), bits = dtypes.finfo(narrow), dtypes.uint32
    unit = 2.0 ** (1 - decomposed.exponent_bias(narrow) - fraction)  # the least of `narrow`; its bits count it
    magnitude = v.cast(bits) & ((1 << (fr.bitsize - 1)) - 1)
    if fr is narrow:
        sign, small = (v.cast(bits) >> 15) << 31, magnitude < (1 << fraction)
        exact = magnitude << 16 if exponent == 8 else (magnitude.cast(wide) * unit).bitcast(bits)
        return small.where(sign | exact, _by_bits(v, fr, to, sat).bitcast(bits)).bitcast(to)
    sign, size = (v.cast(bits) >> 31) << 15, magnitude.bitcast(wide)
    if exponent == 8:
        rounded = decomposed.rne(magnitude, 16)
    else:  # in this sum the last bit counts units, and so it is rounded
        ruler = size.const_like(unit * 2.0**23)
        rounded = (size + ruler).bitcast(bits) - ruler.bitcast(bits)
    found = (sign | rounded).cast(dtypes.uint16)
    return (size < unit * 2.0**fraction).where(found, _by_bits(v, fr, to, sat))


def _rounded_first(value: UOp, dtype: DType, sat: bool = True) -> UOp:
    """`value` infinite where it is too large for `dtype`: not where it is rounded to the largest number."""
    if dtype not in (dtypes.float16, dtypes.bfloat16):
        return _clamped(value, dtype, sat)
    if dtype is dtypes.bfloat16:
        return value  # it reaches as far as float32, and infinity is next to its largest number
    beyond = ~(value.alu(Ops.MAX, -value) < 2.0**16) & value.eq(value)
    return beyond.where((value < 0).where(-math.inf, value.const_like(math.inf)), value)


decomposed.f2f = _with_subnormals
_clamped = decomposed.f2f_clamp
decomposed.f2f_clamp = _rounded_first  # type: ignore[assignment]

# x + y < c became x < c - y in a sum over what x depends on, and so did !=: of floats, which round, of integers that
# wrap, and behind a conversion that changes the sum. Where no operand depends on it != was turned round for ever.
_LIFTED_LESS, _LIFTED_DIFFER = (
    next(f for p, f in rules.patterns if p.op == (op,) and f.__code__.co_varnames == ("x", "y", "c"))
    for rules, op in ((simplify.pm_reduce_collapse, Ops.CMPLT), (simplify.pm_reduce_load_collapse, Ops.CMPNE))
)


def _lifts(x: UOp, y: UOp, c: UOp) -> bool:
    if not (dtypes.is_int(x.dtype) and dtypes.is_int(c.dtype)) or simplify.no_range(x):
        return False
    total, rest = (x.vmin + y.vmin, x.vmax + y.vmax), (c.vmin - y.vmax, c.vmax - y.vmin)
    return _fits(x.dtype, *total) and _fits(c.dtype, *total) and _fits(x.dtype, *rest)


def _lifted_less(x: UOp, y: UOp, c: UOp) -> UOp | None:
    return _LIFTED_LESS(x, y, c) if _lifts(x, y, c) else None


def _lifted_differ(x: UOp, y: UOp, c: UOp) -> UOp | None:
    return _LIFTED_DIFFER(x, y, c) if _lifts(x, y, c) else None


# Two loops become one, by a list of pairs made beforehand: a loop that was merged already was merged once more, with
# one that the index does not need, which then ran as often as both. A sum over a repeat counted each copy twice.
_MERGED = simplify.simplify_merge_adjacent


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


_INSTEAD = {
    _MERGED: _merged,
    _LIFTED_LESS: _lifted_less,
    _LIFTED_DIFFER: _lifted_differ,
    _TIMES_ZERO: _zero_if_exact,
    _LESS: _less,
    _TWICE: _twice,
    _SHARED: _shared,
    _NARROWED: _narrowed,
    _PRODUCTS: _products,
    _SCALED: _scaled,
    _LEFT: _invalid_left,
    _RIGHT: _invalid_right,
}
_compile = upat.upat_compile


# Many matchers hold the same rules, and each compiles them when first used.
def _compiled(pattern: UPat, function: Any) -> Any:
    """What tinygrad makes of a rule; a constant that it leaves of a node keeps the node's dtype.

    x + 0 became x also where x is a number without a width: -1 of a uint8 stayed -1 when widened, and 2**63 of a uint64
    was taken for an int.
    """
    match = _compile(pattern, _INSTEAD.get(function, function))
    if match is None or function.__globals__ is not vars(symbolic) or not set(pattern.op or ()) <= GroupOp.Binary:
        return match

    def committed(node: UOp, ctx: Any) -> UOp | None:
        found = match(node, ctx)
        if found is None or found.op is not Ops.CONST or found.dtype not in dtypes.weaks or node.dtype in dtypes.weaks:
            return found
        return weak.commit_weak(found, node.dtype)

    return committed


upat.upat_compile = _compiled  # type: ignore[assignment]
