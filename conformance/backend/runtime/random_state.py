"""Where a device's random numbers come from: torch's default CPU generator, or a state of the device's own.

Defines `drawing`, which surrounds whatever draws for a device, and what seeds and states are set with. The key insight:
a device that nobody has seeded by itself draws from the CPU's generator, so a whole run has the numbers of a run on the
CPU, whichever tensors are drawn where. One that was given a seed or a state of its own has a CPU generator of its own,
which operators are given for theirs.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .torch_compat import Generator, default_generator

_OWN: dict[int, Generator] = {}  # by the device's index; not there: the CPU's is shared
_LENDING = threading.RLock()
_MARK = "_of_a_tiny_device"
"""Set on a state that was a device's own, which stays its own where it is put back."""


@contextlib.contextmanager
def drawing(
    op: Any, index: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[Sequence[Any], dict[str, Any]]]:
    """The arguments with which the operator, on the CPU, draws for this device: with its own generator, if it has one
    and the call names none. An operator that takes none meets the device's state in torch's default CPU generator, in
    which no other thread should draw meanwhile."""
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
    """The place of the argument that is a generator; None without one."""
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
    """The generator that the device draws from now."""
    return _OWN.get(index, default_generator)


def own_generator(index: int) -> Generator:
    """The device's own generator, made at the state that it draws from now if it has none."""
    if index not in _OWN:
        _OWN[index] = default_generator.clone_state()
    return _OWN[index]


def get_state(index: int) -> torch.Tensor:
    """The state that the device draws from, as a CPU tensor of bytes."""
    state: torch.Tensor = generator(index).get_state()
    setattr(state, _MARK, index in _OWN)
    return state


def set_state(index: int, state: torch.Tensor) -> None:
    """Set the state that the device draws from. One that was no device's own, and is where the CPU's generator is now,
    lets it draw from that again: so what puts both back, the CPU's first (`torch.random.fork_rng`, checkpointing),
    leaves them as they were."""
    if not getattr(state, _MARK, False) and torch.equal(state, default_generator.get_state()):
        _OWN.pop(index, None)
    else:
        own_generator(index).set_state(state)


def share() -> None:
    """Let all devices draw from torch's default CPU generator."""
    _OWN.clear()


def rewinder() -> Callable[[], None]:
    """What sets all that devices draw from back to where it is now."""
    states = [(each, each.get_state()) for each in (default_generator, *_OWN.values())]

    def rewind() -> None:
        for each, state in states:
            each.set_state(state)

    return rewind
