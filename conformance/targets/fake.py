"""FakeTensorMode: the kernel metadata that compilers rely on, on the CPU, without values to compare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from conformance.declare.declaration import unsupported
from conformance.engine.target import Target, TargetFacts
from conformance.standalone import torch_compat
from conformance.standalone.conditions import fake_copies, stand_ins
from conformance.targets.meta import NEEDS_NO_VALUES, NEEDS_VALUES


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
        """Return fake tensors on fake storages."""
        return fake_copies(self.mode, tree)

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
