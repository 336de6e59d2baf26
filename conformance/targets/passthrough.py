"""torch CPU behind a mode or a subclass of Tensor that passes each call on: a device in Python without a bug.

What differs here from torch CPU is PyTorch's own. `matrix_rank(out=)`, for one, does not fill its result if a dispatch
mode is active, and `out=` does not give a wrapper another shape. So a finding of a device in Python that also shows
here in the same way is not the device's.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.record.errors import TargetError
from conformance.standalone.moving import map_tensors
from conformance.standalone.torch_compat import TorchDispatchMode, tree_map, wrapper_of
from conformance.targets.device import SUBCLASS, DeviceTarget

LACKS = ("storages", "set_", "data_ptr", "strides", "version")
"""The features that tensors without memory of their own lack."""


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class PassThroughTarget(DeviceTarget):
    """torch CPU under `PassThrough`. The oracle `version` is excluded: torch counts a write above the mode, and again
    below it."""

    name = "passthrough"
    facts = replace(DeviceTarget.facts.without(("version",)), probed=False)

    def __new__(cls, argument: str = "") -> PassThroughTarget:
        """Return the target of the form that the argument names."""
        return super().__new__(SubclassTarget if argument == SUBCLASS and cls is PassThroughTarget else cls)

    def __init__(self, argument: str = "") -> None:
        if argument not in ("", SUBCLASS):
            problem = f"target 'passthrough:{argument}' is not understood"
            raise TargetError(f"{problem}: write passthrough or passthrough:{SUBCLASS}")
        super().__init__("cpu")

    def _load(self) -> None:
        PassThrough().__enter__()
        self.device = torch.device("cpu")

    def script(self) -> str:
        """Return the mode's class, and the code that enters it."""
        lines = [
            "from typing import Any",
            "from torch.utils._python_dispatch import TorchDispatchMode",
            inspect.getsource(PassThrough).rstrip(),
            "PassThrough().__enter__()",
            "DEVICE = 'cpu'",
        ]
        return "\n".join(lines)


class Wrapper(torch.Tensor):
    """A tensor without memory of its own around one of torch CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        wrapper: Wrapper = wrapper_of(cls, inner)
        wrapper.raw = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = tree_map(unwrapped, (args, kwargs or {}))
        return tree_map(lambda leaf: Wrapper(leaf) if isinstance(leaf, torch.Tensor) else leaf, func(*args, **kwargs))


def unwrapped(value: Any) -> Any:
    """Return the tensor inside a wrapper, and any other value unchanged."""
    return value.raw if isinstance(value, Wrapper) else value


class SubclassTarget(PassThroughTarget):
    """torch CPU behind `Wrapper`. Its tensors have no storages."""

    facts = replace(PassThroughTarget.facts.without(LACKS), probed=False)

    def _load(self) -> None:
        self.device = torch.device("cpu")

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy dense 1-d tensors, each into the memory of a wrapper."""
        return [Wrapper(flat.clone()) for flat in flats]

    def fetch(self, tree: Any) -> Any:
        """Return the tree with a copy of the tensor inside each wrapper."""
        return map_tensors(tree, lambda tensor: unwrapped(tensor.detach()).clone())

    def script(self) -> str:
        """Return the lines that name the device; a script of its own findings is not written."""
        return "DEVICE = 'cpu'"
