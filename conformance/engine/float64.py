"""Torch CPU in float64 and complex128, as a target: the reference for arbitration by float64.

Defines `Float64Reference`, `Swayed` and `CannotWiden`. These targets widen storages, not tensors. So they keep
aliasing, and run a call or a program unchanged. This module does not depend on the kind of subject.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from conformance.engine.arbitration import widened
from conformance.engine.target import Target
from conformance.standalone.moving import rebuild
from conformance.standalone.torch_compat import TorchDispatchMode


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
    view = torch.empty(0, dtype=flat.dtype)
    return view.set_(flat.untyped_storage(), like.storage_offset(), like.size(), like.stride())


class Swayed(Float64Reference):
    """Torch CPU in float64, with each input and each rounded result moved by at most `units` in the last place of
    `narrow`; negative `units` move the other way.

    The moves are random. The spread of some runs is the error that rounding in `narrow` explains: it is large where
    terms cancel and small where none do. A result that `narrow` represents is not rounded, so it stays."""

    name = "swayed"

    def __init__(self, narrow: torch.dtype, seed: int, units: float) -> None:
        super().__init__()
        self.narrow, self.units, self.drawn = narrow, units, torch.Generator().manual_seed(seed)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the widened storages, moved."""
        return [self.moved(flat) if flat.is_floating_point() else flat for flat in super().upload(flats)]

    def moved(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor in float64 with each element moved."""
        moves = 2 * torch.rand(value.shape, dtype=value.dtype, generator=self.drawn) - 1
        return value + moves * value.abs() * (self.units * torch.finfo(self.narrow).eps)

    def rounded(self, value: Any) -> Any:
        """Return a result with each element moved that `narrow` does not represent."""
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64:
            return value
        exact = (value.to(self.narrow).to(value.dtype) == value) | ~value.isfinite()
        return value.where(exact, self.moved(value))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the call, in which results move."""
        with _Moving(self):
            yield


class _Moving(TorchDispatchMode):
    """Moves the results of operators that compute; views and inputs keep their values."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing Dynamo in the first call, which takes seconds. Nothing compiles in this mode."""
        return False

    def __init__(self, target: Swayed) -> None:
        super().__init__()
        self.target = target

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(result.alias_info is not None and not result.alias_info.is_write for result in returns):
            return result
        if any(result.alias_info is not None for result in returns):
            for output in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(output, torch.Tensor):
                    output.copy_(self.target.rounded(output))
            return result
        if isinstance(result, (tuple, list)):
            return type(result)(map(self.target.rounded, result))
        return self.target.rounded(result)
