"""Conditions of a call: how its inputs are made, what is active meanwhile, and how its answers are read.

For example, `Guarded` places the inputs between protected pages, `rounding.Widened` makes them float64, and `OnDevice`
sends them to a device. The checks of an operator compare calls under different conditions (`operator_checks`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from conformance.standalone.device import Device
from conformance.standalone.guarded_memory import (
    KNOWN,
    NO_ACCESS,
    Fence,
    Filled,
    Fresh,
    changed_outside,
    fenced,
    padded,
    trespassed,
)
from conformance.standalone.moving import map_leaves, map_tensors, storage_key, tensors


class Conditions:
    """A plain call. Subclasses override the methods that differ."""

    reader: Any = None
    """Reads the answers, as `observe` does with a target; None for tensors on the CPU."""

    shows_values = True
    """Whether results are tensors with values."""

    def on(self, device: Device) -> Conditions:
        """Return the same conditions on a device."""
        return OnDevice(device)

    def send(self, tree: Any) -> Any:
        """Return the inputs of the call, given inputs that were made anew."""
        return tree

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call."""
        yield


class OnDevice(Conditions):
    """Inputs on a device, for whose answer the call waits. With `sent`, the inputs are there already."""

    def __init__(self, device: Device, sent: bool = False) -> None:
        self.device, self.reader, self.sent = device, device, sent

    def on(self, device: Device) -> Conditions:
        """Return these conditions."""
        return self

    def send(self, tree: Any) -> Any:
        """Return the inputs on the device."""
        return tree if self.sent else self.device.send(tree)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call, which waits for the device at its end."""
        with self.device.active():
            yield
        self.device.synchronize()


class Guarded(Conditions):
    """Fences around the memory of inputs and of new tensors (`guarded_memory`). `gaps` is the byte in the gaps of an
    input, and `fresh` the byte that fills new memory."""

    def __init__(self, at_end: bool = True, protection: int = NO_ACCESS, gaps: int = KNOWN, fresh: int = KNOWN) -> None:
        self.at_end, self.protection, self.gaps, self.fresh = at_end, protection, gaps, fresh
        self.fences: list[Fence] = []

    def send(self, tree: Any) -> Any:
        """Return the tree with its tensors on fenced storages; a tensor that occurs twice stays one object."""
        originals = {id(tensor): tensor for tensor in tensors(tree)}
        copies, self.fences = fenced([*originals.values()], self.at_end, self.protection, self.gaps)
        placed = dict(zip(originals, copies))
        return map_leaves(tree, lambda leaf: placed.get(id(leaf), leaf))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call, in which new tensors get fenced storages."""
        with Fresh(self.fresh, self.at_end, self.protection) as mode:
            yield
        self.fences += mode.fences

    def trespassed(self) -> str:
        """Return where the last call wrote outside of its tensors; "" if nowhere."""
        return trespassed(self.fences)

    @property
    def has_gaps(self) -> bool:
        """Whether bytes between those of the inputs belong to no input."""
        return any(fence.gaps.numel() for fence in self.fences)

    def on(self, device: Device) -> Padded:
        """Return the same conditions on a device, whose memory has no protected pages."""
        return Padded(device, self.gaps, self.fresh)


class Padded(OnDevice):
    """Known bytes around the memory of inputs on a device, and in new memory (`guarded_memory`): `gaps` around an input
    and in its gaps, `fresh` in new memory."""

    has_gaps = True

    def __init__(self, device: Device, gaps: int, fresh: int) -> None:
        super().__init__(device)
        self.gaps, self.fresh = gaps, fresh
        self.given: Any = None
        self.made: list[torch.Tensor] = []

    def send(self, tree: Any) -> Any:
        """Return the inputs on the device; a tensor that occurs twice stays one object."""
        originals = {id(tensor): tensor for tensor in tensors(tree)}
        placed = dict(zip(originals, padded([*originals.values()], self.gaps)))
        self.given = super().send(map_leaves(tree, lambda leaf: placed.get(id(leaf), leaf)))
        return self.given

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call, in which new tensors are filled."""
        pads = "as_strided" not in self.device.missing
        with Filled(self.fresh, self.device.device.type, pads) as mode, super().active():
            yield
        self.made = mode.made

    def trespassed(self) -> str:
        """Return where the last call wrote outside of its tensors; "" if nowhere."""
        given, made = self.device.fetch((tensors(self.given), self.made))
        return changed_outside(given, self.gaps) or changed_outside(made, self.fresh)


class Faked(Conditions):
    """Fake tensors of this mode, which have no values."""

    shows_values = False

    def __init__(self, mode: Any) -> None:
        self.mode, self.reader = mode, self

    def on(self, device: Device) -> Conditions:
        """Return these conditions: a fake kernel runs on no device."""
        return self

    def send(self, tree: Any) -> Any:
        """Return fake tensors on fake storages."""
        return fake_copies(self.mode, tree)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call, in the mode."""
        with self.mode:
            yield

    def fetch(self, tree: Any) -> Any:
        """Return stand-ins filled with zeros."""
        return stand_ins(tree)

    def key(self, tensor: torch.Tensor) -> int:
        """Return a key that is equal for tensors that share a storage."""
        return storage_key(tensor)


def fake_copies(mode: Any, tree: Any) -> Any:
    """Return the tree with fake tensors on fake storages: same geometry, same aliasing, same `requires_grad`.

    The mode's cache of calls is cleared first, since a cached answer can differ (see docs/findings.md). An answer must
    not follow from earlier calls.
    """
    type(mode).cache_clear()
    flats: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.untyped_storage().nbytes()
        with mode, torch.no_grad():
            flat = flats.setdefault(storage_key(tensor), torch.empty(size, dtype=torch.uint8))
            meta = torch.empty(0, dtype=tensor.dtype)
            meta.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        return meta.requires_grad_(tensor.requires_grad)

    return map_tensors(tree, fake)


def stand_ins(tree: Any) -> Any:
    """Replace each tensor of the tree by zeros on the CPU with the same geometry and the same sharing of storages.

    Raises RuntimeError for a tensor that reaches past the end of its storage.
    """
    flats: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        flat = flats.setdefault(storage_key(tensor), torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8))
        meta = torch.empty(0, dtype=tensor.dtype)
        return meta.set_(flat.untyped_storage(), int(tensor.storage_offset()), tensor.size(), tensor.stride())

    with torch.no_grad():
        return map_tensors(tree, stand_in)
