"""Fused optimizer steps in 16 bits. They formerly used torch CPU's kernel, whose SGD is wrong there from 16 elements
on."""

from __future__ import annotations

import pytest
import torch

import conformance.backend as backend


class TestFusedSGD:
    """torch.optim.SGD(fused=True)."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
    @pytest.mark.parametrize(
        "options",
        [
            {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.5},
            {"weight_decay": 0.1, "maximize": True}, {"lr": torch.tensor(0.1)},
        ],
    )  # fmt: skip
    def test_three_steps_are_those_of_the_formula(self, dtype: torch.dtype, options: dict) -> None:
        """Three steps agree with the unfused optimizer on the CPU in float64."""
        torch.manual_seed(0)
        start, grads = torch.randn(40).to(dtype), torch.randn(3, 40).to(dtype)
        results = []
        for device, kept_dtype, fused in (("cpu", torch.float64, False), ("tiny", dtype, True)):
            param = start.clone().to(device, kept_dtype).requires_grad_()
            arguments = {"lr": 0.1, **options}
            optimizer = torch.optim.SGD([param], fused=fused, foreach=False, **arguments)
            for grad in grads:
                param.grad = grad.to(device, kept_dtype)
                backend.reset_stats()
                optimizer.step()
            results.append(param.detach().cpu())
        assert not backend.stats()["fallback"]
        rounding = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(results[1].double(), results[0], rtol=rounding, atol=rounding)

    @pytest.mark.parametrize("infinite", [False, True])
    def test_a_scaler(self, infinite: bool) -> None:
        """A step with an infinite gradient changes no parameter."""
        param = torch.ones(20, device="tiny", requires_grad=True)
        scaler = torch.tiny.amp.GradScaler(init_scale=4.0)
        optimizer = torch.optim.SGD([param], lr=0.5, fused=True)
        loss = (param * (float("inf") if infinite else 1.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert param.tolist() == [1.0 if infinite else 0.5] * 20
