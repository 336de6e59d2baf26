"""Faults of tinygrad's C renderers: C source whose value differs from its expression.

C computes narrow integers in int, has no negative constants, and leaves conversions of values that do not fit
undefined. A renderer must express exactly the graph: every dtype and wrap-around, and no additional guarantee, such as
an alignment.
"""

from __future__ import annotations

import copy
from typing import Any

from tinygrad.dtype import AddrSpace, DType, dtypes, truncate
from tinygrad.renderer import cstyle
from tinygrad.renderer.cstyle import ClangRenderer, CStyleLanguage
from tinygrad.runtime.support.compiler_cpu import ClangCompiler
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat

from .integer_bounds import may_wrap
from .number_formats import bfloat16_bits
from .patch import Patch

TABLES = {
    name: value
    for name, value in vars(cstyle).items()
    if isinstance(value, type) and issubclass(value, CStyleLanguage) and "code_for_op" in vars(value)
}
"""The renderers with an operator table of their own, by name."""

for _renderer in TABLES:
    Patch(
        f"tinygrad.renderer.cstyle:{_renderer}.code_for_op[SUB]",
        "a - (-b) was written a--b.",
        "test_c_source.py::test_a_negative_constant_is_subtracted",
    ).apply(lambda a, b, dtype: f"({a}- {b})")

for _renderer in TABLES:
    Patch(
        f"tinygrad.renderer.cstyle:{_renderer}.code_for_op[NEG]",
        "-(-x) was written --x, which is no value.",
        "test_c_source.py::test_a_negative_is_negated",
    ).apply(lambda x, dtype: f"(-{x})")


def _cast_back(ctx: Any, x: UOp) -> str:
    return f"({ctx.render_cast(x, ctx.code_for_op[x.op](*(ctx[source] for source in x.src), x.dtype))})"


# C computes narrow integers in int, so an unstored sum of two bytes does not wrap: cast it back.
_NARROW = UPat(
    (Ops.ADD, Ops.SUB, Ops.MUL, Ops.SHL, Ops.NEG, Ops.CDIV),
    (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16),
    name="x",
)
# C has no negative constants: -2147483648 is the negative of a long, and 9223372036854775808l is unsigned. Results
# computed with them have these types, too. A folded constant may be outside its dtype; an int then becomes a long.
_SIGNED = UPat.cvar("c").cast((dtypes.int32, dtypes.int64), name="x")


def _signed_text(number: int, dtype: DType) -> str:
    suffix = "l" if dtype is dtypes.int64 else ""
    return f"({number + 1}{suffix}-1{suffix})" if number == dtype.min else f"{number}{suffix}"


def _signed(ctx: Any, x: UOp, c: UOp) -> str:
    return _signed_text(truncate[x.dtype](c.val), x.dtype)


for _name, _class in vars(cstyle).items():
    if isinstance(_class, type) and "string_rewrite" in vars(_class):
        _patch = Patch(
            f"tinygrad.renderer.cstyle:{_name}.string_rewrite",
            "Sums of narrow integers do not wrap, and the least integer is a constant of another type.",
            "test_wrong_values.py::TestLeastConstant.test_is_of_its_dtype",
        )
        _patch.apply(PatternMatcher([(_NARROW, _cast_back), (_SIGNED, _signed)]) + _patch.original)

# Sums and products omit the parentheses of operands of the same kind. On the left they are redundant. On the right they
# decide the rounding and the overflow.
_FLOAT_SUM = UPat((Ops.ADD, Ops.MUL), dtypes.floats, src=(UPat.var("a"), UPat.var("b")), name="x")


def _as_grouped(ctx: Any, x: UOp, a: UOp, b: UOp) -> str:
    left = cstyle.strip_parens(ctx[a]) if a.op is x.op else ctx[a]
    return str(ctx.code_for_op[x.op](left, ctx[b], x.dtype))


for _name, _class in vars(cstyle).items():
    if isinstance(_class, type) and "string_rewrite" in vars(_class):
        _patch = Patch(
            f"tinygrad.renderer.cstyle:{_name}.string_rewrite",
            "a * (b * c) was written a*b*c, which is (a * b) * c: another rounding, and nan or inf where a * b "
            "overflows or is inf * 0.",
            "test_c_source.py::test_products_are_grouped_as_given",
        )
        _patch.apply(PatternMatcher([(_FLOAT_SUM, _as_grouped)]) + _patch.original)

# In C, the conversion of a float that fits no integer is undefined: for constants found by clang, the result was the
# previous content of a register. Use the processor's result, the least integer.
_FLOATS, _CONVERTED = {dtypes.float32: ("float", "f"), dtypes.float64: ("double", "")}, (dtypes.int32, dtypes.int64)
_CONVERSIONS = {
    f"{to.name}_of_{name}": (
        f"static inline __attribute__((always_inline)) {to.name} {to.name}_of_{name}({name} x) {{ return "
        f"({to.min:.1f}{suffix} <= x & x < {-to.min:.1f}{suffix}) ? ({to.name})x : {_signed_text(to.min, to)}; }}\n"
    )
    for to in _CONVERTED
    for name, suffix in _FLOATS.values()
}


