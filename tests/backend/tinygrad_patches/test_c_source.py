"""C source that computes exactly what its expression says."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.renderer.cstyle import ClangRenderer, CStyleLanguage
from tinygrad.uop import Ops

import conformance.backend  # noqa: F401 - applies the patches
from conformance.backend.runtime import compiler_process
from tests.backend.agreement import both


@pytest.mark.parametrize("renderer", [CStyleLanguage, ClangRenderer])
def test_a_negative_constant_is_subtracted(renderer):
    """A negative constant is subtracted without "--", because "a--1" decrements a."""
    assert "--" not in renderer.code_for_op[Ops.SUB]("a", "-1.0f", dtypes.float32)


@pytest.mark.parametrize("renderer", [CStyleLanguage, ClangRenderer])
def test_a_negative_is_negated(renderer):
    """A negation is written without "--", because "--a" decrements a. conj_physical_ of a conjugate view had three
    minus signs in a row."""
    negate = renderer.code_for_op[Ops.NEG]
    assert "--" not in negate(negate(negate("a", dtypes.float32), dtypes.float32), dtypes.float32)


@pytest.mark.skipif(os.environ.get("DEV", "CPU") not in ("CPU", "CPU:CLANG"), reason="looks at the C for clang")
def test_bits_of_bfloat16_survive(monkeypatch):
    """Denormals and nan bits of bfloat16 pass through kernels unchanged. C handles them as integers, as data and as
    constants."""
    sources = []
    render = ClangRenderer.render
    monkeypatch.setattr(ClangRenderer, "render", lambda self, uops: sources.append(render(self, uops)) or sources[-1])
    bits = torch.arange(-(2**15), 2**15 - 11, dtype=torch.int16)  # a shape that no other test has
    want, got = (
        torch.nn.functional.pad(bits.to(d).view(torch.bfloat16).flip(0), (1, 2), value=1.5).view(torch.int16).cpu()
        for d in ("cpu", "tiny")
    )
    assert torch.equal(want, got)
    with Context(CACHELEVEL=0):
        x = bits.to("tiny").view(torch.bfloat16)[:4099]
        torch.where(x.view(torch.int16) > 3, x, torch.tensor(1.5, dtype=torch.bfloat16, device="tiny")).cpu()
    assert sources and "__bf16" not in "".join(sources)


def test_products_are_grouped_as_given() -> None:
    """Products and sums keep their grouping. Formerly a * (b * c) was written a*b*c, and a + (b + c) as a+b+c: 1e30 *
    (1e30 * 1e-30) was inf."""
    large, small, inf = (torch.full((3,), n) for n in (1e30, 1e-30, torch.inf))

    def program(device: str) -> list[torch.Tensor]:
        a, b, zero = large.to(device), small.to(device), torch.zeros(3).to(device)
        nothing = inf.to(device) * (zero * a)  # not (inf * 0) * a, although that is nan too
        return [a * (a * b), a * 3e8 + (a * 3e8 - a * 3e8), b * (b * a) * (a * a * b), nothing.isnan()]

    both(program)


def test_a_product_is_rounded_before_it_is_added() -> None:
    """A product is rounded before an addition. clang formerly fused a * b + c: x * x - inf was -inf for an overflowing
    x * x, and y * y - y * y was not 0."""
    x = torch.tensor([1e30, 3.0, 1.1, 0.1])

    def program(device: str) -> list[torch.Tensor]:
        y = x.to(device)
        square = y.clone() * y
        return [(y * y - torch.inf).isnan(), (y * y - square.clone()).nan_to_num(7), y * y + y]

    both(program)


@pytest.mark.skipif(os.environ.get("DEV", "CPU") not in ("CPU", "CPU:CLANG"), reason="looks at clang's command")
def test_no_warning_reaches_a_user(monkeypatch):
    """clang runs without warnings. Formerly a system's clang warned on the terminal about parentheses in a conversion
    of float to integer."""
    commands, run = [], subprocess.check_output
    monkeypatch.setattr(compiler_process, "inner_command", lambda command: None)  # a process for each kernel
    monkeypatch.setattr(subprocess, "check_output", lambda c, **options: commands.append(c) or run(c, **options))
    with Context(CACHELEVEL=0):  # the number may be an argument of a cached kernel of another process
        both(lambda d: (torch.arange(1231.0).to(d) * 0.3).to(torch.int32))
    assert commands
    assert all("-w" in command for command in commands)
