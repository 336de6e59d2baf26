"""out= tensors of another dtype and of another size, for every elementwise operator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conformance.backend.dispatch.registry import ROWS
from conformance.backend.dispatch.schema_kernels import find, variants


def out_forms() -> Iterator[Any]:
    """Yield the overloads of elementwise operators with one out= tensor."""
    for name, row in ROWS.items():
        functional = find(name) if row.elementwise else None
        for op in () if functional is None else variants(functional):
            if sum(argument.is_out for argument in op._schema.arguments) == 1:
                yield op


def called(op: Any, device: str, operand: torch.Tensor, out: torch.Tensor) -> torch.Tensor | None:
    """Return the out= tensor after a call with this operand in every position, or None if the call is refused."""
    arguments = [a for a in op._schema.arguments if not a.is_out and not a.kwarg_only and not a.has_default_value()]
    operands = [operand.to(device) if str(a.type) == "Tensor" else 1 for a in arguments]
    (name,) = (a.name for a in op._schema.arguments if a.is_out)
    try:
        return op(*operands, **{name: out.to(device)})
    except (RuntimeError, NotImplementedError):
        return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_resized_out_has_the_strides_of_the_cpu(dtype):
    """A resized out= tensor has the strides of the CPU's. `torch.rad2deg` of a transposed tensor formerly left it
    contiguous. `torch.relu`, whose out= form torch generates, does so on the CPU too."""
    compared, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in out_forms():
            x = torch.ones(2, 3, dtype=dtype).t()
            want, got = (called(op, device, x, torch.zeros(7, dtype=dtype)) for device in ("cpu", "tiny"))
            if want is not None and got is not None:
                compared += 1
                wrong += [str(op)] if (want.shape, want.stride()) != (got.shape, got.stride()) else []
    assert compared > 40
    assert not wrong


@pytest.mark.parametrize("name", ["add", "mul", "sub", "deg2rad", "exp", "sigmoid", "atan2"])
def test_an_out_of_another_dtype_is_computed_in_the_operands(name):
    """A call with a wider out= tensor computes in the operands' dtype. Formerly bfloat16 operands were not rounded to
    bfloat16 in a float32 out=, and int8 operands did not wrap."""
    x, y = torch.tensor([100.0, 0.37, 2.5, -3.3]), torch.tensor([100.0, 1.7, -2.2, 5.1])
    count = 2 if name in ("add", "mul", "sub", "atan2") else 1
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.bfloat16, torch.float64), (torch.int8, torch.int32)):
        if dtype is torch.int8 and name not in ("add", "mul", "sub"):
            continue
        sides = []
        for device in ("cpu", "tiny"):
            out = torch.zeros(4, dtype=wide, device=device)
            getattr(torch, name)(*(one.to(dtype).to(device) for one in (x, y)[:count]), out=out)
            sides.append(out.cpu())
        assert torch.equal(*sides), (name, dtype, wide)
