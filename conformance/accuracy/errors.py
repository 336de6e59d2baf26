"""Errors in ulp, and the answers that they are of; scripts of findings carry these functions as their own source.

The key insight: the exact answer is kept as the sum of two float64 numbers, so that an error in float64 itself can be
told, and one subtraction in float64 is exact enough for every dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from conformance.core.accuracy import NO_NUMBER, limit
from conformance.core.torch_compat import tree_leaves

SEED = 1234


def widened_inputs(given: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The inputs with those of them that are floating in this dtype."""
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}


def answers(
    program: Callable[..., Any], given: Mapping[str, Any], wanted: Collection[str], along_ones: bool = False
) -> dict[str, torch.Tensor]:
    """The results of the call, or the gradients of the `wanted` inputs where there are any, by name: along cotangents
    that are drawn on the CPU, or along ones."""
    given = {name: x.requires_grad_(name in wanted) for name, x in given.items()}
    made = [x for x in tree_leaves(program(*given.values())) if torch.is_tensor(x) and x.is_floating_point()]
    if not wanted:
        return {"result" if len(made) == 1 else f"result[{number}]": x for number, x in enumerate(made)}
    torch.default_generator.manual_seed(SEED + 1)
    made = [x for x in made if x.requires_grad]
    # Numbers of few bits, so that they are the same in every dtype.
    drawn = [torch.ones(x.shape) if along_ones else torch.randint(-8, 9, x.shape) / 8 for x in made]
    along = [one.to(x.dtype).to(x.device) for one, x in zip(drawn, made, strict=True)]
    found = torch.autograd.grad(made, [given[name] for name in wanted], along, allow_unused=True)
    return {f"gradient of {name}": grad for name, grad in zip(wanted, found, strict=True) if grad is not None}


def errors(got: torch.Tensor, high: torch.Tensor, low: torch.Tensor, dtype: torch.dtype, each: bool) -> torch.Tensor:
    """How far the answers are from the exact ones, `high + low` in float64, in ulp of `dtype`: of each exact answer, or
    of the largest. An answer that is no number is off by NO_NUMBER."""
    size = high.abs() if each else high.abs().max() if high.numel() else high
    info = torch.finfo(dtype)
    ulp = torch.ldexp(torch.full_like(size, info.eps), torch.frexp(size.clamp(min=info.tiny)).exponent - 1)
    off = ((got.double() - high) - low).abs() / ulp
    return off.nan_to_num(nan=NO_NUMBER, posinf=NO_NUMBER).clamp(max=NO_NUMBER)


def rms(found: torch.Tensor) -> float:
    """The root of the mean of the squares."""
    return float(found.square().mean().sqrt())


def beyond(off: torch.Tensor, usual: torch.Tensor) -> bool:
    """Whether errors of the target are a finding beside these of torch CPU."""
    return bool(off.max() > limit(float(usual.max())) or rms(off) > limit(rms(usual)))
