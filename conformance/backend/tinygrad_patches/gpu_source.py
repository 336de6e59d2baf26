"""Faults of tinygrad's renderers for GPUs, and of the memory that their kernels receive.

No renderer for a GPU writes a quotient of floats, CUDA's compiler fuses products with sums, and a GPU refuses a vector
that is not aligned.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from tinygrad.device import TinyELF
from tinygrad.dtype import dtypes
from tinygrad.renderer.cstyle import CUDARenderer
from tinygrad.runtime.support.compiler_cuda import NVRTCCompiler
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from .c_source import TABLES
from .patch import Patch

ALIGNMENT = 16
"""Bytes of the longest vector that a kernel loads."""

_TEST = "test_gpu_source.py::"

for _name, _class in TABLES.items():
    if Ops.FDIV not in _class.code_for_op:
        Patch(
            f"tinygrad.renderer.cstyle:{_name}.code_for_op[FDIV]",
            "Renderers for GPUs have no quotient of floats, only a product with a reciprocal, which rounds twice.",
            _TEST + "test_a_quotient_rounds_once",
            missing=True,
        ).apply(lambda a, b, dtype: f"({a}/{b})")

# In the source, which is the key of tinygrad's cache of compiled kernels.
_EACH_ROUNDS = "// each product rounds\n"
_RENDER = Patch(
    "tinygrad.renderer.cstyle:CUDARenderer.render",
    "CUDA's compiler fuses a product and a sum. The product is then not rounded, and does not overflow.",
    _TEST + "test_cuda_rounds_each_product",
)
_COMPILE = Patch(
    "tinygrad.runtime.support.compiler_cuda:NVRTCCompiler.compile",
    "CUDA's compiler fuses a product and a sum, unless an option forbids it.",
    _TEST + "test_cuda_rounds_each_product",
)


def _render(self: CUDARenderer, uops: list[UOp]) -> str:
    floats = any(u.op is Ops.MUL and dtypes.is_float(u.dtype) for u in uops)
    return (_EACH_ROUNDS if floats else "") + str(_RENDER.original(self, uops))


def _compile(self: NVRTCCompiler, src: str) -> bytes:
    compiler = copy.copy(self)
    compiler.compile_options = self.compile_options + ["--fmad=false"] * src.startswith(_EACH_ROUNDS)
    return bytes(_COMPILE.original(compiler, src))


_RENDER.apply(_render)
_COMPILE.apply(_compile)

_ELF = Patch(
    "tinygrad.uop.ops:UOp.to_elf",
    "OpenCL takes a buffer for a number if its slot is not below the number of buffers, where a kernel does not read "
    "one of its operands: 'tuple index out of range' in a sort of one row.",
    _TEST + "test_arguments_are_numbered_without_gaps",
)


def _numbered(self: UOp) -> TinyELF:
    binary = _ELF.original(self)
    signature = [(name, at, *more) for at, (name, _, *more) in enumerate(binary.signature)]
    return replace(binary, signature=tuple(signature))


_ELF.apply(_numbered)

_VIEW = Patch(
    "tinygrad.uop.ops:UOp.contiguous_view",
    "A contiguous part of a buffer is passed to a kernel as a pointer into it, and a GPU refuses to load a vector from "
    "an address that is no multiple of its size: sums of x[1:].",
    _TEST + "test_only_aligned_parts_are_views",
)


def _contiguous_view(self: UOp) -> tuple[UOp, int] | None:
    view = _VIEW.original(self)
    on_host = isinstance(self.device, str) and self.device.partition(":")[0] in ("CPU", "PYTHON", "DISK")
    return view if view is None or on_host or view[1] * view[0].dtype.itemsize % ALIGNMENT == 0 else None


_VIEW.apply(_contiguous_view)
