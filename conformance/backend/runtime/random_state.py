"""Source of a device's random numbers: torch's default CPU generator, or a separate state of the device.

Defines `drawing`, which surrounds every random operator of a device, and the functions that set seeds and states. A
device without a separate seed uses the CPU's generator. A whole run then has the same numbers as a run on the CPU,
independent of the tensors' devices. A device with a separate seed or state has another CPU generator, which operators
use in place of the default one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .torch_compat import Generator, default_generator

_OWN: dict[int, Generator] = {}  # by the device's index; a device that is not here shares the CPU's
_LENDING = threading.RLock()
_MARK = "_of_a_tiny_device"
"""Attribute of a state from a device's own generator; when it is set again, the device keeps its own generator."""


@contextlib.contextmanager
def drawing(
    op: Any, index: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[Sequence[Any], dict[str, Any]]]:
    """The arguments for a run of the operator on the CPU, with the device's own generator added.

    Nothing is added if the device has none or the call names one. If the operator takes no generator, torch's default
    CPU generator has the device's state during the call. No other thread should draw from it meanwhile.
    """
    own = _OWN.get(index)
    if own is None or torch.Tag.nondeterministic_seeded not in op.tags:
        yield args, kwargs
        return
    place = _generator_of(op)
    if place is None:
        with _lent(own):
            yield args, kwargs
    elif place < len(args):
        yield (args if args[place] is not None else (*args[:place], own, *args[place + 1 :])), kwargs
    else:
        yield args, kwargs if kwargs.get("generator") is not None else {**kwargs, "generator": own}


@functools.cache
def _generator_of(op: Any) -> int | None:
    """The place of the generator argument; None if there is none."""
    names = [argument.name for argument in op._schema.arguments]
    return names.index("generator") if "generator" in names else None


@contextlib.contextmanager
def _lent(own: Generator) -> Iterator[None]:
    with _LENDING:
        before = default_generator.get_state()
        default_generator.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(default_generator.get_state())
            default_generator.set_state(before)


def generator(index: int) -> Generator:
    """The current generator of the device."""
    return _OWN.get(index, default_generator)


def own_generator(index: int) -> Generator:
    """The device's own generator; a new one starts at the device's current state."""
    if index not in _OWN:
        _OWN[index] = default_generator.clone_state()
    return _OWN[index]


def get_state(index: int) -> torch.Tensor:
    """The current state of the device's generator, as a CPU tensor of bytes."""
    state: torch.Tensor = generator(index).get_state()
    setattr(state, _MARK, index in _OWN)
    return state


def set_state(index: int, state: torch.Tensor) -> None:
    """Set the state of the device's generator.

    The device shares the CPU's generator again if `state` equals that generator's current state, unless `state` came
    from a separate generator. Code that restores both states, the CPU's first (`torch.random.fork_rng`, checkpointing),
    therefore also restores the sharing.
    """
    if not getattr(state, _MARK, False) and torch.equal(state, default_generator.get_state()):
        _OWN.pop(index, None)
    else:
        own_generator(index).set_state(state)


def share() -> None:
    """Make all devices use torch's default CPU generator."""
    _OWN.clear()


def rewinder() -> Callable[[], None]:
    """A function that resets all generators of the devices to their current state."""
    states = [(each, each.get_state()) for each in (default_generator, *_OWN.values())]

    def rewind() -> None:
        for each, state in states:
            each.set_state(state)

    return rewind
