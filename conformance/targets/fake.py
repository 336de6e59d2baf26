"""FakeTensorMode: the kernel metadata that compilers rely on, on the CPU, without values to compare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from conformance.declare.declaration import unsupported
from conformance.engine.target import Target, TargetFacts
from conformance.standalone import torch_compat
from conformance.standalone.moving import map_tensors, storage_key
from conformance.targets.meta import NEEDS_NO_VALUES, NEEDS_VALUES, stand_ins


class FakeTarget(Target):
    name = "fake"
    facts = TargetFacts(
        oracles=NEEDS_NO_VALUES,
        declarations=(
            *NEEDS_VALUES,
            unsupported("a mode is local to its thread: tensors of another thread are not fake", state="thread"),
        ),
        of_pytorch="meta and fake tensors",
    )

    def prepare(self) -> None:
        """Create the one mode for all programs."""
        self.mode = torch_compat.fake_tensor_mode()

    def send(self, tree: Any) -> Any:
        """Return fake tensors on fake storages: same geometry, same aliasing, same `requires_grad`.

        The mode's cache of calls is cleared first, since a cached answer can differ (see docs/findings.md). A program's
        answers must follow from the program, not from earlier ones.
        """
        torch_compat.forget_fake_calls()
        flats: dict[int, torch.Tensor] = {}

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            size = tensor.untyped_storage().nbytes()
            with self.mode, torch.no_grad():
                flat = flats.setdefault(storage_key(tensor), torch.empty(size, dtype=torch.uint8))
                meta = torch.empty(0, dtype=tensor.dtype)
                meta.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
            return meta.requires_grad_(tensor.requires_grad)

        return map_tensors(tree, fake)

    def fetch(self, tree: Any) -> Any:
        """Return stand-ins filled with zeros: same geometry, same aliasing."""
        return stand_ins(tree)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of a step, in the mode."""
        with self.mode:
            yield

    def script(self) -> str:
        """Return the device and the mode."""
        return "from torch._subclasses.fake_tensor import FakeTensorMode\nDEVICE, MODE = 'cpu', FakeTensorMode()"
