"""`torch.Generator(device="tiny")`, and the random state of calls without a generator.

Defines `Generator`, `install`, and the functions of `torch.tiny` about seeds and states.

torch makes a device's generators only in C++, but tiny draws its numbers with torch's CPU generator anyway. A generator
of tiny is a CPU generator that reports tiny as its device, and every random function accepts it.
runtime/random_state.py has the state for calls without a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..runtime import random_state, torch_compat
from .devices import current_device, device_count, index_of
from .replacements import replace_at_import

_Native: Any = torch_compat.Generator


class Generator(_Native):  # type: ignore[misc]
    """A source of random numbers for one tiny device: the CPU's numbers for the same seed."""

    def __new__(cls, device: Any = "tiny") -> Generator:
        result: Generator = _Native.__new__(cls, device="cpu")
        result._index = index_of(device)
        return result

    @property
    def device(self) -> torch.device:
        """The device of the generator."""
        return torch.device("tiny", self._index)

    def clone_state(self) -> Generator:
        """A second generator that continues from the same state."""
        result = Generator(self.device)
        result.set_state(self.get_state())
        return result

    def __reduce__(self) -> Any:
        return _restored, (str(self.device), self.get_state())


def _restored(device: str, state: torch.Tensor) -> Generator:
    result = Generator(device)
    result.set_state(state)
    return result


def install() -> None:
    """Make `torch.Generator(device="tiny")` return tiny's class.

    The type itself is implemented in C and stays. Its metaclass's `__call__` is replaced in Python.
    """

    def serving(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if cls is _Native and (args or kwargs):
                device = args[0] if args else kwargs.get("device")
                if isinstance(device, (str, torch.device)) and torch.device(device).type == "tiny":
                    return Generator(device)
            return original(cls, *args, **kwargs)

        return call

    replace_at_import(torch_compat.GENERATOR_CALL, serving)


def manual_seed(seed: int) -> None:
    """Seed the current device, which has a separate state from then on."""
    random_state.own_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed torch's default CPU generator, and make all devices use it again; torch.manual_seed calls this."""
    random_state.share()
    torch_compat.default_generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device with an unpredictable number; it has a separate state from then on."""
    random_state.own_generator(current_device()).seed()


def seed_all() -> None:
    """Seed torch's default CPU generator with an unpredictable number, and make all devices use it again."""
    random_state.share()
    torch_compat.default_generator.seed()


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return int(random_state.generator(current_device()).initial_seed())


def get_rng_state(device: Any = "tiny") -> torch.Tensor:
    """The state of the device's generator, as a CPU tensor of bytes."""
    return random_state.get_state(index_of(device))


def set_rng_state(new_state: torch.Tensor, device: Any = "tiny") -> None:
    """Set the state of this device only.

    If the state equals that of torch's default CPU generator, the device uses that generator again, unless the state
    came from a device with a separate state. Raises RuntimeError for a tensor that is no state of a generator.
    """
    random_state.set_state(index_of(device), new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of each device."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the state of each device, in their order."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


PUBLIC = (
    manual_seed, manual_seed_all, seed, seed_all, initial_seed, get_rng_state, set_rng_state, get_rng_state_all,
    set_rng_state_all,
)  # fmt: skip
