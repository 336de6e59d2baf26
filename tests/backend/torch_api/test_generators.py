"""`torch.Generator(device="tiny")` works. It formerly raised NotImplementedError, since torch requests a generator from
C++."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import conformance.backend  # noqa: F401
from conformance.backend.runtime import random_state

SEED = 7

# Every random function that takes a generator, on a device. In-place functions fill an empty tensor.
DRAWS: dict[str, Callable[[str, torch.Generator], torch.Tensor]] = {
    "rand": lambda d, g: torch.rand(5, device=d, generator=g),
    "randn": lambda d, g: torch.randn(5, device=d, generator=g),
    "randint": lambda d, g: torch.randint(9, (5,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(9, device=d, generator=g),
    "rand_like": lambda d, g: torch.rand_like(torch.zeros(5, device=d), generator=g),
    "normal": lambda d, g: torch.normal(0.0, 1.0, (5,), device=d, generator=g),
    "normal of tensors": lambda d, g: torch.normal(torch.zeros(5, device=d), torch.ones(5, device=d), generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((9,), 0.5, device=d), generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(9, device=d), 4, generator=g),
    "poisson": lambda d, g: torch.poisson(torch.full((9,), 3.0, device=d), generator=g),
    "binomial": lambda d, g: torch.binomial(torch.full((9,), 8.0, device=d), torch.full((9,), 0.5, device=d), g),
    "uniform_": lambda d, g: torch.empty(5, device=d).uniform_(generator=g),
    "normal_": lambda d, g: torch.empty(5, device=d).normal_(generator=g),
    "exponential_": lambda d, g: torch.empty(5, device=d).exponential_(generator=g),
    "cauchy_": lambda d, g: torch.empty(5, device=d).cauchy_(generator=g),
    "log_normal_": lambda d, g: torch.empty(5, device=d).log_normal_(generator=g),
    "geometric_": lambda d, g: torch.empty(5, device=d).geometric_(0.5, generator=g),
    "random_": lambda d, g: torch.empty(5, device=d).random_(generator=g),
    "random_ of a range": lambda d, g: torch.empty(5, device=d).random_(2, 9, generator=g),
    "bernoulli_": lambda d, g: torch.empty(9, device=d).bernoulli_(0.5, generator=g),
    "trunc_normal_": lambda d, g: torch.nn.init.trunc_normal_(torch.empty(5, device=d), generator=g),
}


# Calls without a generator, one for each way that tiny draws: in place, new, by the whole operator, with a mask.
WITHOUT: dict[str, Callable[[str], list[float]]] = {
    "uniform_": lambda d: torch.empty(5, device=d).uniform_().tolist(),
    "randn": lambda d: torch.randn(5, device=d).tolist(),
    "randperm": lambda d: torch.randperm(9, device=d).tolist(),
    "multinomial": lambda d: torch.multinomial(torch.ones(9, device=d), 4).tolist(),
    "dropout": lambda d: torch.dropout(torch.ones(20, device=d), 0.5, True).tolist(),
}


def _backward(result: torch.Tensor, x: torch.Tensor) -> list[float]:
    """Return the gradient by `backward`, which a reentrant checkpoint requires."""
    x.grad = None
    result.sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def seeded() -> torch.Generator:
    return torch.Generator(device="tiny").manual_seed(SEED)


class TestDraws:
    """A generator of tiny works in every random function."""

    @pytest.mark.parametrize("name", DRAWS)
    def test_numbers_are_those_of_a_cpu_generator(self, name: str) -> None:
        expected = DRAWS[name]("cpu", torch.Generator().manual_seed(SEED))
        assert torch.equal(DRAWS[name]("tiny", seeded()).cpu(), expected)

    def test_the_default_generator_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        torch.rand(5, device="tiny", generator=seeded())
        assert torch.equal(torch.get_rng_state(), before)


class TestDefault:
    """Calls without a generator: the CPU's numbers, until the device has its own seed or state."""

    @pytest.fixture(autouse=True)
    def shared(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Let two devices use the CPU's generator, before and after each test."""
        monkeypatch.setenv("TINY_DEVICES", "2")
        torch.manual_seed(SEED)
        yield
        torch.manual_seed(SEED)

    @pytest.mark.parametrize("name", ["manual_seed", "manual_seed_all"])
    def test_a_seed_of_the_device(self, name: str) -> None:
        """The device module's seed functions work. They formerly did nothing."""
        drawn = []
        for _ in range(2):
            getattr(torch.get_device_module("tiny"), name)(SEED)
            drawn.append(torch.rand(5, device="tiny").tolist())
        assert drawn[0] == drawn[1] == torch.rand(5, generator=torch.Generator().manual_seed(SEED)).tolist()

    @pytest.mark.parametrize("name", ["seed", "seed_all"])
    def test_a_seed_that_is_not_foreseen(self, name: str) -> None:
        getattr(torch.tiny, name)()
        assert torch.tiny.initial_seed() != SEED

    def test_a_run_on_both_sides_has_the_numbers_of_the_cpu(self) -> None:
        both = [torch.rand(3, device=device).tolist() for device in ("cpu", "tiny", "tiny:1", "cpu")]
        torch.manual_seed(SEED)
        assert both == [torch.rand(3).tolist() for _ in range(4)]

    @pytest.mark.parametrize("name", sorted(WITHOUT))
    def test_a_seeded_device_goes_on_by_itself(self, name: str) -> None:
        """A seeded device has a separate state. It was formerly the CPU's: a draw on either side moved the other, and a
        seed of one was the other's."""
        draw, before = WITHOUT[name], torch.get_rng_state()
        torch.tiny.manual_seed(3)
        one, two = draw("tiny"), draw("tiny")
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(3)
        assert (one, two) == (draw("cpu"), draw("cpu"))

    def test_each_device_has_a_state(self) -> None:
        with torch.tiny.device(1):
            torch.tiny.manual_seed(3)
            assert torch.tiny.initial_seed() == 3
        assert torch.tiny.initial_seed() == SEED
        shared, own = torch.tiny.get_rng_state_all()
        assert torch.equal(shared, torch.get_rng_state()) and not torch.equal(own, shared)
        first = torch.rand(3, device="tiny:1").tolist()
        assert torch.equal(torch.tiny.get_rng_state(0), shared)
        torch.tiny.set_rng_state(own, 1)
        assert torch.rand(3, device="tiny:1").tolist() == first
        assert (
            torch.rand(3, device="tiny:0").tolist()
            == torch.rand(3, generator=torch.Generator().manual_seed(SEED)).tolist()
        )

    def test_a_seed_of_all_shares_the_state_again(self) -> None:
        torch.tiny.manual_seed(3)
        torch.manual_seed(SEED)
        both = [torch.rand(3, device=device).tolist() for device in ("cpu", "tiny")]
        torch.manual_seed(SEED)
        assert both == [torch.rand(3).tolist() for _ in range(2)]

    def test_a_fork_leaves_the_state_shared(self) -> None:
        """Restoring both states must not separate them."""
        with torch.random.fork_rng(devices=[0], device_type="tiny"):
            torch.rand(3, device="tiny")
        both = [torch.rand(3, device=device).tolist() for device in ("cpu", "tiny")]
        torch.manual_seed(SEED)
        assert both == [torch.rand(3).tolist() for _ in range(2)]

    def test_a_fork_puts_an_own_state_back(self) -> None:
        torch.tiny.manual_seed(3)
        with torch.random.fork_rng(devices=[0], device_type="tiny"):
            inside = torch.rand(3, device="tiny").tolist()
        assert torch.rand(3, device="tiny").tolist() == inside

    def test_a_fork_keeps_apart_what_is_equal(self) -> None:
        """Restoring keeps a separate state that equals the CPU's. It was formerly merged with the CPU's."""
        torch.manual_seed(3)
        torch.tiny.manual_seed(3)
        with torch.random.fork_rng(devices=[0], device_type="tiny"):
            pass
        before = torch.get_rng_state()
        torch.rand(3, device="tiny")
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("reentrant", [True, False])
    @pytest.mark.parametrize("device", ["tiny", "tiny:1"])
    def test_a_checkpoint_draws_the_same_again(self, device: str, reentrant: bool) -> None:
        """A checkpoint draws the same mask again. Its gradients formerly belonged to another mask:
        torch.utils.checkpoint keeps no state of a device that is not reported as initialized."""
        x, gradients = torch.ones(50, device=device, requires_grad=True), []

        def masked(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x).pow(2)

        for checkpointed in (False, True):
            with torch.tiny.device(int(device[-1]) if ":" in device else 0):
                torch.tiny.manual_seed(8)
            result = (
                torch.utils.checkpoint.checkpoint(masked, x, use_reentrant=reentrant) if checkpointed else masked(x)
            )
            torch.rand(5, device=device)
            gradients += [torch.autograd.grad(result.sum(), x)[0].tolist() if not reentrant else _backward(result, x)]
        assert gradients[0] == gradients[1]

    def test_threads_that_draw_on_the_cpu_meanwhile(self) -> None:
        """Threads may draw on the CPU at the same time. Formerly the device's state was in the CPU's generator during a
        draw, so both were wrong."""
        torch.tiny.manual_seed(3)
        drawn: dict[str, list[float]] = {}

        def draw(device: str, sizes: list[int]) -> None:
            drawn[device] = [torch.rand(size, device=device)[0].item() for size in sizes]

        sizes = {"tiny": [200_000] * 20, "cpu": [5] * 4000}
        threads = [threading.Thread(target=draw, args=each) for each in sizes.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for device, seed in (("tiny", 3), ("cpu", SEED)):
            own = torch.Generator().manual_seed(seed)
            assert drawn[device] == [torch.rand(size, generator=own)[0].item() for size in sizes[device]]

    def test_an_operator_that_takes_no_generator(self) -> None:
        """An operator without a generator argument uses the device's state in the CPU's generator, which is restored
        afterwards."""
        torch.tiny.manual_seed(3)
        before, op, ones = torch.get_rng_state(), torch.ops.aten.native_dropout.default, torch.ones(20)
        seen = []
        for _ in range(2):
            with random_state.drawing(op, 0, (ones, 0.5, True), {}) as (args, kwargs):
                seen.append(op(*args, **kwargs)[1].tolist())
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(3)
        assert seen == [op(ones, 0.5, True)[1].tolist() for _ in range(2)]

    def test_an_error_while_drawing_leaves_the_state_of_the_cpu(self) -> None:
        torch.tiny.manual_seed(3)
        before = torch.get_rng_state()
        with pytest.raises(RuntimeError):
            torch.bernoulli(torch.full((2,), 3.0, device="tiny"))
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_compiled_graph_draws_from_the_device(self) -> None:
        compiled = torch.compile(lambda x: x + torch.rand_like(x), backend="tiny")
        torch.tiny.manual_seed(3)
        drawn = [compiled(torch.zeros(4, device="tiny")).tolist() for _ in range(3)]
        own = torch.Generator().manual_seed(3)
        assert drawn == [torch.rand(4, generator=own).tolist() for _ in range(3)]


class TestGenerator:
    """Attributes and copies of a generator."""

    def test_device_and_type(self) -> None:
        generator = torch.Generator(device="tiny")
        assert generator.device == torch.device("tiny", 0)
        assert isinstance(generator, torch.Generator)
        assert torch.Generator().device == torch.device("cpu")

    def test_state_moves_to_another(self) -> None:
        one, other = seeded(), torch.Generator("tiny")
        torch.rand(3, device="tiny", generator=one)
        other.set_state(one.get_state())
        assert torch.equal(torch.rand(3, generator=one, device="tiny"), torch.rand(3, generator=other, device="tiny"))

    @pytest.mark.parametrize(
        "copied", [lambda g: g.clone_state(), copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))]
    )
    def test_a_copy_goes_on_from_the_same_state(self, copied: Callable[[torch.Generator], torch.Generator]) -> None:
        original = seeded()
        torch.rand(3, device="tiny", generator=original)
        generator = copied(original)
        assert generator.device == original.device
        assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=original))

    def test_no_such_device(self) -> None:
        with pytest.raises(RuntimeError, match="no device tiny:7"):
            torch.Generator(device="tiny:7")


class TestStates:
    """Seed functions of torch.tiny. `seed`, `initial_seed` and the states of all devices were formerly missing."""

    def test_states_of_all_devices_come_back(self) -> None:
        states = torch.tiny.get_rng_state_all()
        first = torch.rand(3, device="tiny")
        torch.tiny.set_rng_state_all(states)
        assert torch.equal(torch.rand(3, device="tiny"), first)
        assert len(states) == torch.tiny.device_count()
        torch.manual_seed(3)
        assert torch.tiny.initial_seed() == 3
