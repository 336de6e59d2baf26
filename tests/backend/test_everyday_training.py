"""Utilities of a training script: schedulers, scalers, loaders, torch.nn.utils, torch.accelerator."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

import conformance.backend

DEVICES = ("cpu", "tiny")


def network() -> nn.Module:
    """Return a small network with fixed weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def trained(device: str, make: Callable[[Any], Any], schedule: Callable[[Any], Any] | None = None) -> list[Any]:
    """Return the parameters and the learning rate after three steps through a closure."""
    model = network().to(device)
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule else None
    x, y = torch.randn(6, 4).to(device), torch.randn(6, 2).to(device)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        if scheduler:
            scheduler.step()
    return [*(p.detach().cpu() for p in model.parameters()), scheduler.get_last_lr() if scheduler else None]


def agree(outcome: Callable[[str], Any]) -> None:
    """Check that the outcome is the same on both devices."""
    expected, actual = (outcome(device) for device in DEVICES)
    torch.testing.assert_close(actual, expected)


class TestOptimizers:
    """Optimizers beyond test_training: repeated calls of a closure, foreach, and fused implementations."""

    @pytest.mark.parametrize("search", [pytest.param(None, marks=pytest.mark.slow), "strong_wolfe"])
    def test_lbfgs(self, search: str | None) -> None:
        """LBFGS agrees, with and without a line search."""
        agree(lambda d: trained(d, lambda ps: torch.optim.LBFGS(ps, line_search_fn=search))[:-1])

    @pytest.mark.parametrize("kind", [{"foreach": True}, {"foreach": False}, {"fused": True}])
    def test_ways_to_step(self, kind: dict[str, bool]) -> None:
        """The foreach, single and fused implementations agree."""
        agree(lambda d: trained(d, lambda ps: torch.optim.AdamW(ps, **kind))[:-1])

    @pytest.mark.parametrize(
        "schedule",
        [
            lambda o: lr_scheduler.StepLR(o, 1),
            lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
            lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
        ],
    )
    def test_schedules(self, schedule: Callable[[Any], Any]) -> None:
        """Learning rates and weights under a schedule agree."""
        agree(lambda d: trained(d, lambda ps: torch.optim.SGD(ps, lr=0.1), schedule))


def test_gradient_scaler() -> None:
    """GradScaler skips a step whose gradients overflow, halves its scale, and steps otherwise."""

    def outcome(device: str) -> list[Any]:
        model, scaler = network().to(device), torch.amp.GradScaler(device, init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        states = []
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(3, 4, device=device)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            states += [scaler.get_scale(), next(model.parameters()).detach().cpu().clone()]
        return states

    agree(outcome)
    assert outcome("tiny")[2] == 512.0


class Numbers(Dataset[torch.Tensor]):
    """A dataset of the numbers 0 to 11."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((3,), float(i))


class TestData:
    """torch.utils.data."""

    @pytest.mark.parametrize(("workers", "pin"), [(0, True), (2, False), (1, True)])
    def test_loader(self, workers: int, pin: bool) -> None:
        """Every sample reaches the device, with workers and with pinned memory."""
        loader = DataLoader(Numbers(), batch_size=4, num_workers=workers, pin_memory=pin)
        assert sum(float(batch.to("tiny", non_blocking=True).sum()) for batch in loader) == 3 * 66

    def test_tensors_on_the_device(self) -> None:
        """A TensorDataset of tiny tensors can be split and shuffled."""
        part, rest = random_split(TensorDataset(torch.arange(6.0, device="tiny")), [4, 2])
        loaded = [x for half in (part, rest) for (x,) in DataLoader(half, batch_size=2, shuffle=True)]
        assert {x.device.type for x in loaded} == {"tiny"} and sum(float(x.sum()) for x in loaded) == 15


class TestUtilities:
    """torch.nn.utils."""

    def test_clipping(self) -> None:
        """clip_grad_norm_ and clip_grad_value_ give the CPU's gradients."""

        def outcome(device: str) -> list[torch.Tensor]:
            model = network().to(device)
            model(torch.ones(3, 4, device=device)).square().sum().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            return [norm.cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]

        agree(outcome)

    @pytest.mark.parametrize(
        "parametrize", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
    )
    def test_parametrizations(self, parametrize: Callable[[nn.Module], nn.Module]) -> None:
        """A step with a parametrized layer agrees."""

        def outcome(device: str) -> torch.Tensor:
            torch.manual_seed(1)
            layer = parametrize(nn.Linear(4, 3)).to(device)
            x = torch.linspace(-1, 1, 12).view(3, 4).to(device)
            layer(x).square().sum().backward()
            torch.optim.SGD(layer.parameters(), lr=0.1).step()
            return layer(x).detach().cpu()

        agree(outcome)

    def test_pruning(self) -> None:
        """l1_unstructured prunes the same weights on both devices."""

        def outcome(device: str) -> torch.Tensor:
            layer = nn.Linear(4, 3, device="cpu")
            with torch.no_grad():
                layer.weight.copy_(torch.arange(12.0).view(3, 4))
            layer = layer.to(device)
            prune.l1_unstructured(layer, "weight", 0.5)
            return layer.weight.detach().cpu()

        agree(outcome)


def test_state_dicts() -> None:
    """A model and its optimizer, saved on the device, continue from the saved state on the device and on the CPU."""
    model = network().to("tiny")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4, device="tiny")).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    results = []
    for device in DEVICES:
        file.seek(0)
        saved = torch.load(file, map_location=device)
        again = network().to(device)
        again.load_state_dict(saved["model"])
        stepped = torch.optim.Adam(again.parameters())
        stepped.load_state_dict(saved["optimizer"])
        again(torch.ones(2, 4, device=device)).square().sum().backward()
        stepped.step()
        results.append([p.detach().cpu() for p in again.parameters()])
    torch.testing.assert_close(results[1], results[0])


class TestAccelerator:
    """torch.accelerator."""

    def test_calls(self) -> None:
        """The accelerator is tiny. synchronize computes pending writes, and empty_cache works."""
        assert torch.accelerator.current_accelerator() == torch.device("tiny")
        assert torch.accelerator.device_count() >= 1 and torch.accelerator.current_device_index() == 0
        written = torch.zeros(4, device="tiny").add_(1)
        before = conformance.backend.stats()["kernels"]
        torch.accelerator.synchronize()
        assert conformance.backend.stats()["kernels"] >= before and written.cpu().tolist() == [1.0] * 4
        torch.accelerator.empty_cache()

    def test_statistics(self) -> None:
        """Memory statistics have the names of torch's caching allocators. They were formerly missing."""
        held = torch.arange(1000.0).to("tiny")
        assert held.sum().item() == 499500
        assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] >= 4000
