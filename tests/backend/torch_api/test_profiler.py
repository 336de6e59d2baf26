"""Kernels in torch's profiler."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import conformance.backend as backend


def kernels(events) -> list:  # type: ignore[no-untyped-def]
    return [e for e in events if e.name.startswith("tiny::")]


def program() -> tuple[float, int]:
    before = backend.stats()["kernels"]
    x = torch.arange(6.0, device="tiny").reshape(2, 3)
    return (x @ x.t()).exp2().sum().item(), backend.stats()["kernels"] - before


class TestProfiler:
    """A profile contains kernels. It formerly contained operators only."""

    def test_each_kernel_has_a_name_and_a_time(self) -> None:
        """The first run may schedule, and the second replays a known schedule. Both profiles show all kernels."""
        values = set()
        for _ in range(2):
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                value, count = program()
            values.add(value)
            events = kernels(seen.events())
            assert len(events) == count > 0
            assert all(e.name.removeprefix("tiny::")[:2] in ("r_", "E_") for e in events)
            assert all(e.cpu_time_total > 0 for e in events)
        assert len(values) == 1

    def test_a_kernel_lies_within_what_asked_for_it(self) -> None:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            program()
        (name,) = {e.cpu_parent.name for e in kernels(seen.events())}
        assert name == "aten::_local_scalar_dense"

    def test_none_after_the_profile(self) -> None:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            torch.ones(2).sum()
        program()
        assert not kernels(seen.events())

    def test_of_the_device_by_name(self, capfd: pytest.CaptureFixture[str]) -> None:
        """A profile with use_device="tiny" works. It formerly printed a C++ stack for each operator."""
        with torch.autograd.profiler.profile(use_device="tiny") as seen:
            program()
        assert kernels(seen.function_events)
        assert "tiny::" in seen.key_averages().table()
        printed = capfd.readouterr()
        assert "frame #" not in printed.out + printed.err
