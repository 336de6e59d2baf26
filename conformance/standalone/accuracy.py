"""Errors in ulp, and the answers that they measure; scripts of findings carry the source of these functions.

An exact answer is stored as the sum of two float64 numbers, so that an error in float64 itself is measurable. One
subtraction in float64 is then exact enough for every dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from conformance.record.accuracy import NO_NUMBER, limit
from conformance.standalone.torch_compat import tree_leaves

SEED = 1234


def widened_inputs(inputs: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return the inputs with floating tensors converted to this dtype."""
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


def answers(
    program: Callable[..., Any], inputs: Mapping[str, Any], wanted: Collection[str], along_ones: bool = False
) -> dict[str, torch.Tensor]:
    """Return the results of the call by name, or the gradients of the `wanted` inputs if there are any.

    The CPU draws the cotangents; with `along_ones` they are ones.
    """
    inputs = {name: x.requires_grad_(name in wanted) for name, x in inputs.items()}
    results = [x for x in tree_leaves(program(*inputs.values())) if torch.is_tensor(x) and x.is_floating_point()]
    if not wanted:
        return {"result" if len(results) == 1 else f"result[{number}]": x for number, x in enumerate(results)}
    torch.default_generator.manual_seed(SEED + 1)
    results = [x for x in results if x.requires_grad]
    # Numbers of few bits, so that they are the same in every dtype.
    drawn = [torch.ones(x.shape) if along_ones else torch.randint(-8, 9, x.shape) / 8 for x in results]
    along = [cotangent.to(x.dtype).to(x.device) for cotangent, x in zip(drawn, results, strict=True)]
    grads = torch.autograd.grad(results, [inputs[name] for name in wanted], along, allow_unused=True)
    return {f"gradient of {name}": grad for name, grad in zip(wanted, grads, strict=True) if grad is not None}


def errors(got: torch.Tensor, high: torch.Tensor, low: torch.Tensor, dtype: torch.dtype, each: bool) -> torch.Tensor:
    """Return the distances of the answers from the exact ones, `high + low` in float64.

    The unit is the ulp of `dtype` at each exact answer (`each`), or at the largest one. The error of an infinite or nan
    answer is NO_NUMBER.
    """
    size = high.abs() if each else high.abs().max() if high.numel() else high
    info = torch.finfo(dtype)
    ulp = torch.ldexp(torch.full_like(size, info.eps), torch.frexp(size.clamp(min=info.tiny)).exponent - 1)
    off = ((got.double() - high) - low).abs() / ulp
    return off.nan_to_num(nan=NO_NUMBER, posinf=NO_NUMBER).clamp(max=NO_NUMBER)


def rms(errors: torch.Tensor) -> float:
    """Return the root mean square."""
    return float(errors.square().mean().sqrt())


def beyond(off: torch.Tensor, usual: torch.Tensor) -> bool:
    """Whether errors `off` of the target are a finding, compared with torch CPU's errors `usual`."""
    return bool(off.max() > limit(float(usual.max())) or rms(off) > limit(rms(usual)))
