"""tinygrad's rewrite rules keep values."""

from __future__ import annotations

import pytest
import torch

import conformance.backend  # noqa: F401 - applies the patches


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_narrow_value_leaves_its_neighbours(dtype):
    """Elements next to a write of a narrower dtype keep their values."""

    def program(device):
        x = torch.arange(5.0).to(device) * 1.5 + 300
        flag = torch.ones(1, dtype=dtype).to(device)
        x[:1] = flag
        x[3:4] = flag
        return x.cpu()

    assert torch.equal(program("tiny"), program("cpu"))


@pytest.mark.parametrize("number", [255, 128])
def test_a_folded_constant_keeps_its_dtype(number):
    """A byte constant that remains of a folded sum keeps its dtype when it is widened."""

    def program(device):
        x = torch.full((3,), number, dtype=torch.uint8, device=device)
        return torch.stack([(x + 0).long(), (x * 1).long(), (x | 0).long(), ((x ^ 0) >> 0).long(), (~(x * 0)).long()])

    assert torch.equal(program("tiny").cpu(), program("cpu"))
