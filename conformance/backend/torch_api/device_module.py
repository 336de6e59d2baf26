"""Registration of the device `tiny` with torch, and `torch.tiny`.

Defines `register`, which uses torch's own Python-backend registration. This module adds the device module, with the
functions of its neighbours: devices, memory, streams and events, random numbers. `replacements.py` lists the functions
of torch that they replace.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ..lazy.dtypes import COMPUTED, PAIRS
from ..runtime import first_use, torch_compat
from . import (
    amp,
    default_compiler,
    device_memory,
    devices,
    distributed,
    dlpack,
    generators,
    legacy_types,
    nested,
    pending_errors,
    processes,
    profiler,
    storages,
    streams,
    unread_steps,
)
from .replacements import replace_at_import, replace_on_first_use


def _module() -> ModuleType:
    module = ModuleType("torch.tiny", __doc__)
    for room in (devices, device_memory, streams, generators):
        for function in room.PUBLIC:
            setattr(module, function.__name__, function)
    module._initialized = True  # type: ignore[attr-defined] # else torch.utils.checkpoint does not keep random states
    module.default_generators = ()  # type: ignore[attr-defined] # numbers come from torch's default CPU generator
    module.amp = amp.module()  # type: ignore[attr-defined]
    for name, cls in legacy_types.classes().items():
        setattr(module, name, cls)
    module.__getattr__ = default_compiler.inductor_class  # type: ignore[method-assign]
    return module


class _Guard(torch_compat.DeviceGuard):  # type: ignore[misc]
    # an attribute of the class: Python clears an error when it looks further
    type_ = staticmethod(pending_errors.guard_method(torch_compat.DeviceType.PrivateUse1))


class _Hooks(torch_compat.PrivateUse1Hooks):  # type: ignore[misc]
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def register() -> None:
    """Make `tiny` a torch device. Call once, before kernels are installed."""
    torch_compat.set_up_device("tiny", backend_module=_module(), hook=_Hooks(), device_guard=_Guard())
    torch_compat.make_storage_methods("tiny")
    storages.install()
    generators.install()
    streams.install()
    legacy_types.install()
    nested.install()
    pending_errors.install()
    unread_steps.install()
    processes.install()
    distributed.install()
    profiler.install()
    dlpack.install()
    _serve_accelerator()
    replace_on_first_use("torch._tensor_str:_tensor_str", _printing_on_host)
    replace_at_import("torch.nn.modules.module:Module._apply", _keeping_parameters)


def _printing_on_host(original: Callable[..., str]) -> Callable[..., str]:
    """Format tensors on the host: torch uses some thirty operators, and on a copy none of them runs on the device."""

    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return original(self.cpu() if self.device.type == "tiny" else self, indent)

    return tensor_str


_Places = list[tuple[torch.nn.Module, str]]


class _Move:
    """Conversion of a module's parameters that is in progress, with the parameters that are more than their values."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = root
        self.kept: list[tuple[torch.nn.Parameter, str, _Places]] = []

    def find_kept(self) -> None:
        """Keep these parameters; before any is converted."""
        self.kept = _kept_parameters(self.root)

    def complete(self) -> None:
        """Give the new parameter the class, attributes and places of the old one, if `tiny` is a device of the two."""
        for before, device, ((first, name), *others) in self.kept:
            after = first._parameters[name]
            if after is not before and after is not None and "tiny" in (device, after.device.type):
                with contextlib.suppress(TypeError):  # a class with slots
                    after.__class__ = type(before)
                vars(after).update(vars(before))
                for module, other in others:
                    module._parameters[other] = after


_moves: dict[int, _Move] = {}  # by thread


def _find_kept() -> None:
    """Look for such parameters in all conversions: one of them has just made the first storage on the device."""
    for move in list(_moves.values()):
        move.find_kept()


def _keeping_parameters(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Keep parameters shared, and their classes and attributes, when a module moves to or from the device.

    torch makes a new parameter for each place of use. Shared parameters (a language model's embedding and its last
    layer) would become separate and train independently, without an error. Here all places of one parameter get the
    same new one. An uninitialized parameter of a lazy module stays one, and an attribute such as `_no_weight_decay`
    stays. Moves between other devices stay torch's, and cost as much until the device is used.
    """
    first_use.on_first_use(_find_kept)

    @functools.wraps(original)
    def apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        thread = threading.get_ident()
        if thread in _moves or not recurse:
            return original(self, fn, recurse)
        move = _moves[thread] = _Move(self)
        try:
            if first_use.happened():
                move.find_kept()
            return original(self, fn, recurse)
        finally:
            del _moves[thread]
            move.complete()  # after an error too, of the parameters that have moved

    return apply


def _kept_parameters(root: torch.nn.Module) -> list[tuple[torch.nn.Parameter, str, _Places]]:
    """Each parameter with several places in the modules, an attribute or a class of its own, with its device type and
    places.
    """
    places: dict[int, tuple[torch.nn.Parameter, str, _Places]] = {}
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                known = places.get(id(parameter))
                if known is None:
                    places[id(parameter)] = parameter, parameter.device.type, [(module, name)]
                else:
                    known[2].append((module, name))
    return [
        (parameter, device, at)
        for parameter, device, at in places.values()
        if len(at) > 1 or vars(parameter) or type(parameter) is not torch.nn.Parameter
    ]


def _serve_accelerator() -> None:
    """Replace functions below `torch.accelerator` that C++ cannot answer for a Python device, such as its index."""
    functions: dict[str, Callable[..., Any]] = {
        "getDeviceIndex": devices.current_device, "setDeviceIndex": devices.exchange_device,
        "exchangeDevice": devices.exchange_device, "maybeExchangeDevice": devices.exchange_device,
        "getDeviceCapability": _capability, "getStream": streams.current_stream,
        "synchronizeDevice": streams.synchronize, **device_memory.ACCELERATOR,
    }  # fmt: skip
    for name in torch_compat.ACCELERATOR_FUNCTIONS:
        replace_at_import(f"torch._C:_accelerator_{name}", functools.partial(_instead, functions[name]))


def _instead(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _capability(device: Any = None, /) -> dict[str, Any]:
    """The dtypes that tensors on tiny may have and convert to."""
    devices.index_of(device)
    float8 = {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz}
    return {"supported_dtypes": {*COMPUTED, *PAIRS, *float8}}
