"""The difference between torch before and after code ran: replaced and new attributes, kernels and settings.

Defines `Surface`. It keeps the attributes of each module of torch, and of the classes in it, as they are right after
the module is imported, and compares them later. Run it in a process that has imported only torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import torch
import torch.utils._device  # as the default device does

KEYS = (
    "CPU", "Meta", "AutogradCPU", "AutocastCPU", "ADInplaceOrView", "BackendSelect", "CompositeImplicitAutograd",
    "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "Python", "Functionalize", "SparseCPU",
)  # fmt: skip
"""Dispatch keys of calls that have no tensor on the device."""


def is_torch(name: str) -> bool:
    """Whether a module is one of torch, other than the device's own."""
    return (name == "torch" or name.startswith("torch.")) and not name.startswith("torch.tiny")


class Surface(importlib.abc.MetaPathFinder):
    """The attributes of torch, by "module:name" and "module:Class.name"."""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.classes: set[int] = set()
        for name, module in sorted(sys.modules.items()):
            if is_torch(name) and isinstance(module, ModuleType):
                self.attributes.update(self.of_module(name, module))
        self.attributes.update(self.of_class("multiprocessing.reduction:ForkingPickler", ForkingPickler))
        self.kernels = self.kernels_now()
        self.settings = self.settings_now()
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The spec of a module of torch, whose loader also keeps its attributes."""
        if not is_torch(name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_keep(module: ModuleType) -> None:
                execute(module)
                self.attributes.update(self.of_module(name, module))

            spec.loader.exec_module = execute_and_keep  # type: ignore[method-assign]
        return spec

    def of_module(self, name: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
        """Attributes of a module, and of the classes of torch in it that no other module showed."""
        for key, value in list(vars(module).items()):
            yield f"{name}:{key}", value
            if issubclass(type(value), type) and is_torch(str(value.__module__)):
                yield from self.of_class(f"{value.__module__}:{value.__qualname__}", value)

    def of_class(self, name: str, cls: type) -> Iterator[tuple[str, Any]]:
        """Attributes of a class and its metaclass."""
        if id(cls) not in self.classes:
            self.classes.add(id(cls))
            yield from ((f"{name}.{key}", value) for key, value in list(vars(cls).items()))
            if is_torch(str(type(cls).__module__)):
                yield from self.of_class(f"{type(cls).__module__}:{type(cls).__qualname__}", type(cls))

    @staticmethod
    def kernels_now() -> set[str]:
        """Registered kernels of `KEYS`, such as "aten::add.Tensor CPU"."""
        listed = torch._C._dispatch_get_registrations_for_dispatch_key
        return {f"{name} {key}" for key in KEYS for name in listed(key)}

    @staticmethod
    def settings_now() -> dict[str, Any]:
        """Process-wide settings that code can query."""
        return {
            "default device": torch.get_default_device(),
            "default dtype": torch.get_default_dtype(),
            "multithreaded backward": torch.autograd.is_multithreading_enabled(),
            "threads": torch.get_num_threads(),
            "function modes": len(torch.overrides._get_current_function_mode_stack()),
            "recursion limit": sys.getrecursionlimit(),
            "exception hook": sys.excepthook,
            "random state": torch.get_rng_state().sum().item(),
        }

    def difference(self) -> dict[str, list[str]]:
        """Names of the attributes that were replaced and added, of the new kernels, and of the changed settings.

        Added modules, and attributes of modules that are not imported yet, are no difference.
        """
        now: dict[str, Any] = {}
        self.classes.clear()
        for name, module in sorted(sys.modules.items()):
            if is_torch(name) and isinstance(module, ModuleType):
                now.update(self.of_module(name, module))
        now.update(self.of_class("multiprocessing.reduction:ForkingPickler", ForkingPickler))
        missing = object()
        replaced = [key for key, value in self.attributes.items() if now.get(key, missing) is not value]
        added = [
            key
            for key, value in now.items()
            if key not in self.attributes
            and not isinstance(value, ModuleType)
            and not key.endswith("__warningregistry__")
            and key.rpartition(".")[0] not in replaced  # an attribute of another class
        ]
        settings = self.settings_now()
        return {
            "replaced": sorted(replaced),
            "added": sorted(added),
            "kernels": sorted(self.kernels_now() - self.kernels),
            "lost kernels": sorted(self.kernels - self.kernels_now()),
            "settings": sorted(key for key, value in self.settings.items() if settings[key] != value),
        }
