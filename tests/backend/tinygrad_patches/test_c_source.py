"""C that says what its expression says."""

from __future__ import annotations

import pytest
import torch
from tinygrad.dtype import dtypes
from tinygrad.renderer.cstyle import ClangRenderer, CStyleLanguage
from tinygrad.uop import Ops

import conformance.backend  # noqa: F401 - applies the patches


@pytest.mark.parametrize("renderer", [CStyleLanguage, ClangRenderer])
def test_a_negative_constant_is_subtracted(renderer):
    """ "a--1" decrements a."""
    assert "--" not in renderer.code_for_op[Ops.SUB]("a", "-1.0f", dtypes.float32)


def test_bits_of_bfloat16_survive():
    """Denormals and the bits of nans pass through kernels, as data and beside constants."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    moved = bits.to("tiny").view(torch.bfloat16).flip(0)
    assert torch.equal(moved.view(torch.int16).cpu(), bits.flip(0))
    for number in (2.0**-130, float("inf"), -0.0):
        want, got = (
            torch.where(bits.to(d) % 3 == 0, bits.to(d).view(torch.bfloat16), number).bfloat16().view(torch.int16).cpu()
            for d in ("cpu", "tiny")
        )
        assert torch.equal(want, got)
