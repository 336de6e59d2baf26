"""Views whose offset changes from step to step: the steps are replayed, and read the elements of each offset."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

import conformance.backend as backend
from conformance.backend.dispatch import windows
from conformance.backend.lazy import flush

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


CHOOSE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index": lambda x, chosen: x[chosen],
    "index of columns": lambda x, chosen: x.view(3, 45)[:, chosen],
    "two indices": lambda x, chosen: x[chosen, chosen.remainder(3)],
    "take": torch.take,
    "gather": lambda x, chosen: x.gather(0, chosen[:, None]),
    "index_select": lambda x, chosen: x.index_select(0, chosen),
}
"""Reading of rows or elements by an index."""


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

    @pytest.mark.parametrize("name", CHOOSE)
    def test_an_index_that_moves(self, name: str) -> None:
        """Each operator that reads by index has one schedule for all parts of an order, of one kernel, and no new one.
        Formerly the remainder of an index, whose bounds are known, was computed on its own to be checked."""
        order = torch.randperm(45, generator=torch.Generator().manual_seed(1))
        orders = {"cpu": order, "tiny": order.to("tiny")}

        def step(x: torch.Tensor, i: int) -> object:
            chosen = orders[x.device.type][i : i + SIZE]
            return (CHOOSE[name](x, chosen) * 2).tolist()

        expected, actual, counts = both(step)
        close(actual, expected)
        assert (counts["replayed"], counts["scheduled"], counts["loaded"], counts["kernels"]) == (3, 0, 0, 3)

    @pytest.mark.parametrize("name", CHOOSE)
    def test_an_index_that_changes(self, name: str) -> None:
        """A result has the elements that the index and the data had at the call. Both change before the result is
        read, and the index is written in place in each step."""
        indices = {"cpu": torch.arange(SIZE), "tiny": torch.arange(SIZE).to("tiny")}

        def step(x: torch.Tensor, i: int) -> object:
            chosen = indices[x.device.type]
            first = CHOOSE[name](x, chosen) + 1
            chosen.mul_(7).add_(i).remainder_(45)
            second = CHOOSE[name](x, chosen) + 1
            x[i : i + 2] = -1.0
            return first.tolist(), second.tolist(), CHOOSE[name](x, chosen).tolist(), chosen.tolist()

        expected, actual, _ = both(step)
        assert actual == expected

    @pytest.mark.parametrize("name", ["index", "take"])
    def test_data_that_are_their_own_index(self, name: str) -> None:
        """An index in the memory of the data is read before a write into that memory."""

        def step(_: torch.Tensor, i: int, x: torch.Tensor) -> object:
            result = CHOOSE[name](x, x[i : i + SIZE]) * 3
            x.sub_(x[i] % 5).remainder_(45)
            return result.tolist()

        own = (torch.arange(45) * 4) % 45
        moved = own.to("tiny")
        expected, actual, _ = both(lambda x, i: step(x, i, own if x.device.type == "cpu" else moved))
        assert actual == expected

    @pytest.mark.parametrize("name", CHOOSE)
    def test_an_index_out_of_range(self, name: str) -> None:
        """A known call with a wrong element raises torch's error at the call, also for a moving index."""
        order = torch.arange(45)
        order[-1] = 999

        def step(x: torch.Tensor, i: int) -> object:
            chosen = order.to(x.device)[i : i + SIZE]
            try:
                return CHOOSE[name](x, chosen).tolist()
            except (IndexError, RuntimeError) as error:
                return type(error), str(error)

        expected, actual, _ = both(step)
        assert actual[:-1] == expected[:-1]
        order[7] = 999
        x = data()
        for device in ("cpu", "tiny"):
            with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
                CHOOSE[name](x.to(device), order[5:10].to(device))

    def test_bounds_of_a_computed_index(self) -> None:
        """An index whose bounds its operator gives is not read, unless it was written since or exceeds the data."""

        def step(x: torch.Tensor, i: int) -> object:
            chosen = torch.arange(i, i + SIZE).to(x.device)
            results = []
            for index in (chosen % 45, chosen % 46, chosen % 46, (chosen % 45).add_(i // 40)):
                try:
                    results.append((x[index] * 2).tolist())
                except IndexError as error:
                    results.append(str(error))
            return results

        expected, actual = ([step(data().to(device), i) for i in range(0, 50, 5)] for device in ("cpu", "tiny"))
        assert actual == expected
        assert any(isinstance(result, str) for results in expected for result in results)

    @pytest.mark.parametrize("name", CHOOSE)
    def test_an_index_overwritten_in_its_memory(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A checked index is checked again after a write into its buffer."""
        monkeypatch.setattr(flush, "IN_PLACE_BYTES", 1)
        monkeypatch.setattr(flush, "IN_PLACE_SHARE", 1)
        x, chosen = data().to("tiny"), torch.arange(SIZE).to("tiny")
        for _ in range(3):
            close([CHOOSE[name](x, chosen).tolist()], [CHOOSE[name](data(), torch.arange(SIZE)).tolist()])
        backend.reset_stats()
        chosen[1:2] = 999
        backend.realize()
        assert backend.stats()["stored"] == 1
        with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
            CHOOSE[name](x, chosen)

    def test_counts_that_are_reset(self) -> None:
        """A reset of the statistics in each step changes no step. Formerly no step counted as another one then."""
        gc.collect()  # a tensor of another test that ends during a step keeps the step from being recorded
        x = data().to("tiny")[:, :2].clone()
        counts = []
        for i in range(STEPS):
            backend.reset_stats()
            _ = (x[i] * 2).tolist()
            counts.append(backend.stats())
        assert [c["schedules"] for c in counts] == [1] * STEPS
        assert [c["replayed"] for c in counts[-3:]] == [1] * 3

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
