"""Fused optimizer steps: parameters, gradients and state of a whole list in one call; and a GradScaler's operators.

A lazy device fuses every step, so the step's formula on each parameter is sufficient. Powers of the step's number are
tensors, because reading the number would compute the step before.
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
        old, step = _unscaled(param, grad, grad_scale, found_inf, maximize)
        if weight_decay:
            step = step + weight_decay * old
        if momentum:
            buffer = momentum_buffers[i]
            moved = step if is_first_step else momentum * buffer.to(old.dtype) + (1 - dampening) * step
            step = step + momentum * moved if nesterov else moved
            _store(buffer, moved, found_inf)
        rate = lr.to(param.device) if isinstance(lr, torch.Tensor) and is_tiny(param) else lr
        _store(param, old - rate * step, found_inf)


def _fused_adam(name: str, decoupled: bool) -> Callable[..., None]:
    """aten::_fused_adam_, or aten::_fused_adamw_, which decays the weights apart from the gradient (`decoupled`)."""

    def step_all(
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        exp_avgs: Sequence[torch.Tensor],
        exp_avg_sqs: Sequence[torch.Tensor],
        max_exp_avg_sqs: Sequence[torch.Tensor],
        state_steps: Sequence[torch.Tensor],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        STATS.decomposed[name] += 1
        for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
            old, step = _unscaled(param, grad, grad_scale, found_inf, maximize)
            rate, count = _place_rate(param, lr), state_steps[i].to(param.device, torch.float64)
            if weight_decay and decoupled:
                old = old - (rate * weight_decay) * old
            elif weight_decay:
                step = step + weight_decay * old
            average = torch.lerp(exp_avgs[i].to(old.dtype), step, 1 - beta1)
            square = beta2 * exp_avg_sqs[i].to(old.dtype) + (1 - beta2) * step * step
            _store(exp_avgs[i], average, found_inf)
            _store(exp_avg_sqs[i], square, found_inf)
            if amsgrad:
                square = torch.maximum(max_exp_avg_sqs[i].to(old.dtype), square)
                _store(max_exp_avg_sqs[i], square, found_inf)
            size = (rate / (1 - beta1**count)).to(old.dtype)
            correction = (1 - beta2**count).sqrt().to(old.dtype)
            _store(param, old - size * average / (square.sqrt() / correction + eps), found_inf)

    return step_all


def _fused_adagrad_(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    state_sums: Sequence[torch.Tensor],
    state_steps: Sequence[torch.Tensor],
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """aten::_fused_adagrad_."""
    STATS.decomposed["aten._fused_adagrad_.default"] += 1
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        old, step = _unscaled(param, grad, grad_scale, found_inf, maximize)
        count = state_steps[i].to(param.device, torch.float64)
        if weight_decay:
            step = step + weight_decay * old
        total = state_sums[i].to(old.dtype) + step * step
        _store(state_sums[i], total, found_inf)
        size = (_place_rate(param, lr) / (1 + (count - 1) * lr_decay)).to(old.dtype)
        _store(param, old - size * step / (total.sqrt() + eps), found_inf)


def _unscaled(
    param: torch.Tensor, grad: torch.Tensor, scale: torch.Tensor | None, found_inf: torch.Tensor | None, maximize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """A parameter and its gradient in at least 32 bits. A scaled gradient is also written back without the scale."""
    wide = torch.promote_types(param.dtype, torch.float32)
    step = grad.to(wide)
    if scale is not None:
        step = step / scale.to(param.device)
        _store(grad, step, found_inf)
    return param.to(wide), -step if maximize else step


def _place_rate(param: torch.Tensor, rate: Any) -> Any:
    """Return a learning rate, which may be a tensor of another device, in float64 on the parameter's device."""
    return rate.to(param.device, torch.float64) if isinstance(rate, torch.Tensor) else rate


def _check_and_unscale_(grads: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """aten::_amp_foreach_non_finite_check_and_unscale_."""
    STATS.decomposed["aten._amp_foreach_non_finite_check_and_unscale_.default"] += 1
    for grad in grads:
        wide = grad.to(torch.promote_types(grad.dtype, torch.float32))  # 16 bits may not hold the scale
        found_inf.copy_(torch.where(grad.isfinite().all(), found_inf, 1.0))
        grad.copy_(wide * inv_scale)


def _update_scale_(
    scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> torch.Tensor:
    """aten::_amp_update_scale_: a smaller scale after an infinity, a larger one after many steps without."""
    STATS.decomposed["aten._amp_update_scale_.default"] += 1
    infinite, steps = found_inf != 0, growth_tracker + 1
    grown = scale * scale_growth_factor
    grows = (steps == growth_interval) & grown.isfinite()
    scale.copy_(torch.where(infinite, scale * scale_backoff_factor, torch.where(grows, grown, scale)))
    growth_tracker.copy_(torch.where(infinite | (steps == growth_interval), 0, steps))
    return scale


def _store(target: torch.Tensor, value: torch.Tensor, found_inf: torch.Tensor | None) -> None:
    """Write a value, unless the gradients contain an infinity."""
    if found_inf is not None:
        value = torch.where(found_inf.to(target.device) != 0, target.to(value.dtype), value)
    target.copy_(value)


_ADAM, _ADAMW = (_fused_adam(f"aten._fused_{name}_.default", name == "adamw") for name in ("adam", "adamw"))

KERNELS: dict[str, Callable[..., Any]] = {
    **{f"_fused_sgd_{form}": _fused_sgd_ for form in ("", ".tensor_lr")},
    **{f"_fused_adam_{form}": _ADAM for form in ("", ".tensor_lr")},
    **{f"_fused_adamw_{form}": _ADAMW for form in ("", ".tensor_lr")},
    **{f"_fused_adagrad_{form}": _fused_adagrad_ for form in ("", ".tensor_lr")},
    "_amp_foreach_non_finite_check_and_unscale_": _check_and_unscale_,
    "_amp_update_scale_": _update_scale_,
}
