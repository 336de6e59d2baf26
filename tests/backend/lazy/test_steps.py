"""Steps that equal an earlier one are computed without their graphs, and nothing tells: every way out is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import conformance.backend as backend
from conformance.backend.lazy import calls, steps

Look = Callable[[int, nn.Module, torch.Tensor], object]


@pytest.fixture(autouse=True)
def _no_step_is_known() -> Iterator[None]:
    before = calls.queue_calls(True)
    steps.reset_state()
    yield
    calls.queue_calls(before)


def train(look: Look, turns: int = 9, sizes: tuple[int, ...] = (4,), zero: bool = True) -> list[object]:
    """Losses and what `look` sees at each turn of a small training loop on tiny."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 3)).to("tiny")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    data = torch.arange(48.0).sin().reshape(8, 6)
    seen: list[object] = []
    for turn in range(turns):
        x = data[: sizes[turn % len(sizes)]].to("tiny")
        if zero or turn % 2 == 0:
            optimizer.zero_grad()
        out = net(x)
        loss = nn.functional.cross_entropy(out, torch.zeros(len(x), dtype=torch.int64).to("tiny"))
        loss.backward()
        optimizer.step()
        seen += [loss.item(), look(turn, net, out)]
    return seen


def nothing(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Look at nothing but the loss."""
    return None


def gradient(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Read a gradient, which the step has left lazy, at some turns."""
    return net[0].weight.grad.sum().item() if turn % 3 == 2 else None  # type: ignore[union-attr,operator]


def output(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Read what the network gave before its parameters were changed."""
    return out.tolist() if turn > 5 else None


def parameter(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Write to a parameter, as clipping weights does."""
    with torch.no_grad():
        net[2].weight.clamp_(-0.1, 0.1)  # type: ignore[union-attr,operator]
        if turn == 6:
            net[0].weight[1, 2] = 0.5  # type: ignore[index]
    return net[2].weight.abs().max().item() if turn % 2 else None  # type: ignore[union-attr,operator]


_kept: list[torch.Tensor] = []


def keeping(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Hold results of earlier steps, and look at them later."""
    _kept.append(out.detach())
    _kept.append(net[0].weight.detach().clone())  # type: ignore[union-attr,operator]
    if turn < 7:
        return None
    found = [t.sum().item() for t in _kept]
    _kept.clear()
    return found


LOOKS = [nothing, gradient, output, parameter, keeping]


class TestReplay:
    @pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
    def test_what_is_seen_is_the_same(self, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same bits with replay on and off, whoever looks at what between the steps."""
        found = train(look)
        monkeypatch.setattr(steps, "ENABLED", False)
        assert train(look) == found

    @pytest.mark.parametrize("sizes", [(4, 3), (4, 4, 4, 2)])
    def test_steps_of_several_sizes(self, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """Each has a record of its own."""
        found = train(nothing, 12, sizes)
        monkeypatch.setattr(steps, "ENABLED", False)
        assert train(nothing, 12, sizes) == found

    def test_gradients_are_added_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A gradient that an earlier step left lazy is an operand of the next one."""
        found = train(gradient, 10, zero=False)
        monkeypatch.setattr(steps, "ENABLED", False)
        assert train(gradient, 10, zero=False) == found

    def test_a_replayed_step_builds_nothing(self) -> None:
        """No graph, no schedule looked up, no metadata asked for; as many kernels as before."""
        kernels: list[tuple[int, ...]] = []

        def count(turn: int, net: nn.Module, out: torch.Tensor) -> object:
            stats = backend.stats()
            kernels.append((stats["kernels"], stats["replayed"], stats["prepared"]))
            return None

        backend.reset_stats()
        train(count, 12)
        each = [tuple(b - a for a, b in zip(x, y, strict=True)) for x, y in zip(kernels, kernels[1:], strict=False)]
        assert [replayed for _, replayed, _ in each[-4:]] == [1] * 4
        assert [prepared for _, _, prepared in each[-4:]] == [0] * 4
        assert len({k for k, _, _ in each[3:]}) == 1

    def test_a_buffer_that_somebody_else_holds(self) -> None:
        """A step that writes a parameter in place is not replayed where a copy has come to share its buffer."""
        w = torch.arange(8192.0).to("tiny")
        for turn in range(6):
            x = w.clone() if turn == 5 else None
            w.mul_(0.5).add_(1)
            total = w.sum().item()
        expected = torch.arange(8192.0)
        for _ in range(6):
            before = expected.clone()
            expected.mul_(0.5).add_(1)
        assert total == pytest.approx(expected.sum().item())
        assert x is not None
        assert torch.equal(x.cpu(), before)
