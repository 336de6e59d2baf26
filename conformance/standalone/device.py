"""A device: tensors sent to it and fetched from it with their layout and aliasing, and waiting for its calls.

    device = NamedDevice("cuda")
    x = device.send({"x": torch.ones(2, 3).t()})  # on the device, with the same strides
    device.synchronize()
    device.fetch(x)  # on the CPU, one copy per storage

`engine.target.Target` is a `Device` with facts. The script of a finding carries this module.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Sequence
from typing import Any

import torch

from conformance.standalone.input_layout import lay_out
from conformance.standalone.moving import copied_to_host, map_tensors, rebuild, storage_key, whole_storage

ZERO = torch.zeros(1)
"""A number on the CPU, made before the modes of any device."""


class Device:
    """A device of torch. Subclasses override what differs."""

    device: torch.device = torch.device("cpu")

    @property
    def missing(self) -> Collection[str]:
        """Names of the features (`declare/features.py`) that the device does not have."""
        return ()

    @property
    def reads_storages(self) -> bool:
        """Whether a whole storage can be read, with the bytes outside all views."""
        return "storages" not in self.missing and not {"set_", "as_strided"} <= {*self.missing}

    @property
    def holds_values(self) -> bool:
        """Whether the tensors of the device hold values, and not only metadata."""
        return True

    def send(self, tree: Any) -> Any:
        """Return the tree with every CPU tensor on the device, with the same layout, aliasing and `requires_grad`.
        Raises LayoutUnavailable."""
        return rebuild(tree, self.upload, self.lay_out)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy dense 1-d CPU tensors to the device, each into a new storage."""
        return [flat.clone() if self.device.type == "cpu" else flat.to(self.device) for flat in flats]

    def lay_out(self, flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
        """Return a tensor on the memory of the device tensor `flat` with the geometry of the CPU tensor `like`. `alone`
        says that no other tensor uses that memory."""
        return lay_out(flat, like, self.missing, alone)

    def fetch(self, tree: Any) -> Any:
        """Return the tree on the CPU. Each storage is copied once and whole, all in one call of `download`. If storages
        are not exposed or cannot be read whole, each tensor is copied separately."""
        if not self.reads_storages:
            return map_tensors(tree, lambda tensor: tensor.detach().cpu())
        return rebuild(tree, functools.partial(copy_to_host, self), flatten=self.flatten)

    def download(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy dense 1-d device tensors, which each cover a whole storage, to the CPU. A lazy device computes all of
        them in one schedule."""
        return copied_to_host(flats)

    def flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a 1-d tensor over the whole storage of a device tensor."""
        return whole_storage(tensor, by_set="set_" not in self.missing)

    def key(self, tensor: torch.Tensor) -> int:
        """Return a key that is equal for tensors known to share a storage."""
        return id(tensor) if "storages" in self.missing else storage_key(tensor)

    def synchronize(self) -> None:
        """Wait until the device has run all earlier calls."""
        wait_for(self.device)

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """Return a context around all work on the device, moves and observations included. If loading the device pushes
        modes permanently, activate them here, so that torch CPU does not run under them."""
        return contextlib.nullcontext()

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Return a context around each step of a subject, without the moves: for a mode or a planted fault."""
        return contextlib.nullcontext()


class NamedDevice(Device):
    """The device of this name, for scripts. `missing` are the features that it does not have, and `mode` is a mode
    around each call."""

    def __init__(self, name: str, missing: Collection[str] = (), mode: Any = None) -> None:
        self.device, self._missing, self.mode = torch.device(name), missing, mode

    @property
    def missing(self) -> Collection[str]:
        """See `Device.missing`."""
        return self._missing

    def active(self) -> contextlib.AbstractContextManager[None]:
        """See `Device.active`."""
        return self.mode or contextlib.nullcontext()


def copy_to_host(device: Device, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy dense 1-d tensors to the CPU, those of the device in one call of `download`."""
    own = iter(device.download([flat for flat in flats if flat.device.type == device.device.type]))
    return [next(own) if flat.device.type == device.device.type else copied_to_host([flat])[0] for flat in flats]


@functools.cache
def can_wait_for(device: torch.device) -> bool:
    """Whether torch can wait for the device, which the first call tries."""
    try:
        torch.accelerator.synchronize(device)
    except Exception:  # a device without streams, or no accelerator of torch's
        return False
    return True


def wait_for(device: torch.device) -> None:
    """Wait until the device has run all earlier calls. If torch cannot wait for it, fetch a value. The first call may
    hide the error of an earlier one."""
    if device.type == "cpu":
        return
    if can_wait_for(device):
        torch.accelerator.synchronize(device)
    else:
        torch.zeros(1, device=device).cpu()


def is_lost(device: Device) -> bool:
    """Whether the device cannot hold a number any more. The first attempt may raise the error of an earlier call, so a
    device is lost if two attempts fail. One that holds no values is never lost."""
    if not device.holds_values:
        return False
    for _ in range(2):
        with contextlib.suppress(Exception), device.entered():
            device.upload([ZERO])[0].cpu()
            return False
    return True
