"""C that says what its expression says."""

from __future__ import annotations

import os

import pytest
import torch
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.renderer.cstyle import ClangRenderer, CStyleLanguage
from tinygrad.uop import Ops

import conformance.backend  # noqa: F401 - applies the patches


@pytest.mark.parametrize("renderer", [CStyleLanguage, ClangRenderer])
def test_a_negative_constant_is_subtracted(renderer):
    """ "a--1" decrements a."""
    assert "--" not in renderer.code_for_op[Ops.SUB]("a", "-1.0f", dtypes.float32)


@pytest.mark.skipif(os.environ.get("DEV", "CPU") not in ("CPU", "CPU:CLANG"), reason="looks at the C for clang")
def test_bits_of_bfloat16_survive(monkeypatch):
    """Denormals and the bits of nans pass through kernels: C has them as integers, as data and as constants."""
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
