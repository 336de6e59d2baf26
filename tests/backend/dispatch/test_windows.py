"""Views whose offset changes from step to step: the steps are replayed, and read the elements of each offset."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import conformance.backend as backend
from conformance.backend.dispatch import windows

pytestmark = pytest.mark.usefixtures("queue")

STEPS, SIZE = 8, 5
Step = Callable[[torch.Tensor, int], object]


def data() -> torch.Tensor:
    """Return different numbers of shape (45, 3), with exact sums. No other test has the geometry of these batches: a
    call with a known offset keeps its view."""
    return torch.arange(135.0).reshape(45, 3) / 64


def both(step: Step) -> tuple[list[object], list[object], dict[str, int]]:
    """Return the results of all steps on the CPU and on tiny, and the counts of the last three steps."""
    expected, x = [], data()
    for i in range(STEPS):
        expected.append(step(x, i * SIZE))
    actual, x = [], data().to("tiny")
    for i in range(STEPS):
        if i == STEPS - 3:
            backend.reset_stats()
        actual.append(step(x, i * SIZE))
    return expected, actual, backend.stats()


def close(actual: list[object], expected: list[object]) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


class TestWindows:
    def test_batches(self) -> None:
        """Steps on the batches of one tensor are replayed, not scheduled."""
        expected, actual, counts = both(lambda x, i: (x[i : i + SIZE] * 2).exp().sum().item())
        close(actual, expected)
        assert counts["replayed"] == 3
        assert counts["scheduled"] == 0

    def test_batches_of_an_order(self) -> None:
        """Batches may also be chosen by `index_select` with a part of a permutation."""
        order = torch.randperm(45, generator=torch.Generator().manual_seed(0))
        orders = {"cpu": order, "tiny": order.to("tiny")}

        def step(x: torch.Tensor, i: int) -> float:
            chosen = orders[x.device.type][i : i + SIZE]
            return x.index_select(0, chosen).exp().sum().item()

        expected, actual, counts = both(step)
        close(actual, expected)
        assert counts["replayed"] == 3
        assert counts["scheduled"] == 0

    def test_gradients(self) -> None:
        """A backward pass reads the elements of the batch again."""

        def step(x: torch.Tensor, i: int) -> list[float]:
            weight = torch.ones(3, 2, device=x.device, requires_grad=True)
            (x[i : i + SIZE] @ weight).square().sum().backward()
            return weight.grad.flatten().tolist()  # type: ignore[union-attr]

        expected, actual, counts = both(step)
        close(actual, expected)
        assert counts["replayed"] == 3

    def test_a_later_write(self) -> None:
        """A result that was not computed yet has the elements from before a later write into the data."""

        def step(x: torch.Tensor, i: int) -> list[float]:
            result = x[i : i + SIZE] * 2
            x[i : i + SIZE] = float(i)
            return [*result.flatten().tolist(), x.sum().item()]

        expected, actual, _ = both(step)
        close(actual, expected)

    def test_an_earlier_write(self) -> None:
        """A result has the elements of a write that was not computed at the call."""

        def step(x: torch.Tensor, i: int) -> float:
            x.add_(x.flip(0))
            return (x[i : i + SIZE] * 2).sum().item()

        expected, actual, _ = both(step)
        close(actual, expected)

    def test_a_write_through_the_view(self) -> None:
        """A method that writes in place changes the data, not a copy."""

        def step(x: torch.Tensor, i: int) -> float:
            x[i : i + SIZE].mul_(3)
            return x.sum().item()

        expected, actual, _ = both(step)
        close(actual, expected)

    def test_transposed_and_strided(self) -> None:
        """Strides of a view without gaps remain; a view with gaps is not copied."""

        def step(x: torch.Tensor, i: int) -> list[float]:
            return [(x[i : i + SIZE].t() * 2)[1].sum().item(), (x[i : i + SIZE, ::2] * 2).sum().item()]

        expected, actual, _ = both(step)
        close(actual, expected)


class TestSettled:
    def test_several_offsets_in_one_step(self) -> None:
        """A loop over the rows within one step makes no copies."""
        x = data().to("tiny")
        total = x[0] + x[1]
        backend.reset_stats()
        for row in range(2, 20):
            total = total + x[row]
        assert total.sum().item() == data()[:20].sum().item()
        assert backend.stats()["copies_in"] == 0

    def test_large_views(self) -> None:
        """Views of more than half of the storage are not copied."""
        x = data().to("tiny")
        windowed = windows.Windows()
        for turn in range(6):
            assert windowed.settled([x[turn : turn + 23]], ()) is None
            (x + turn).sum().item()

    def test_tensors_in_keyword_arguments(self) -> None:
        """A call with a tensor as keyword argument keeps its views, and no tensor stays alive in a key."""
        x = data().to("tiny")
        windowed = windows.Windows()
        for turn in range(6):
            assert windowed.settled([x[turn : turn + 4]], (x,)) is None
            (x + turn).sum().item()
        assert not windowed.moves
