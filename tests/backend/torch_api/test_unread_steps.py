"""Training steps that nobody reads: each replays the one before, and a program that reads is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from conformance.backend import forget_calls, kernels
from conformance.backend.runtime.counters import COUNTERS
from conformance.backend.torch_api import unread_steps

Optimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def train(count: int, make: Optimizer, device: str, read: bool = False) -> list[float]:
    """The losses of some steps over the rows of an input, read after each step or after the last one."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
    optimizer, losses = make(list(net.parameters())), []
    x = torch.randn(count, 5, 3).to(device)
    for i in range(count):
        optimizer.zero_grad()
        loss = net(x[i]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if read:
            losses[-1].item()
    return torch.stack(losses).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_unread_steps_are_replayed(name: str) -> None:
    """Of 30 steps whose losses stay in a list, nearly all are replayed; the losses are those of steps that are read."""
    forget_calls()
    before = COUNTERS.replayed
    unread = train(30, OPTIMIZERS[name], "tiny")
    assert COUNTERS.replayed - before >= 18
    assert unread == train(30, OPTIMIZERS[name], "tiny", read=True)
    torch.testing.assert_close(unread, train(30, OPTIMIZERS[name], "cpu"))


def test_more_steps_need_no_further_schedule() -> None:
    """After 20 unread steps, 30 make no schedule but that of their list."""
    forget_calls()
    train(20, OPTIMIZERS["SGD"], "tiny")
    before = COUNTERS.scheduled
    train(30, OPTIMIZERS["SGD"], "tiny")
    assert COUNTERS.scheduled - before <= 1


def test_steps_that_are_read_compute_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that reads each loss, and two steps without a read, compute as often as without the hook."""

    def count(number: int, read: bool) -> tuple[int, int]:
        with kernels.count() as k:
            train(number, OPTIMIZERS["SGD"], "tiny", read)
        return k.schedules, k.kernels

    count(8, True), count(2, False)
    hooked = count(8, True), count(2, False)
    monkeypatch.setattr(unread_steps, "WAITING", 1000)
    assert hooked == (count(8, True), count(2, False))
