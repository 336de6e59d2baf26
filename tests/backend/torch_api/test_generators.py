"""`torch.Generator(device="tiny")`: it raised NotImplementedError, since torch asks C++ for a generator."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch

import conformance.backend  # noqa: F401

SEED = 7

# Every random function that takes a generator, on a device; in-place ones fill what `empty` gives.
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


def seeded() -> torch.Generator:
    return torch.Generator(device="tiny").manual_seed(SEED)


class TestDraws:
    """A generator of tiny in every random function."""

    @pytest.mark.parametrize("name", DRAWS)
    def test_numbers_are_those_of_a_cpu_generator(self, name: str) -> None:
        expected = DRAWS[name]("cpu", torch.Generator().manual_seed(SEED))
        assert torch.equal(DRAWS[name]("tiny", seeded()).cpu(), expected)

    def test_the_default_generator_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        torch.rand(5, device="tiny", generator=seeded())
        assert torch.equal(torch.get_rng_state(), before)


class TestDefault:
    """Numbers drawn without a generator; the device module's seeds did nothing."""

    @pytest.mark.parametrize("name", ["manual_seed", "manual_seed_all"])
    def test_a_seed_of_the_device(self, name: str) -> None:
        drawn = []
        for _ in range(2):
            getattr(torch.get_device_module("tiny"), name)(SEED)
            drawn.append(torch.rand(5, device="tiny").tolist())
        assert drawn[0] == drawn[1]

    @pytest.mark.parametrize("name", ["seed", "seed_all"])
    def test_a_seed_that_is_not_foreseen(self, name: str) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            getattr(torch.tiny, name)()
            assert torch.tiny.initial_seed() != SEED


class TestGenerator:
    """What it says of itself, and copies of it."""

    def test_device_and_type(self) -> None:
        made = torch.Generator(device="tiny")
        assert made.device == torch.device("tiny", 0)
        assert isinstance(made, torch.Generator)
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
        made = copied(original)
        assert made.device == original.device
        assert torch.equal(torch.rand(3, generator=made), torch.rand(3, generator=original))

    def test_no_such_device(self) -> None:
        with pytest.raises(RuntimeError, match="no device tiny:7"):
            torch.Generator(device="tiny:7")


class TestStates:
    """torch.tiny's functions about seeds: `seed`, `initial_seed` and the states of all devices did not exist."""

    def test_states_of_all_devices_come_back(self) -> None:
        states = torch.tiny.get_rng_state_all()
        first = torch.rand(3, device="tiny")
        torch.tiny.set_rng_state_all(states)
        assert torch.equal(torch.rand(3, device="tiny"), first)
        assert len(states) == torch.tiny.device_count()

    def test_seed(self) -> None:
        torch.manual_seed(3)
        assert torch.tiny.initial_seed() == 3
        torch.tiny.seed()
        assert torch.tiny.initial_seed() != 3
