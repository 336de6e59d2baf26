"""Faults of tinygrad's LLVM renderer.

Where C has an undefined result, LLVM has poison, and optimizes as if it never occurred. So the code must not contain
false guarantees: about the alignment of a pointer, integers that do not wrap, irrelevant signs of zeros and infinities,
or floats that fit an integer.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from tinygrad.dtype import DType, dtypes, truncate
from tinygrad.renderer import llvmir
from tinygrad.renderer.llvmir import CPULLVMRenderer, LLVMRenderer
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat

from .integer_bounds import may_wrap
from .number_formats import bfloat16_bits
from .patch import Patch

_TEST = "test_renderers.py::test_agrees_with_cpu"

for _table, _prefix in (("float_lop", "f"), ("signed_lop", ""), ("unsigned_lop", "")):
    _instructions = Patch(
        f"tinygrad.renderer.llvmir:{_table}",
        "Fast-math flags let a sum drop the sign of a zero, a quotient be a product and a function be approximate; "
        "integers are promised not to wrap; subtraction is missing.",
        _TEST,
    ).original
    for _op, _text in _instructions.items():
        _instructions[_op] = _text.replace(llvmir.flags, "").replace(" nsw", "")
    _instructions[Ops.SUB] = f"{_prefix}sub"
Patch("tinygrad.renderer.llvmir:LLVMRenderer.code_for_op[SUB]", "Subtraction is missing.", _TEST, missing=True).apply(
    lambda: None
)
_INTRINSICS = {Ops.SQRT: "sqrt", Ops.TRUNC: "trunc"}
Patch(
    "tinygrad.renderer.llvmir:CPULLVMRenderer.code_for_op",
    "A square root is a power of one half, and truncation and negation are made of other operations.",
    _TEST,
).apply({**LLVMRenderer.code_for_op, **dict.fromkeys((Ops.NEG, *_INTRINSICS), lambda: None)})


def _constant(number: Any, dtype: DType) -> Any:
    """Text of a constant: floats by their bits, since 1e-05 is no number to LLVM, and integers in their range."""
    if dtype in dtypes.fp8s or dtype is dtypes.bool:
        return _unchanged(number, dtype)
    if dtype not in dtypes.floats:
        return truncate[dtype](int(number))
    if dtype is dtypes.bfloat16:
        return bfloat16_bits(number)
    exact = math.nan if math.isnan(number) else truncate[dtype](number)
    return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"


def _type(dtype: DType, count: int = 1, ptr: bool = False) -> str:
    """LLVM's name of a type; bfloat16 is its bits, since LLVM moves a bfloat with a function that is not linked."""
    return str(_named(dtypes.uint16 if dtype is dtypes.bfloat16 else dtype, count, ptr))


_CONSTANT = Patch(
    "tinygrad.renderer.llvmir:lconst",
    "1e-05 is no number to LLVM, and a folded constant may lie outside its dtype.",
    _TEST,
)
_TYPE = Patch(
    "tinygrad.renderer.llvmir:ldt", "LLVM moves a bfloat as a float, by a function that nothing links.", _TEST
)
_unchanged, _named = _CONSTANT.original, _TYPE.original


def _exact_sum(ctx: Any, x: UOp) -> str | None:
    """A sum of signed integers that cannot wrap; with this guarantee LLVM can derive more about an index."""
    if may_wrap(x):
        return None
    a, b = x.src
    return f"  {ctx[x]} = {'add' if x.op is Ops.ADD else 'sub'} nsw {_type(x.dtype)} {ctx[a]}, {ctx[b]}"


def _converted(ctx: Any, x: UOp) -> str:
    """A conversion with the processor's result for a float that fits no integer: the least integer."""
    name, (source,) = ctx[x], x.src
    wide, kind, least = _type(source.dtype), _type(x.dtype), x.dtype.min
    low, high = (_constant(float(bound), source.dtype) for bound in (least, -least))
    return "\n".join((
        f"  {name}_low = fcmp oge {wide} {ctx[source]}, {low}",
        f"  {name}_high = fcmp olt {wide} {ctx[source]}, {high}",
        f"  {name}_fits = and i1 {name}_low, {name}_high",
        f"  {name}_int = fptosi {wide} {ctx[source]} to {kind}",
        f"  {name} = select i1 {name}_fits, {kind} {name}_int, {kind} {least}",
    ))  # fmt: skip


def _negative(ctx: Any, x: UOp) -> str:
    kind, source = _type(x.dtype), ctx[x.src[0]]
    return f"  {ctx[x]} = " + (f"fneg {kind} {source}" if dtypes.is_float(x.dtype) else f"sub {kind} 0, {source}")


def _intrinsic(ctx: Any, x: UOp) -> str:
    kind = _type(x.dtype)
    return f"  {ctx[x]} = call {kind} @llvm.{_INTRINSICS[x.op]}.f{x.dtype.bitsize}({kind} {ctx[x.src[0]]})"


def _aligned(ctx: Any, x: UOp) -> str | None:
    """Loads and stores of vectors with the alignment of their elements: a part of a buffer may begin anywhere."""
    text, index = _tinygrads.rewrite(x, ctx=ctx), x.src[0]
    access = f"{_type(index.dtype, index.max_numel(), True)} {ctx[index]}"
    return None if text is None else text.replace(access, f"{access}, align {index.dtype.itemsize}")


_REWRITE = Patch(
    "tinygrad.renderer.llvmir:CPULLVMRenderer.string_rewrite",
    "Loads and stores of vectors are promised to be aligned as a whole; a float that fits no integer is poison.",
    _TEST,
)
_tinygrads = _REWRITE.original
_REWRITE.apply(PatternMatcher([
    (UPat((Ops.ADD, Ops.SUB), dtypes.sints, name="x"), _exact_sum),
    (UPat(Ops.CAST, (dtypes.int32, dtypes.int64), src=(UPat(dtype=(dtypes.float32, dtypes.float64)),), name="x"),
     _converted),
    (UPat(Ops.NEG, name="x"), _negative),
    (UPat(tuple(_INTRINSICS), name="x"), _intrinsic),
    (UPat((Ops.LOAD, Ops.STORE), name="x"), _aligned),
]) + _tinygrads)  # fmt: skip
_RENDER = Patch(
    "tinygrad.renderer.llvmir:CPULLVMRenderer.render",
    "Each buffer is promised to be aligned to 32 bytes, which a part of one is not.",
    _TEST,
)


def _declared(self: CPULLVMRenderer, uops: list[UOp]) -> str:
    """A kernel whose pointers have the alignment of their elements, after declarations of the intrinsics that it
    calls.
    """
    _CONSTANT.apply(_constant)
    _TYPE.apply(_type)
    try:
        text = _RENDER.original(self, uops).replace(" noalias align 32", " noalias")
    finally:
        _CONSTANT.apply(_unchanged)
        _TYPE.apply(_named)
    called = [
        f"declare {kind} @llvm.{name}.f{bits}({kind})"
        for name in _INTRINSICS.values()
        for kind, bits in (("half", 16), ("float", 32), ("double", 64))
        if f"@llvm.{name}.f{bits}(" in text
    ]
    return "\n".join([*called, text])


_RENDER.apply(_declared)
