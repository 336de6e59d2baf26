"""Source for GPUs, and pointers that their kernels receive."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tinygrad.device import TinyELF
from tinygrad.dtype import dtypes
from tinygrad.helpers import Target
from tinygrad.runtime.support.compiler_cuda import NVRTCCompiler
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

import conformance.backend  # noqa: F401 - applies the patches
from conformance.backend.tinygrad_patches import c_source, gpu_source
from tests.run_script import Standalone

DIVIDES = """
import conformance.backend, torch
x = torch.arange(6.0).to("tiny")
(x[1:] / 3 - x[:-1].to(torch.float64)).cpu()
"""


@pytest.mark.parametrize("renderer", c_source.TABLES)
def test_a_quotient_rounds_once(renderer):
    """Every renderer in C writes a quotient of floats. Those for GPUs had none, so each division failed on a GPU."""
    assert c_source.TABLES[renderer].code_for_op[Ops.FDIV]("a", "b", dtypes.float32) == "(a/b)"


def test_a_device_apart_from_the_host(standalone: Standalone) -> None:
    """tinygrad renders a division for a device with separate memory. Its device NULL renders kernels but runs none."""
    done = standalone(DIVIDES, environment={"DEV": "NULL", "NULL_ALLOW_COPYOUT": "1"})
    assert done.returncode == 0, done.stderr


def test_cuda_rounds_each_product(monkeypatch):
    """CUDA's compiler must not fuse a product and a sum, and the source says so, since it is the key of a cache."""
    seen = []
    monkeypatch.setattr(gpu_source._COMPILE, "original", lambda self, source: seen.append(self.compile_options) or b"")
    compiler = SimpleNamespace(compile_options=["-arch"])
    a = UOp.const(2.0, dtypes.float32)
    for product in (a * UOp.variable("x", 0, 9).cast(dtypes.float32), a):
        monkeypatch.setattr(gpu_source._RENDER, "original", lambda self, uops: "kernel")
        NVRTCCompiler.compile(compiler, gpu_source._render(None, list(product.toposort())))
    assert seen == [["-arch", "--fmad=false"], ["-arch"]]
    assert compiler.compile_options == ["-arch"]


def test_arguments_are_numbered_without_gaps(monkeypatch):
    """OpenCL takes the buffer of slot 2 for a number if slot 1 is not read, as in a sort of one row."""
    shapes = [("data0", 0, dtypes.float32, (3,)), ("data2", 2, dtypes.int32, (3,)), ("n", 3, dtypes.int32, ())]
    binary = TinyELF(b"", "kernel", Target(), tuple(shapes))
    monkeypatch.setattr(gpu_source._ELF, "original", lambda self: binary)
    assert [(name, slot) for name, slot, *_ in UOp.to_elf(None).signature] == [("data0", 0), ("data2", 1), ("n", 2)]


@pytest.mark.parametrize(("device", "parts"), [("CUDA", {4: 4, 8: 8}), ("CPU", {1: 1, 2: 2, 3: 3, 4: 4, 8: 8})])
def test_only_aligned_parts_are_views(device, parts):
    """A GPU loads a vector only from an aligned address, so a kernel gets no pointer to x[1:] there."""
    buffer = UOp.new_buffer(device, 16, dtypes.float32)
    views = {n: buffer.shrink(((n, 16),)).contiguous_view_offset() for n in (1, 2, 3, 4, 8)}
    assert {n: offset for n, offset in views.items() if offset is not None} == parts
