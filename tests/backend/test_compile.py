"""torch.compile(backend="tiny"): one recorded schedule, run again."""

from __future__ import annotations

import copy
import warnings

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


class TestChecksOfElements:
    """Indices and labels are checked at each run of a recording."""

    def test_a_label_out_of_range_raises_the_cpus_error(self) -> None:
        """A recorded loss raised nothing once its first labels had been right, or was not recorded at all."""
        run = torch.compile(nn.functional.cross_entropy, backend=compiled.tiny)
        x, good = torch.randn(3, 4), torch.tensor([1, -100, 0])
        torch.testing.assert_close(run(x.to("tiny"), good.to("tiny")).cpu(), nn.functional.cross_entropy(x, good))
        backend.reset_stats()
        other = torch.tensor([3, 2, -100])
        torch.testing.assert_close(run(x.to("tiny"), other.to("tiny")).cpu(), nn.functional.cross_entropy(x, other))
        assert backend.stats()["native"] == {}  # it was recorded
        with pytest.raises(IndexError, match="Target 7 is out of bounds"):
            run(x.to("tiny"), torch.tensor([1, 7, 0]).to("tiny"))

    def test_the_gradient_of_an_embedding_is_recorded(self) -> None:
        """Rows summed by index on the device, those of the padding index left out; no warning, the CPU's values."""
        weight, index = torch.randn(5, 3), torch.tensor([[1, 4, 1], [0, 1, 2]])

        def loss(weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return (nn.functional.embedding(index, weight, padding_idx=4) ** 2).sum()

        grads = []
        for device in ("cpu", "tiny"):
            w = weight.clone().to(device).requires_grad_()
            run = torch.compile(loss, backend=compiled.tiny) if device == "tiny" else loss
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                for _ in range(2):
                    w.grad = None
                    run(w, index.to(device)).backward()
            assert w.grad is not None
            grads.append(w.grad.cpu())
        torch.testing.assert_close(grads[1], grads[0])

    def test_nothing_is_written_where_an_index_is_wrong(self) -> None:
        """The write that a graph makes before an index fails is not made."""

        def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x.gather(0, i)

        run = torch.compile(function, backend=compiled.tiny)
        x = torch.zeros(3, device="tiny")
        assert run(x, torch.tensor([0, 2]).to("tiny")).tolist() == [1, 1]
        kept = x.clone()
        with pytest.raises(RuntimeError, match="index 3 is out of bounds"):
            run(kept, torch.tensor([0, 3]).to("tiny"))
        assert kept.tolist() == [1, 1, 1]


class TestHostTensors:
    """CPU tensors in a graph."""

    def test_a_written_cpu_input_is_written(self) -> None:
        """The step counts of an optimizer lie on the CPU: a graph that counts them up must not count copies up."""

        def function(count: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            count.add_(1)
            return count * 2, x * count

        run = torch.compile(function, backend=compiled.tiny)
        count, x = torch.tensor(1.0), torch.ones(2, device="tiny")
        for step in (2.0, 3.0):
            doubled, scaled = run(count, x)
            assert (count.item(), doubled.item(), scaled.tolist()) == (step, 2 * step, [step, step])
            assert (doubled.device.type, scaled.device.type) == ("cpu", "tiny")

    @pytest.mark.parametrize("capturable", [False, True])
    def test_a_compiled_optimizer_steps_as_the_cpus(self, capturable: bool) -> None:
        """Adam, its step compiled: parameters after four steps agree with the CPU's."""
        nets = [network(), network().to("tiny")]
        x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
        for net, device in zip(nets, ("cpu", "tiny"), strict=True):
            own = capturable and device == "tiny"
            optimizer = torch.optim.Adam(net.parameters(), lr=0.1, capturable=own)
            advance = torch.compile(optimizer.step, backend=compiled.tiny) if device == "tiny" else optimizer.step
            for _ in range(4):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x.to(device)), y.to(device)).backward()
                advance()
        for ours, theirs in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach())
