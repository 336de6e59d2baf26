"""Random numbers in compiled graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from conformance import backend
from conformance.backend.torch_api import compile as compiled


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    """Reset Dynamo for each test."""
    torch._dynamo.reset()


def draw(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Call every random operator that reads no elements, and return some random results unchanged."""
    F, device = torch.nn.functional, x.device
    noise = torch.empty_like(x).uniform_(-1, 1) + torch.rand_like(x) + torch.randn(3, 4, device=device)
    noise = noise + torch.randint(0, 9, (4,), device=device) + torch.randperm(4, device=device)
    y = F.dropout(x, 0.3) * 2 + noise
    return F.dropout(y, 0.5), y, torch.full_like(x, 0.5).bernoulli_(0.4), torch.bernoulli(torch.zeros_like(x), 0.6)


class TestRandom:
    """A graph with random numbers is recorded, and each call draws in the order of the graph. Formerly it ran eagerly,
    even for dropout."""

    @pytest.fixture(autouse=True)
    def _recorded(self) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="tiny: a compiled graph runs eagerly")
            yield

    def test_numbers_are_those_of_the_cpu(self) -> None:
        """Values, gradients and the final generator state of three calls equal the CPU's."""
        run = torch.compile(draw, backend=compiled.tiny)
        leaf = torch.arange(12.0).view(3, 4)
        seen = []
        for device, called in (("cpu", draw), ("tiny", run)):
            torch.manual_seed(0)
            x = leaf.clone().to(device).requires_grad_()
            calls = []
            for _ in range(3):
                results = called(x)
                results[0].sum().backward()
                calls.append([*(t.detach().cpu() for t in results), x.grad.cpu().clone()])
            seen.append((calls, torch.get_rng_state()))
        (expected, state), (calls, left) = seen
        for one, other in zip(expected, calls, strict=True):
            for right, actual in zip(one, other, strict=True):
                torch.testing.assert_close(actual, right)
        assert torch.equal(state, left)
        assert not torch.equal(calls[0][0], calls[1][0])

    def test_what_is_drawn_is_written_afterwards(self) -> None:
        """A result that is the unchanged random tensor is a new tensor at each call."""
        run = torch.compile(torch.rand_like, backend=compiled.tiny)
        x = torch.zeros(4, device="tiny")
        torch.manual_seed(0)
        first = run(x).add_(1)
        second = run(x)
        torch.manual_seed(0)
        assert torch.equal(first.cpu(), torch.rand(4) + 1)
        assert torch.equal(second.cpu(), torch.rand(4))

    def test_kernels(self) -> None:
        """A call runs one kernel for the result, and no kernel for the numbers."""
        run = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5) * 2, backend=compiled.tiny)
        x = torch.ones(64, device="tiny")
        run(x)
        before = backend.stats()["kernels"]
        run(x)
        assert backend.stats()["kernels"] == before + 1

    def test_an_index_that_is_drawn(self) -> None:
        """A write by a random index happens only after the index is checked."""

        def write(x: torch.Tensor, low: int) -> torch.Tensor:
            x[torch.randint(low, low + 3, (2,), device=x.device)] += 1
            return x * 2

        run = torch.compile(write, backend=compiled.tiny)
        on_tiny, on_cpu = torch.zeros(3, 2).to("tiny"), torch.zeros(3, 2)
        for seed in range(3):
            torch.manual_seed(seed)
            run(on_tiny, 0)
            torch.manual_seed(seed)
            write(on_cpu, 0)
            assert torch.equal(on_tiny.cpu(), on_cpu)
        with pytest.raises(IndexError):
            run(on_tiny, 3)
        assert torch.equal(on_tiny.cpu(), on_cpu)

    @pytest.mark.parametrize("own", [False, True])
    def test_an_index_that_is_refused_leaves_the_state_of_one_draw(self, own: bool) -> None:
        """After a refused index the generator has advanced by one call. Formerly the refused run and the run that
        raises both drew numbers. For a separately seeded device, only the CPU's state was restored."""

        def chosen(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding(i, torch.rand_like(x))

        run = torch.compile(chosen, backend=compiled.tiny)
        x = torch.zeros(3, 2, device="tiny")
        run(x, torch.tensor([0, 2]).to("tiny"))
        torch.manual_seed(0)
        if own:
            torch.tiny.manual_seed(0)  # type: ignore[attr-defined]
        with pytest.raises(IndexError):
            run(x, torch.tensor([0, 3]).to("tiny"))
        state = torch.tiny.get_rng_state()  # type: ignore[attr-defined]
        torch.manual_seed(0)
        torch.rand(3, 2)
        assert torch.equal(torch.get_rng_state(), state)
