"""16-bit floats by their bits, and operations of renderers without C.

A renderer without a format converts it by its bits, and one without C's int computes narrow integers directly. In both
cases, shortcuts give wrong results at the ends of the range.
"""

from __future__ import annotations

import math
import struct

from tinygrad.codegen.decomp import dtype as decomposed
from tinygrad.dtype import DType, dtypes, float_to_bf16
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat

from .patch import Patch

_RENDERERS = "test_renderers.py::test_agrees_with_cpu"


def bfloat16_bits(number: float) -> int:
    """The bits of a number as bfloat16."""
    rounded = float_to_bf16(float(number))
    return 0x7FC0 if math.isnan(rounded) else int(struct.unpack("<I", struct.pack("<f", rounded))[0]) >> 16


def _negative(x: UOp) -> UOp | None:
    return UOp(Ops.SUB, src=(x.const_like(-0.0), *x.src)) if dtypes.is_float(x.dtype) else None


_patch = Patch(
    "tinygrad.renderer.isa.x86:X86Renderer.extra_matcher",
    "The assembler takes -x as 0 - x, so that the negative of 0.0 was 0.0.",
    _RENDERERS,
)
_patch.apply(PatternMatcher([(UPat(Ops.NEG, name="x"), _negative)]) + _patch.original)

_NARROW_QUOTIENT = UPat((Ops.CDIV, Ops.CMOD), (dtypes.int8, dtypes.uint8, dtypes.int16), name="x")


def _divided_wide(x: UOp) -> UOp:
    a, b = (source.cast(dtypes.int32) for source in x.src)
    return a.alu(x.op, b).cast(x.dtype)


for _site in (
    "tinygrad.renderer.llvmir:LLVMRenderer.extra_matcher",
    "tinygrad.renderer.isa.x86:X86Renderer.extra_matcher",
):
    _patch = Patch(
        _site, "-128 / -1 is 128, which C holds in an int; without C the processor stopped at putting it into a byte.",
        _RENDERERS,
    )  # fmt: skip
    _patch.apply(PatternMatcher([(_NARROW_QUOTIENT, _divided_wide)]) + _patch.original)

_CONVERT = Patch(
    "tinygrad.codegen.decomp.dtype:f2f",
    "Where a 16-bit float is converted by its bits, subnormal numbers became 0.",
    _RENDERERS,
)
_CLAMP = Patch(
    "tinygrad.codegen.decomp.dtype:f2f_clamp",
    "What is rounded down to the largest 16-bit float became infinity.",
    _RENDERERS,
)
_by_bits, _clamped = _CONVERT.original, _CLAMP.original


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
    else:  # in this sum the last bit counts units, so the sum rounds to units
        ruler = size.const_like(unit * 2.0**23)
        rounded = (size + ruler).bitcast(bits) - ruler.bitcast(bits)
    pattern = (sign | rounded).cast(dtypes.uint16)
    return (size < unit * 2.0**fraction).where(pattern, _by_bits(v, fr, to, sat))


def _rounded_first(value: UOp, dtype: DType, sat: bool = True) -> UOp:
    """`value`, infinite if it is too large for `dtype`, but not if it is rounded to the largest number."""
    if dtype not in (dtypes.float16, dtypes.bfloat16):
        return _clamped(value, dtype, sat)
    if dtype is dtypes.bfloat16:
        return value  # it has the range of float32, and infinity is next to its largest number
    beyond = ~(value.alu(Ops.MAX, -value) < 2.0**16) & value.eq(value)
    return beyond.where((value < 0).where(-math.inf, value.const_like(math.inf)), value)


_CONVERT.apply(_with_subnormals)
_CLAMP.apply(_rounded_first)
