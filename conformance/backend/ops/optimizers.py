"""Fused optimizer steps: parameters, gradients and momentum of a whole list in one call.

A lazy device fuses every step, so the step's formula on each parameter is sufficient.
torch 2.13's CPU kernel of SGD computes different numbers in 16 bits for 16 elements or more, so it is no reference
there. The formula is that of torch.optim.SGD's documentation, in float32 and rounded once, as in CUDA's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..dispatch.tensors import is_tiny
from ..runtime.stats import STATS


def _fused_sgd_(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    momentum_buffers: Sequence[torch.Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """aten::_fused_sgd_: writes parameters and momentum, and the unscaled gradients if there is a grad_scale."""
    STATS.decomposed["aten._fused_sgd_.default"] += 1
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        wide = torch.promote_types(param.dtype, torch.float32)
        old, step = param.to(wide), grad.to(wide)
        if grad_scale is not None:
            step = step / grad_scale.to(param.device)
            _store(grad, step, found_inf)
        step = -step if maximize else step
        if weight_decay:
            step = step + weight_decay * old
        if momentum:
            buffer = momentum_buffers[i]
            moved = step if is_first_step else momentum * buffer.to(wide) + (1 - dampening) * step
            step = step + momentum * moved if nesterov else moved
            _store(buffer, moved, found_inf)
        rate = lr.to(param.device) if isinstance(lr, torch.Tensor) and is_tiny(param) else lr
        _store(param, old - rate * step, found_inf)


def _store(target: torch.Tensor, value: torch.Tensor, found_inf: torch.Tensor | None) -> None:
    """Write a value, unless the gradients contain an infinity."""
    if found_inf is not None:
        value = torch.where(found_inf.to(target.device) != 0, target.to(value.dtype), value)
    target.copy_(value)


KERNELS: dict[str, Callable[..., Any]] = {"_fused_sgd_": _fused_sgd_, "_fused_sgd_.tensor_lr": _fused_sgd_}
