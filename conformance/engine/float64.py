"""Torch CPU in float64 and complex128, as a target: the reference for arbitration by float64.

Defines `Float64Reference` and `CannotWiden`. This target widens storages, not tensors, so it keeps aliasing, and runs
a call or a program unchanged. This module does not depend on the kind of subject.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.engine.arbitration import widened
from conformance.engine.target import Target
from conformance.standalone.moving import rebuild


class CannotWiden(TypeError):
    """The inputs have no values in float64: two dtypes share a storage, or a view is a lazy conjugate."""


class Float64Reference(Target):
    """Torch CPU on inputs with widened floating and complex storages; layout and aliasing are unchanged. Raises
    CannotWiden for inputs that it cannot widen."""

    name = "wide"

    def send(self, tree: Any) -> Any:
        return rebuild(tree, self.upload, _view_of)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [flat.to(widened(flat.dtype), copy=True) for flat in flats]


def _view_of(flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
    if flat.dtype != widened(like.dtype) or like.is_conj() or like.is_neg():
        raise CannotWiden("two dtypes in one storage cannot be widened together")
    made = torch.empty(0, dtype=flat.dtype)
    return made.set_(flat.untyped_storage(), like.storage_offset(), like.size(), like.stride())