def _converted(ctx: Any, x: UOp) -> str:
    return f"{x.dtype.name}_of_{_FLOATS[x.src[0].dtype][0]}({ctx[x.src[0]]})"


_CONVERSION = UPat(Ops.CAST, _CONVERTED, src=(UPat(dtype=tuple(_FLOATS)),), name="x")
_patch = Patch(
    "tinygrad.renderer.cstyle:ClangRenderer.string_rewrite",
    "A constant float that fits no integer becomes what a register happens to hold.",
    "test_wrong_values.py::TestFloatsThatFitNoInteger.test_constants_that_the_compiler_finds",
)
_patch.apply(PatternMatcher([(_CONVERSION, _converted)]) + _patch.original)


def _vector_typedef(self: ClangRenderer, dtype: DType, count: int) -> str:
    vector = self._render_dtype(dtype, count, AddrSpace.REG)
    attributes = f"aligned({dtype.itemsize}),ext_vector_type({count})"
    return f"typedef {self.render_dtype(dtype)} {vector} __attribute__(({attributes}));"


# A contiguous part of a buffer is passed to a kernel as a pointer into it: only its elements are aligned.
Patch(
    "tinygrad.renderer.cstyle:ClangRenderer.render_vector_prefix",
    "A vector's typedef promises the alignment of the whole vector: clang's aligned load of x[1:] ended the process.",
    "tests/backend/ops/test_reduction.py::test_running_sums_of_a_slice",
).apply(_vector_typedef)

# The renderer already computes bfloat16 by its bits; use the bits in memory and as a constant, too.
_BITS = "unsigned short"
_BFLOAT16_CONSTANT = UPat.cvar("c").cast((dtypes.bfloat16,))
_patch = Patch(
    "tinygrad.renderer.cstyle:ClangRenderer.type_map",
    "clang passes a stored __bf16 through float32 by an instruction that turns denormals into 0 and changes nans.",
    "test_c_source.py::test_bits_of_bfloat16_survive",
)
_patch.apply({**_patch.original, dtypes.bfloat16: _BITS})


def _bfloat16_bits(ctx: Any, c: UOp) -> str:
    return f"(({_BITS}){bfloat16_bits(c.val)}u)"


_patch = Patch(
    "tinygrad.renderer.cstyle:ClangRenderer.string_rewrite",
    "A constant of bfloat16 is a float, where memory holds its bits.",
    "test_c_source.py::test_bits_of_bfloat16_survive",
)
_patch.apply(PatternMatcher([(_BFLOAT16_CONSTANT, _bfloat16_bits)]) + _patch.original)

# With -fwrapv, clang derives less about indices, and a matrix product takes 1.7 times as long: use it only for kernels
# with results that may not fit.
_WRAPS = "// integers wrap\n"


# By default clang fuses a product and a sum in one expression. The product is then not rounded, and does not overflow:
# exp(x) - x at infinity, where both are inf, was -inf.
_EACH_ROUNDS = "#pragma clang fp contract(off)\n"


def _render(self: ClangRenderer, uops: list[UOp]) -> str:
    source = CStyleLanguage.render(self, uops)
    conversions = [text for name, text in _CONVERSIONS.items() if f"{name}(" in source]
    floats = any(u.op is Ops.MUL and dtypes.is_float(u.dtype) for u in uops)
    helpers = (_WRAPS if any(map(may_wrap, uops)) else "") + (_EACH_ROUNDS if floats else "")
    return helpers + "".join(conversions) + source


Patch(
    "tinygrad.renderer.cstyle:ClangRenderer.render",
    "Kernels do not say whether their integers may wrap, nor define the conversions above; and a product beside a sum "
    "is not rounded.",
    "test_wrong_values.py::test_clang_is_told_of_integers_that_may_wrap",
).apply(_render)
_COMPILE = Patch(
    "tinygrad.runtime.support.compiler_cpu:ClangCompiler.compile",
    "C leaves undefined a sum beyond 32 or 64 bits, and clang simplifies comparisons by that unless told -fwrapv.",
    "test_wrong_values.py::TestNegatives.test_of_the_least_integer",
)


def _compile(self: ClangCompiler, src: str) -> bytes:
    compiler = copy.copy(self)
    # No warnings: they are about generated code, and would appear on the user's terminal.
    compiler.args = [*self.args, "-w", *(["-fwrapv"] if src.startswith(_WRAPS) else [])]
    return _COMPILE.original(compiler, src)


_COMPILE.apply(_compile)
