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


ADAM = [{}, {"amsgrad": True}, {"weight_decay": 0.1, "maximize": True}, {"lr": torch.tensor(0.1)}]
ADAGRAD = [{}, {"lr_decay": 0.1}, {"weight_decay": 0.1, "maximize": True}]


class TestFusedAdaptiveOptimizers:
    """torch.optim.Adam, AdamW and Adagrad with fused=True. They formerly ran on the CPU."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
    @pytest.mark.parametrize(
        ("name", "options"),
        [*[(name, options) for name in ("Adam", "AdamW") for options in ADAM], *[("Adagrad", o) for o in ADAGRAD]],
    )
    def test_three_steps_are_those_of_torch_cpu(self, name: str, options: dict, dtype: torch.dtype) -> None:
        """Parameters and state after three steps agree with the fused optimizer on the CPU, without a fallback."""
        torch.manual_seed(0)
        start, grads = torch.randn(40).to(dtype), torch.randn(3, 40).to(dtype)
        results: list[list[torch.Tensor]] = []
        for device in ("cpu", "tiny"):
            param = start.clone().to(device).requires_grad_()
            optimizer = getattr(torch.optim, name)([param], fused=True, **{"lr": 0.1, **options})
            backend.reset_stats()
            for grad in grads:
                param.grad = grad.to(device)
                optimizer.step()
            state = [t.cpu() for t in optimizer.state[param].values()]
            results.append([param.detach().cpu(), *state])
        stats = backend.stats()
        assert not stats["fallback"]
        assert sum(count for op, count in stats["decomposed"].items() if "_fused_ada" in op) == 3
        rounding = 8 * torch.finfo(dtype).eps  # three steps of a few rounded operations each
        for ours, expected in zip(*reversed(results), strict=True):
            torch.testing.assert_close(ours, expected, rtol=rounding, atol=rounding)

    def test_a_step_reads_no_number(self) -> None:
        """Steps wait on the device as those of other optimizers do: nothing leaves it before a value is read."""
        param = torch.ones(4, device="tiny", requires_grad=True)
        optimizer = torch.optim.AdamW([param], lr=0.1, fused=True)
        param.grad = torch.ones(4, device="tiny")
        optimizer.step()
        before = backend.stats()["copies_out"]
        for _ in range(2):
            optimizer.step()
        assert backend.stats()["copies_out"] == before


class TestGradScaler:
    """torch.amp.GradScaler. Its operators formerly ran on the CPU."""

    @pytest.mark.parametrize("fused", [False, True])
    def test_the_scale_follows_infinities(self, fused: bool) -> None:
        """Scales, parameters and skipped steps are those of the CPU, while gradients overflow and recover."""
        results = []
        for device in ("cpu", "tiny"):
            param = torch.ones(3).to(device).requires_grad_()
            optimizer = torch.optim.AdamW([param], lr=0.1, fused=fused)
            scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2, backoff_factor=0.25)
            seen: list[object] = []
            backend.reset_stats()
            for factor in (1.0, 2.0, float("inf"), 1.0, float("nan"), 3.0, 1.0, 2.0):
                optimizer.zero_grad()
                scaler.scale((param * factor).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
                seen.append((scaler.get_scale(), scaler._growth_tracker.item()))
            results.append((seen, param.tolist()))
        assert results[1][0] == results[0][0]
        assert results[1][1] == pytest.approx(results[0][1], rel=1e-6)
        assert not backend.stats()["fallback"]

    def test_a_scale_that_would_overflow_stays(self) -> None:
        scale, tracker = torch.tensor(2.0**127).to("tiny"), torch.tensor(1, dtype=torch.int32).to("tiny")
        torch._amp_update_scale_(scale, tracker, torch.zeros((), device="tiny"), 2.0, 0.5, 2)
        assert (scale.item(), tracker.item()) == (2.0**127, 0)
