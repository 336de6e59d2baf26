"""torch.compile(backend="tiny"): one recorded schedule, run again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from conformance import backend
from conformance.backend import compile as compiled


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    """Each test compiles for itself."""
    torch._dynamo.reset()


def network() -> nn.Module:
    """A small network with fixed parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


class TestInference:
    """Forward only."""

    @pytest.mark.parametrize("device", ["tiny", "cpu"])
    def test_agrees_with_cpu(self, device: str) -> None:
        """Tensors on tiny and on the CPU are both accepted; results are on the same device, values the CPU's."""
        net, x = network(), torch.randn(5, 6)
        run = torch.compile(copy.deepcopy(net).to(device), backend=compiled.tiny)
        with torch.no_grad():
            for scale in (1.0, 2.0):
                y = run((x * scale).to(device))
                assert y.device.type == device
                torch.testing.assert_close(y.cpu(), net(x * scale))

    def test_second_call_schedules_nothing(self) -> None:
        """A call over new values runs the same kernels, without fallback, and sees its own inputs."""
        run = torch.compile(lambda a, b: (a @ b).relu().sum(0), backend=compiled.tiny)
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        run(x.to("tiny"), y.to("tiny")).cpu()
        a, b = y.to("tiny"), x.to("tiny")
        backend.reset_stats()
        torch.testing.assert_close(run(a, b).cpu(), (y @ x).relu().sum(0))
        stats = backend.stats()
        assert (stats["native"], stats["fallback"]) == ({}, {})

    def test_views_and_written_inputs(self) -> None:
        """A result that is a view of an input aliases it; an input that the graph writes is written."""

        def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x.add_(1)
            return x.t(), x * 2

        run = torch.compile(function, backend=compiled.tiny)
        x = torch.arange(6.0, device="tiny").view(2, 3)
        for turn in (1, 2):
            view, double = run(x)
            assert x.cpu().tolist() == (torch.arange(6.0).view(2, 3) + turn).tolist()
            assert double.tolist() == (x.cpu() * 2).tolist()
            assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()

    def test_graph_that_needs_a_value_runs_eagerly(self) -> None:
        """An operator on the CPU cannot be recorded: the graph runs eagerly, says so, and is right."""
        run = torch.compile(lambda x: torch.linalg.eigvalsh(x) + 1, backend=compiled.tiny)
        x = torch.eye(3) * 2
        with pytest.warns(UserWarning, match="runs eagerly"):
            y = run(x.to("tiny"))
        torch.testing.assert_close(y.cpu(), torch.full((3,), 3.0))

    def test_random_numbers_are_drawn_at_each_call(self) -> None:
        """A recorded graph must not freeze random numbers: it runs eagerly and says why."""
        run = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5), backend=compiled.tiny)
        x = torch.ones(64, device="tiny")
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="runs eagerly"):
            first, second = run(x).tolist(), run(x).tolist()
        assert first != second


class TestTraining:
    """Forward and backward, each one schedule."""

    def test_gradients_agree_with_cpu(self) -> None:
        """Gradients of a compiled network are the CPU's."""
        net, x = network(), torch.randn(5, 6)
        on_tiny = copy.deepcopy(net).to("tiny")
        run = torch.compile(on_tiny, backend=compiled.tiny)
        for _ in range(2):
            on_tiny.zero_grad()
            (run(x.to("tiny")) ** 2).sum().backward()
        (net(x) ** 2).sum().backward()
        for mine, reference in zip(on_tiny.parameters(), net.parameters(), strict=True):
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad.cpu(), reference.grad)
