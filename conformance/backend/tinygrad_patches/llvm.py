"""Faults of tinygrad 0.14's LLVM renderer, mended in its tables when this module is imported.

The key insight: where C leaves a result undefined LLVM calls it poison, and builds on that as freely as on a promise.
So nothing is promised that does not hold: how a pointer is aligned, that an integer does not wrap, that signs of zeros
and infinities do not matter, that a float fits its integer. `mends` has the rules that all renderers share.
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

from .mends import bfloat16_bits, may_wrap

# Its fast-math flags let a sum drop the sign of a zero, a quotient be a product and a function be approximate. It lacks
# subtraction, and takes a power of one half for a square root.
for _ops, _prefix in ((llvmir.float_lop, "f"), (llvmir.signed_lop, ""), (llvmir.unsigned_lop, "")):
    for _op, _text in _ops.items():
        _ops[_op] = _text.replace(llvmir.flags, "").replace(" nsw", "")
    _ops[Ops.SUB] = f"{_prefix}sub"
_INTRINSICS = {Ops.SQRT: "sqrt", Ops.TRUNC: "trunc"}
LLVMRenderer.code_for_op[Ops.SUB] = lambda: None
CPULLVMRenderer.code_for_op = {**LLVMRenderer.code_for_op, **dict.fromkeys((Ops.NEG, *_INTRINSICS), lambda: None)}


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
    """LLVM's name of a type. It moves a bfloat as a float, with a function that nobody has; so bfloat16 is its bits."""
    return str(_named(dtypes.uint16 if dtype is dtypes.bfloat16 else dtype, count, ptr))


_unchanged, _named = llvmir.lconst, llvmir.ldt


def _exact_sum(ctx: Any, x: UOp) -> str | None:
    """A sum of signed integers that cannot wrap; knowing that, LLVM knows more of an index."""
    if may_wrap(x):
        return None
    a, b = x.src
    return f"  {ctx[x]} = {'add' if x.op is Ops.ADD else 'sub'} nsw {_type(x.dtype)} {ctx[a]}, {ctx[b]}"


def _converted(ctx: Any, x: UOp) -> str:
    """A float that fits no integer becomes what the processor gives: the least integer."""
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
    """Loads and stores of vectors, which are aligned as their elements: a part of a buffer may begin anywhere."""
    text, index = _tinygrads.rewrite(x, ctx=ctx), x.src[0]
    access = f"{_type(index.dtype, index.max_numel(), True)} {ctx[index]}"
    return None if text is None else text.replace(access, f"{access}, align {index.dtype.itemsize}")


_tinygrads = CPULLVMRenderer.string_rewrite
CPULLVMRenderer.string_rewrite = PatternMatcher([
    (UPat((Ops.ADD, Ops.SUB), dtypes.sints, name="x"), _exact_sum),
    (UPat(Ops.CAST, (dtypes.int32, dtypes.int64), src=(UPat(dtype=(dtypes.float32, dtypes.float64)),), name="x"),
     _converted),
    (UPat(Ops.NEG, name="x"), _negative),
    (UPat(tuple(_INTRINSICS), name="x"), _intrinsic),
    (UPat((Ops.LOAD, Ops.STORE), name="x"), _aligned),
]) + _tinygrads  # fmt: skip
_render = CPULLVMRenderer.render


def _declared(self: CPULLVMRenderer, uops: list[UOp]) -> str:
    """A kernel whose pointers are aligned as their elements are, behind the intrinsics that it calls."""
    llvmir.lconst, llvmir.ldt = _constant, _type  # type: ignore[assignment]
    try:
        text = _render(self, uops).replace(" noalias align 32", " noalias")
    finally:
        llvmir.lconst, llvmir.ldt = _unchanged, _named
    called = [
        f"declare {kind} @llvm.{name}.f{bits}({kind})"
        for name in _INTRINSICS.values()
        for kind, bits in (("half", 16), ("float", 32), ("double", 64))
        if f"@llvm.{name}.f{bits}(" in text
    ]
    return "\n".join([*called, text])


CPULLVMRenderer.render = _declared  # type: ignore[method-assign]
