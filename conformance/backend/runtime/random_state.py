"""Where a device's random numbers come from: torch's default CPU generator, or a state of the device's own.

Defines `drawing`, which surrounds whatever draws for a device, and what seeds and states are set with. The key insight:
a device that nobody has seeded by itself draws from the CPU's generator, so a whole run has the numbers of a run on the
CPU, whichever tensors are drawn where. One that was given a seed or a state of its own lends that state to the CPU's
generator for as long as it draws, since the CPU is what draws.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from .torch_compat import Generator, default_generator

_OWN: dict[int, Generator] = {}  # by the device's index; not there: the CPU's is shared
_LOCK = threading.RLock()


@contextlib.contextmanager
def drawing(index: int) -> Iterator[None]:
    """Let torch's default CPU generator be at the state of this device, and the device's go on as that does."""
    own = _OWN.get(index)
    if own is None:
        yield
        return
    with _LOCK:
        lent = default_generator.get_state()
        default_generator.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(default_generator.get_state())
            default_generator.set_state(lent)


def generator(index: int) -> Generator:
    """The generator that the device draws from now."""
    return _OWN.get(index, default_generator)


def own_generator(index: int) -> Generator:
    """The device's own generator, made at the state that it draws from now if it has none."""
    if index not in _OWN:
        _OWN[index] = default_generator.clone_state()
    return _OWN[index]


def set_state(index: int, state: torch.Tensor) -> None:
    """Set the state that the device draws from. At the very state of the CPU's generator it draws from that again: so
    what puts both back (`torch.random.fork_rng`, checkpointing) leaves them as they were."""
    if torch.equal(state, default_generator.get_state()):
        _OWN.pop(index, None)
    else:
        own_generator(index).set_state(state)


def share() -> None:
    """Let all devices draw from torch's default CPU generator."""
    _OWN.clear()
