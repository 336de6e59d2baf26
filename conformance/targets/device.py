"""Any torch device, `device:NAME[,import=MODULE][,call=FUNCTION][,without=FEATURE+...]`: cuda, mps, xpu, or an
out-of-tree backend that MODULE registers, possibly only when FUNCTION is called.

A probe before a run finds the features of `declare/features.py` that the device lacks. The spec lists them from then
on, so that a saved finding runs again in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import torch

from conformance.engine.registration import features_of, opened, options, register, setup
from conformance.engine.target import Target, TargetFacts
from conformance.record.errors import TargetError
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.standalone.modes import take_modes

FORM = "device:NAME[,import=MODULE][,call=FUNCTION], for example device:cuda or device:mps"

LAZY = ("xla", "lazy")
"""Devices of torch with lazy tensors."""

WITHOUT_DEVICE = "passthrough"
"""Target that differs from torch CPU by what PyTorch itself does wrong for a device in Python."""

SUBCLASS = "subclass"
"""Its argument for the form whose tensors are a subclass, for devices whose tensors are one."""


class DeviceTarget(Target):
    """A torch device, compared by all oracles except kernels and insignificant strides.

    Only the device itself could count its kernels. Strides that do not affect where an element lies are not compared,
    since torch does not promise them (pytorch#77553). Version counters are compared: torch counts writes above the
    device's kernels, and a kernel that counts its own writes counts them twice.
    """

    name = "device"
    facts = TargetFacts(oracles=frozenset(ORACLES) - {"stride"} | {SIGNIFICANT_STRIDE}, probed=True)

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        self.device_name, settings = options("device", argument, ("import", "call", "without"), FORM)
        self.module, self.function = settings.get("import", ""), settings.get("call", "")
        if self.function and not self.module:
            raise TargetError(f"target 'device:{argument}' is not understood: call= needs import=MODULE; write {FORM}")
        self.spec = f"device:{argument}"
        own = (WITHOUT_DEVICE,) if self.module else ()  # a device of torch itself is PyTorch's, as are its findings
        lazy = self.device_name.partition(":")[0] in LAZY
        forms = (*own, f"{WITHOUT_DEVICE}:{SUBCLASS}") if own else ()
        self.facts = replace(self.facts, lazy=lazy, siblings=own, without_backend=forms)
        if "without" in settings:
            self.facts = replace(self.facts.without(features_of(settings["without"])), probed=False)
        self._entered: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def prepare(self) -> None:
        """Import the backend's module, if any, and create one tensor on the device to check that it exists. Raises
        TargetError.
        """
        self._entered = take_modes(self._load)

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the modes that loading the device has pushed."""
        return self._entered()

    def _load(self) -> None:
        register(self.module, self.function, f"device {self.device_name!r}")
        self.device = opened(self.device_name, self.module, self.function, f"device:{self.device_name}")

    def is_like(self, spec: str) -> bool:
        """See `Target.is_like`: a device whose tensors are a subclass has the bugs of PyTorch for subclasses, too."""
        if spec != f"{WITHOUT_DEVICE}:{SUBCLASS}":
            return True
        with self.entered():
            return type(self.upload([torch.zeros(1)])[0]) is not torch.Tensor

    def script(self) -> str:
        """Return the code that registers the device, if any, and its name."""
        return (
            setup(self.module, self.function, self.facts.profile.environment if self.facts.profile else {})
            + f"DEVICE = {self.device_name!r}"
        )
