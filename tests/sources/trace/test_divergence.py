"""The free run of torch CPU beside a trace: where the device's run parts from it, and why."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import conformance
from tests.sources.trace.planting import planted


def test_the_cpu_does_not_part_from_itself():
    """In-place writes, views, random numbers and an optimizer, over several steps."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    with conformance.trace("cpu", divergence=True) as trace:
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.rand(5, 3)
            x[1:].mul_(2).t().add_(1)
            net(x).square().mean().backward()
            optimizer.step()
    follower = trace.mode.divergence
    assert follower.parting is None and follower.number > 200
    assert all(0 <= one.bound < 1e-4 for one in follower.shadows.values())
    assert f"divergence: none in {follower.number:,} calls" in str(trace)


@pytest.mark.tiny
class TestTiny:
    @pytest.fixture(autouse=True)
    def device(self):
        """Register the device."""
        import conformance.backend  # noqa: F401

    def test_a_fault(self):
        """A wrong operator parts the runs, and is the cause."""
        x = torch.linspace(0, 1, 5).to("tiny")
        with planted("sin.default", lambda value: value * 1.001), conformance.trace(divergence=True) as trace:
            torch.sin(x * 2) + 1
        parting = trace.mode.divergence.parting
        assert (parting.name, parting.where, parting.number) == ("aten.sin.default", "result", 2)
        assert parting.fault is trace.faults[0] and parting.device == pytest.approx(0.001, rel=0.01)
        assert "a fault: aten.sin.default" in str(trace)

    def test_rounding(self):
        """An error within the tolerance of one operator that a later operator amplifies is rounding, not a fault."""
        x = torch.linspace(0.5, 1, 5).to("tiny")
        with planted("neg.default", lambda value: value * 1.0000005), conformance.trace(divergence=True) as trace:
            y = -x
            (y + x) * 10_000
        parting = trace.mode.divergence.parting
        assert not trace.faults and (parting.name, parting.number) == ("aten.mul.Tensor", 3)
        assert parting.fault is None and "rounding errors that the calls amplify" in str(trace)

    def test_writes_reach_all_views(self):
        """A lost write parts the runs at the written tensor."""
        x = torch.zeros(4).to("tiny")
        with planted("add.Tensor", lambda value: value * 0), conformance.trace(divergence=True) as trace:
            x[1:].add_(1)
        parting = trace.mode.divergence.parting
        assert (parting.name, parting.where, parting.device) == ("aten.add_.Tensor", "result", 1.0)
